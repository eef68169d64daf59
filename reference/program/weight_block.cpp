// SPDX-License-Identifier: Apache-2.0
#include "reference/program/weight_block.hpp"

#include <algorithm>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// `ranges`, or all of [0, extent) where there is none.
std::vector<Range> ranges_of(const std::vector<Range>& ranges, std::int64_t extent) {
  return ranges.empty() ? std::vector<Range>{{0, extent}} : ranges;
}

std::int64_t total_size(const std::vector<Range>& ranges) {
  std::int64_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

/// The stored weight and the block of it, axis by axis.
struct BlockAxes {
  explicit BlockAxes(const WeightBlock& block)
      : stored_out(block.shape[block.per_expert() ? 1 : 0]),
        width(block.shape.size() == 1 ? 1 : block.shape.back()),
        experts(ranges_of(block.experts, block.per_expert() ? block.shape[0] : 1)),
        out(ranges_of(block.out, block.padded_out > 0 ? block.padded_out : stored_out)),
        in(ranges_of(block.in, width)) {}

  std::int64_t stored_out, width;
  std::vector<Range> experts, out, in;
};

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

std::vector<std::int64_t> WeightBlock::part_shape() const {
  const BlockAxes axes(*this);
  std::vector<std::int64_t> left;
  if (per_expert()) left.push_back(total_size(axes.experts));
  left.push_back(total_size(axes.out));
  if (shape.size() > 1) left.push_back(total_size(axes.in));
  return left;
}

void WeightBlock::for_each_run(
    const std::function<void(std::int64_t first, std::int64_t count)>& run) const {
  const BlockAxes axes(*this);
  for (const Range& of_experts : axes.experts)
    for (std::int64_t expert = of_experts.begin; expert < of_experts.end; ++expert)
      for (const Range& rows : axes.out)
        for (std::int64_t row = rows.begin; row < rows.end; ++row)
          for (const Range& columns : axes.in)
            if (row >= axes.stored_out)  // vocabulary padding
              run(-1, columns.size());
            else
              run((expert * axes.stored_out + row) * axes.width + columns.begin, columns.size());
}

HostTensor sliced(const HostTensor& stored, const WeightBlock& block) {
  if (stored.shape != block.shape)
    throw ShapeError(text(block.name, ": shape is ", to_string(stored.shape), ", expected ",
                          to_string(block.shape)));
  HostTensor part{block.part_shape(), {}, stored.dtype};
  part.values.reserve(std::size_t(element_count(part.shape)));
  block.for_each_run([&](std::int64_t first, std::int64_t count) {
    if (first < 0)
      part.values.insert(part.values.end(), std::size_t(count), 0.0f);
    else
      part.values.insert(part.values.end(), stored.values.begin() + first,
                         stored.values.begin() + first + count);
  });
  return part;
}

HostTensor WeightSource::part(const WeightBlock& block) const {
  return sliced(weight(block.name, block.shape), block);
}

}  // namespace tokenview
