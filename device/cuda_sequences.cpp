// SPDX-License-Identifier: Apache-2.0
// Operations over the rows of a sequence and its past: attention, convolution, delta rule. What
// they know of a batch reaches the GPU as step inputs, functions of the batch that also note in the
// caches what its rows make of them.
#include <algorithm>

#include "device/cuda_context.hpp"
#include "device/cuda_ops.hpp"
#include "device/kernels.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {
namespace {

using kernels::cache_block;
using kernels::Sequence;

/// The sequence of each row of the batch; -1: a pad.
std::vector<std::int32_t> sequence_of_rows(const Batch& batch) {
  std::vector<std::int32_t> sequence(std::size_t(batch.num_tokens()), -1);
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s)
    std::fill(sequence.begin() + batch.query_start_loc[s],
              sequence.begin() + batch.query_start_loc[s + 1], std::int32_t(s));
  return sequence;
}

/// The sequences of the batch, without block tables; one without rows leaves its caches alone.
std::vector<Sequence> sequences_of(const Batch& batch) {
  std::vector<Sequence> sequences(std::size_t(batch.num_sequences()));
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::int64_t first = batch.query_start_loc[s];
    const std::int64_t rows = batch.query_start_loc[s + 1] - first;
    if (rows > 0) sequences[s] = {first, rows, batch.num_computed[s], batch.slots[s], 0};
  }
  return sequences;
}

/// Slots that a pool must have for the sequences with rows.
std::int64_t slots_needed(const std::vector<Sequence>& sequences, const char* operation) {
  std::int64_t slots = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].rows > 0 && sequences[s].slot < 0)
      throw ShapeError(text(operation, ": sequence ", s, " writes to slot ", sequences[s].slot));
    if (sequences[s].rows > 0) slots = std::max(slots, sequences[s].slot + 1);
  }
  return slots;
}

/// `pool` with at least `rows` rows of `cols`, twice as many as before so that growing costs
/// little. A pool that a captured step knows must stay where it is, so there it is left as it is,
/// for require_room() to find.
template <class X>
void grow(CudaContext& gpu, DeviceMatrix<X>& pool, std::int64_t rows, std::int64_t cols) {
  if (pool.rows() >= rows || gpu.is_capturing()) return;
  const auto larger = gpu.zeros<X>(std::max(rows, 2 * pool.rows()), cols);
  gpu.copy(larger.data(), pool.data(), pool.size() * std::int64_t(sizeof(X)));
  pool = larger;
}

/// `known` is the pool as a step knows it, `pool` as it is.
template <class X>
void require_room(const DeviceMatrix<X>& pool, const DeviceMatrix<X>& known, std::int64_t rows,
                  const char* what) {
  if (pool.rows() != known.rows() || pool.data() != known.data())
    throw DeviceError(text(what, ": the pool has grown since the step was captured"));
  if (rows > pool.rows())
    throw DeviceError(text(what, ": the step needs ", rows, " rows of a pool of ", pool.rows(),
                           ", which cannot grow in a captured step: reserve() more before"));
}

/// A sequence without computed tokens starts from zero, whatever its slot held before; any other
/// continues what the slot holds, which must have been written.
void require_written(bool written, const Batch& batch, std::size_t s) {
  if (!written)
    throw ShapeError(text("gated_delta_net: sequence ", s, " has ", batch.num_computed[s],
                          " computed tokens, but its slot ", batch.slots[s], " was never written"));
}

std::int64_t blocks_of(const Sequence& s) {
  return (s.computed + s.rows + cache_block - 1) / cache_block;
}

/// Blocks in use when the rows of the batch are written.
template <class KvCache>
std::int64_t blocks_needed(const KvCache& cache, const std::vector<Sequence>& sequences) {
  std::int64_t blocks = cache.used_blocks;
  for (const Sequence& s : sequences) {
    const bool is_new = std::size_t(s.slot) >= cache.slots.size();
    const auto has = is_new ? 0 : std::int64_t(cache.slots[std::size_t(s.slot)].blocks.size());
    if (s.rows > 0) blocks += std::max<std::int64_t>(blocks_of(s) - has, 0);
  }
  return blocks;
}

