// SPDX-License-Identifier: Apache-2.0
// The gated delta rule at the published size, 16 key heads and 32 value heads of 128 x 128: a
// decode step of 64 sequences with the traffic of its states beside the bandwidth of a copy, and a
// prefill of 2048 rows. Sampled heads are compared with the recurrence in float64 on the CPU.
//
//   bench_device_gdn
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "bench/device/timing.cuh"
#include "device/kernels.hpp"

namespace tokenview {
namespace {

using bf16 = __nv_bfloat16;
constexpr kernels::DeltaShape shape{16, 32, 128, 128};
constexpr std::int64_t dk = 128, dv = 128, conv_dim = 2 * 16 * dk + 32 * dv;
constexpr std::int64_t state_size = 32 * dk * dv;  // of a sequence
constexpr int num_pools = 3;                       // in turn, so that none stays in the cache

/// `count` values from element `begin` on.
template <class V>
std::vector<V> on_host(const V* data, std::int64_t begin, std::int64_t count) {
  std::vector<V> values(static_cast<std::size_t>(count));
  check(cudaMemcpy(values.data(), data + begin, values.size() * sizeof(V), cudaMemcpyDeviceToHost),
        "copy from the GPU");
  return values;
}

template <class V>
std::shared_ptr<V> not_numbers(std::int64_t count) {
  const auto data = bench::device_memory<V>(count);
  check(cudaMemset(data.get(), 0xff, std::size_t(count) * sizeof(V)), "cudaMemset");
  return data;
}

/// Relative error in the Frobenius norm. NaN where a value is none.
struct Error {
  double difference = 0, norm = 0;
  void see(double found, double expected) {
    difference += (found - expected) * (found - expected);
    norm += expected * expected;
  }
  double value() const { return std::sqrt(difference / norm); }
};

/// Inputs of `num_sequences` sequences of `rows` rows each, sequence s in slot num_sequences - 1 -
/// s, and the recurrence of single heads.
struct Step {
  Step(std::int64_t sequence_count, std::int64_t rows_each, std::int64_t computed)
      : num_sequences(sequence_count), rows(rows_each), tokens(sequence_count * rows_each) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto values = [&](std::int64_t count, auto f) {
      std::vector<decltype(f(0.0f))> all;
      for (std::int64_t i = 0; i < count; ++i) all.push_back(f(normal(random)));
      return all;
    };
    qkv = values(tokens * conv_dim, [](float x) { return bf16(x); });
    beta = values(tokens * 32, [](float x) { return 1 / (1 + std::exp(-x)); });
    g = values(tokens * 32, [](float x) { return -0.2f * std::log1p(std::exp(x)); });
    for (std::int64_t s = 0; s < num_sequences; ++s)
      sequences.push_back({s * rows, rows, computed, num_sequences - 1 - s, 0});
  }

  /// Over the rows of one head of a sequence: `state` [dk, dv] moves on, after_row(t, reads).
  template <class AfterRow>
  void recur(std::int64_t sequence, std::int64_t head, std::vector<double>& state,
             AfterRow after_row) const {
    const auto unit = [](const bf16* x, double scale) {
      std::vector<double> y;
      double squares = 1e-6;
      for (std::int64_t i = 0; i < dk; ++i) squares += double(float(x[i])) * double(float(x[i]));
      for (std::int64_t i = 0; i < dk; ++i)
        y.push_back(double(float(x[i])) * scale / std::sqrt(squares));
      return y;
    };
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t row = sequence * rows + t;
      const bf16* const of_row = qkv.data() + row * conv_dim;
      const auto q = unit(of_row + head / 2 * dk, 1 / std::sqrt(double(dk)));
      const auto k = unit(of_row + 16 * dk + head / 2 * dk, 1);
      const bf16* const v = of_row + 2 * 16 * dk + head * dv;
      const auto at = std::size_t(row * 32 + head);
      std::vector<double> delta(dv, 0), read(dv, 0);
      for (std::int64_t i = 0; i < dk; ++i)
        for (std::int64_t j = 0; j < dv; ++j)
          delta[j] += k[i] * (state[i * dv + j] *= std::exp(double(g[at])));
      for (std::int64_t j = 0; j < dv; ++j)
        delta[j] = double(beta[at]) * (double(float(v[j])) - delta[j]);
      for (std::int64_t i = 0; i < dk; ++i)
        for (std::int64_t j = 0; j < dv; ++j)
          read[j] += q[i] * (state[i * dv + j] += k[i] * delta[j]);
      after_row(t, read);
    }
  }

