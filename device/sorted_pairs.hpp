// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>

#include "device/cuda_context.hpp"
#include "device/kernels.hpp"

namespace tokenview {

/// The (token, choice) pairs of a routing, sorted by expert, with the memory that they lie in.
class SortedPairs {
 public:
  /// Queues the sort of ids [pairs], on the GPU, by the experts first_expert .. first_expert +
  /// count - 1; pairs of other experts have no place.
  SortedPairs(CudaContext& gpu, const std::int64_t* ids, std::int64_t pairs,
              std::int64_t first_expert, std::int64_t count)
      : pair_at_(gpu.allocate<std::int32_t>(pairs)),
        position_of_(gpu.allocate<std::int32_t>(pairs)),
        offsets_(gpu.allocate<std::int32_t>(count + 1)),
        tiles_(gpu.allocate<std::int32_t>(count + 1)),
        order_{pair_at_.get(),
               position_of_.get(),
               offsets_.get(),
               tiles_.get(),
               count,
               pairs,
               kernels::max_expert_tiles(pairs, count)} {
    const std::int64_t bytes = kernels::sort_by_expert_bytes(pairs, count);
    const auto scratch = gpu.allocate<char>(bytes);
    kernels::sort_by_expert(order_, ids, first_expert, scratch.get(), bytes, gpu.stream());
  }

  const kernels::ExpertOrder& order() const { return order_; }

 private:
  std::shared_ptr<std::int32_t> pair_at_, position_of_, offsets_, tiles_;
  kernels::ExpertOrder order_;
};

}  // namespace tokenview
