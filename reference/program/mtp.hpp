// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/model.hpp"

namespace tokenview {

/// The multi-token predictor: ids [T] paired with the target's (or its own) hidden [T, H] full ->
/// hidden [T, H] full after `mtp.norm`, which serves the logits and the next draft step.
/// The embedding comes first in the concatenation. Source: vllm qwen3_next_mtp.py, qwen3_5_mtp.py.
template <class R>
typename R::Tensor mtp_forward(R& rank, const Protocol<R>& protocol,
                               const ModelWeights<typename R::Weight>& w, const ModelConfig& config,
                               const RankShapes& shapes, ModelState<typename R::Ops>& state,
                               const Batch& batch, const typename R::Ops::Ids& ids,
                               const typename R::Tensor& hidden) {
  using T = typename R::Tensor;
  const MtpWeights<typename R::Weight>& mtp = *w.mtp;
  const double eps = config.rms_norm_eps;
  const auto scope = rank.enter("mtp");

  rank.ops.require_full(hidden, batch, "MTP input");
  const T e = rank.rms_norm("pre_fc_norm_embedding", embed(rank, w, ids), mtp.pre_fc_norm_embedding,
                            eps);                                                        // [T, H]
  const T h = rank.rms_norm("pre_fc_norm_hidden", hidden, mtp.pre_fc_norm_hidden, eps);  // [T, H]
  const T block = rank.ops.linear(rank.ops.concat_features(e, h), mtp.fc);    // [T, H/tp]
  const T projected = rank.tap(rank.tp.all_gather(block, Axis::cols), "fc");  // [T, H]
  LayerStream<T> stream = protocol.mtp_entry(rank, projected, batch.num_tokens());
  {
    const auto layer = rank.enter("layers", 0);
    stream = decoder_layer(rank, protocol, protocol.plan.mtp_scatters, mtp.layer, config, shapes,
                           state.mtp, batch, std::move(stream));
  }
  const T out = protocol.mtp_exit(rank, std::move(stream), mtp.norm, eps, batch.num_tokens());
  rank.ops.require_full(out, batch, "MTP hidden");
  return out;
}

}  // namespace tokenview