/// Notes the rows of the batch in the cache, with blocks for them, and gives its sequences with
/// their places in block_tables().
template <class KvCache>
std::vector<Sequence> appended(CudaContext& gpu, KvCache& cache, const Batch& batch) {
  std::vector<Sequence> sequences = sequences_of(batch);
  gpu.keep(cache.slots);
  gpu.keep(cache.used_blocks);
  const auto num_slots = std::size_t(slots_needed(sequences, "attention"));
  if (cache.slots.size() < num_slots) cache.slots.resize(num_slots);
  std::int64_t first_block = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = sequences[i];
    if (s.rows == 0) continue;
    auto& slot = cache.slots[std::size_t(s.slot)];
    if (slot.length < s.computed)
      throw ShapeError(text("attention: sequence ", i, " has ", s.computed,
                            " computed tokens, but its cache holds ", slot.length));
    slot.length = s.computed + s.rows;
    while (std::int64_t(slot.blocks.size()) < blocks_of(s))
      slot.blocks.push_back(std::int32_t(cache.used_blocks++));
    s.first_block = first_block;
    first_block += blocks_of(s);
  }
  return sequences;
}

/// The blocks of each sequence, one after the other.
template <class KvCache>
std::vector<std::int32_t> block_tables(const KvCache& cache, const Batch& batch) {
  std::vector<std::int32_t> tables;
  for (const Sequence& s : sequences_of(batch))
    if (s.rows > 0) {
      const auto& blocks = cache.slots[std::size_t(s.slot)].blocks;
      tables.insert(tables.end(), blocks.begin(), blocks.begin() + blocks_of(s));
    }
  return tables;
}

