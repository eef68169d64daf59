// SPDX-License-Identifier: Apache-2.0
// The moves between full rows and token shards over a tensor-parallel group of p ranks. T tokens
// give shards of S = ceil(T / p) rows; rank r holds tokens r S .. r S + S - 1, and ids from T on
// are pads.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "reference/program/rank.hpp"

namespace tokenview {

/// Rows that are missing to a multiple of `size`.
inline std::int64_t padding_to_multiple(std::int64_t rows, std::int64_t size) {
  return (size - rows % size) % size;
}

/// full [T, *] -> this rank's shard [S, *]: zero rows are appended to a multiple of p, then cut.
/// No communication. Source: vllm models/utils.py, sequence_parallel_chunk.
template <class R, class X>
X chunk(R& rank, const X& full) {
  const auto cut = [&rank](const X& x, std::int64_t pads) {
    const X padded = rank.ops.pad_rows(x, pads);
    const std::int64_t shard = rank.ops.extent(padded, Axis::rows) / rank.tp.size();
    return rank.ops.slice(padded, Axis::rows, rank.tp.rank() * shard, (rank.tp.rank() + 1) * shard);
  };
  const std::int64_t pads = padding_to_multiple(rank.ops.extent(full, Axis::rows), rank.tp.size());
  return rank.faults == nullptr ? cut(full, pads) : rank.faults->local("chunk", full, pads, cut);
}

/// The parts joined along rows, in order.
template <class Ops, class X>
X join(const Ops& ops, const std::vector<X>& parts) {
  std::vector<const X*> pointers;
  for (const X& part : parts) pointers.push_back(&part);
  return ops.concat(std::span<const X* const>(pointers), Axis::rows);
}

/// Rows of each rank's ragged shard: the first T mod p ranks hold one more.
/// Source: sglang layers/communicator.py, torch.tensor_split.
inline std::vector<std::int64_t> ragged_sizes(std::int64_t num_tokens, std::int64_t size) {
  std::vector<std::int64_t> sizes(std::size_t(size), num_tokens / size);
  for (std::int64_t r = 0; r < num_tokens % size; ++r) ++sizes[std::size_t(r)];
  return sizes;
}

/// full [T, *] -> this rank's ragged shard, without pads. No communication.
template <class R, class X>
X ragged_chunk(R& rank, const X& full) {
  const std::int64_t rows = rank.ops.extent(full, Axis::rows);
  const std::int64_t p = rank.tp.size(), r = rank.tp.rank();
  const std::int64_t begin = r * (rows / p) + std::min(r, rows % p);
  return rank.ops.slice(full, Axis::rows, begin, begin + rows / p + (r < rows % p ? 1 : 0));
}

/// partial [T, *] -> this rank's shard [S, *] of the sum: zero rows are appended on every rank,
/// always (possibly none), then reduced and scattered. Source: vllm qwen3_next.py (PR 47006).
template <class R>
typename R::Tensor padded_reduce_scatter(R& rank, const typename R::Tensor& partial) {
  const std::int64_t rows = rank.ops.extent(partial, Axis::rows);
  return rank.tp.reduce_scatter(rank.pad_rows(partial, padding_to_multiple(rows, rank.tp.size())),
                                Axis::rows);
}

/// shard [S, *] -> full [T, *]: shards are joined in rank order and the pads cut.
/// Source: vllm qwen3_next.py (PR 47006).
template <class R>
typename R::Tensor gather_and_trim(R& rank, const typename R::Tensor& shard,
                                   std::int64_t num_tokens) {
  return rank.trim(rank.tp.all_gather(shard, Axis::rows), num_tokens);
}

/// Hidden and residual shards -> both full, in one all-gather of their joined width.
/// Source: vllm qwen3_next.py (PR 47006), qwen3_next_mtp.py (PR 48429).
template <class R>
void gather_pair(R& rank, typename R::Tensor& hidden, std::optional<typename R::Tensor>& residual,
                 std::int64_t num_tokens) {
  if (!residual) {
    hidden = gather_and_trim(rank, hidden, num_tokens);
    return;
  }
  const std::int64_t width = rank.ops.extent(hidden, Axis::cols);
  const auto both = gather_and_trim(rank, rank.ops.concat_features(hidden, *residual), num_tokens);
  hidden = rank.ops.slice(both, Axis::cols, 0, width);
  residual = rank.ops.slice(both, Axis::cols, width, 2 * width);
}

}  // namespace tokenview
