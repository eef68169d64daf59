// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/protocol_d.hpp"

namespace tokenview {

/// Protocol E: D's static contract for every model. Dense feed-forwards are whole and work on the
/// shard, so mixed stacks need no fallback; the pad mask is cut like the rows (MoeLayout); the MTP
/// shards its input at width 2H, before a projection that every rank holds whole. Pipelines close
/// its gate. Source: vllm deepseek_v32 and glm model files (PR 51434), sequence_parallel helpers.
///
/// With the dense feed-forward still split over tp, its closing all-reduce adds rows of different
/// tokens: that is vllm PR 58061 before its repair.
template <class R>
class ProtocolE final : public ProtocolD<R> {
 public:
  using typename Protocol<R>::T;
  using typename Protocol<R>::W;
  using ProtocolD<R>::ProtocolD;

  T feed_forward(R& rank, const LayerCall&, const LayerWeights<W>& w, const ModelConfig& config,
                 const Batch& batch, const T& x) const override {
    const T out = this->local_feed_forward(rank, w, config, true, batch, x);
    return w.moe || this->plan.dense_whole ? out : rank.tp.all_reduce(out);
  }

  LayerStream<T> mtp_entry(R& rank, const T& joined, const W& fc, std::int64_t) const override {
    const T shard = chunk(rank, joined);  // [S, 2H]
    return {rank.tap(rank.ops.linear(shard, fc), "fc")};
  }
};

}  // namespace tokenview
