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

/// One pre-norm decoder layer in the module this rank is in. `scatters` is its RSM flag.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextDecoderLayer; vllm qwen3_next.py.
template <class R>
LayerStream<typename R::Tensor> decoder_layer(R& rank, const Protocol<R>& protocol, bool scatters,
                                              const LayerWeights<typename R::Weight>& w,
                                              const ModelConfig& config, const RankShapes& shapes,
                                              LayerState<typename R::Ops>& state,
                                              const Batch& batch,
                                              LayerStream<typename R::Tensor> stream) {
  using T = typename R::Tensor;
  const double eps = config.rms_norm_eps;
  LayerCall call{batch.num_tokens(), scatters, w.moe.has_value(), stream.residual.has_value()};

  // mixer
  stream.hidden = add_norm(rank, "input_layernorm", stream, w.input_layernorm, eps);
  const T x = protocol.attention_input(rank, call, stream.hidden);  // [T, H] full
  const T mixed =
      w.self_attn ? attention(rank, *w.self_attn, shapes, eps, *state.kv, batch, x)
                  : gated_delta_net(rank, *w.linear_attn, shapes.gdn, eps, *state.gdn, batch, x);
  stream.hidden = protocol.attention_output(rank, call, mixed, *stream.residual);

  // feed-forward
  stream.hidden =
      add_norm(rank, "post_attention_layernorm", stream, w.post_attention_layernorm, eps);
  stream.hidden = protocol.feed_forward(rank, call, w, config, batch, stream.hidden);
  if (rank.taps != nullptr) rank.tap(rank.ops.add(*stream.residual, stream.hidden));
  return stream;
}

}  // namespace tokenview
