// SPDX-License-Identifier: Apache-2.0
// Operations over the rows of a sequence and its past: attention, convolution, delta rule.
#include <algorithm>

#include "device/cuda_context.hpp"
#include "device/cuda_ops.hpp"
#include "device/kernels.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {
namespace {

/// The sequence of each row of the batch; -1: a pad.
std::vector<std::int32_t> sequence_of_rows(const Batch& batch) {
  std::vector<std::int32_t> sequence(std::size_t(batch.num_tokens()), -1);
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s)
    std::fill(sequence.begin() + batch.query_start_loc[s],
              sequence.begin() + batch.query_start_loc[s + 1], std::int32_t(s));
  return sequence;
}

/// The slot of sequence `s` of the batch.
template <class State>
auto& slot_of(State& state, const Batch& batch, std::size_t s, const char* operation) {
  if (batch.slots[s] < 0)
    throw ShapeError(text(operation, ": sequence ", s, " writes to slot ", batch.slots[s]));
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

}  // namespace

template <class T>
typename CudaOps<T>::KvCache CudaOps<T>::kv_cache(const AttentionShape& heads) const {
  return KvCache(heads.num_kv_heads * heads.head_dim);
}

template <class T>
typename CudaOps<T>::GdnState CudaOps<T>::gdn_state(const GdnShape& shape,
                                                    std::int64_t kernel) const {
  return GdnState(shape, kernel);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionShape& heads, KvCache& cache,
                                      const Batch& batch) const {
  const std::int64_t d = heads.head_dim;
  require_shape("attention q", q, batch.num_tokens(), heads.num_heads * d);
  require_shape("attention k", k, batch.num_tokens(), cache.width);
  require_shape("attention v", v, batch.num_tokens(), cache.width);
  if (d > kernels::max_head_dim)
    throw ShapeError(
        text("attention: a head of ", d, " features, expected at most ", kernels::max_head_dim));

  std::vector<kernels::AttentionSequence<T>> sequences;
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s) {
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    if (rows == 0) {  // leaves its cache alone, and no row asks for it
      sequences.emplace_back();
      continue;
    }
    auto& slot = slot_of(cache, batch, s, "attention");
    const std::int64_t computed = batch.num_computed[s];
    if (slot.length < computed)
      throw ShapeError(text("attention: sequence ", s, " has ", computed,
                            " computed tokens, but its cache holds ", slot.length));
    slot.length = computed + rows;
    for (Tensor* of_slot : {&slot.keys, &slot.values})
      if (of_slot->rows() < slot.length) {  // twice as much, so that growing costs little
        const Tensor larger = matrix(2 * slot.length, cache.width);
        gpu_->copy(larger.data(), of_slot->data(),
                   computed * cache.width * std::int64_t(sizeof(T)));
        *of_slot = larger;
      }
    sequences.push_back({slot.keys.data(), slot.values.data(), first, rows, computed});
  }
  const auto device_sequences = gpu_->upload(sequences);
  const auto sequence_of_row = gpu_->upload(sequence_of_rows(batch));
  kernels::append_to_cache<T>(k, v, device_sequences.get(), sequence_of_row.get(), gpu_->stream());
  const Tensor out = matrix(q.rows(), q.cols());
  kernels::attention<T>(out, q, heads.num_heads, heads.num_kv_heads, device_sequences.get(),
                        sequence_of_row.get(), rounding_, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::causal_conv(const Tensor& x, const Weight& w, GdnState& state,
                                        const Batch& batch) const {
  const std::int64_t kernel = w.values.cols(), channels = x.cols(), size = kernel - 1;
  require_shape("causal_conv", x, batch.num_tokens(), w.values.rows());
  std::vector<kernels::ConvSequence<T>> sequences, with_rows;
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s) {
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    sequences.emplace_back();
    if (rows == 0) continue;
    auto& slot = slot_of(state, batch, s, "gated_delta_net");
    if (batch.num_computed[s] == 0) slot.conv = blank(size, channels);
    require_written(slot.conv.cols() == channels, batch, s);
    slot.conv_after_row = batch.keep_states ? matrix(rows, size * channels) : Tensor();
    slot.recurrent_after_row = {};
    sequences.back() = {slot.conv.data(), slot.conv_after_row.data(), first, rows};
    with_rows.push_back(sequences.back());
  }
  const auto device_sequences = gpu_->upload(sequences);
  const auto sequence_of_row = gpu_->upload(sequence_of_rows(batch));
  const Tensor out = matrix(x.rows(), channels);
  kernels::causal_conv<T>(out, x, w.values.data(), kernel, device_sequences.get(),
                          sequence_of_row.get(), rounding_, gpu_->stream());
  const auto moving = gpu_->upload(with_rows);
  kernels::advance_conv_state<T>(x, kernel, moving.get(), std::int64_t(with_rows.size()),
                                 gpu_->stream());
  return out;
}

