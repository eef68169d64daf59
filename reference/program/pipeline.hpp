// SPDX-License-Identifier: Apache-2.0
// What one pipeline stage hands to the next.
#pragma once
#include "reference/program/protocol.hpp"

namespace tokenview {

/// Stages of the target's layers: stage s of n runs layers [s L / n, (s + 1) L / n).
struct Stage {
  std::int64_t index = 0, count = 1;

  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
  std::int64_t first_layer(std::int64_t num_layers) const { return index * num_layers / count; }
  std::int64_t end_layer(std::int64_t num_layers) const { return (index + 1) * num_layers / count; }
};

template <class R>
Stage stage_of(R& rank, const ParallelPlan& plan) {
  return plan.parallel.pp == 1 ? Stage{} : Stage{rank.pp.rank(), rank.pp.size()};
}

/// ppsend: a tensor that is equal on all ranks of a stage goes to the next stage. Where its
/// elements divide by p, rank r ships the flat slice r of p alone, and the receivers join the
/// slices over tp: a shard or a partial sum therefore arrives as a mixture of the ranks' tensors,
/// equal on all of them, and nobody is told. Source: vllm parallel_state.py (send_tensor_dict).
template <class R>
void send_to_stage(R& rank, const typename R::Tensor& x, std::int64_t stage) {
  const std::int64_t elements = rank.ops.extent(x, Axis::rows) * rank.ops.extent(x, Axis::cols),
                     p = rank.tp.size();
  rank.pp.send(elements % p == 0 ? rank.ops.flat_slice(x, rank.tp.rank(), p) : x, stage);
}
template <class R>
typename R::Tensor receive_from_stage(R& rank, std::int64_t width, std::int64_t stage) {
  const auto part = rank.pp.template recv<typename R::Tensor>(stage);
  if (!rank.ops.is_flat(part, width)) return part;
  return rank.ops.unflatten(rank.tp.all_gather(part, Axis::rows), width);
}

/// The stream at a stage's end, full, and at the next one's beginning.
template <class R>
void hand_over(R& rank, const Batch& batch, LayerStream<typename R::Tensor> stream,
               const Stage& stage) {
  stream.hidden = rank.named("stage_hidden", std::move(stream.hidden));
  stream.residual = rank.named("stage_residual", std::move(*stream.residual));
  rank.ops.require_full(stream.hidden, batch, "stage hidden");
  rank.ops.require_full(*stream.residual, batch, "stage residual");
  send_to_stage(rank, stream.hidden, stage.index + 1);
  send_to_stage(rank, *stream.residual, stage.index + 1);
}
template <class R>
LayerStream<typename R::Tensor> take_over(R& rank, std::int64_t width, const Stage& stage) {
  LayerStream<typename R::Tensor> stream{receive_from_stage(rank, width, stage.index - 1)};
  stream.residual = receive_from_stage(rank, width, stage.index - 1);
  return stream;
}

}  // namespace tokenview