  std::int64_t num_sequences, rows, tokens;
  std::vector<bf16> qkv;
  std::vector<float> beta, g;
  std::vector<kernels::Sequence> sequences;
};

/// Inputs and outputs on the GPU.
struct Operands {
  explicit Operands(const Step& step)
      : tokens(step.tokens),
        qkv(bench::to_device(step.qkv)),
        beta(bench::to_device(step.beta)),
        g(bench::to_device(step.g)),
        sequences(bench::to_device(step.sequences)),
        out(not_numbers<bf16>(step.tokens * 32 * dv)) {}

  void recurrent(std::int64_t num_sequences, float* states, float* kept) const {
    kernels::gated_delta_rule<bf16>({out.get(), tokens, 32 * dv}, {qkv.get(), tokens, conv_dim},
                                    {beta.get(), tokens, 32}, {g.get(), tokens, 32}, shape, states,
                                    kept, sequences.get(), num_sequences, nullptr);
  }
  void chunked(std::int64_t num_sequences, float* states, Rounding rounding) const {
    kernels::chunked_delta_rule<bf16>({out.get(), tokens, 32 * dv}, {qkv.get(), tokens, conv_dim},
                                      {beta.get(), tokens, 32}, {g.get(), tokens, 32}, shape,
                                      states, sequences.get(), num_sequences, rounding, nullptr);
  }

  std::int64_t tokens;
  std::shared_ptr<bf16> qkv;
  std::shared_ptr<float> beta, g;
  std::shared_ptr<kernels::Sequence> sequences;
  std::shared_ptr<bf16> out;
};

/// Compares reads, final states and, where there are some, kept states of sampled heads.
bool agrees(const Step& step, const Operands& on_gpu, const float* states,
            const std::vector<float>& before, const float* kept, double allowed_read,
            double allowed_state) {
  check(cudaDeviceSynchronize(), "the delta rule");
  Error reads, of_states;
  for (const std::int64_t sequence : {std::int64_t{0}, step.num_sequences - 1})
    for (const std::int64_t head : {0, 13, 31}) {
      const std::int64_t slot = step.sequences[std::size_t(sequence)].slot;
      std::vector<double> state(std::size_t(dk * dv), 0);
      if (!before.empty()) {
        const float* const from = before.data() + slot * state_size + head * dk * dv;
        state.assign(from, from + dk * dv);
      }
      const auto see_state = [&](const float* pool, std::int64_t index) {
        const auto found = on_host(pool, index * state_size + head * dk * dv, dk * dv);
        for (std::size_t i = 0; i < found.size(); ++i) of_states.see(double(found[i]), state[i]);
      };
      step.recur(sequence, head, state, [&](std::int64_t t, const std::vector<double>& expected) {
        const std::int64_t row = sequence * step.rows + t;
        const auto found = on_host(on_gpu.out.get(), (row * 32 + head) * dv, dv);
        for (std::size_t j = 0; j < found.size(); ++j)
          reads.see(double(float(found[j])), expected[j]);
        if (kept != nullptr) see_state(kept, row);
      });
      see_state(states, slot);
    }
  const bool good = reads.value() <= allowed_read && of_states.value() <= allowed_state;
  std::printf("  error of reads %.1e (allowed %.1e), of states %.1e (allowed %.1e): %s\n",
              reads.value(), allowed_read, of_states.value(), allowed_state,
              good ? "good" : "WRONG");
  return good;
}

