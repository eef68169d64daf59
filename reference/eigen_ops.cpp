// SPDX-License-Identifier: Apache-2.0
#include "reference/eigen_ops.hpp"

#include <algorithm>
#include <cmath>

#include "reference/program/array_algebra.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {
namespace {

template <class S>
S sigmoid(S x) {
  return S(1) / (S(1) + std::exp(-x));
}

/// The sum of squares of n values: sixteen running sums, then those in order. Fixed by n alone,
/// whatever the alignment.
template <class S>
S sum_of_squares(const S* x, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  S sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  for (std::int64_t lane = 0; i < n; ++i, ++lane) sums[lane] += x[i] * x[i];
  S total = 0;
  for (const S sum : sums) total += sum;
  return total;
}

}  // namespace

template <class S>
typename EigenOps<S>::Weight EigenOps<S>::load(const WeightSource& source,
                                               const WeightBlock& block) const {
  const HostTensor part = source.part(block);
  Weight w;
  if (block.shape.size() == 1 || (block.shape.size() == 3 && !block.per_expert())) {
    w.plain = Eigen::Map<const Matrix<float>>(part.values.data(), part.rows(), part.cols())
                  .template cast<S>();
    return w;
  }
  const std::int64_t count = block.per_expert() ? part.shape[0] : 1;
  const std::int64_t out = part.shape[block.per_expert() ? 1 : 0];
  const std::int64_t in = part.shape.back();
  w.packed = PackedMatrix<S>(count, out, in);
  for (std::int64_t i = 0; i < count; ++i) w.packed.pack(i, part.values.data() + i * out * in, in);
  return w;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::embed(const Ids& ids, const Weight& table,
                                                std::int64_t first_row) const {
  Tensor out = Tensor::Zero(Eigen::Index(ids.size()), table.packed.in());
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const std::int64_t row = ids[t] - (first_row == unmasked_vocabulary ? 0 : first_row);
    if (first_row == unmasked_vocabulary && row >= table.packed.out())
      throw ShapeError(
          text("embed: id ", row, " is out of range for ", table.packed.out(), " rows"));
    if (row < 0 || row >= table.packed.out()) continue;  // another rank's
    for (std::int64_t i = 0; i < table.packed.in(); ++i)
      out(Eigen::Index(t), i) = table.packed.at(0, row, i);
  }
  return out;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::linear(const Tensor& x, const Weight& w) const {
  require_shape("linear", x, x.rows(), w.packed.in());
  Tensor y(x.rows(), w.packed.out());
  gemm(x.data(), x.cols(), x.rows(), w.packed, 0, y.data(), y.cols(), num_threads_);
  round_in_place(y);
  return y;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::add(const Tensor& x, const Tensor& y) const {
  require_same_shape("add", x, y);
  Tensor out = x + y;
  round_in_place(out);
  return out;
}

/// x * rsqrt(mean(x^2) + eps) * (1 + w), one rounding at the end in both implementations.
/// Source: vllm layernorm.py, GemmaRMSNorm.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::rms_norm(const Tensor& x, const Weight& w,
                                                   double eps) const {
  require_shape("rms_norm", x, x.rows(), w.plain.rows());
  return head_rms_norm(x, w, eps);
}

/// The same norm over each head of w's width by itself.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::head_rms_norm(const Tensor& x, const Weight& w,
                                                        double eps) const {
  const std::int64_t width = w.plain.rows();
  if (width == 0 || x.cols() % width != 0)
    throw ShapeError(text("head_rms_norm: ", x.cols(), " features cut a head of ", width));
  Tensor out(x.rows(), x.cols());
#pragma omp parallel for num_threads(threads_for(x.size())) if (threads_for(x.size()) > 1)
  for (Eigen::Index t = 0; t < x.rows(); ++t)
    for (std::int64_t head = 0; head < x.cols(); head += width) {
      const S* from = x.data() + t * x.cols() + head;
      S* to = out.data() + t * x.cols() + head;
      const S scale = S(1) / std::sqrt(sum_of_squares(from, width) / S(width) + S(eps));
      for (std::int64_t i = 0; i < width; ++i)
        to[i] = rounded(from[i] * scale * (S(1) + w.plain.data()[i]));
    }
  return out;
}

/// silu(gate) * up. hf: two roundings; vllm: one.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::silu_mul(const Tensor& gate, const Tensor& up) const {
  require_same_shape("silu_mul", gate, up);
  Tensor out(gate.rows(), gate.cols());
#pragma omp parallel for num_threads(threads_for(gate.size())) if (threads_for(gate.size()) > 1)
  for (Eigen::Index i = 0; i < gate.size(); ++i) {
    const S g = gate.data()[i];
    out.data()[i] = rounded(rounded_by(Rounding::hf, g * sigmoid(g)) * up.data()[i]);
  }
  return out;
}

