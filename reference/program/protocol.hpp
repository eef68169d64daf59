// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "reference/program/rank.hpp"

namespace tokenview {

/// What travels between layers: the output of the last branch and the residual stream without it.
/// Their sum is the layer's output. Source: vllm layernorm.py, fused add and norm.
template <class T>
struct LayerStream {
  T hidden;
  std::optional<T> residual;  // absent before the first layer
};

/// Where tokens are gathered and scattered, and where partial sums are completed. One class a
/// published protocol; the layers, the model and the drafter call these points and nothing else.
template <class R>
class Protocol {
 public:
  using T = typename R::Tensor;
  virtual ~Protocol() = default;

  /// Normed hidden at a layer's entry -> the full rows that attention needs.
  virtual T attention_input(R& rank, const T& hidden) const = 0;

  /// A mixer's partial output [T, H] -> the hidden rows of the post-attention norm. `residual` is
  /// brought to the same rows.
  virtual T attention_output(R& rank, const T& partial, T& residual) const = 0;

  /// A feed-forward's output, partial where its weights are split -> the rows of the layer boundary.
  virtual T feed_forward_output(R& rank, const T& partial) const = 0;
};

/// Sequence parallelism off: full rows everywhere, two all-reduces a layer.
/// Source: vllm qwen3_next.py with reduce_results = True.
template <class R>
class ProtocolS final : public Protocol<R> {
 public:
  using T = typename R::Tensor;

  T attention_input(R&, const T& hidden) const override { return hidden; }
  T attention_output(R& rank, const T& partial, T&) const override {
    return rank.tp.all_reduce(partial);
  }
  T feed_forward_output(R& rank, const T& partial) const override {
    return rank.tp.all_reduce(partial);
  }
};

}  // namespace tokenview
