// SPDX-License-Identifier: Apache-2.0
#include "device/staging_ring.hpp"

#include <algorithm>
#include <cstring>

namespace tokenview {

StagingRing::StagingRing() : memory_(pinned_memory(std::int64_t(num_parts) * part_bytes)) {}

void StagingRing::copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  for (std::int64_t done = 0; done < bytes;) {
    if (used_ == part_bytes) {
      copied_[part_].record(stream);
      part_ = (part_ + 1) % num_parts;
      copied_[part_].wait();
      used_ = 0;
    }
    const std::int64_t count = std::min(bytes - done, part_bytes - used_);
    std::byte* const staged = memory_.get() + std::int64_t(part_) * part_bytes + used_;
    std::memcpy(staged, static_cast<const std::byte*>(from) + done, std::size_t(count));
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, staged, std::size_t(count),
                          cudaMemcpyHostToDevice, stream),
          "copy to the GPU");
    done += count;
    used_ += count;
  }
}

}  // namespace tokenview
