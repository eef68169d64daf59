// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "reference/eigen_ops.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {
namespace {

/// The slot of sequence `s` of the batch.
template <class State>
auto& slot_of(State& state, const Batch& batch, std::size_t s) {
  if (batch.slots[s] < 0)
    throw ShapeError(text("gated_delta_net: sequence ", s, " writes to slot ", batch.slots[s]));
  const auto index = std::size_t(batch.slots[s]);
  if (state.slots.size() <= index) state.slots.resize(index + 1);
  return state.slots[index];
}

/// A sequence without computed tokens starts from zero, whatever its slot held before; any other
/// continues what the slot holds, which must have been written.
void require_written(bool written, const Batch& batch, std::size_t s) {
  if (!written)
    throw ShapeError(text("gated_delta_net: sequence ", s, " has ", batch.num_computed[s],
                          " computed tokens, but its slot ", batch.slots[s], " was never written"));
}

/// x / sqrt(sum of squares + 1e-6). Source: transformers modular_qwen3_next.py, l2norm.
template <class S>
void l2_normalise(S* x, std::int64_t n) {
  S sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const S scale = S(1) / std::sqrt(sum + S(1e-6));
  for (std::int64_t i = 0; i < n; ++i) x[i] *= scale;
}

/// One value head of one sequence: q (normalised, scaled), k (normalised) [n, dk], v [n, dv], write
/// strengths and log decays [n].
template <class S>
struct HeadRows {
  Matrix<S> q, k, v;
  Eigen::Matrix<S, Eigen::Dynamic, 1> beta, g;
};

/// model.md 4.5; state [dk, dv] is updated, the reads [n, dv] returned. `after_row(t)` is called
/// when the state is that after row t.
template <class S, class AfterRow>
Matrix<S> recurrent_delta_rule(const HeadRows<S>& x, S* state, AfterRow after_row) {
  const std::int64_t dk = x.k.cols(), dv = x.v.cols();
  Matrix<S> read(x.v.rows(), dv);
  std::vector<S> delta(static_cast<std::size_t>(dv));
  for (Eigen::Index t = 0; t < x.v.rows(); ++t) {
    const S decay = std::exp(x.g[t]);
    std::fill(delta.begin(), delta.end(), S(0));
    for (std::int64_t i = 0; i < dk; ++i) {  // decay, and what the memory predicts
      S* row = state + i * dv;
      const S k = x.k(t, i);
      for (std::int64_t j = 0; j < dv; ++j) {
        row[j] *= decay;
        delta[std::size_t(j)] += row[j] * k;
      }
    }
    for (std::int64_t j = 0; j < dv; ++j)
      delta[std::size_t(j)] = x.beta[t] * (x.v(t, j) - delta[std::size_t(j)]);
    S* out = read.data() + t * dv;
    std::fill(out, out + dv, S(0));
    for (std::int64_t i = 0; i < dk; ++i) {  // write, and read with this token included
      S* row = state + i * dv;
      const S k = x.k(t, i), q = x.q(t, i);
      for (std::int64_t j = 0; j < dv; ++j) {
        row[j] += k * delta[std::size_t(j)];
        out[j] += row[j] * q;
      }
    }
    after_row(t);
  }
  return read;
}

/// model.md 4.6: chunks of 64 rows, each one triangular system. `round` is applied where the fast
/// kernels of a bfloat16 model round. Sources: fla chunk.py, wy_fast.py; transformers
/// modular_qwen3_next.py, torch_chunk_gated_delta_rule.
template <class S, class Round>
Matrix<S> chunked_delta_rule(const HeadRows<S>& x, S* state_values, Round round) {
  constexpr Eigen::Index chunk = 64;
  const Eigen::Index dk = x.k.cols(), dv = x.v.cols();
  Eigen::Map<Matrix<S>> state(state_values, dk, dv);
  const auto rounded = [&](const auto& values) -> Matrix<S> { return values.unaryExpr(round); };
  Matrix<S> read(x.v.rows(), dv);
  for (Eigen::Index first = 0; first < x.v.rows(); first += chunk) {
    const Eigen::Index n = std::min(chunk, x.v.rows() - first);
    const Matrix<S> q = rounded(x.q.middleRows(first, n)), k = rounded(x.k.middleRows(first, n));
    const auto beta = x.beta.segment(first, n);
    Eigen::Matrix<S, Eigen::Dynamic, 1> decay_sum(n);  // G
    for (Eigen::Index i = 0; i < n; ++i)
      decay_sum[i] = x.g[first + i] + (i > 0 ? decay_sum[i - 1] : S(0));
    const auto decay_between = [&](Eigen::Index i, Eigen::Index j) {  // j <= i: never overflows
      return std::exp(decay_sum[i] - decay_sum[j]);
    };

    Matrix<S> lower = Matrix<S>::Identity(n, n);  // I + Lo
    const Matrix<S> kk = k * k.transpose();
    Matrix<S> inside = q * k.transpose();  // (Q K^T) o D
    for (Eigen::Index i = 0; i < n; ++i)
      for (Eigen::Index j = 0; j < n; ++j) {
        if (j < i) lower(i, j) = beta[i] * kk(i, j) * decay_between(i, j);
        inside(i, j) = j <= i ? inside(i, j) * decay_between(i, j) : S(0);
      }
    Matrix<S> inverse = Matrix<S>::Identity(n, n);
    lower.template triangularView<Eigen::UnitLower>().solveInPlace(inverse);  // Tm
    inverse = rounded(inverse);
    const Eigen::Matrix<S, Eigen::Dynamic, 1> from_start = decay_sum.array().exp();

    const Matrix<S> u = rounded(inverse * rounded(beta.asDiagonal() * x.v.middleRows(first, n)));
    const Matrix<S> w =
        rounded(inverse * rounded((beta.array() * from_start.array()).matrix().asDiagonal() * k));
    const Matrix<S> entering = rounded(state);
    const Matrix<S> deltas = u - w * entering;
    read.middleRows(first, n) =
        from_start.asDiagonal() * (q * entering) + rounded(inside) * rounded(deltas);

    Eigen::Matrix<S, Eigen::Dynamic, 1> to_end(n);
    for (Eigen::Index i = 0; i < n; ++i) to_end[i] = decay_between(n - 1, i);
    state =
        from_start[n - 1] * state + k.transpose() * rounded(to_end.asDiagonal() * rounded(deltas));
  }
  return read;
}

}  // namespace

