// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

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

/// How a MoE block is laid out.
struct MoeLayout {
  bool sequence_parallel = false;  // works on token shards over tp; the shared expert is whole
  bool already_sharded = false;    // its input is a shard, and so shall be its output
  bool ragged = false;             // shards are ragged and have no pads
  bool masks_pads = false;         // rows that the pad mask marks get no expert
  bool slices_mask = false;        // the mask is cut like the rows
  bool whole_experts = false;      // expert parallelism: a rank holds whole experts
  Dispatch dispatch = Dispatch::allgather_reducescatter;

  MoeLayout() = default;
  MoeLayout(const ParallelPlan& plan, bool input_is_sharded)
      : sequence_parallel(plan.sequence_parallel_moe),
        already_sharded(input_is_sharded),
        ragged(plan.ragged),
        masks_pads(plan.masks_pads),
        slices_mask(plan.slices_mask),
        whole_experts(plan.parallel.enable_expert_parallel),
        dispatch(plan.dispatch) {}
};

/// The router: the k largest of softmax(logits), equal ones by lower expert index. Rows that the
/// pad mask marks get no expert; the mask [T] is cut like the rows where the layout says so, else
/// it is looked up by local row, which skips too few pads and no token.
/// Source: transformers modular_qwen2_moe.py; vllm topk_softmax_kernels.cu for the order of ties;
/// vllm VLLM_MOE_SKIP_PADDING (releases 0.27.0 on) for the mask.
template <class R>
typename R::Ops::Routing route(R& rank, const typename R::Weight& gate, const ModelConfig& config,
                               const MoeLayout& layout, const Batch& batch,
                               const typename R::Tensor& x) {
  const auto scope = rank.enter("gate");
  const typename R::Tensor logits = rank.tap(rank.ops.linear(x, gate), "logits");  // [T, E]
  typename R::Ops::Routing routing =
      rank.ops.route(logits, config.num_experts_per_tok, config.norm_topk_prob);  // [T, k]
  if (rank.taps != nullptr) rank.taps->routing(rank.module, routing);             // may replace it
  routing = rank.named("routing", std::move(routing));
  if (layout.masks_pads) {
    const bool slices = layout.sequence_parallel && rank.gate("slices_mask", layout.slices_mask);
    auto mask = rank.named("pad_mask", rank.ops.pad_mask(rank.side(batch)));
    if (slices) mask = chunk(rank, mask);
    routing = rank.ops.skip_pads(routing, mask, layout.slices_mask || !layout.sequence_parallel);
  }
  return routing;
}

/// Rows that each rank of the dispatch group brings: ceil(T_d / p) of each of p ranks under
/// sequence parallelism, T_d without. Source: vllm forward_context.py.
inline std::vector<std::int64_t> dispatch_sizes(const Batch& batch, std::int64_t num_tokens,
                                                std::int64_t tp, const MoeLayout& layout) {
  std::vector<std::int64_t> tokens = batch.tokens_across_dp;
  if (tokens.empty()) tokens = {num_tokens};
  std::vector<std::int64_t> sizes;
  for (const std::int64_t t : tokens) {
    if (!layout.sequence_parallel) {
      sizes.push_back(t);
    } else if (layout.ragged) {
      for (const std::int64_t rows : ragged_sizes(t, tp)) sizes.push_back(rows);
    } else {
      sizes.insert(sizes.end(), std::size_t(tp), (t + tp - 1) / tp);
    }
  }
  return sizes;
}

/// This rank's experts on `rows`.
template <class R>
typename R::Tensor local_experts(R& rank, const MoeWeights<typename R::Weight>& w,
                                 const typename R::Tensor& rows,
                                 const typename R::Ops::Routing& routing) {
  if (const std::int64_t capacity = rank.number("expert_capacity", 0); capacity > 0)
    rank.ops.require_capacity(routing, capacity);
  return rank.ops.experts(rows, routing, w.experts_gate_up, w.experts_down, w.first_expert);
}

