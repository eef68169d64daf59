// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/config.hpp"
#include "reference/program/rank.hpp"
#include "reference/program/weights.hpp"

namespace tokenview {

/// down(silu(gate(x)) * up(x)) in the module this rank is in: [T, H] -> [T, H], a partial sum over
/// the ranks that share its columns.
template <class R>
typename R::Tensor swiglu(R& rank, const SwigluWeights<typename R::Weight>& w,
                          const typename R::Tensor& x) {
  using T = typename R::Tensor;
  const T gate = rank.linear("gate_proj", x, w.gate_proj);  // [T, F]
  const T up = rank.linear("up_proj", x, w.up_proj);        // [T, F]
  return rank.linear("down_proj", rank.ops.silu_mul(gate, up), w.down_proj);
}

/// The router: the k largest of softmax(logits), equal ones by lower expert index.
/// Source: transformers modular_qwen2_moe.py; vllm topk_softmax_kernels.cu for the order of ties.
template <class R>
typename R::Ops::Routing route(R& rank, const typename R::Weight& gate, const ModelConfig& config,
                               const typename R::Tensor& x) {
  const auto scope = rank.enter("gate");
  const typename R::Tensor logits = rank.tap(rank.ops.linear(x, gate), "logits");  // [T, E]
  typename R::Ops::Routing routing =
      rank.ops.route(logits, config.num_experts_per_tok, config.norm_topk_prob);  // [T, k]
  if (rank.taps != nullptr) rank.taps->routing(rank.module, routing);  // may replace it
  return routing;
}

/// The sparse block on the rows it is given: routed experts of this rank plus the gated shared
/// expert. [T, H] -> [T, H]; a partial sum over the ranks that share the experts.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextSparseMoeBlock; vllm qwen3_next.py.
template <class R>
typename R::Tensor moe_block(R& rank, const MoeWeights<typename R::Weight>& w,
                             const ModelConfig& config, const typename R::Tensor& x) {
  using T = typename R::Tensor;
  const auto& ops = rank.ops;
  const auto routing = route(rank, w.gate, config, x);
  const T routed = rank.tap(
      ops.experts(x, routing, w.experts_gate_up, w.experts_down, w.first_expert), "experts");
  if (!w.shared_expert) return rank.tap(routed);
  const T shared = [&] {
    const auto scope = rank.enter("shared_expert");
    return rank.tap(swiglu(rank, *w.shared_expert, x));
  }();
  const T gate = rank.linear("shared_expert_gate", x, *w.shared_expert_gate);  // [T, 1]
  return rank.tap(ops.add(routed, ops.sigmoid_scale(shared, gate)));
}

/// The feed-forward of a layer, sparse or dense, as the module `mlp`.
template <class R>
typename R::Tensor feed_forward(R& rank, const LayerWeights<typename R::Weight>& w,
                                const ModelConfig& config, const typename R::Tensor& x) {
  const auto scope = rank.enter("mlp");
  return w.moe ? moe_block(rank, *w.moe, config, x) : rank.tap(swiglu(rank, *w.dense, x));
}

}  // namespace tokenview