/// y[t, c] = silu(sum over m of w[c, m] x[t - (kernel - 1) + m, c]), rows before the sequence's
/// first from its state (zero for a new one). hf: sum and silu rounded; vllm: one rounding.
/// Sources: transformers modular_qwen3_next.py; vllm causal_conv1d.py.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::causal_conv(const Tensor& x, const Weight& w,
                                                      GdnState& state, const Batch& batch) const {
  const std::int64_t kernel = w.plain.cols(), channels = x.cols();
  require_shape("causal_conv", x, batch.num_tokens(), w.plain.rows());
  Tensor out = Tensor::Zero(x.rows(), channels);  // pad rows stay zero
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s) {
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    if (rows == 0) continue;
    auto& slot = slot_of(state, batch, s);
    if (batch.num_computed[s] == 0) slot.now.conv.setZero(kernel - 1, channels);
    require_written(slot.now.conv.cols() == channels, batch, s);
    slot.after_row.clear();
    const auto input = [&](std::int64_t t) {  // row t of the sequence's part; t >= -(kernel - 1)
      return t < 0 ? slot.now.conv.data() + (t + kernel - 1) * channels
                   : x.data() + (first + t) * channels;
    };
    for (std::int64_t t = 0; t < rows; ++t) {
      S* to = out.data() + (first + t) * channels;
      for (std::int64_t m = 0; m < kernel; ++m) {
        const S* from = input(t - (kernel - 1) + m);
        for (std::int64_t c = 0; c < channels; ++c) to[c] += w.plain(c, m) * from[c];
      }
      for (std::int64_t c = 0; c < channels; ++c) {
        const S sum = rounded_by(Rounding::hf, to[c]);
        to[c] = rounded(sum / (S(1) + std::exp(-sum)));
      }
    }
    const auto rows_until = [&](std::int64_t end) {  // the last kernel - 1 inputs before row `end`
      Tensor last(kernel - 1, channels);
      for (std::int64_t i = 0; i < kernel - 1; ++i)
        std::copy_n(input(end - (kernel - 1) + i), channels, last.data() + i * channels);
      return last;
    };
    if (batch.keep_states) {
      slot.after_row.resize(std::size_t(rows));
      for (std::int64_t t = 0; t < rows; ++t)
        slot.after_row[std::size_t(t)].conv = rows_until(t + 1);
    }
    slot.now.conv = rows_until(rows);
  }
  return out;
}

