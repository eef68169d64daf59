// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// Indices [begin, end) of an axis.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Block `rank` of `size` equal blocks of an axis of `extent`. Throws ConfigError with vLLM's
/// words, "X is not divisible by Y", when they are not equal.
Range block_of(std::int64_t extent, std::int64_t rank, std::int64_t size);

/// The experts of rank `rank` in a group of `size`: the first `num_experts % size` ranks hold one
/// more. Source: vllm expert_map_manager.py, linear placement.
Range expert_block(std::int64_t num_experts, std::int64_t rank, std::int64_t size);

/// The key/value heads of a rank: a block of them, or one shared by tp / num_kv_heads neighbouring
/// ranks where there are fewer heads than ranks. Source: vllm linear.py, QKVParallelLinear.
Range kv_head_block(std::int64_t num_kv_heads, std::int64_t rank, std::int64_t size);

/// Which part of a stored weight one rank holds. A weight is [out], [out, in] (a convolution's
/// [channels, 1, kernel] counts as [channels, kernel]) or, per expert, [experts, out, in].
/// Ranges are joined in the order given; no range means all.
struct WeightBlock {
  std::string name;
  std::vector<std::int64_t> shape;  // as stored, all ranks together
  std::vector<Range> out;
  std::vector<Range> in;
  std::vector<Range> experts;
  std::int64_t padded_out = 0;       // rows that the stored axis is extended to with zeros; 0: none
  std::int64_t part = 0, parts = 1;  // which of how many parts of the split axis this is

  bool per_expert() const { return shape.size() == 3 && shape[1] != 1; }

  /// What is left of `shape`: [out, in] or [experts, out, in], or [out] of a vector.
  std::vector<std::int64_t> part_shape() const;

  /// Calls run(first, count) for the block's elements in their order: `count` elements that follow
  /// each other in the stored weight from number `first` on, within one row; or as many zeros of
  /// padding, where `first` is -1.
  void for_each_run(const std::function<void(std::int64_t first, std::int64_t count)>& run) const;
};

/// The block of `stored`, which has the shape `block.shape`, with the axes that remain.
HostTensor sliced(const HostTensor& stored, const WeightBlock& block);

}  // namespace tokenview
