// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "device/pinned_memory.hpp"

namespace tokenview {

/// The way of host values to the GPU: through a ring of pinned memory, so that the host neither
/// keeps them nor waits for their copy. It waits only when the ring is full, for its oldest part.
class StagingRing {
 public:
  StagingRing();

  /// Queues the copy on `stream`, always the same one; `from` may change at once.
  void copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream);

 private:
  static constexpr std::int64_t part_bytes = 1 << 20;
  static constexpr std::size_t num_parts = 4;

  PinnedMemory memory_;                        // [num_parts, part_bytes]
  std::array<StreamEvent, num_parts> copied_;  // of each part
  std::size_t part_ = 0;
  std::int64_t used_ = 0;  // bytes of the part
};

}  // namespace tokenview
