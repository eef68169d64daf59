// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/check.hpp"

namespace tokenview {

/// Host memory that the GPU copies from by itself, while the host goes on. It must not change until
/// the copy is done.
struct FreePinned {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};
using PinnedMemory = std::unique_ptr<std::byte, FreePinned>;

inline PinnedMemory pinned_memory(std::int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, std::size_t(bytes)), "cudaMallocHost");
  return PinnedMemory(static_cast<std::byte*>(memory));
}

/// A point in a stream that the host can wait for.
class StreamEvent {
 public:
  StreamEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEvent"); }
  ~StreamEvent() { cudaEventDestroy(event_); }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Until the work before the last record() is done; not at all where there was none.
  void wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tokenview
