// SPDX-License-Identifier: Apache-2.0
// Tokens per second of the serial reference, and its matrix products beside the machine's sgemm.
//
//   bench_reference CONFIG.json [THREADS] [SECONDS]     one JSON line a number of tokens
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"
#include "reference/serial_model.hpp"

#ifdef TOKENVIEW_OPENBLAS
extern "C" {  // of cblas.h, which Debian keeps in a folder of its own
void cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                 float*, int);
void openblas_set_num_threads(int);
}
#endif

namespace tokenview {
namespace {

/// Median seconds of a call, over at least `seconds` and three calls.
template <class Call>
double median_seconds(double seconds, Call call) {
  std::vector<double> times;
  double total = 0;
  call();  // caches and threads are warm from here on
  while (total < seconds || times.size() < 3) {
    const auto start = std::chrono::steady_clock::now();
    call();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    total += times.back();
  }
  std::ranges::nth_element(times, times.begin() + std::ptrdiff_t(times.size() / 2));
  return times[times.size() / 2];
}

/// Multiply-adds of one token's matrix products, head included.
double products_per_token(const ModelConfig& c) {
  const double h = double(c.hidden_size);
  double sum = h * double(c.vocab_size);
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (c.layer_types[std::size_t(i)] == LayerType::full_attention)
      sum += h * double(c.head_dim) * double(3 * c.num_attention_heads + 2 * c.num_key_value_heads);
    else
      sum += h * double(2 * c.key_dim() + 3 * c.value_dim() + 2 * c.linear_num_value_heads);
    if (c.is_moe_layer(i))
      sum += h * double(c.num_experts + 1) +
             3 * h *
                 double(c.num_experts_per_tok * c.moe_intermediate_size +
                        c.shared_expert_intermediate_size);
    else
      sum += 3 * h * double(c.intermediate_size);
  }
  return sum;
}

void run(const char* config_path, int threads, double seconds) {
  const ModelConfig config = read_config_file(config_path).config;
  const SerialModel<float> model(config, SeededWeights(config, 1), EigenOps<float>(threads));

  double sgemm = 0;
#ifdef TOKENVIEW_OPENBLAS
  {
    const int m = 512, n = 1024, k = 1024;
    std::vector<float> a(std::size_t(m * k), 0.5f), b(std::size_t(n * k), 0.25f),
        c(std::size_t(m * n));
    openblas_set_num_threads(threads);
    sgemm = 2.0 * m * n * k / median_seconds(seconds / 4, [&] {
              constexpr int row_major = 101, no_trans = 111, trans = 112;
              cblas_sgemm(row_major, no_trans, trans, m, n, k, 1, a.data(), k, b.data(), k, 0,
                          c.data(), n);
            });
    std::printf("{\"impl\":\"sgemm\",\"threads\":%d,\"gflops\":%.1f}\n", threads, sgemm * 1e-9);
  }
#endif

  for (const std::int64_t tokens : {1, 128, 512}) {
    Batch batch;
    for (std::int64_t i = 0; i < tokens; ++i) {
      batch.input_ids.push_back((i * 7919 + 13) % config.vocab_size);
      batch.positions.push_back(i);
    }
    batch.query_start_loc = {0, std::int32_t(tokens)};
    batch.num_computed = {0};
    batch.slots = {0};
    const double time = median_seconds(seconds, [&] {
      auto state = model.empty_state();
      model.logits(model.forward(state, batch));
    });
    const double flops = 2 * products_per_token(config) * double(tokens) / time;
    std::printf(
        "{\"impl\":\"tokenview\",\"threads\":%d,\"T\":%lld,\"tokens_per_second\":%.1f,"
        "\"product_gflops\":%.1f",
        threads, static_cast<long long>(tokens), double(tokens) / time, flops * 1e-9);
    if (sgemm > 0) std::printf(",\"share_of_sgemm\":%.2f", flops / sgemm);
    std::printf("}\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_reference CONFIG.json [THREADS] [SECONDS]\n");
    return 2;
  }
  try {
    tokenview::run(argv[1], argc > 2 ? std::atoi(argv[2]) : 2, argc > 3 ? std::atof(argv[3]) : 5);
  } catch (const tokenview::Error& error) {
    std::fprintf(stderr, "bench_reference: error: %s\n", error.what());
    return 2;
  }
}
