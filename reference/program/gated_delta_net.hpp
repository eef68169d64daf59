// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/rank.hpp"
#include "reference/program/shapes.hpp"
#include "reference/program/weights.hpp"

namespace tokenview {

/// What the projections of a Gated DeltaNet give, in the order of its convolution and its heads.
template <class T>
struct GdnProjections {
  T qkv;   // [T, conv_dim]     q of all key heads, k of all key heads, v of all value heads
  T z;     // [T, value_dim]    output gate
  T b, a;  // [T, value_heads]  write strength and decay, before their activations
};

template <class R>
GdnProjections<typename R::Tensor> gdn_projections(R& rank, const GdnWeights<typename R::Weight>& w,
                                                   const GdnShape& shape,
                                                   const typename R::Tensor& x) {
  if (w.in_proj_qkvz) {  // Qwen3-Next: grouped by key head
    auto [qkv, z] = rank.ops.split_qkvz(rank.linear("in_proj_qkvz", x, *w.in_proj_qkvz), shape);
    auto [b, a] = rank.ops.split_ba(rank.linear("in_proj_ba", x, *w.in_proj_ba), shape);
    return {std::move(qkv), std::move(z), std::move(b), std::move(a)};
  }
  return {rank.linear("in_proj_qkv", x, *w.in_proj_qkv), rank.linear("in_proj_z", x, *w.in_proj_z),
          rank.linear("in_proj_b", x, *w.in_proj_b), rank.linear("in_proj_a", x, *w.in_proj_a)};
}

/// Gated DeltaNet over this rank's heads: x full [T, H] -> [T, H], a partial sum over tp. Reads and
/// updates the convolution rows and the recurrent state of each sequence. Uses no positions.
/// Source: transformers modular_qwen3_next.py, Qwen3NextGatedDeltaNet; vllm
/// qwen_gdn_linear_attn.py.
template <class R>
typename R::Tensor gated_delta_net(R& rank, const GdnWeights<typename R::Weight>& w,
                                   const GdnShape& shape, double eps,
                                   typename R::Ops::GdnState& state, const Batch& of_step,
                                   const typename R::Tensor& x) {
  using T = typename R::Tensor;
  const auto& ops = rank.ops;
  const auto scope = rank.enter("linear_attn");
  const Batch& batch = rank.side(of_step);
  ops.require_side(of_step, batch, "gated_delta_net");

  const GdnProjections<T> in = gdn_projections(rank, w, shape, x);
  const T qkv = ops.causal_conv(in.qkv, w.conv1d, state, batch);           // [T, conv_dim]
  const auto [beta, g] = ops.delta_gates(in.b, in.a, w.A_log, w.dt_bias);  // [T, value_heads]
  const T read = rank.named(
      "attended", ops.gated_delta_rule(qkv, beta, g, shape, state, batch));  // [T, value_dim]
  const T normed = rank.tap(ops.gated_rms_norm(read, in.z, w.norm, eps), "norm");
  return rank.tap(rank.linear("out_proj", normed, w.out_proj));  // [T, H] partial
}

}  // namespace tokenview