/// The row of the pool that each row of the batch is written to; -1: a pad.
template <class KvCache>
std::vector<std::int64_t> cache_rows(const KvCache& cache, const Batch& batch) {
  std::vector<std::int64_t> rows(std::size_t(batch.num_tokens()), -1);
  for (const Sequence& s : sequences_of(batch))
    for (std::int64_t t = 0; t < s.rows; ++t) {
      const std::int64_t position = s.computed + t;
      const auto& blocks = cache.slots[std::size_t(s.slot)].blocks;
      rows[std::size_t(s.first + t)] =
          blocks[std::size_t(position / cache_block)] * cache_block + position % cache_block;
    }
  return rows;
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
void CudaOps<T>::reserve(KvCache& cache, std::int64_t blocks) const {
  grow(*gpu_, cache.keys, blocks * cache_block, cache.width);
  grow(*gpu_, cache.values, blocks * cache_block, cache.width);
}

template <class T>
void CudaOps<T>::reserve(GdnState& state, std::int64_t slots) const {
  grow(*gpu_, state.conv, slots, state.conv_size());
  grow(*gpu_, state.recurrent, slots, state.recurrent_size());
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

  reserve(cache, blocks_needed(cache, sequences_of(batch)));
  const Tensor keys = cache.keys, values = cache.values;
  const auto sequences = gpu_->step_input(batch, [&gpu = *gpu_, &cache, keys](const Batch& step) {
    require_room(cache.keys, keys, blocks_needed(cache, sequences_of(step)) * cache_block,
                 "attention");
    return appended(gpu, cache, step);
  });
  const auto tables = gpu_->step_input(
      batch, [&cache](const Batch& step) { return block_tables(cache, step); },
      keys.rows() / cache_block);
  const auto to_rows =
      gpu_->step_input(batch, [&cache](const Batch& step) { return cache_rows(cache, step); });
  const auto sequence_of_row = gpu_->step_input(batch, sequence_of_rows);
  kernels::append_to_cache<T>(keys.data(), values.data(), k, v, to_rows.get(), gpu_->stream());
  const Tensor out = matrix(q.rows(), q.cols());
  kernels::attention<T>(out, q, heads.num_heads, heads.num_kv_heads, keys.data(), values.data(),
                        tables.get(), sequences.get(), sequence_of_row.get(), rounding_,
                        gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::causal_conv(const Tensor& x, const Weight& w, GdnState& state,
                                        const Batch& batch) const {
  const std::int64_t kernel = w.values.cols(), channels = x.cols();
  require_shape("causal_conv", x, batch.num_tokens(), w.values.rows());
  if (channels != state.shape.conv_dim() || kernel != state.kernel)
    throw ShapeError(text("causal_conv: ", channels, " channels and a kernel of ", kernel,
                          ", but a state of ", state.shape.conv_dim(), " and ", state.kernel));

  grow(*gpu_, state.conv, slots_needed(sequences_of(batch), "gated_delta_net"), state.conv_size());
  const Tensor pool = state.conv;
  const Tensor kept = batch.keep_states ? matrix(x.rows(), state.conv_size()) : Tensor();
  const auto sequences =
      gpu_->step_input(batch, [&gpu = *gpu_, &state, pool, kept](const Batch& step) {
        const std::vector<Sequence> all = sequences_of(step);
        const std::int64_t num_slots = slots_needed(all, "gated_delta_net");
        gpu.keep(state.slots);
        require_room(state.conv, pool, num_slots, "gated_delta_net");
        if (std::int64_t(state.slots.size()) < num_slots)
          state.slots.resize(std::size_t(num_slots));
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i].rows == 0) continue;
          auto& slot = state.slots[std::size_t(all[i].slot)];
          require_written(all[i].computed == 0 || slot.has_conv, step, i);
          slot.has_conv = true;
          slot.conv_after_row =
              step.keep_states ? kept.middle_rows(all[i].first, all[i].rows) : Tensor();
          slot.recurrent_after_row = {};
        }
        return all;
      });
  const auto sequence_of_row = gpu_->step_input(batch, sequence_of_rows);
  const Tensor out = matrix(x.rows(), channels);
  kernels::causal_conv<T>(out, x, w.values.data(), kernel, pool.data(), sequences.get(),
                          sequence_of_row.get(), rounding_, gpu_->stream());
  kernels::advance_conv_state<T>(pool.data(), kept.data(), x, kernel, sequences.get(),
                                 batch.num_sequences(), gpu_->stream());
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

/// Sequences of one row, and those whose states are kept, take the recurrent form. vllm: longer
/// ones the chunked form with the roundings of its prefill kernels.
template <class T>
DeviceMatrix<T> CudaOps<T>::gated_delta_rule(const Tensor& qkv, const DeviceMatrix<float>& beta,
                                             const DeviceMatrix<float>& g, const GdnShape& shape,
                                             GdnState& state, const Batch& batch) const {
  const std::int64_t dk = shape.key_head_dim, dv = shape.value_head_dim;
  require_shape("gated_delta_rule", qkv, batch.num_tokens(), shape.conv_dim());
  require_shape("gated_delta_rule", beta, batch.num_tokens(), shape.num_value_heads);
  require_shape("gated_delta_rule", g, batch.num_tokens(), shape.num_value_heads);
  if (shape.value_dim() * dk != state.recurrent_size())
    throw ShapeError(text("gated_delta_rule: a state of ", shape.value_dim() * dk,
                          " elements, expected ", state.recurrent_size()));
  if (dk > kernels::max_key_dim)
    throw ShapeError(text("gated_delta_rule: a key head of ", dk, " features, expected at most ",
                          kernels::max_key_dim));

  grow(*gpu_, state.recurrent, slots_needed(sequences_of(batch), "gated_delta_net"),
       state.recurrent_size());
  const auto pool = state.recurrent;
  const auto kept = batch.keep_states ? gpu_->matrix<float>(qkv.rows(), state.recurrent_size())
                                      : DeviceMatrix<float>();
  const bool in_chunks = rounding_ == Rounding::vllm || gdn_form_ == GdnForm::chunked;
  const auto of_form = [in_chunks](const Batch& step, bool is_chunked) {
    std::vector<Sequence> all = sequences_of(step);
    std::erase_if(all, [&](const Sequence& s) {
      return s.rows == 0 || (in_chunks && s.rows > 1 && !step.keep_states) != is_chunked;
    });
    return all;
  };
  const auto note = [&gpu = *gpu_, &state, pool, kept](const Batch& step) {
    const std::vector<Sequence> all = sequences_of(step);
    const std::int64_t num_slots = slots_needed(all, "gated_delta_net");
    gpu.keep(state.slots);
    require_room(state.recurrent, pool, num_slots, "gated_delta_net");
    if (std::int64_t(state.slots.size()) < num_slots) state.slots.resize(std::size_t(num_slots));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].rows == 0) continue;
      auto& slot = state.slots[std::size_t(all[i].slot)];
      require_written(all[i].computed == 0 || slot.has_recurrent, step, i);
      slot.has_recurrent = true;
      slot.recurrent_after_row =
          step.keep_states ? kept.middle_rows(all[i].first, all[i].rows) : DeviceMatrix<float>();
    }
  };

  const std::int64_t most = batch.num_sequences();
  const auto recurrent = gpu_->step_input(
      batch,
      [note, of_form](const Batch& step) {
        note(step);
        return of_form(step, false);
      },
      most);
  const auto num_chunked = std::int64_t(of_form(batch, true).size());
  const auto num_recurrent = std::int64_t(of_form(batch, false).size());
  // A captured step may be replayed with pads, and with sequences of one row where it had longer
  // ones.
  const bool captures = gpu_->is_capturing();
  const bool has_pads = captures || batch.num_real_tokens() < batch.num_tokens();
  const Tensor out = has_pads ? blank(qkv.rows(), shape.value_dim())  // pad rows stay zero
                              : matrix(qkv.rows(), shape.value_dim());
  const kernels::DeltaShape heads{shape.num_key_heads, shape.num_value_heads, dk, dv};
  kernels::gated_delta_rule<T>(out, qkv, beta, g, heads, pool.data(), kept.data(), recurrent.get(),
                               captures ? most : num_recurrent, gpu_->stream());
  if (num_chunked > 0) {
    const auto chunked = gpu_->step_input(
        batch, [of_form](const Batch& step) { return of_form(step, true); }, most);
    kernels::chunked_delta_rule<T>(out, qkv, beta, g, heads, pool.data(), chunked.get(),
                                   captures ? most : num_chunked, rounding_, gpu_->stream());
  }
  return out;
}

template <class T>
void CudaOps<T>::commit_accepted(GdnState& state, std::int32_t slot_index,
                                 std::int64_t rows) const {
  if (gpu_->is_capturing())
    throw DeviceError(
        "commit_accepted: how many rows were accepted is no function of the batch, "
        "so it cannot be part of a captured step");
  if (slot_index < 0 || std::size_t(slot_index) >= state.slots.size())
    throw ShapeError(text("commit_accepted: slot ", slot_index, " was never written"));
  auto& slot = state.slots[std::size_t(slot_index)];
  if (rows < 1 || rows > slot.conv_after_row.rows())
    throw ShapeError(text("commit_accepted: ", rows, " accepted rows, but the last pass kept ",
                          slot.conv_after_row.rows()));
  const auto take = [&](const auto& pool, const auto& after_row) {
    gpu_->copy(pool.data() + slot_index * pool.cols(), after_row.data() + (rows - 1) * pool.cols(),
               pool.cols() * std::int64_t(sizeof(*pool.data())));
  };
  take(state.conv, slot.conv_after_row);
  take(state.recurrent, slot.recurrent_after_row);
}

template class CudaOps<float>;
template class CudaOps<__nv_bfloat16>;

}  // namespace tokenview