template <class T>
std::pair<DeviceMatrix<float>, DeviceMatrix<float>> CudaOps<T>::delta_gates(
    const Tensor& b, const Tensor& a, const Weight& A_log, const Weight& dt_bias) const {
  require_same_shape("delta_gates", b, a);
  require_shape("delta_gates", b, b.rows(), A_log.values.rows());
  const auto beta = gpu_->matrix<float>(b.rows(), b.cols());
  const auto g = gpu_->matrix<float>(b.rows(), b.cols());
  kernels::delta_gates<T>(beta, g, b, a, A_log.values.data(), dt_bias.values.data(), rounding_,
                          gpu_->stream());
  return {beta, g};
}

template <class T>
DeviceMatrix<T> CudaOps<T>::gated_delta_rule(const Tensor& qkv, const DeviceMatrix<float>& beta,
                                             const DeviceMatrix<float>& g, const GdnShape& shape,
                                             GdnState& state, const Batch& batch) const {
  const std::int64_t dk = shape.key_head_dim, dv = shape.value_head_dim;
  require_shape("gated_delta_rule", qkv, batch.num_tokens(), shape.conv_dim());
  require_shape("gated_delta_rule", beta, batch.num_tokens(), shape.num_value_heads);
  require_shape("gated_delta_rule", g, batch.num_tokens(), shape.num_value_heads);
  if (dk > kernels::max_key_dim)
    throw ShapeError(text("gated_delta_rule: a key head of ", dk, " features, expected at most ",
                          kernels::max_key_dim));

  std::vector<kernels::DeltaSequence> sequences;
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s) {
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    if (rows == 0) continue;
    if (rounding_ == Rounding::vllm && rows > 1 && !batch.keep_states)
      throw ConfigError("the GPU has no chunked delta rule with vllm's rounding: expected hf");
    auto& slot = slot_of(state, batch, s, "gated_delta_net");
    const std::int64_t state_rows = shape.num_value_heads * dk;
    if (batch.num_computed[s] == 0) slot.recurrent = gpu_->zeros<float>(state_rows, dv);
    require_written(slot.recurrent.rows() == state_rows && slot.recurrent.cols() == dv, batch, s);
    slot.recurrent_after_row = gpu_->matrix<float>(batch.keep_states ? rows : 0, state_rows * dv);
    sequences.push_back({slot.recurrent.data(), slot.recurrent_after_row.data(), first, rows});
  }

  const kernels::DeltaShape heads{shape.num_key_heads, shape.num_value_heads, dk, dv};
  const auto qk = gpu_->matrix<float>(qkv.rows(), 2 * shape.key_dim());
  kernels::normalise_query_key<T>(qk, qkv, heads, gpu_->stream());
  const bool has_pads = batch.num_real_tokens() < batch.num_tokens();
  const Tensor out = has_pads ? blank(qkv.rows(), shape.value_dim())  // pad rows stay zero
                              : matrix(qkv.rows(), shape.value_dim());
  const auto device_sequences = gpu_->upload(sequences);
  kernels::gated_delta_rule<T>(out, qk, qkv, beta, g, heads, device_sequences.get(),
                               std::int64_t(sequences.size()), gpu_->stream());
  return out;
}

template <class T>
void CudaOps<T>::commit_accepted(GdnState& state, std::int32_t slot_index,
                                 std::int64_t rows) const {
  auto& slot = state.slots.at(std::size_t(slot_index));
  if (rows < 1 || rows > slot.conv_after_row.rows())
    throw ShapeError(text("commit_accepted: ", rows, " accepted rows, but the last pass kept ",
                          slot.conv_after_row.rows()));
  const auto take = [&](const auto& state_now, const auto& after_row) {
    gpu_->copy(state_now.data(), after_row.data() + (rows - 1) * after_row.cols(),
               state_now.size() * std::int64_t(sizeof(*state_now.data())));
  };
  take(slot.conv, slot.conv_after_row);
  take(slot.recurrent, slot.recurrent_after_row);
}

template class CudaOps<float>;
template class CudaOps<__nv_bfloat16>;

}  // namespace tokenview