/// beta = sigmoid(b), rounded by hf only; g = -exp(A_log) softplus(a + dt_bias) <= 0, in fp32.
/// Source: transformers modular_qwen3_next.py; vllm fused_sigmoid_gating.py (softplus threshold
/// 20).
template <class S>
std::pair<Matrix<S>, Matrix<S>> EigenOps<S>::delta_gates(const Tensor& b, const Tensor& a,
                                                         const Weight& A_log,
                                                         const Weight& dt_bias) const {
  require_same_shape("delta_gates", b, a);
  require_shape("delta_gates", b, b.rows(), A_log.plain.rows());
  Tensor beta(b.rows(), b.cols()), g(b.rows(), b.cols());
  for (Eigen::Index t = 0; t < b.rows(); ++t)
    for (Eigen::Index h = 0; h < b.cols(); ++h) {
      beta(t, h) = rounded_by(Rounding::hf, S(1) / (S(1) + std::exp(-b(t, h))));
      const S x = a(t, h) + dt_bias.plain(h, 0);
      g(t, h) = -std::exp(A_log.plain(h, 0)) * (x > S(20) ? x : std::log1p(std::exp(x)));
    }
  return {std::move(beta), std::move(g)};
}

/// The delta rule of each value head over each sequence, from and to the sequence's state; the
/// result is rounded. qkv [T, conv_dim], beta and g [T, value_heads] -> [T, value_dim].
/// Sequences of one row take the recurrent form. vllm: longer ones the chunked form with the
/// roundings of its prefill kernels.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::gated_delta_rule(const Tensor& qkv, const Tensor& beta,
                                                           const Tensor& g, const GdnShape& shape,
                                                           GdnState& state,
                                                           const Batch& batch) const {
  const std::int64_t dk = shape.key_head_dim, dv = shape.value_head_dim;
  require_shape("gated_delta_rule", qkv, batch.num_tokens(), shape.conv_dim());
  require_shape("gated_delta_rule", g, batch.num_tokens(), shape.num_value_heads);
  Tensor out = Tensor::Zero(qkv.rows(), shape.value_dim());  // pad rows stay zero
  const auto num_sequences = std::size_t(batch.num_sequences());
  for (std::size_t s = 0; s < num_sequences; ++s) {
    if (batch.query_start_loc[s] == batch.query_start_loc[s + 1]) continue;
    auto& slot = slot_of(state, batch, s);
    const auto size = std::size_t(shape.value_dim() * dk);
    if (batch.num_computed[s] == 0) slot.now.recurrent.assign(size, 0);
    require_written(slot.now.recurrent.size() == size, batch, s);
    for (auto& column : slot.after_row) column.recurrent.resize(slot.now.recurrent.size());
  }

  const std::int64_t tasks = std::int64_t(num_sequences) * shape.num_value_heads;
  const int threads = threads_for(qkv.rows() * shape.value_dim() * dk);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const auto s = std::size_t(task / shape.num_value_heads);
    const std::int64_t head = task % shape.num_value_heads;
    const std::int64_t key_head = head / shape.group();
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    if (rows == 0) continue;

    HeadRows<S> x{qkv.block(first, key_head * dk, rows, dk),
                  qkv.block(first, shape.key_dim() + key_head * dk, rows, dk),
                  qkv.block(first, 2 * shape.key_dim() + head * dv, rows, dv),
                  beta.block(first, head, rows, 1), g.block(first, head, rows, 1)};
    for (std::int64_t t = 0; t < rows; ++t) {
      l2_normalise(x.q.data() + t * dk, dk);
      l2_normalise(x.k.data() + t * dk, dk);
    }
    x.q *= S(1) / std::sqrt(S(dk));

    auto& slot = state.slots[std::size_t(batch.slots[s])];
    S* values = slot.now.recurrent.data() + head * dk * dv;
    const auto keep = [&](Eigen::Index t) {  // fewer, where another sequence has the same slot
      if (std::size_t(t) < slot.after_row.size())
        std::copy_n(values, dk * dv,
                    slot.after_row[std::size_t(t)].recurrent.data() + head * dk * dv);
    };
    const auto not_rounded = [](S value) { return value; };
    const auto to_bf16 = [this](S value) { return rounded(value); };
    Tensor read;
    if (rows == 1 || batch.keep_states)
      read = recurrent_delta_rule(x, values, keep);
    else if (rounding_ == Rounding::vllm)
      read = chunked_delta_rule(x, values, to_bf16);
    else if (gdn_form_ == GdnForm::chunked)
      read = chunked_delta_rule(x, values, not_rounded);
    else
      read = recurrent_delta_rule(x, values, keep);
    round_in_place(read);
    out.block(first, head * dv, rows, dv) = read;
  }
  return out;
}

