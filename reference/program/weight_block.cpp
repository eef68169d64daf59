// SPDX-License-Identifier: Apache-2.0
#include "reference/program/weight_block.hpp"

#include <algorithm>
#include <numeric>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// The indices that `ranges` name, in their order; all of [0, extent) where there is no range.
std::vector<std::int64_t> indices(const std::vector<Range>& ranges, std::int64_t extent) {
  std::vector<std::int64_t> named;
  if (ranges.empty()) {
    named.resize(std::size_t(extent));
    std::iota(named.begin(), named.end(), 0);
  }
  for (const Range& range : ranges)
    for (std::int64_t i = range.begin; i < range.end; ++i) named.push_back(i);
  return named;
}

}  // namespace

Range block_of(std::int64_t extent, std::int64_t rank, std::int64_t size) {
  if (extent % size != 0) throw ConfigError(text(extent, " is not divisible by ", size));
  const std::int64_t width = extent / size;
  return {rank * width, (rank + 1) * width};
}

Range expert_block(std::int64_t num_experts, std::int64_t rank, std::int64_t size) {
  const std::int64_t base = num_experts / size;
  const std::int64_t remainder = num_experts % size;
  const std::int64_t begin = rank * base + std::min(rank, remainder);
  return {begin, begin + base + (rank < remainder ? 1 : 0)};
}

Range kv_head_block(std::int64_t num_kv_heads, std::int64_t rank, std::int64_t size) {
  if (size < num_kv_heads) return block_of(num_kv_heads, rank, size);
  if (size % num_kv_heads != 0)
    throw ConfigError(text("tensor parallel size (", size,
                           ") must be divisible by the number of key/value heads (", num_kv_heads,
                           ")"));
  const std::int64_t head = rank / (size / num_kv_heads);
  return {head, head + 1};
}

HostTensor sliced(const HostTensor& stored, const WeightBlock& block) {
  if (stored.shape != block.shape)
    throw ShapeError(text(block.name, ": shape is ", to_string(stored.shape), ", expected ",
                          to_string(block.shape)));
  const bool per_expert = block.per_expert();
  const std::size_t out_axis = per_expert ? 1 : 0;
  const std::int64_t stored_out = stored.shape[out_axis];
  const std::int64_t width = stored.shape.size() == 1 ? 1 : stored.shape.back();
  const auto experts = indices(block.experts, per_expert ? stored.shape[0] : 1);
  const auto rows = indices(block.out, block.padded_out > 0 ? block.padded_out : stored_out);
  const auto cols = indices(block.in, width);

  HostTensor part;
  part.dtype = stored.dtype;
  if (per_expert) part.shape.push_back(std::int64_t(experts.size()));
  part.shape.push_back(std::int64_t(rows.size()));
  if (stored.shape.size() > 1) part.shape.push_back(std::int64_t(cols.size()));
  part.values.reserve(experts.size() * rows.size() * cols.size());
  for (const std::int64_t expert : experts)
    for (const std::int64_t row : rows) {
      if (row >= stored_out) {  // vocabulary padding
        part.values.insert(part.values.end(), cols.size(), 0.0f);
        continue;
      }
      const float* values = stored.values.data() + (expert * stored_out + row) * width;
      for (const std::int64_t col : cols) part.values.push_back(values[col]);
    }
  return part;
}

}  // namespace tokenview
