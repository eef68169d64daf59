// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "reference/program/attention.hpp"
#include "reference/program/feed_forward.hpp"
#include "reference/program/gated_delta_net.hpp"
#include "reference/program/protocol.hpp"

namespace tokenview {

/// The caches of one layer: of its attention, or of its Gated DeltaNet.
template <class Ops>
struct LayerState {
  std::optional<typename Ops::KvCache> kv;
  std::optional<typename Ops::GdnState> gdn;
};

/// The stream where a layer begins or ends: as it is, unless a fault changes it.
template <class R>
void at_boundary(R& rank, const char* name, LayerStream<typename R::Tensor>& stream) {
  if (rank.faults != nullptr) [[unlikely]]
    rank.faults->stream(name, stream.hidden, stream.residual);
}

/// One pre-norm decoder layer in the module this rank is in. `call` says which it is.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextDecoderLayer; vllm qwen3_next.py.
template <class R>
LayerStream<typename R::Tensor> decoder_layer(R& rank, const Protocol<R>& protocol, LayerCall call,
                                              const LayerWeights<typename R::Weight>& w,
                                              const ModelConfig& config, const RankShapes& shapes,
                                              LayerState<typename R::Ops>& state,
                                              const Batch& batch,
                                              LayerStream<typename R::Tensor> stream) {
  using T = typename R::Tensor;
  const double eps = config.rms_norm_eps;
  at_boundary(rank, "layer_input", stream);
  call.has_residual = stream.residual.has_value();
  call.stream_sharded = stream.sharded;

  if (stream.residual) stream.residual = rank.named("residual", std::move(*stream.residual));

  // mixer
  stream.hidden = protocol.norm(rank, "input_layernorm", stream, w.input_layernorm, eps);
  const T x = protocol.attention_input(rank, call, stream.hidden);  // [T, H] full
  T mixed = w.self_attn
                ? attention(rank, *w.self_attn, shapes, eps, *state.kv, batch, x)
                : gated_delta_net(rank, *w.linear_attn, shapes.gdn, eps, *state.gdn, batch, x);
  if (rank.gate("residual_before_sum", false)) mixed = rank.ops.add(mixed, *stream.residual);
  stream.hidden = protocol.attention_output(rank, call, mixed, *stream.residual);

  // feed-forward
  stream.hidden =
      protocol.norm(rank, "post_attention_layernorm", stream, w.post_attention_layernorm, eps);
  stream.hidden = protocol.feed_forward(rank, call, w, config, batch, stream.hidden);
  if (rank.taps != nullptr && protocol.boundary_is_complete())
    rank.tap(rank.ops.add(*stream.residual, stream.hidden));
  protocol.after_layer(rank, call, stream);
  at_boundary(rank, "layer_output", stream);
  return stream;
}

}  // namespace tokenview
