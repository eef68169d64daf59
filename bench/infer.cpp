// SPDX-License-Identifier: Apache-2.0
// Placement by values alone: T tokens of H columns on p ranks, every layout that the values may
// have, with the ranks' names and without.
//
//   bench_infer [T H p THREADS]     default 8192 2048 8 2; a JSON line each: seconds, rows right,
//   the
//                                   memory that it took besides the operands in MiB
#include "verify/infer.hpp"

#include <malloc.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "reference/program/bfloat16.hpp"
#include "reference/program/error.hpp"

namespace tokenview {
namespace {

struct Tensor {
  std::int64_t rows, columns;
  std::vector<float> values;
  Tensor(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(std::size_t(r * c)) {}
  float* row(std::int64_t i) { return values.data() + i * columns; }
};

void fill(Tensor& tensor, std::uint64_t seed) {
  std::minstd_rand random(unsigned(seed * 2654435761u + 1));
  for (float& value : tensor.values) value = float(random()) * 0x1p-30f - 1;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024;
}

/// From here on the peak counts anew (Linux; see proc(5), clear_refs).
void forget_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

struct Size {
  std::int64_t tokens = 8192, columns = 2048, ranks = 8;
  int threads = 2;
};

struct Layout {
  std::string name;
  bool known = true;  // which rank is which
  double tolerance = 1e-4;
  RowReading reading = RowReading::token;
};

std::vector<Tensor> ranks_of(const Layout& layout, const Size& size, const Tensor& trusted) {
  std::vector<Tensor> ranks;
  const std::int64_t T = size.tokens, H = size.columns, p = size.ranks;
  const auto copy = [&](std::int64_t from, Tensor& to, std::int64_t row, float factor) {
    for (std::int64_t c = 0; c < H; ++c)
      to.row(row)[c] = factor * trusted.values[std::size_t(from * H + c)];
  };
  if (layout.name == "shard" || layout.name == "shard, bfloat16") {
    const std::int64_t S = (T + p - 1) / p;
    for (std::int64_t r = 0; r < p; ++r) {
      Tensor& rank = ranks.emplace_back(S, H);
      for (std::int64_t i = 0; i < S && r * S + i < T; ++i) copy(r * S + i, rank, i, 1);
      if (layout.tolerance > 1e-3)
        for (float& value : rank.values) value = round_to_bf16(value);
    }
  } else if (layout.name == "columns") {
    for (std::int64_t r = 0; r < p; ++r) {
      Tensor& rank = ranks.emplace_back(T, H / p);
      for (std::int64_t i = 0; i < T; ++i)
        std::copy_n(trusted.values.data() + i * H + r * (H / p), H / p, rank.row(i));
    }
  } else if (layout.name == "summands") {
    for (std::int64_t r = 0; r < p; ++r) fill(ranks.emplace_back(T, H), 7 + std::uint64_t(r));
    for (std::size_t k = 0; k < trusted.values.size(); ++k) {
      float rest = trusted.values[k];
      for (std::size_t r = 0; r + 1 < std::size_t(p); ++r) rest -= ranks[r].values[k];
      ranks.back().values[k] = rest;
    }
  } else if (layout.name == "noise") {
    for (std::int64_t r = 0; r < p; ++r) fill(ranks.emplace_back(T, H), 7 + std::uint64_t(r));
  } else {
    const float factor = layout.name == "twice" ? 2 : 1;
    for (std::int64_t r = 0; r < p; ++r) {
      Tensor& rank = ranks.emplace_back(T, H);
      for (std::int64_t i = 0; i < T; ++i) copy(i, rank, i, factor);
    }
  }
  return ranks;
}

void time_layout(const Layout& layout, const Size& size, const Tensor& trusted) {
  const std::vector<Tensor> ranks = ranks_of(layout, size, trusted);
  std::vector<RankRows> held;
  std::int64_t rows = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::optional<RankCoordinates> at;
    if (layout.known) at = coordinates_of(std::int64_t(r), {.tp = size.ranks});
    held.push_back({at, ranks[r].values, ranks[r].rows, ranks[r].columns});
    rows += ranks[r].rows;
  }
  const std::vector<TrustedRows> golden = {{0, 0, trusted.values, trusted.rows, trusted.columns}};
  InferOptions options;
  options.tolerance = layout.tolerance;
  options.threads = size.threads;
  forget_peak();
  const double before = peak_mib();
  const auto start = std::chrono::steady_clock::now();
  const InferredTap tap = infer_placement(held, golden, options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf(
      "{\"layout\": \"%s\", \"named\": %s, \"rows\": %lld, \"seconds\": %.3f, \"read\": %lld, "
      "\"first\": \"%s\", \"memory_mib\": %.0f}\n",
      layout.name.c_str(), layout.known ? "true" : "false", static_cast<long long>(rows),
      elapsed.count(), static_cast<long long>(tap.count(layout.reading)),
      to_string(tap.ranks[0].view).c_str(), peak_mib() - before);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  using namespace tokenview;
  try {
    Size size;
    if (argc == 5)
      size = {std::stoll(argv[1]), std::stoll(argv[2]), std::stoll(argv[3]), std::stoi(argv[4])};
    else if (argc != 1)
      throw UsageError("expected: [T H p THREADS]");
    Tensor trusted(size.tokens, size.columns);
    fill(trusted, 1);
    for (const Layout& layout :
         std::initializer_list<Layout>{{"shard"},
                                       {"shard, bfloat16", true, 2e-2},
                                       {"columns"},
                                       {"full"},
                                       {"twice"},
                                       {"summands", true, 1e-4, RowReading::partial},
                                       {"summands", false, 1e-4, RowReading::partial},
                                       {"noise", true, 1e-4, RowReading::unknown}})
      time_layout(layout, size, trusted);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_infer: %s\n", error.what());
    return 1;
  }
}