/// x * sigmoid(gate); the sigmoid is rounded by both.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::sigmoid_mul(const Tensor& x, const Tensor& gate) const {
  require_same_shape("sigmoid_mul", x, gate);
  Tensor out(x.rows(), x.cols());
  for (Eigen::Index i = 0; i < x.size(); ++i)
    out.data()[i] = rounded(x.data()[i] * rounded(sigmoid(gate.data()[i])));
  return out;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::sigmoid_scale(const Tensor& x, const Tensor& gate) const {
  require_shape("sigmoid_scale", gate, x.rows(), 1);
  Tensor out(x.rows(), x.cols());
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    const S scale = rounded(sigmoid(gate(t, 0)));
    for (Eigen::Index i = 0; i < x.cols(); ++i) out(t, i) = rounded(x(t, i) * scale);
  }
  return out;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::concat_features(const Tensor& x, const Tensor& y) const {
  const Tensor* const parts[] = {&x, &y};
  return concat(parts, Axis::cols);
}

/// [T, heads * 2 * head_dim], each head's query then its gate -> query, gate [T, heads * head_dim].
template <class S>
std::pair<Matrix<S>, Matrix<S>> EigenOps<S>::split_query_gate(const Tensor& x,
                                                              std::int64_t head_dim) const {
  if (x.cols() % (2 * head_dim) != 0)
    throw ShapeError(
        text("split_query_gate: ", x.cols(), " features cut a head of ", 2 * head_dim));
  Tensor query(x.rows(), x.cols() / 2), gate(x.rows(), x.cols() / 2);
  for (std::int64_t head = 0; head < x.cols() / 2; head += head_dim) {
    query.middleCols(head, head_dim) = x.middleCols(2 * head, head_dim);
    gate.middleCols(head, head_dim) = x.middleCols(2 * head + head_dim, head_dim);
  }
  return {std::move(query), std::move(gate)};
}

/// Groups of one key head, each [q, k, v of its value heads, z of them] -> [q | k | v], z.
template <class S>
std::pair<Matrix<S>, Matrix<S>> EigenOps<S>::split_qkvz(const Tensor& x,
                                                        const GdnShape& shape) const {
  const std::int64_t dk = shape.key_head_dim, values = shape.group() * shape.value_head_dim;
  const std::int64_t group = 2 * dk + 2 * values;
  require_shape("split_qkvz", x, x.rows(), shape.num_key_heads * group);
  Tensor qkv(x.rows(), shape.conv_dim()), z(x.rows(), shape.value_dim());
  for (std::int64_t h = 0; h < shape.num_key_heads; ++h) {
    const std::int64_t from = h * group;
    qkv.middleCols(h * dk, dk) = x.middleCols(from, dk);
    qkv.middleCols(shape.key_dim() + h * dk, dk) = x.middleCols(from + dk, dk);
    qkv.middleCols(2 * shape.key_dim() + h * values, values) = x.middleCols(from + 2 * dk, values);
    z.middleCols(h * values, values) = x.middleCols(from + 2 * dk + values, values);
  }
  return {std::move(qkv), std::move(z)};
}

/// Groups of one key head, each [b of its value heads, a of them] -> b, a.
template <class S>
std::pair<Matrix<S>, Matrix<S>> EigenOps<S>::split_ba(const Tensor& x,
                                                      const GdnShape& shape) const {
  const std::int64_t r = shape.group();
  require_shape("split_ba", x, x.rows(), 2 * shape.num_value_heads);
  Tensor b(x.rows(), shape.num_value_heads), a(x.rows(), shape.num_value_heads);
  for (std::int64_t h = 0; h < shape.num_key_heads; ++h) {
    b.middleCols(h * r, r) = x.middleCols(2 * h * r, r);
    a.middleCols(h * r, r) = x.middleCols((2 * h + 1) * r, r);
  }
  return {std::move(b), std::move(a)};
}

