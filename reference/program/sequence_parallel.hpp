// SPDX-License-Identifier: Apache-2.0
// The moves between full rows and token shards over a tensor-parallel group of p ranks. T tokens
// give shards of S = ceil(T / p) rows; rank r holds tokens r S .. r S + S - 1, and ids from T on
// are pads.
#pragma once
#include <optional>
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
  const std::int64_t rows = rank.ops.extent(full, Axis::rows);
  const X padded = rank.ops.pad_rows(full, padding_to_multiple(rows, rank.tp.size()));
  const std::int64_t shard = rank.ops.extent(padded, Axis::rows) / rank.tp.size();
  return rank.ops.slice(padded, Axis::rows, rank.tp.rank() * shard, (rank.tp.rank() + 1) * shard);
}

/// partial [T, *] -> this rank's shard [S, *] of the sum: zero rows are appended on every rank,
/// always (possibly none), then reduced and scattered. Source: vllm qwen3_next.py (PR 47006).
template <class R>
typename R::Tensor padded_reduce_scatter(R& rank, const typename R::Tensor& partial) {
  const std::int64_t rows = rank.ops.extent(partial, Axis::rows);
  return rank.tp.reduce_scatter(
      rank.ops.pad_rows(partial, padding_to_multiple(rows, rank.tp.size())), Axis::rows);
}

/// shard [S, *] -> full [T, *]: shards are joined in rank order and the pads cut.
/// Source: vllm qwen3_next.py (PR 47006).
template <class R>
typename R::Tensor gather_and_trim(R& rank, const typename R::Tensor& shard,
                                   std::int64_t num_tokens) {
  return rank.ops.trim(rank.tp.all_gather(shard, Axis::rows), num_tokens);
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