/// norm(x) w silu(z) for each head of w's width; w is not zero-centred. hf: the norm and its
/// product with w are rounded before the gate; vllm: one rounding. Source: transformers
/// modular_qwen3_next.py, Qwen3NextRMSNormGated; vllm layernorm_guard.py.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::gated_rms_norm(const Tensor& x, const Tensor& z,
                                                         const Weight& w, double eps) const {
  require_same_shape("gated_rms_norm", x, z);
  const std::int64_t width = w.plain.rows();
  Tensor out(x.rows(), x.cols());
#pragma omp parallel for num_threads(threads_for(x.size())) if (threads_for(x.size()) > 1)
  for (Eigen::Index t = 0; t < x.rows(); ++t)
    for (std::int64_t head = 0; head < x.cols(); head += width) {
      const S* from = x.data() + t * x.cols() + head;
      S squares = 0;
      for (std::int64_t i = 0; i < width; ++i) squares += from[i] * from[i];
      const S scale = S(1) / std::sqrt(squares / S(width) + S(eps));
      for (std::int64_t i = 0; i < width; ++i) {
        const S gate = z(t, head + i);
        const S normed = rounded_by(Rounding::hf, from[i] * scale);
        const S weighted = rounded_by(Rounding::hf, normed * w.plain.data()[i]);
        out(t, head + i) = rounded(weighted * (gate / (S(1) + std::exp(-gate))));
      }
    }
  return out;
}

template <class S>
void EigenOps<S>::commit_accepted(GdnState& state, std::int32_t slot_index,
                                  std::int64_t rows) const {
  if (slot_index < 0 || std::size_t(slot_index) >= state.slots.size())
    throw ShapeError(text("commit_accepted: slot ", slot_index, " was never written"));
  auto& slot = state.slots[std::size_t(slot_index)];
  if (rows < 1 || rows > std::int64_t(slot.after_row.size()))
    throw ShapeError(text("commit_accepted: ", rows, " accepted rows, but the last pass kept ",
                          slot.after_row.size()));
  slot.now = slot.after_row[std::size_t(rows) - 1];
}

#define TOKENVIEW_INSTANTIATE(S)                                                                 \
  template Matrix<S> EigenOps<S>::causal_conv(const Matrix<S>&, const Weight&, GdnState&,        \
                                              const Batch&) const;                               \
  template std::pair<Matrix<S>, Matrix<S>> EigenOps<S>::delta_gates(                             \
      const Matrix<S>&, const Matrix<S>&, const Weight&, const Weight&) const;                   \
  template Matrix<S> EigenOps<S>::gated_delta_rule(const Matrix<S>&, const Matrix<S>&,           \
                                                   const Matrix<S>&, const GdnShape&, GdnState&, \
                                                   const Batch&) const;                          \
  template Matrix<S> EigenOps<S>::gated_rms_norm(const Matrix<S>&, const Matrix<S>&,             \
                                                 const Weight&, double) const;                   \
  template void EigenOps<S>::commit_accepted(GdnState&, std::int32_t, std::int64_t) const;
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(double)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview
