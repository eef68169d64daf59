// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/protocol.hpp"

namespace tokenview {

/// SGLang's scattered layout, a static function of the layer: mixers take full rows, feed-forwards
/// ragged shards (the first T mod p ranks hold one row more, a rank may hold none, there are no
/// pads), and the last layer hands over full rows, its residual added in.
/// Source: sglang layers/communicator.py.
template <class R>
class ProtocolSglang final : public Protocol<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using Protocol<R>::Protocol;

  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = call.stream_sharded;
    return call.on_shard ? rank.tp.all_gather_v(hidden, sizes(rank, call.num_tokens)) : hidden;
  }

  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    if (!call.on_shard) residual = ragged_chunk(rank, residual);
    return rank.tp.reduce_scatter_v(partial, sizes(rank, call.num_tokens));
  }

  T feed_forward(R& rank, const LayerCall&, const LayerWeights<W>& w, const ModelConfig& config,
                 const Batch& batch, const T& x) const override {
    return this->local_feed_forward(rank, w, config, true, batch, x);
  }

  void after_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    stream.sharded = !call.is_last;
    if (!call.is_last) return;
    stream.hidden = rank.tp.all_gather_v(this->sum(rank, stream), sizes(rank, call.num_tokens));
    stream.residual.reset();
  }

  T capture(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) const override {
    const T state = this->sum(rank, stream);
    return stream.sharded ? rank.tp.all_gather_v(state, sizes(rank, num_tokens)) : state;
  }

 private:
  static std::vector<std::int64_t> sizes(R& rank, std::int64_t num_tokens) {
    return ragged_sizes(num_tokens, rank.tp.size());
  }
};

}  // namespace tokenview