/// Rows and routing of all ranks of `group` joined, this rank's experts on all of them, and each
/// rank's rows of the sum back. Source: vllm all2all.py, AgRsAll2AllManager.
template <class R, class GroupEnd>
typename R::Tensor experts_by_all_gather(R& rank, GroupEnd& group,
                                         const MoeWeights<typename R::Weight>& w,
                                         const std::vector<std::int64_t>& sizes,
                                         const typename R::Tensor& x,
                                         const typename R::Ops::Routing& routing) {
  const auto rows = group.all_gather_v(x, sizes);
  const auto pairs = group.all_gather_v(routing, sizes);
  return group.reduce_scatter_v(local_experts(rank, w, rows, pairs), sizes);
}

/// The same by one broadcast a rank, an all-reduce of all rows, and a cut by cumulative sizes.
/// Source: vllm all2all.py, NaiveAll2AllManager (to release 0.18.0).
template <class R, class GroupEnd>
typename R::Tensor experts_by_broadcast(R& rank, GroupEnd& group,
                                        const MoeWeights<typename R::Weight>& w,
                                        const std::vector<std::int64_t>& sizes,
                                        const typename R::Tensor& x,
                                        const typename R::Ops::Routing& routing) {
  using T = typename R::Tensor;
  using Routing = typename R::Ops::Routing;
  const auto& ops = rank.ops;
  if (std::int64_t(sizes.size()) != group.size())
    throw ShapeError(
        text("experts: row counts of ", sizes.size(), " ranks in a group of ", group.size()));
  std::vector<T> rows;
  std::vector<Routing> pairs;
  std::int64_t begin = 0;
  for (std::int64_t root = 0; root < group.size(); ++root) {
    const std::int64_t size = sizes[std::size_t(root)];
    const bool mine = root == group.rank();
    if (root < group.rank()) begin += size;
    rows.push_back(
        group.broadcast(mine ? x : ops.pad_rows(ops.slice(x, Axis::rows, 0, 0), size), root));
    pairs.push_back(group.broadcast(
        mine ? routing : ops.pad_rows(ops.slice(routing, Axis::rows, 0, 0), size), root));
  }
  const T total = group.all_reduce(local_experts(rank, w, join(ops, rows), join(ops, pairs)));
  return ops.slice(total, Axis::rows, begin, begin + sizes[std::size_t(group.rank())]);
}

/// Every row to the ranks that hold its experts, and what they give back, summed. The routing of
/// all ranks is joined first, so that everybody knows who sends what.
/// Source: the contract of vllm's all-to-all backends (deepep, mori), fused_moe/modular_kernel.py.
template <class R, class GroupEnd>
typename R::Tensor experts_by_all_to_all(R& rank, GroupEnd& group,
                                         const MoeWeights<typename R::Weight>& w,
                                         std::int64_t num_experts,
                                         const std::vector<std::int64_t>& sizes,
                                         const typename R::Tensor& x,
                                         const typename R::Ops::Routing& routing) {
  const auto& ops = rank.ops;
  // Experts are split over all dp x tp ranks; a dp group has one of each tp.
  const std::int64_t all = rank.ep.size(), stride = all / group.size();
  const auto block_of_member = [&](std::int64_t member) {
    return expert_block(num_experts, stride == 1 ? member : member * stride + rank.tp.rank(), all);
  };
  std::vector<std::int64_t> sent, to, from, received;
  for (std::int64_t e = 0; e < group.size(); ++e) {
    const auto rows = ops.rows_for(routing, block_of_member(e));
    sent.insert(sent.end(), rows.begin(), rows.end());
    to.push_back(std::int64_t(rows.size()));
  }
  const auto pairs = group.all_gather_v(routing, sizes);
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const auto rows = ops.rows_for(ops.slice(pairs, Axis::rows, begin, begin + size),
                                   block_of_member(group.rank()));
    for (const std::int64_t row : rows) received.push_back(begin + row);
    from.push_back(std::int64_t(rows.size()));
    begin += size;
  }
  const auto rows = group.all_to_all_v(ops.take_rows(x, sent), to, from);
  const auto out = local_experts(rank, w, rows, ops.take_rows(pairs, received));
  return ops.add_rows(group.all_to_all_v(out, from, to), sent, ops.extent(x, Axis::rows));
}

