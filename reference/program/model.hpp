// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/decoder_layer.hpp"

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
  return rank.tp.all_reduce(rank.ops.embed(ids, w.embed_tokens, w.first_vocab_row));
}

/// Logits of the rows of `hidden`: [rows, H] full -> [rows, V], vocabulary blocks joined over tp
/// and the padding cut. Source: vllm logits_processor.py.
template <class R>
typename R::Tensor compute_logits(R& rank, const ModelWeights<typename R::Weight>& w,
                                  const ModelConfig& config, const typename R::Tensor& hidden) {
  const auto padded = rank.tp.all_gather(rank.ops.linear(hidden, w.lm_head), Axis::cols);
  return rank.ops.slice(padded, Axis::cols, 0, config.vocab_size);
}

/// The target model: ids [T] -> hidden [T, H] full, after the final norm. What the drafter is fed.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextModel; vllm qwen3_next.py.
template <class R>
typename R::Tensor forward(R& rank, const Protocol<R>& protocol,
                           const ModelWeights<typename R::Weight>& w, const ModelConfig& config,
                           const RankShapes& shapes, ModelState<typename R::Ops>& state,
                           const Batch& batch) {
  using T = typename R::Tensor;
  const auto scope = rank.enter("model");
  LayerStream<T> stream =
      protocol.model_entry(rank, rank.tap(embed(rank, w, rank.ops.ids(batch)), "embed_tokens"));
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    const bool scatters = protocol.plan.scatters[i];
    protocol.before_layer(
        rank,
        {batch.num_tokens(), scatters, w.layers[i].moe.has_value(), stream.residual.has_value()},
        stream);
    const auto layer = rank.enter("layers", std::int64_t(i));
    stream = decoder_layer(rank, protocol, scatters, w.layers[i], config, shapes, state.layers[i],
                           batch, std::move(stream));
  }
  const T out = rank.tap(protocol.model_exit(rank, std::move(stream), w.norm, config.rms_norm_eps,
                                             batch.num_tokens()));
  rank.ops.require_full(out, batch, "final hidden");
  return out;
}

}  // namespace tokenview
