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

template <class V>
struct OnGpu {
  explicit OnGpu(const std::vector<V>& values) : OnGpu(values.size()) {
    check(cudaMemcpy(data, values.data(), size * sizeof(V), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  explicit OnGpu(std::size_t count) : size(count) {
    check(cudaMalloc(&data, size * sizeof(V)), "cudaMalloc");
    check(cudaMemset(data, 0xff, size * sizeof(V)), "cudaMemset");  // not a number
  }
  ~OnGpu() { cudaFree(data); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  std::vector<V> host(std::size_t begin, std::size_t count) const {
    std::vector<V> values(count);
    check(cudaMemcpy(values.data(), data + begin, count * sizeof(V), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return values;
  }
  V* data = nullptr;
  std::size_t size;
};

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
      : qkv(step.qkv),
        beta(step.beta),
        g(step.g),
        sequences(step.sequences),
        out(std::size_t(step.tokens * 32 * dv)),
        tokens(step.tokens) {}
  kernels::Out<bf16> output() const { return {out.data, tokens, 32 * dv}; }
  kernels::In<bf16> input() const { return {qkv.data, tokens, conv_dim}; }
  kernels::In<float> of_heads(const OnGpu<float>& x) const { return {x.data, tokens, 32}; }

  OnGpu<bf16> qkv;
  OnGpu<float> beta, g;
  OnGpu<kernels::Sequence> sequences;
  OnGpu<bf16> out;
  std::int64_t tokens;
};

/// Compares reads, final states and, where there are some, kept states of sampled heads.
bool agrees(const Step& step, const Operands& on_gpu, const OnGpu<float>& states,
            const std::vector<float>& before, const OnGpu<float>* kept, double allowed_read,
            double allowed_state) {
  Error reads, of_states;
  for (const std::int64_t sequence : {std::int64_t{0}, step.num_sequences - 1})
    for (const std::int64_t head : {0, 13, 31}) {
      const std::int64_t slot = step.sequences[std::size_t(sequence)].slot;
      const auto size = std::size_t(dk * dv);
      std::vector<double> state(size, 0);
      if (!before.empty()) {
        const float* const from = before.data() + slot * state_size + head * dk * dv;
        state.assign(from, from + size);
      }
      const auto see_state = [&](const OnGpu<float>& pool, std::int64_t index) {
        const auto found = pool.host(std::size_t(index * state_size + head * dk * dv), size);
        for (std::size_t i = 0; i < size; ++i) of_states.see(found[i], state[i]);
      };
      step.recur(sequence, head, state, [&](std::int64_t t, const std::vector<double>& expected) {
        const std::int64_t row = sequence * step.rows + t;
        const auto found = on_gpu.out.host(std::size_t(row * 32 * dv + head * dv), std::size_t(dv));
        for (std::size_t j = 0; j < found.size(); ++j)
          reads.see(double(float(found[j])), expected[j]);
        if (kept != nullptr) see_state(*kept, row);
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

bool decode(std::int64_t rows, double bandwidth, cudaStream_t stream) {
  const Step step(64, rows, 100);
  const Operands on_gpu(step);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> before(std::size_t(64 * state_size));
  for (float& value : before) value = normal(random);
  std::vector<std::unique_ptr<OnGpu<float>>> pools;
  for (int i = 0; i < num_pools; ++i) pools.push_back(std::make_unique<OnGpu<float>>(before));
  const bool keeps = rows > 1;
  const OnGpu<float> kept(keeps ? std::size_t(step.tokens * state_size) : 1);
  const auto run = [&](int i) {
    kernels::gated_delta_rule<bf16>(on_gpu.output(), on_gpu.input(), on_gpu.of_heads(on_gpu.beta),
                                    on_gpu.of_heads(on_gpu.g), shape, pools[i % num_pools]->data,
                                    keeps ? kept.data : nullptr, on_gpu.sequences.data, 64, stream);
  };
  run(0);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::printf("decode, 64 sequences of %d rows%s\n", int(rows), keeps ? ", states kept" : "");
  const bool good =
      agrees(step, on_gpu, *pools[0], before, keeps ? &kept : nullptr, bf16_rounding, 1e-6);
  const double time = microseconds(stream, 20, run);
  const double bytes = 64.0 * double(state_size) * 4 * (2 + (keeps ? double(rows) : 0));
  std::printf("  %.1f us, %.0f MB of states: %.2f TB/s, %.2f x the time of a copy\n", time,
              bytes / 1e6, bytes / time / 1e6, time / (bytes / bandwidth));
  return good;
}

bool prefill(std::int64_t num_sequences, std::int64_t rows, double bandwidth, cudaStream_t stream) {
  const Step step(num_sequences, rows, 0);
  const Operands on_gpu(step);
  const OnGpu<float> states(std::size_t(num_sequences * state_size));
  const double bytes = 2.0 * double(on_gpu.qkv.size + on_gpu.out.size) +
                       8.0 * double(on_gpu.g.size) + 4.0 * double(states.size);
  bool good = true;
  const auto measure = [&](const char* name, double allowed_read, double allowed_state, auto run) {
    check(cudaMemset(on_gpu.out.data, 0xff, on_gpu.out.size * sizeof(bf16)), "cudaMemset");
    run(0);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::printf("prefill, %d x %d rows, %s\n", int(num_sequences), int(rows), name);
    good = agrees(step, on_gpu, states, {}, nullptr, allowed_read, allowed_state) && good;
    const double time = microseconds(stream, 3, run);
    std::printf("  %.0f us, %.2f us a row; a copy of its inputs and outputs takes %.1f us\n", time,
                time / double(step.tokens), bytes / bandwidth);
  };
  const auto chunked = [&](Rounding rounding) {
    return [&, rounding](int) {
      kernels::chunked_delta_rule<bf16>(
          on_gpu.output(), on_gpu.input(), on_gpu.of_heads(on_gpu.beta), on_gpu.of_heads(on_gpu.g),
          shape, states.data, on_gpu.sequences.data, num_sequences, rounding, stream);
    };
  };
  // model.md 8.1: bfloat16 operands give 0.36 - 0.43 % on reads, 0.27 - 0.35 % on states.
  measure("chunks, bfloat16 operands", 1e-2, 1e-2, chunked(Rounding::vllm));
  measure("chunks, float operands", bf16_rounding, 1e-5, chunked(Rounding::hf));
  measure("row by row", bf16_rounding, 1e-5, [&](int) {
    kernels::gated_delta_rule<bf16>(on_gpu.output(), on_gpu.input(), on_gpu.of_heads(on_gpu.beta),
                                    on_gpu.of_heads(on_gpu.g), shape, states.data, nullptr,
                                    on_gpu.sequences.data, num_sequences, stream);
  });
  return good;
}

int run() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const double bandwidth = copy_bandwidth(stream);
  std::printf("%s, copy bandwidth %.2f TB/s\n", properties.name, bandwidth / 1e6);
  bool good = true;
  for (const std::int64_t rows : {1, 2, 3, 4}) good = decode(rows, bandwidth, stream) && good;
  good = prefill(1, 2048, bandwidth, stream) && good;
  good = prefill(8, 300, bandwidth, stream) && good;  // a short last chunk
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tokenview

int main() {
  try {
    return tokenview::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_device_gdn: %s\n", error.what());
    return 4;
  }
}