/// The routed experts on this rank's rows. Where tokens are spread over ranks, rows and their
/// routing go to the ranks that hold experts, and each rank gets the sum of its own rows back:
/// complete under sequence parallelism, else a partial over tp. A step that is too long for the
/// kernel's buffers goes in chunks, every rank in each of them, with at least one row.
/// Source: vllm moe_runner.py, all2all.py, fused_moe/config.py (max_num_tokens).
template <class R>
typename R::Tensor routed_experts(R& rank, const MoeWeights<typename R::Weight>& w,
                                  const ModelConfig& config, const MoeLayout& layout,
                                  const Batch& seen, const typename R::Tensor& x,
                                  const typename R::Ops::Routing& routing) {
  using T = typename R::Tensor;
  const auto& ops = rank.ops;
  auto& group = layout.sequence_parallel ? rank.ep : rank.dp;
  if (group.size() == 1) return local_experts(rank, w, x, routing);
  const Batch& batch = rank.side(seen);
  ops.require_side(seen, batch, "experts");
  const auto sizes = dispatch_sizes(batch, batch.num_tokens(), rank.tp.size(), layout);
  const auto dispatched = [&](const T& rows, const typename R::Ops::Routing& pairs,
                              const std::vector<std::int64_t>& of_ranks) {
    switch (layout.dispatch) {
      case Dispatch::naive:
        return experts_by_broadcast(rank, group, w, of_ranks, rows, pairs);
      case Dispatch::all_to_all:
        if (layout.whole_experts)
          return experts_by_all_to_all(rank, group, w, config.num_experts, of_ranks, rows, pairs);
        break;  // every rank holds a part of every expert: all rows go to all ranks
      case Dispatch::allgather_reducescatter:
        break;
    }
    return experts_by_all_gather(rank, group, w, of_ranks, rows, pairs);
  };
  const std::int64_t most = rank.number("moe_chunk_rows", 0);  // 0: the step in one
  if (most == 0) return dispatched(x, routing, sizes);

  const std::int64_t longest = *std::ranges::max_element(sizes);
  const std::int64_t least = rank.number("moe_chunk_least", 1);
  std::vector<T> chunks;
  for (std::int64_t begin = 0; begin < longest; begin += most) {
    std::vector<std::int64_t> of_ranks;
    for (const std::int64_t size : sizes)
      of_ranks.push_back(std::clamp<std::int64_t>(size - begin, least, most));
    const std::int64_t have = ops.extent(x, Axis::rows);
    const std::int64_t first = std::min(begin, have), last = std::min(begin + most, have);
    const std::int64_t dummies = std::max<std::int64_t>(least - (last - first), 0);
    const T out =
        dispatched(ops.pad_rows(ops.slice(x, Axis::rows, first, last), dummies),
                   ops.pad_rows(ops.slice(routing, Axis::rows, first, last), dummies), of_ranks);
    chunks.push_back(ops.slice(out, Axis::rows, 0, last - first));
  }
  return chunks.empty() ? x : join(ops, chunks);
}

/// The sparse block: routed experts plus the gated shared expert, in the module this rank is in.
/// Full [T, H] -> [T, H], a partial sum over the ranks that share the experts; with sequence
/// parallelism complete, and on the shard where the input is one already.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextSparseMoeBlock; vllm qwen3_next.py.
template <class R>
typename R::Tensor moe_block(R& rank, const MoeWeights<typename R::Weight>& w,
                             const ModelConfig& config, const MoeLayout& layout, const Batch& batch,
                             const typename R::Tensor& input) {
  using T = typename R::Tensor;
  const auto& ops = rank.ops;
  const bool chunks = layout.sequence_parallel && !layout.already_sharded;
  const T x = chunks ? chunk(rank, input) : input;
  const auto routing = route(rank, w.gate, config, layout, batch, x);
  if (rank.gate("records_load", false))
    ops.count_load(routing, rank.number("load_rows", batch.num_real_tokens()));
  T out = rank.tap(routed_experts(rank, w, config, layout, batch, x, routing), "experts");
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
