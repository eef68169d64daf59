// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/eigen_ops.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {

namespace {

/// softmax over one row in fp32.
template <class S>
void softmax(const S* logits, std::int64_t n, S* probability) {
  const S largest = *std::max_element(logits, logits + n);
  S total = 0;
  for (std::int64_t e = 0; e < n; ++e) total += probability[e] = std::exp(logits[e] - largest);
  for (std::int64_t e = 0; e < n; ++e) probability[e] /= total;
}

}  // namespace

/// P = softmax(logits) over all experts in fp32; the k largest, equal ones by lower index, largest
/// first; divided by their sum where `renormalise`. hf rounds the weights, vllm does not.
/// Source: transformers modular_qwen2_moe.py, Qwen2MoeTopKRouter.
template <class S>
typename EigenOps<S>::Routing EigenOps<S>::route(const Tensor& logits, std::int64_t k,
                                                 bool renormalise) const {
  const std::int64_t num_experts = logits.cols();
  typename Routing::Ids ids(logits.rows(), k);
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_experts));
  std::vector<S> probability(static_cast<std::size_t>(num_experts));
  for (Eigen::Index t = 0; t < logits.rows(); ++t) {
    softmax(logits.data() + t * num_experts, num_experts, probability.data());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [&](std::int64_t a, std::int64_t b) {
                        const S pa = probability[std::size_t(a)], pb = probability[std::size_t(b)];
                        return pa > pb || (!(pa < pb) && a < b);
                      });
    std::copy_n(order.begin(), k, ids.data() + t * k);
  }
  return {routing_weights(logits, ids, renormalise), ids};
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::routing_weights(const Tensor& logits,
                                                          const typename Routing::Ids& ids,
                                                          bool renormalise) const {
  Tensor weights(ids.rows(), ids.cols());
  std::vector<S> probability(static_cast<std::size_t>(logits.cols()));
  for (Eigen::Index t = 0; t < ids.rows(); ++t) {
    softmax(logits.data() + t * logits.cols(), logits.cols(), probability.data());
    S selected = 0;
    for (Eigen::Index j = 0; j < ids.cols(); ++j) {
      if (ids(t, j) < 0 || ids(t, j) >= logits.cols())
        throw ShapeError(text("routing_weights: row ", t, " has expert ", ids(t, j),
                              ", expected [0, ", logits.cols(), ")"));
      selected += probability[std::size_t(ids(t, j))];
    }
    for (Eigen::Index j = 0; j < ids.cols(); ++j) {
      const S weight = probability[std::size_t(ids(t, j))];
      weights(t, j) = rounded_by(Rounding::hf, renormalise ? weight / selected : weight);
    }
  }
  return weights;
}

/// sum over the row's experts of weight * down(silu(gate(x)) * up(x)), for the experts
/// [first_expert, first_expert + count) that this rank holds; others contribute nothing.
/// gate_up [count, 2I, H]: rows 0..I-1 gate, then up. down [count, H, I].
///
/// Rows are collected per expert, so that each expert is one matrix product; the k rows of a token
/// are added in the order of the routing, in fp32. hf rounds the down product, then the weighted
/// row; vllm the weighted row only; both the sum. Source: transformers integrations/moe.py,
/// grouped_mm_experts_forward; vllm fused_moe.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::experts(const Tensor& x, const Routing& routing,
                                                  const Weight& gate_up, const Weight& down,
                                                  std::int64_t first_expert) const {
  const std::int64_t count = gate_up.packed.count(), width = down.packed.in();
  const std::int64_t hidden = down.packed.out(), k = routing.ids.cols();
  require_shape("experts", x, routing.ids.rows(), gate_up.packed.in());
  if (gate_up.packed.out() != 2 * width || down.packed.count() != count)
    throw ShapeError(text("experts: gate_up is [", count, ", ", gate_up.packed.out(),
                          ", ...], down [", down.packed.count(), ", ..., ", width, "]"));

  std::vector<std::vector<std::int64_t>> pairs(static_cast<std::size_t>(count));  // t * k + j
  for (Eigen::Index t = 0; t < x.rows(); ++t)
    for (Eigen::Index j = 0; j < k; ++j) {
      const std::int64_t expert = routing.ids(t, j) - first_expert;
      if (expert >= 0 && expert < count) pairs[std::size_t(expert)].push_back(t * k + j);
    }

  Tensor weighted = Tensor::Zero(x.rows() * k, hidden);  // [T * k, H]
  const int threads = threads_for(x.rows() * k * width * hidden / 8);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (std::int64_t expert = 0; expert < count; ++expert) {
    const auto& mine = pairs[std::size_t(expert)];
    const auto rows = std::int64_t(mine.size());
    if (rows == 0) continue;
    Tensor in(rows, x.cols()), both(rows, 2 * width), inner(rows, width), out(rows, hidden);
    for (std::int64_t i = 0; i < rows; ++i) in.row(i) = x.row(mine[std::size_t(i)] / k);
    gemm(in.data(), in.cols(), rows, gate_up.packed, expert, both.data(), both.cols(), 1);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t c = 0; c < width; ++c) {
        const S gate = rounded(both(i, c)), up = rounded(both(i, width + c));
        inner(i, c) = rounded(rounded_by(Rounding::hf, gate / (S(1) + std::exp(-gate))) * up);
      }
    gemm(inner.data(), width, rows, down.packed, expert, out.data(), hidden, 1);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t pair = mine[std::size_t(i)];
      const S weight = routing.weights.data()[pair];
      S* to = weighted.data() + pair * hidden;
      for (std::int64_t c = 0; c < hidden; ++c)
        to[c] = rounded(rounded_by(Rounding::hf, out(i, c)) * weight);
    }
  }

  Tensor sum = Tensor::Zero(x.rows(), hidden);
  for (Eigen::Index t = 0; t < x.rows(); ++t)
    for (Eigen::Index j = 0; j < k; ++j) sum.row(t) += weighted.row(t * k + j);
  round_in_place(sum);
  return sum;
}

#define TOKENVIEW_INSTANTIATE(S)                                                                \
  template EigenOps<S>::Routing EigenOps<S>::route(const Matrix<S>&, std::int64_t, bool) const; \
  template Matrix<S> EigenOps<S>::routing_weights(const Matrix<S>&, const Routing::Ids&, bool)  \
      const;                                                                                    \
  template Matrix<S> EigenOps<S>::experts(const Matrix<S>&, const Routing&, const Weight&,      \
                                          const Weight&, std::int64_t) const;
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(double)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview
