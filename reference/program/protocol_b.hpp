// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/protocol.hpp"

namespace tokenview {

/// Protocol B: the all-reduce before a MoE block is a reduce-scatter, and the stream stays sharded
/// until something needs full rows. Whether a layer's input is a shard is inferred from its row
/// count, which is ambiguous at T = 1: a shard has one row too. The MTP layer is called directly
/// and nobody gathers after it. Source: vllm qwen3_next.py (PR 47006).
template <class R>
class ProtocolB : public Protocol<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using Protocol<R>::Protocol;

  std::string_view name() const override { return "B"; }

  void before_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    if (!call.scatters && is_sharded(rank, stream.hidden, call.num_tokens))
      gather_pair(rank, stream.hidden, stream.residual, call.num_tokens);
  }

  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = call.scatters && call.has_residual && is_sharded(rank, hidden, call.num_tokens);
    return call.on_shard ? gather_and_trim(rank, hidden, call.num_tokens) : hidden;
  }

  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    if (!call.scatters) return rank.tp.all_reduce(partial);
    if (!call.on_shard) residual = chunk(rank, residual);
    return padded_reduce_scatter(rank, partial);
  }

  T model_exit(R& rank, LayerStream<T> stream, const W& norm, double eps,
               std::int64_t num_tokens) const override {
    if (is_sharded(rank, stream.hidden, num_tokens))
      gather_pair(rank, stream.hidden, stream.residual, num_tokens);
    return add_norm(rank, "norm", stream, norm, eps);
  }

 private:
  static bool is_sharded(R& rank, const T& hidden, std::int64_t num_tokens) {
    return rank.ops.extent(hidden, Axis::rows) != num_tokens;
  }
};

/// Protocol C: B, and the MTP gathers hidden and residual after its layer, by the layer's flag.
/// Source: vllm qwen3_next_mtp.py, qwen3_5_mtp.py (PR 48429).
template <class R>
class ProtocolC final : public ProtocolB<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using ProtocolB<R>::ProtocolB;

  std::string_view name() const override { return "C"; }

  T mtp_exit(R& rank, LayerStream<T> stream, const W& norm, double eps,
             std::int64_t num_tokens) const override {
    if (this->plan.mtp_scatters) gather_pair(rank, stream.hidden, stream.residual, num_tokens);
    return add_norm(rank, "norm", stream, norm, eps);
  }
};

}  // namespace tokenview