/// Pairs (j, j + rotary_dim / 2) of each head turned by position * theta^(-2j / rotary_dim); the
/// other features pass. hf: frequencies (a buffer of the model that is cast with it), table, both
/// products and their sum rounded; vllm: table and result.
/// Sources: transformers modular_qwen3_next.py; vllm rotary_embedding/base.py, mrope.py.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::rope(const Tensor& x, const Batch& batch,
                                               const RopeShape& shape) const {
  if (x.rows() != batch.num_tokens())
    throw ShapeError(text("rope: ", x.rows(), " rows, but ", batch.num_tokens(), " positions"));
  const std::int64_t half = shape.rotary_dim / 2;
  const std::vector<std::int64_t>& by_axis =
      batch.mrope_positions.empty() ? batch.positions : batch.mrope_positions;
  const std::int64_t stride = batch.mrope_positions.empty() ? 0 : batch.num_tokens();
  std::vector<S> frequencies;
  for (std::int64_t j = 0; j < half; ++j)
    frequencies.push_back(
        rounded_by(Rounding::hf, S(1) / std::pow(S(shape.theta), S(2 * j) / S(shape.rotary_dim))));
  Tensor out = x;
  for (Eigen::Index t = 0; t < x.rows(); ++t)
    for (std::int64_t j = 0; j < half; ++j) {
      const auto position = by_axis[std::size_t(shape.axis[std::size_t(j)] * stride + t)];
      const S angle = S(position) * frequencies[std::size_t(j)];
      const S cos = rounded(std::cos(angle)), sin = rounded(std::sin(angle));
      for (std::int64_t head = 0; head < x.cols(); head += shape.head_dim) {
        const S a = x(t, head + j), b = x(t, head + j + half);
        const auto product = [&](S value, S turn) {
          return rounded_by(Rounding::hf, value * turn);
        };
        out(t, head + j) = rounded(product(a, cos) - product(b, sin));
        out(t, head + j + half) = rounded(product(b, cos) + product(a, sin));
      }
    }
  return out;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::pad_rows(const Tensor& x, std::int64_t count) const {
  Tensor out = Tensor::Zero(x.rows() + count, x.cols());
  out.topRows(x.rows()) = x;
  return out;
}

template <class S>
typename EigenOps<S>::Ids EigenOps<S>::argmax(const Tensor& logits) const {
  Ids ids;
  for (Eigen::Index t = 0; t < logits.rows(); ++t) {
    const S* row = logits.data() + t * logits.cols();
    ids.push_back(std::max_element(row, row + logits.cols()) - row);
  }
  return ids;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::slice(const Tensor& x, Axis axis, std::int64_t begin,
                                                std::int64_t end) const {
  const std::int64_t extent = axis == Axis::rows ? x.rows() : x.cols();
  if (begin < 0 || begin > end || end > extent)
    throw ShapeError(text("slice: [", begin, ", ", end, ") of ", extent));
  if (axis == Axis::rows) return x.middleRows(begin, end - begin);
  return x.middleCols(begin, end - begin);
}

template <class S>
void EigenOps<S>::concat(std::span<const Tensor* const> parts, Axis axis,
                         std::span<Tensor* const> results) const {
  array_algebra::join(parts, axis, results);
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::concat(std::span<const Tensor* const> parts,
                                                 Axis axis) const {
  Tensor whole;
  Tensor* const results[] = {&whole};
  concat(parts, axis, results);
  return whole;
}

template <class S>
void EigenOps<S>::sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
                      std::int64_t end, std::span<Tensor* const> results) const {
  if (rounding_ == Rounding::none)
    array_algebra::sum(parts, axis, begin, end, results, array_algebra::Plus{});
  else
    array_algebra::sum(parts, axis, begin, end, results,
                       [this](S x, S y) { return rounded(x + y); });
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::sum(std::span<const Tensor* const> parts, Axis axis,
                                              std::int64_t begin, std::int64_t end) const {
  Tensor total;
  Tensor* const results[] = {&total};
  sum(parts, axis, begin, end, results);
  return total;
}

template <class S>
typename EigenOps<S>::Routing EigenOps<S>::slice(const Routing& x, Axis axis, std::int64_t begin,
                                                 std::int64_t end) const {
  if (axis == Axis::cols) throw ShapeError("slice: a routing is cut along its rows only");
  return {slice(x.weights, axis, begin, end), x.ids.middleRows(begin, end - begin)};
}

template <class S>
typename EigenOps<S>::Routing EigenOps<S>::concat(std::span<const Routing* const> parts,
                                                  Axis axis) const {
  if (axis == Axis::cols) throw ShapeError("concat: a routing is joined along its rows only");
  std::vector<const Tensor*> weights;
  std::vector<const typename Routing::Ids*> ids;
  for (const Routing* part : parts) {
    weights.push_back(&part->weights);
    ids.push_back(&part->ids);
  }
  Routing whole{concat(weights, axis), {}};
  typename Routing::Ids* const whole_ids[] = {&whole.ids};
  array_algebra::join<typename Routing::Ids>(ids, axis, whole_ids);
  return whole;
}

static_assert(ModelOps<EigenOps<float>> && ModelOps<EigenOps<double>>);

template class EigenOps<float>;
template class EigenOps<double>;

}  // namespace tokenview
