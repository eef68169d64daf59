// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

/// What bench_comm and its peers measure, so that they measure the same.
namespace tokenview::bench {

constexpr const char* operations[] = {"all_reduce", "reduce_scatter", "all_gather"};
/// Of the whole tensor: what a rank brings to a reduction, what it gets of a gather.
constexpr std::int64_t sizes[] = {512, 4096, 32768, 262144, 2097152, 16777216};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Calls in a batch of about two milliseconds, when one takes `seconds`.
inline std::int64_t batch_size(double seconds) {
  return std::clamp<std::int64_t>(std::int64_t(2e-3 / seconds), 1, 10000);
}
constexpr int num_batches = 15;

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

inline void print_line(const char* impl, const char* op, std::int64_t ranks, std::int64_t bytes,
                       double seconds) {
  std::printf("{\"impl\":\"%s\",\"op\":\"%s\",\"ranks\":%d,\"bytes\":%d,\"us\":%.3f}\n", impl, op,
              int(ranks), int(bytes), seconds * 1e6);
  std::fflush(stdout);
}

}  // namespace tokenview::bench
