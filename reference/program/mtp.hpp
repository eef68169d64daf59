// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/model.hpp"

namespace tokenview {

/// The multi-token predictor: ids [T] paired with the target's (or its own) hidden [T, H] full ->
/// hidden [T, H] full after `mtp.norm`, which serves the logits and the next draft step.
/// The embedding comes first in the concatenation. `unnormed` gets the sum before the norm, unless
/// it is null. Source: vllm qwen3_next_mtp.py, qwen3_5_mtp.py.
template <class R>
typename R::Tensor mtp_forward(R& rank, const Protocol<R>& protocol,
                               const ModelWeights<typename R::Weight>& w, const ModelConfig& config,
                               const RankShapes& shapes, ModelState<typename R::Ops>& state,
                               const Batch& batch, const typename R::Ops::Ids& ids,
                               const typename R::Tensor& hidden,
                               typename R::Tensor* unnormed = nullptr) {
  using T = typename R::Tensor;
  const MtpWeights<typename R::Weight>& mtp = *w.mtp;
  const double eps = config.rms_norm_eps;
  const auto scope = rank.enter("mtp");
  const std::int64_t num_tokens = rank.number("tokens", batch.num_tokens());

  rank.ops.require_full(hidden, batch, "MTP input");
  rank.ops.require_ids(ids, batch, "MTP ids");
  const T e = rank.rms_norm("pre_fc_norm_embedding", embed(rank, w, ids), mtp.pre_fc_norm_embedding,
                            eps);                                                        // [T, H]
  const T h = rank.rms_norm("pre_fc_norm_hidden", hidden, mtp.pre_fc_norm_hidden, eps);  // [T, H]
  LayerStream<T> stream =
      protocol.mtp_entry(rank, rank.ops.concat_features(e, h), mtp.fc, num_tokens);
  {
    const auto layer = rank.enter("layers", 0);
    const LayerCall call{num_tokens, rank.gate("scatters", protocol.plan.mtp_scatters),
                         mtp.layer.moe.has_value(), true, true};
    stream = decoder_layer(rank, protocol, call, mtp.layer, config, shapes, state.mtp, batch,
                           std::move(stream));
  }
  if (unnormed != nullptr) {
    *unnormed = stream.residual ? rank.ops.add(*stream.residual, stream.hidden) : stream.hidden;
    if (rank.ops.extent(*unnormed, Axis::rows) != num_tokens)
      *unnormed = gather_and_trim(rank, *unnormed, num_tokens);
  }
  const T out = protocol.mtp_exit(rank, std::move(stream), mtp.norm, eps, num_tokens);
  rank.ops.require_full(out, batch, "MTP hidden");
  return out;
}

}  // namespace tokenview
