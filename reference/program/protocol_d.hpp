// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/error.hpp"
#include "reference/program/protocol.hpp"

namespace tokenview {

/// Protocol D: one static contract for the whole model. Tokens are sharded once at the entry, every
/// layer gathers before its mixer and reduce-scatters after it, every boundary is a shard, the
/// final norm works on the shard, and one gather ends the model. Models that mix dense and sparse
/// layers, and pipelines, run protocol A. Source: vllm qwen3_next.py, qwen3_next_mtp.py (PR 50685).
template <class R>
class ProtocolD : public Protocol<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using Protocol<R>::Protocol;

  std::string_view name() const override { return "D"; }

  LayerStream<T> model_entry(R& rank, const T& embedded) const override {
    if (!this->plan.scatters_all()) return {embedded, {}};
    return {chunk(rank, embedded), {}};
  }

  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = call.scatters;
    return call.scatters ? gather_and_trim(rank, hidden, call.num_tokens) : hidden;
  }

  T attention_output(R& rank, const LayerCall& call, const T& partial, T&) const override {
    return call.scatters ? padded_reduce_scatter(rank, partial) : rank.tp.all_reduce(partial);
  }

  T model_exit(R& rank, LayerStream<T> stream, const W& norm, double eps,
               std::int64_t num_tokens) const override {
    const T normed = add_norm(rank, "norm", stream, norm, eps);
    return this->plan.scatters_all() ? gather_and_trim(rank, normed, num_tokens) : normed;
  }

  LayerStream<T> mtp_entry(R& rank, const T& projected, std::int64_t num_tokens) const override {
    if (!this->plan.mtp_scatters) return {projected, {}};
    if (rank.ops.extent(projected, Axis::rows) != num_tokens)
      throw ShapeError(text("mtp: the input has ", rank.ops.extent(projected, Axis::rows),
                            " rows, positions have ", num_tokens));
    return {chunk(rank, projected), {}};
  }

  T mtp_exit(R& rank, LayerStream<T> stream, const W& norm, double eps,
             std::int64_t num_tokens) const override {
    const T normed = add_norm(rank, "norm", stream, norm, eps);
    return this->plan.mtp_scatters ? gather_and_trim(rank, normed, num_tokens) : normed;
  }
};

}  // namespace tokenview
