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

/// residual := residual + hidden; returns its norm as the module `name`. Before the first layer
/// there is no residual yet: it becomes hidden.
template <class R>
typename R::Tensor add_norm(R& rank, const char* name, LayerStream<typename R::Tensor>& stream,
                            const typename R::Weight& w, double eps) {
  if (stream.residual)
    *stream.residual = rank.ops.add(*stream.residual, stream.hidden);
  else
    stream.residual = stream.hidden;
  return rank.rms_norm(name, *stream.residual, w, eps);
}

/// One pre-norm decoder layer in the module this rank is in.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextDecoderLayer; vllm qwen3_next.py.
template <class R>
LayerStream<typename R::Tensor> decoder_layer(R& rank, const Protocol<R>& protocol,
                                              const LayerWeights<typename R::Weight>& w,
                                              const ModelConfig& config, const RankShapes& shapes,
                                              LayerState<typename R::Ops>& state,
                                              const Batch& batch,
                                              LayerStream<typename R::Tensor> stream) {
  using T = typename R::Tensor;
  const double eps = config.rms_norm_eps;

  // mixer
  stream.hidden = add_norm(rank, "input_layernorm", stream, w.input_layernorm, eps);
  const T x = protocol.attention_input(rank, stream.hidden);  // [T, H] full
  const T mixed = w.self_attn
                      ? attention(rank, *w.self_attn, shapes, eps, *state.kv, batch, x)
                      : gated_delta_net(rank, *w.linear_attn, shapes.gdn, eps, *state.gdn, batch, x);
  stream.hidden = protocol.attention_output(rank, mixed, *stream.residual);

  // feed-forward
  stream.hidden = add_norm(rank, "post_attention_layernorm", stream, w.post_attention_layernorm, eps);
  stream.hidden =
      protocol.feed_forward_output(rank, feed_forward(rank, w, config, stream.hidden));
  if (rank.taps != nullptr) rank.tap(rank.ops.add(*stream.residual, stream.hidden));
  return stream;
}

}  // namespace tokenview
