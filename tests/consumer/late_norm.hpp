// SPDX-License-Identifier: Apache-2.0
// The example of docs/your-own-protocol.md, whose code blocks are text of this file.
#pragma once
#include <reference/program/protocol_d.hpp>

/// First attempt: protocol D, and its exits add hidden and residual on the shard, gather the sum
/// where it is a shard, and norm full rows.
template <class R>
class FirstLateNorm : public tokenview::ProtocolD<R> {
 public:
  using typename tokenview::Protocol<R>::T;
  using typename tokenview::Protocol<R>::W;
  using tokenview::ProtocolD<R>::ProtocolD;

  T model_exit(R& rank, tokenview::LayerStream<T> stream, const W& w, double eps,
               std::int64_t num_tokens, std::vector<T>&) const override {
    return late_norm(rank, stream, w, eps, num_tokens);
  }
  T mtp_exit(R& rank, tokenview::LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    return late_norm(rank, stream, w, eps, num_tokens);
  }

 private:
  T late_norm(R& rank, const tokenview::LayerStream<T>& stream, const W& w, double eps,
              std::int64_t num_tokens) const {
    T x = this->sum(rank, stream);
    if (rank.ops.extent(x, tokenview::Axis::rows) != num_tokens)
      x = gather_and_trim(rank, x, num_tokens);
    return rank.rms_norm("norm", x, w, eps);
  }
};

/// The same, always gathering: in protocol D every boundary is a shard, and no count has to say so.
template <class R>
class LateNorm : public tokenview::ProtocolD<R> {
 public:
  using typename tokenview::Protocol<R>::T;
  using typename tokenview::Protocol<R>::W;
  using tokenview::ProtocolD<R>::ProtocolD;

  T model_exit(R& rank, tokenview::LayerStream<T> stream, const W& w, double eps,
               std::int64_t num_tokens, std::vector<T>& captured) const override {
    for (T& state : captured) state = gather_and_trim(rank, state, num_tokens);
    return late_norm(rank, stream, w, eps, num_tokens);
  }
  T mtp_exit(R& rank, tokenview::LayerStream<T> stream, const W& w, double eps,
             std::int64_t num_tokens) const override {
    return late_norm(rank, stream, w, eps, num_tokens);
  }

 private:
  T late_norm(R& rank, const tokenview::LayerStream<T>& stream, const W& w, double eps,
              std::int64_t num_tokens) const {
    const T x = gather_and_trim(rank, this->sum(rank, stream), num_tokens);
    return rank.rms_norm("norm", x, w, eps);
  }
};
