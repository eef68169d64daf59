// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/error.hpp"
#include "reference/program/protocol.hpp"

namespace tokenview {

/// Protocol D: one static contract for the whole model. Tokens are sharded once at the entry, every
/// layer gathers before its mixer and reduce-scatters after it, every boundary is a shard, the
/// final norm works on the shard, and one gather, of the captured states too, ends the model.
/// Models that mix dense and sparse layers, and pipelines, run protocol A.
/// Source: vllm qwen3_next.py, qwen3_next_mtp.py (PR 50685).
template <class R>
class ProtocolD : public Protocol<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using Protocol<R>::Protocol;

  LayerStream<T> model_entry(R& rank, const T& embedded) const override {
    return {chunk(rank, embedded)};
  }

  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    return gather_and_trim(rank, hidden, call.num_tokens);
  }

  T attention_output(R& rank, const LayerCall&, const T& partial, T&) const override {
    return padded_reduce_scatter(rank, partial);
  }

  T model_exit(R& rank, LayerStream<T> stream, const W& w, double eps, std::int64_t num_tokens,
               std::vector<T>& captured) const override {
    T packed = add_norm(rank, "norm", stream, w, eps);
    const std::int64_t width = rank.ops.extent(packed, Axis::cols);
    for (const T& state : captured) packed = rank.ops.concat_features(packed, state);
    const T full = gather_and_trim(rank, packed, num_tokens);
    if (captured.empty()) return full;
    for (std::size_t i = 0; i < captured.size(); ++i) {
      const auto begin = std::int64_t(i + 1) * width;
      captured[i] = rank.ops.slice(full, Axis::cols, begin, begin + width);
    }
    return rank.ops.slice(full, Axis::cols, 0, width);
  }

  LayerStream<T> mtp_entry(R& rank, const T& joined, const W& fc,
                           std::int64_t num_tokens) const override {
    const T projected = this->project(rank, joined, fc);
    if (rank.ops.extent(projected, Axis::rows) != num_tokens)
      throw ShapeError(text("mtp: the input has ", rank.ops.extent(projected, Axis::rows),
                            " rows, positions have ", num_tokens));
    return {chunk(rank, projected)};
  }

  T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    return gather_and_trim(rank, add_norm(rank, "norm", stream, w, eps), num_tokens);
  }
};

}  // namespace tokenview
