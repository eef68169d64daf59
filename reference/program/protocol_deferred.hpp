// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/protocol.hpp"

namespace tokenview {

/// Protocol E's models with sequence parallelism off: mixers and feed-forwards leave their partial
/// sums, and the all-reduce is fused into the next norm, the final one and the MTP's included. A
/// layer boundary is therefore (partial hidden, complete residual), and a pipeline stage hands over
/// a partial sum. The MoE block completes its output itself where expert parallelism meets data
/// parallelism, and the next norm then sums it once more.
/// Source: vllm deepseek_v32 model file, releases 0.25.1 to 0.33.0.
template <class R>
class ProtocolDeferred final : public Protocol<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using Protocol<R>::Protocol;

  bool boundary_is_complete() const override { return false; }

  T norm(R& rank, const char* name, LayerStream<T>& stream, const W& w, double eps) const override {
    if (stream.residual) stream.hidden = rank.tp.all_reduce(stream.hidden);
    return add_norm(rank, name, stream, w, eps);
  }

  T attention_output(R&, const LayerCall&, const T& partial, T&) const override { return partial; }

  T feed_forward(R& rank, const LayerCall&, const LayerWeights<W>& w, const ModelConfig& config,
                 const Batch& batch, const T& x) const override {
    const T out = this->local_feed_forward(rank, w, config, false, batch, x);
    const ParallelConfig& parallel = this->plan.parallel;
    const bool completes =
        w.moe && parallel.enable_expert_parallel && parallel.dp > 1 && parallel.tp > 1;
    return rank.gate("moe_completes", completes) ? rank.tp.all_reduce(out) : out;
  }

  T capture(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) const override {
    if (!stream.residual) return stream.hidden;
    LayerStream<T> complete{rank.tp.all_reduce(stream.hidden), stream.residual};
    return Protocol<R>::capture(rank, complete, num_tokens);
  }
};

}  // namespace tokenview
