// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace tokenview {

/// The kernels that check an index and assert.
enum class AssertingKernel : std::int32_t { none, row_gather };

inline const char* to_string(AssertingKernel kernel) {
  return kernel == AssertingKernel::row_gather ? "row_gather_kernel" : "none";
}

/// What the first thread that found an index out of bounds knew. It lies in pinned memory of the
/// host, where it can still be read when the assert has ended the CUDA context.
struct AssertRecord {
  std::int32_t kernel = 0;       // an AssertingKernel; 0: no assert so far
  std::int32_t is_complete = 0;  // 1: all below is written
  std::int64_t rank = 0;         // of the world, as the caller of the kernel gave it
  std::int64_t row = 0;          // of the result
  std::int64_t index = 0;        // -bound <= index < bound was due
  std::int64_t bound = 0;
  std::uint32_t block[3] = {};
  std::uint32_t thread[3] = {};
};

/// Where a kernel is to write its record, and in whose name.
struct AssertNote {
  AssertRecord* record = nullptr;  // as the GPU sees it; null: nowhere
  std::int64_t rank = 0;
};

}  // namespace tokenview
