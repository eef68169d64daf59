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

  void before_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    if (!call.scatters) restore(rank, stream, call.num_tokens);
  }

  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = rank.gate("on_shard", call.scatters && call.has_residual &&
                                              is_sharded(rank, hidden, call.num_tokens));
    return call.on_shard ? gather_and_trim(rank, hidden, call.num_tokens) : hidden;
  }

  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    if (!call.scatters) return rank.tp.all_reduce(partial);
    if (rank.gate("chunks_residual", !call.on_shard)) residual = chunk(rank, residual);
    return padded_reduce_scatter(rank, partial);
  }

  /// The Qwen models gather the pair and stay full; the DeepSeek family gathers the sum alone and
  /// stays on the shard. Source: vllm qwen3_next.py, deepseek_v2.py.
  T capture(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) const override {
    const bool gathers = is_sharded(rank, stream.hidden, num_tokens);
    if (gathers && this->plan.captures_alone)
      return gather_and_trim(rank, this->sum(rank, stream), num_tokens);
    if (gathers) gather_pair(rank, stream.hidden, stream.residual, num_tokens);
    return this->sum(rank, stream);
  }

  T model_exit(R& rank, LayerStream<T> stream, const W& w, double eps, std::int64_t num_tokens,
               std::vector<T>&) const override {
    restore(rank, stream, num_tokens);
    return add_norm(rank, "norm", stream, w, eps);
  }

 protected:
  static bool is_sharded(R& rank, const T& hidden, std::int64_t num_tokens) {
    return rank.gate("is_sharded", rank.ops.extent(hidden, Axis::rows) != num_tokens);
  }

  /// Full rows, where the stream is taken for a shard.
  static void restore(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) {
    if (is_sharded(rank, stream.hidden, num_tokens))
      gather_pair(rank, stream.hidden, stream.residual, num_tokens);
  }
};

/// Protocol C: B, and the MTP gathers hidden and residual after its layer, by the layer's flag.
/// Source: vllm qwen3_next_mtp.py, qwen3_5_mtp.py (PR 48429), deepseek_mtp.py (PR 48036).
template <class R>
class ProtocolC final : public ProtocolB<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using ProtocolB<R>::ProtocolB;

  T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    if (rank.gate("mtp_gathers", this->plan.mtp_scatters))
      gather_pair(rank, stream.hidden, stream.residual, num_tokens);
    return add_norm(rank, "norm", stream, w, eps);
  }
};

}  // namespace tokenview
