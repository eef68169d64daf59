// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string_view>

#include "reference/program/feed_forward.hpp"
#include "reference/program/parallel_plan.hpp"

namespace tokenview {

/// What travels between layers: the output of the last branch and the residual stream without it.
/// Their sum is the layer's output. Source: vllm layernorm.py, fused add and norm.
template <class T>
struct LayerStream {
  T hidden;
  std::optional<T> residual = {};  // absent before the first layer
  bool sharded = false;            // what a protocol with an explicit layout says of it
};

/// One call of a decoder layer, as its protocol sees it.
struct LayerCall {
  std::int64_t num_tokens;  // T: the rows of positions, the layer's only source of it
  bool scatters;            // RSM: the mixer's output is to be reduce-scattered
  bool is_moe;
  bool is_last;  // of its stack
  bool is_mtp = false;
  bool has_residual = false;
  bool stream_sharded = false;  // LayerStream::sharded at its entry
  bool on_shard = false;        // what the protocol took the input for
};

/// residual := residual + hidden; returns its norm as the module `name`. Before the first layer
/// there is no residual yet: it becomes hidden.
template <class R>
typename R::Tensor add_norm(R& rank, const char* name, LayerStream<typename R::Tensor>& stream,
                            const typename R::Weight& w, double eps) {
  if (!stream.residual) {
    stream.residual = stream.hidden;
  } else if constexpr (FusesAddAndNorm<typename R::Ops>) {
    auto [sum, normed] = rank.ops.add_rms_norm(*stream.residual, stream.hidden, w, eps);
    stream.residual = std::move(sum);
    const auto scope = rank.enter(name);
    return rank.tap(std::move(normed));
  } else {
    stream.residual = rank.ops.add(*stream.residual, stream.hidden);
  }
  return rank.rms_norm(name, *stream.residual, w, eps);
}

/// Where tokens are gathered and scattered, and where partial sums are completed. One class a
/// published protocol; layers, model and drafter call these points and move nothing themselves.
/// docs/protocols.md shows them side by side, docs/your-own-protocol.md how to add one.
///
/// This base is protocol S, sequence parallelism off, and protocol A, where the MoE block alone
/// works on shards and gathers again: full rows at every boundary, and the mixer's output
/// all-reduced. Source: vllm qwen3_next.py before PR 47006.
template <class R>
class Protocol {
 public:
  using T = typename R::Tensor;
  using W = typename R::Weight;

  explicit Protocol(ParallelPlan parallel_plan) : plan(std::move(parallel_plan)) {}
  virtual ~Protocol() = default;

  const ParallelPlan plan;

  /// False where sums are left to the next norm: then a layer's output is no complete value.
  virtual bool boundary_is_complete() const { return true; }

  /// Model entry: the embedding, full [T, H] -> the stream that the first layer takes.
  virtual LayerStream<T> model_entry(R&, const T& embedded) const { return {embedded}; }

  /// Before a layer of the target.
  virtual void before_layer(R&, const LayerCall&, LayerStream<T>&) const {}

  /// A norm of the stream, as the module `name`; residual := residual + hidden.
  virtual T norm(R& rank, const char* name, LayerStream<T>& stream, const W& w, double eps) const {
    return add_norm(rank, name, stream, w, eps);
  }

  /// Normed hidden at a layer's entry -> the full rows that the mixer needs.
  virtual T attention_input(R&, LayerCall&, const T& hidden) const { return hidden; }

  /// A mixer's partial output [T, H] -> the rows of the post-attention norm. `residual` is brought
  /// to the same rows.
  virtual T attention_output(R& rank, const LayerCall&, const T& partial, T&) const {
    return rank.tp.all_reduce(partial);
  }

  /// The feed-forward, as the module `mlp`, on the rows of the post-attention norm -> the rows of
  /// the layer boundary, complete. A layer that scattered has a shard here, and keeps it.
  virtual T feed_forward(R& rank, const LayerCall& call, const LayerWeights<W>& w,
                         const ModelConfig& config, const Batch& batch, const T& x) const {
    const T out = local_feed_forward(rank, w, config, call.scatters, batch, x);
    return w.moe && plan.sequence_parallel_moe ? out : rank.tp.all_reduce(out);
  }

  /// After a layer: the stream that the next one takes.
  virtual void after_layer(R&, const LayerCall&, LayerStream<T>&) const {}

  /// An auxiliary hidden state: hidden + residual between two layers, as model_exit() takes it.
  virtual T capture(R& rank, LayerStream<T>& stream, std::int64_t) const {
    return sum(rank, stream);
  }

  /// The stream that leaves a pipeline stage: full on every rank of the stage.
  virtual void stage_exit(R&, LayerStream<T>&, std::int64_t) const {}

  /// Target exit: the stream after the last layer -> hidden full [T, H] after the final norm. The
  /// captured states become full as well.
  virtual T model_exit(R& rank, LayerStream<T> stream, const W& w, double eps, std::int64_t,
                       std::vector<T>&) const {
    return norm(rank, "norm", stream, w, eps);
  }

  /// MTP entry: normed embedding and hidden joined, full [T, 2H] -> the stream that its layer
  /// takes.
  virtual LayerStream<T> mtp_entry(R& rank, const T& joined, const W& fc, std::int64_t) const {
    return {project(rank, joined, fc)};
  }

  /// MTP exit: the stream after its layer -> hidden full [T, H] after mtp.norm.
  virtual T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps, std::int64_t) const {
    return norm(rank, "norm", stream, w, eps);
  }

 protected:
  T local_feed_forward(R& rank, const LayerWeights<W>& w, const ModelConfig& config,
                       bool already_sharded, const Batch& batch, const T& x) const {
    const auto scope = rank.enter("mlp");
    if (!w.moe) return rank.tap(swiglu(rank, *w.dense, x));
    return moe_block(rank, *w.moe, config, MoeLayout(plan, already_sharded), batch, x);
  }

  /// hidden + residual, on the rows that they have.
  static T sum(R& rank, const LayerStream<T>& stream) {
    return stream.residual ? rank.ops.add(*stream.residual, stream.hidden) : stream.hidden;
  }

  /// fc, its output columns split over tp and joined: [rows, 2H] -> [rows, H].
  /// Source: vllm qwen3_next_mtp.py.
  static T project(R& rank, const T& joined, const W& fc) {
    return rank.tap(rank.tp.all_gather(rank.ops.linear(joined, fc), Axis::cols), "fc");
  }
};

}  // namespace tokenview