constexpr double bf16_rounding = 0x1p-9;  // of a value, at most; reads are rounded once

/// `bandwidth` in bytes a second.
bool decode(std::int64_t rows, double bandwidth) {
  const Step step(64, rows, 100);
  const Operands on_gpu(step);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> before(std::size_t(64 * state_size));
  for (float& value : before) value = normal(random);
  std::vector<std::shared_ptr<float>> pools;
  for (int i = 0; i < num_pools; ++i) pools.push_back(bench::to_device(before));
  const bool keeps = rows > 1;
  const auto kept = keeps ? not_numbers<float>(step.tokens * state_size) : nullptr;

  std::printf("decode, 64 sequences of %d rows%s\n", int(rows), keeps ? ", states kept" : "");
  on_gpu.recurrent(64, pools[0].get(), kept.get());
  const bool good = agrees(step, on_gpu, pools[0].get(), before, kept.get(), bf16_rounding, 1e-6);
  int call = 0;
  const double seconds = bench::median_seconds(
      100, [&] { on_gpu.recurrent(64, pools[std::size_t(++call % num_pools)].get(), kept.get()); });
  const double bytes = 64.0 * double(state_size) * 4 * (2 + (keeps ? double(rows) : 0));
  std::printf("  %.1f us, %.0f MB of states: %.2f TB/s, %.2f x the time of a copy\n", seconds * 1e6,
              bytes * 1e-6, bytes / seconds * 1e-12, seconds * bandwidth / bytes);
  return good;
}

bool prefill(std::int64_t num_sequences, std::int64_t rows, double bandwidth) {
  const Step step(num_sequences, rows, 0);
  const Operands on_gpu(step);
  const auto states = not_numbers<float>(num_sequences * state_size);
  const double bytes = double(step.tokens) * (2 * conv_dim + 2 * 32 * dv + 8 * 32) +
                       4.0 * double(num_sequences * state_size);
  bool good = true;
  const auto measure = [&](const char* name, double allowed_read, double allowed_state, auto run) {
    std::printf("prefill, %d x %d rows, %s\n", int(num_sequences), int(rows), name);
    run();
    good = agrees(step, on_gpu, states.get(), {}, nullptr, allowed_read, allowed_state) && good;
    const double seconds = bench::median_seconds(10, run);
    std::printf("  %.0f us, %.2f us a row; a copy of its inputs and outputs takes %.1f us\n",
                seconds * 1e6, seconds * 1e6 / double(step.tokens), bytes / bandwidth * 1e6);
  };
  // model.md 8.1: bfloat16 operands give 0.36 - 0.43 % on reads, 0.27 - 0.35 % on states.
  measure("chunks, bfloat16 operands", 1e-2, 1e-2,
          [&] { on_gpu.chunked(num_sequences, states.get(), Rounding::vllm); });
  measure("chunks, float operands", bf16_rounding, 1e-5,
          [&] { on_gpu.chunked(num_sequences, states.get(), Rounding::hf); });
  measure("row by row", bf16_rounding, 1e-5,
          [&] { on_gpu.recurrent(num_sequences, states.get(), nullptr); });
  return good;
}

int run() {
  const double bandwidth = bench::copy_bandwidth();
  std::printf("copy %.2f TB/s\n", bandwidth * 1e-12);
  bool good = true;
  for (const std::int64_t rows : {1, 2, 3, 4}) good = decode(rows, bandwidth) && good;
  good = prefill(1, 2048, bandwidth) && good;
  good = prefill(8, 300, bandwidth) && good;  // a short last chunk
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tokenview

int main() try { return tokenview::run(); } catch (const std::exception& error) {
  std::fprintf(stderr, "bench_device_gdn: %s\n", error.what());
  return 4;
}
