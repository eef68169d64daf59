// SPDX-License-Identifier: Apache-2.0
// Published variants of protocols B and D that differ from them in one or two transitions.
#pragma once
#include "reference/program/protocol_b.hpp"
#include "reference/program/protocol_d.hpp"

namespace tokenview {

/// B whose MTP adds the residual on the shard and gathers the sum alone, width H; the norm works on
/// full rows, in the newer class of models on the shard. Source: vllm deepseek_mtp.py (PR 48763).
template <class R>
class Protocol48763 final : public ProtocolB<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using ProtocolB<R>::ProtocolB;

  T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    if (!this->plan.mtp_scatters) return add_norm(rank, "norm", stream, w, eps);
    if (this->plan.norms_on_shard)
      return gather_and_trim(rank, add_norm(rank, "norm", stream, w, eps), num_tokens);
    LayerStream<T> full{gather_and_trim(rank, this->sum(rank, stream), num_tokens)};
    return add_norm(rank, "norm", full, w, eps);
  }
};

/// D whose MTP takes full rows into its layer, norms on the shard and gathers after it.
/// Source: vllm PR 51927 (closed).
template <class R>
class Protocol51927 final : public ProtocolD<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using ProtocolD<R>::ProtocolD;

  LayerStream<T> mtp_entry(R& rank, const T& joined, const W& fc, std::int64_t) const override {
    return {this->project(rank, joined, fc)};
  }
  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = !call.is_mtp;
    return call.on_shard ? gather_and_trim(rank, hidden, call.num_tokens) : hidden;
  }
  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    if (!call.on_shard) residual = chunk(rank, residual);
    return padded_reduce_scatter(rank, partial);
  }
};

/// B for pipelines, with an explicit layout: a stage gathers the pair before it hands over, and a
/// step of fewer tokens than ranks runs replicated, its mixer's output all-reduced and its MoE
/// block as in protocol A. Source: vllm PR 53191 (open).
template <class R>
class Protocol53191 final : public Protocol<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using Protocol<R>::Protocol;

  void before_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    if (!call.scatters) restore(rank, stream, call.num_tokens);
  }
  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = call.stream_sharded;
    return call.on_shard ? gather_and_trim(rank, hidden, call.num_tokens) : hidden;
  }
  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    if (!shards(rank, call)) return rank.tp.all_reduce(partial);
    if (!call.on_shard) residual = chunk(rank, residual);
    return padded_reduce_scatter(rank, partial);
  }
  T feed_forward(R& rank, const LayerCall& call, const LayerWeights<W>& w,
                 const ModelConfig& config, const Batch& batch, const T& x) const override {
    LayerCall as_run = call;
    as_run.scatters = shards(rank, call);
    return Protocol<R>::feed_forward(rank, as_run, w, config, batch, x);
  }
  void after_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    stream.sharded = shards(rank, call);
  }
  T capture(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) const override {
    restore(rank, stream, num_tokens);
    return this->sum(rank, stream);
  }
  void stage_exit(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) const override {
    restore(rank, stream, num_tokens);
  }
  T model_exit(R& rank, LayerStream<T> stream, const W& w, double eps, std::int64_t num_tokens,
               std::vector<T>&) const override {
    restore(rank, stream, num_tokens);
    return add_norm(rank, "norm", stream, w, eps);
  }
  T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    restore(rank, stream, num_tokens);
    return add_norm(rank, "norm", stream, w, eps);
  }

 private:
  static bool shards(R& rank, const LayerCall& call) {
    return call.scatters && rank.gate("enough_tokens", call.num_tokens >= rank.tp.size());
  }
  static void restore(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) {
    if (stream.sharded) gather_pair(rank, stream.hidden, stream.residual, num_tokens);
    stream.sharded = false;
  }
};

/// The same decided by row counts: a stream is a shard where it has other rows than positions and
/// at least as many as there are ranks, which a true shard often has not.
/// Source: vllm-ascend's form of vllm PR 53191.
template <class R>
class Protocol53191Shape final : public ProtocolB<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using ProtocolB<R>::ProtocolB;

  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    call.on_shard = call.scatters && call.has_residual &&
                    this->is_sharded(rank, hidden, call.num_tokens) &&
                    rank.ops.extent(hidden, Axis::rows) >= rank.tp.size();
    return call.on_shard ? gather_and_trim(rank, hidden, call.num_tokens) : hidden;
  }
  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    if (!call.scatters || call.num_tokens < rank.tp.size()) return rank.tp.all_reduce(partial);
    return ProtocolB<R>::attention_output(rank, call, partial, residual);
  }
  T feed_forward(R& rank, const LayerCall& call, const LayerWeights<W>& w,
                 const ModelConfig& config, const Batch& batch, const T& x) const override {
    LayerCall as_run = call;
    as_run.scatters = call.scatters && call.num_tokens >= rank.tp.size();
    return Protocol<R>::feed_forward(rank, as_run, w, config, batch, x);
  }
  void stage_exit(R& rank, LayerStream<T>& stream, std::int64_t num_tokens) const override {
    this->restore(rank, stream, num_tokens);
  }
  T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    this->restore(rank, stream, num_tokens);
    return add_norm(rank, "norm", stream, w, eps);
  }
};

}  // namespace tokenview
