// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "reference/eigen_ops.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {

/// Causal attention of each sequence's rows over its cache, after the rows' own keys and values are
/// written at the positions that follow the computed ones (over drafts that were rejected).
///
///   P[t, j] = softmax over j <= c_s + t of q_t . k_j / sqrt(head_dim);  out_t = sum of P[t, j] v_j
///
/// Query head h reads key/value head h / (num_heads / num_kv_heads). Pad rows give zero.
/// hf: scores, scaled scores and probabilities are rounded (eager attention); both round the
/// result. Source: transformers modeling_qwen3_next.py, eager_attention_forward.
template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::attention(const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const AttentionShape& heads,
                                                    KvCache& cache, const Batch& batch) const {
  const std::int64_t d = heads.head_dim;
  require_shape("attention q", q, batch.num_tokens(), heads.num_heads * d);
  require_shape("attention k", k, batch.num_tokens(), cache.width);
  require_shape("attention v", v, batch.num_tokens(), cache.width);

  const auto num_sequences = std::size_t(batch.num_sequences());
  for (std::size_t s = 0; s < num_sequences; ++s) {
    const std::int32_t first = batch.query_start_loc[s], last = batch.query_start_loc[s + 1];
    if (first == last) continue;  // a sequence without rows leaves its cache alone
    if (batch.slots[s] < 0)
      throw ShapeError(text("attention: sequence ", s, " writes to slot ", batch.slots[s]));
    const auto slot_index = std::size_t(batch.slots[s]);
    if (cache.slots.size() <= slot_index) cache.slots.resize(slot_index + 1);
    auto& slot = cache.slots[slot_index];
    const auto computed = std::size_t(batch.num_computed[s] * cache.width);
    if (slot.keys.size() < computed)
      throw ShapeError(text("attention: sequence ", s, " has ", batch.num_computed[s],
                            " computed tokens, but its cache holds ",
                            slot.keys.size() / std::size_t(cache.width)));
    const auto append = [&](std::vector<S>& to, const Tensor& from) {
      to.resize(computed);
      to.insert(to.end(), from.data() + first * cache.width, from.data() + last * cache.width);
    };
    append(slot.keys, k);
    append(slot.values, v);
  }

  const S scale = S(1) / std::sqrt(S(d));
  Tensor out = Tensor::Zero(q.rows(), q.cols());
  const std::int64_t tasks = std::int64_t(num_sequences) * heads.num_heads;
  const int threads = threads_for(q.size() * batch.num_tokens());
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const auto s = std::size_t(task / heads.num_heads);
    const std::int64_t head = task % heads.num_heads;
    const std::int64_t kv_head = head / (heads.num_heads / heads.num_kv_heads);
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    if (rows == 0) continue;
    const std::int64_t computed = batch.num_computed[s];
    const std::int64_t length = computed + rows;
    const auto& slot = cache.slots[std::size_t(batch.slots[s])];

    PackedMatrix<S> keys(1, length, d), values(1, d, length);  // values transposed
    keys.pack(0, slot.keys.data() + kv_head * d, cache.width);
    values.pack(0, slot.values.data() + kv_head * d, 1, cache.width);

    // In blocks of rows, so that scores take bounded memory whatever the length.
    constexpr std::int64_t block = 256;
    for (std::int64_t begin = 0; begin < rows; begin += block) {
      const std::int64_t count = std::min(block, rows - begin);
      Tensor scores(count, length);
      gemm(q.data() + (first + begin) * q.cols() + head * d, q.cols(), count, keys, 0,
           scores.data(), length, 1);
      for (std::int64_t t = 0; t < count; ++t) {
        S* row = scores.data() + t * length;
        const std::int64_t visible = computed + begin + t + 1;
        for (std::int64_t j = 0; j < visible; ++j)
          row[j] = rounded_by(Rounding::hf, rounded_by(Rounding::hf, row[j]) * scale);
        const S largest = *std::max_element(row, row + visible);
        S total = 0;
        for (std::int64_t j = 0; j < visible; ++j) total += row[j] = std::exp(row[j] - largest);
        for (std::int64_t j = 0; j < visible; ++j)
          row[j] = rounded_by(Rounding::hf, row[j] / total);
        std::fill(row + visible, row + length, S(0));
      }
      S* to = out.data() + (first + begin) * out.cols() + head * d;
      gemm(scores.data(), length, count, values, 0, to, out.cols(), 1);
      for (std::int64_t t = 0; t < count && rounding_ != Rounding::none; ++t)
        for (std::int64_t i = 0; i < d; ++i)
          to[t * out.cols() + i] = rounded(to[t * out.cols() + i]);
    }
  }
  return out;
}

template Matrix<float> EigenOps<float>::attention(const Matrix<float>&, const Matrix<float>&,
                                                  const Matrix<float>&, const AttentionShape&,
                                                  KvCache&, const Batch&) const;
template Matrix<double> EigenOps<double>::attention(const Matrix<double>&, const Matrix<double>&,
                                                    const Matrix<double>&, const AttentionShape&,
                                                    KvCache&, const Batch&) const;

}  // namespace tokenview
