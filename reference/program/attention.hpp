// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/rank.hpp"
#include "reference/program/shapes.hpp"
#include "reference/program/weights.hpp"

namespace tokenview {

/// Gated full attention over this rank's heads: x full [T, H] -> [T, H], a partial sum over tp.
/// Appends the rows' keys and values to `cache`.
/// Source: transformers modular_qwen3_next.py, Qwen3NextAttention; vllm qwen3_next.py.
template <class R>
typename R::Tensor attention(R& rank, const AttentionWeights<typename R::Weight>& w,
                             const RankShapes& shapes, double eps, typename R::Ops::KvCache& cache,
                             const Batch& of_step, const typename R::Tensor& x) {
  using T = typename R::Tensor;
  const auto& ops = rank.ops;
  const auto scope = rank.enter("self_attn");
  const Batch& batch = rank.side(of_step);
  ops.require_side(of_step, batch, "attention");

  const T query_and_gate = rank.linear("q_proj", x, w.q_proj);  // [T, heads * 2 * head_dim]
  const T key = rank.linear("k_proj", x, w.k_proj);             // [T, kv_heads * head_dim]
  const T value = rank.linear("v_proj", x, w.v_proj);           // [T, kv_heads * head_dim]
  const auto [query, gate] = ops.split_query_gate(query_and_gate, shapes.attention.head_dim);

  const T q_normed = rank.tap(ops.head_rms_norm(query, w.q_norm, eps), "q_norm");
  const T k_normed = rank.tap(ops.head_rms_norm(key, w.k_norm, eps), "k_norm");
  const T q = ops.rope(q_normed, batch, shapes.rope);
  const T k = ops.rope(k_normed, batch, shapes.rope);

  const T attended =
      rank.named("attended", ops.attention(q, k, value, shapes.attention, cache, batch));
  const T gated = ops.sigmoid_mul(attended, gate);          // [T, heads * head_dim]
  return rank.tap(rank.linear("o_proj", gated, w.o_proj));  // [T, H] partial
}

}  // namespace tokenview
