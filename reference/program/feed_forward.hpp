// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/config.hpp"
#include "reference/program/sequence_parallel.hpp"
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
  if (rank.taps != nullptr) rank.taps->routing(rank.module, routing);             // may replace it
  return routing;
}

/// How a MoE block is laid out.
struct MoeLayout {
  bool sequence_parallel = false;  // works on token shards over tp; the shared expert is whole
  bool already_sharded = false;    // its input is a shard, and so shall be its output
};

/// Rows that each rank of the dispatch group brings. Source: vllm forward_context.py.
inline std::vector<std::int64_t> dispatch_sizes(const Batch& batch, std::int64_t num_tokens,
                                                std::int64_t tp, bool sequence_parallel) {
  std::vector<std::int64_t> tokens = batch.tokens_across_dp;
  if (tokens.empty()) tokens = {num_tokens};
  std::vector<std::int64_t> sizes;
  for (const std::int64_t t : tokens)
    sizes.insert(sizes.end(), std::size_t(sequence_parallel ? tp : 1),
                 sequence_parallel ? (t + tp - 1) / tp : t);
  return sizes;
}

/// The routed experts on this rank's rows. Where tokens are spread over ranks, rows and their
/// routing are gathered over the dispatch group, every rank runs its experts on all of them, and
/// each rank gets the sum of its own rows back: complete under sequence parallelism, else a partial
/// over tp. Source: vllm all2all.py (allgather_reducescatter), moe_runner.py.
template <class R>
typename R::Tensor routed_experts(R& rank, const MoeWeights<typename R::Weight>& w,
                                  const MoeLayout& layout, const Batch& batch,
                                  const typename R::Tensor& x,
                                  const typename R::Ops::Routing& routing) {
  const auto& ops = rank.ops;
  auto& group = layout.sequence_parallel ? rank.ep : rank.dp;
  if (group.size() == 1)
    return ops.experts(x, routing, w.experts_gate_up, w.experts_down, w.first_expert);
  const auto sizes =
      dispatch_sizes(batch, batch.num_tokens(), rank.tp.size(), layout.sequence_parallel);
  const auto rows = group.all_gather_v(x, sizes);
  const auto pairs = group.all_gather_v(routing, sizes);
  return group.reduce_scatter_v(
      ops.experts(rows, pairs, w.experts_gate_up, w.experts_down, w.first_expert), sizes);
}

/// The sparse block: routed experts plus the gated shared expert. Full [T, H] -> [T, H], a partial
/// sum over the ranks that share the experts; with sequence parallelism complete, and on the shard
/// where the input is one already. Source: transformers modeling_qwen3_next.py,
/// Qwen3NextSparseMoeBlock; vllm qwen3_next.py.
template <class R>
typename R::Tensor moe_block(R& rank, const MoeWeights<typename R::Weight>& w,
                             const ModelConfig& config, const MoeLayout& layout, const Batch& batch,
                             const typename R::Tensor& input) {
  using T = typename R::Tensor;
  const auto& ops = rank.ops;
  const bool chunks = layout.sequence_parallel && !layout.already_sharded;
  const T x = chunks ? chunk(rank, input) : input;
  const auto routing = route(rank, w.gate, config, x);
  T out = rank.tap(routed_experts(rank, w, layout, batch, x, routing), "experts");
  if (w.shared_expert) {
    const T shared = [&] {
      const auto scope = rank.enter("shared_expert");
      return rank.tap(swiglu(rank, *w.shared_expert, x));
    }();
    const T gate = rank.linear("shared_expert_gate", x, *w.shared_expert_gate);  // [T, 1]
    out = ops.add(out, ops.sigmoid_scale(shared, gate));
  }
  if (chunks) out = gather_and_trim(rank, out, ops.extent(input, Axis::rows));
  return rank.tap(out);
}

}  // namespace tokenview
