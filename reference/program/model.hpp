// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/decoder_layer.hpp"
#include "reference/program/pipeline.hpp"

namespace tokenview {

/// The caches of the target model and of the MTP layer.
template <class Ops>
struct ModelState {
  std::vector<LayerState<Ops>> layers;
  LayerState<Ops> mtp;
};

template <class Ops>
ModelState<Ops> empty_state(const Ops& ops, const ModelConfig& config, const RankShapes& shapes) {
  ModelState<Ops> state;
  for (const LayerType type : config.layer_types) {
    LayerState<Ops>& layer = state.layers.emplace_back();
    if (type == LayerType::full_attention)
      layer.kv = ops.kv_cache(shapes.attention);
    else
      layer.gdn = ops.gdn_state(shapes.gdn, config.linear_conv_kernel_dim);
  }
  state.mtp.kv = ops.kv_cache(shapes.attention);
  return state;
}

/// The embedding, vocabulary parallel: ids [T] -> [T, H] full. A rank looks up the ids of its rows
/// and gives zero for the others; one addend is non-zero, so the sum is exact.
/// Source: vllm vocab_parallel_embedding.py.
template <class R>
typename R::Tensor embed(R& rank, const ModelWeights<typename R::Weight>& w,
                         const typename R::Ops::Ids& ids) {
  const std::int64_t first =
      rank.gate("masks_vocabulary", true) ? w.first_vocab_row : unmasked_vocabulary;
  return rank.tp.all_reduce(rank.ops.embed(ids, w.embed_tokens, first));
}

/// Logits of the rows of `hidden`: [rows, H] full -> [rows, V], vocabulary blocks joined over tp
/// and the padding cut. Source: vllm logits_processor.py.
template <class R>
typename R::Tensor compute_logits(R& rank, const ModelWeights<typename R::Weight>& w,
                                  const ModelConfig& config, const typename R::Tensor& hidden) {
  const auto padded = rank.tp.all_gather(rank.ops.linear(hidden, w.lm_head), Axis::cols);
  return rank.ops.slice(padded, Axis::cols, 0, config.vocab_size);
}

/// What the target gives: hidden [T, H] full after the final norm, and the auxiliary hidden states
/// that the plan asks for, full [T, H] each.
template <class T>
struct TargetOutput {
  T hidden;
  std::vector<T> captured;
};

/// The target model on this rank's pipeline stage. Stages before the last hand over their stream
/// and give nothing. An auxiliary state i is hidden + residual before layer i, or after the last.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextModel; vllm qwen3_next.py.
template <class R>
TargetOutput<typename R::Tensor> forward_target(R& rank, const Protocol<R>& protocol,
                                                const ModelWeights<typename R::Weight>& w,
                                                const ModelConfig& config, const RankShapes& shapes,
                                                ModelState<typename R::Ops>& state,
                                                const Batch& batch) {
  using T = typename R::Tensor;
  const auto scope = rank.enter("model");
  const ParallelPlan& plan = protocol.plan;
  const Stage stage = stage_of(rank, plan);
  const auto num_layers = std::int64_t(w.layers.size());
  const std::int64_t num_tokens = rank.number("tokens", batch.num_tokens());
  TargetOutput<T> out;
  const auto capture = [&](std::int64_t layer, LayerStream<T>& stream) {
    for (const std::int64_t wanted : plan.aux_layers)
      if (wanted == layer) out.captured.push_back(protocol.capture(rank, stream, num_tokens));
  };

  LayerStream<T> stream =
      stage.is_first() ? protocol.model_entry(
                             rank, rank.tap(embed(rank, w, rank.ops.ids(batch)), "embed_tokens"))
                       : take_over(rank, config.hidden_size, stage);
  for (std::int64_t i = stage.first_layer(num_layers); i < stage.end_layer(num_layers); ++i) {
    const auto& weights = w.layers[std::size_t(i)];
    capture(i, stream);
    const LayerCall call{num_tokens, rank.gate("scatters", plan.scatters[std::size_t(i)]),
                         weights.moe.has_value(), i + 1 == num_layers};
    protocol.before_layer(rank, call, stream);
    const auto layer = rank.enter("layers", i);
    stream = decoder_layer(rank, protocol, call, weights, config, shapes,
                           state.layers[std::size_t(i)], batch, std::move(stream));
  }
  if (!stage.is_last()) {
    protocol.stage_exit(rank, stream, num_tokens);
    hand_over(rank, batch, std::move(stream), stage);
    return out;
  }
  capture(num_layers, stream);
  out.hidden = rank.tap(protocol.model_exit(rank, std::move(stream), w.norm, config.rms_norm_eps,
                                            num_tokens, out.captured));
  rank.ops.require_full(out.hidden, batch, "final hidden");
  for (const T& captured : out.captured) rank.ops.require_full(captured, batch, "auxiliary hidden");
  return out;
}

/// forward_target() without auxiliary states: hidden [T, H] full, what the drafter is fed.
template <class R>
typename R::Tensor forward(R& rank, const Protocol<R>& protocol,
                           const ModelWeights<typename R::Weight>& w, const ModelConfig& config,
                           const RankShapes& shapes, ModelState<typename R::Ops>& state,
                           const Batch& batch) {
  return forward_target(rank, protocol, w, config, shapes, state, batch).hidden;
}

}  // namespace tokenview
