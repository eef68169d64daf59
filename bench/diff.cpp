// SPDX-License-Identifier: Apache-2.0
// Comparing two plain files. bench/diff.py runs it beside h5diff.
//
//   bench_diff make FILE SEED NOISE CHUNK_KIB   32 data sets of 32 MiB of random float32, scattered
//                                               by NOISE; chunks of whole rows, 0 for none
//   bench_diff compare FIRST SECOND THREADS     seconds, values, and the peak memory in MiB, as
//   JSON
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "reference/program/error.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/plain_diff.hpp"

namespace tokenview {
namespace {

constexpr int num_sets = 32;
constexpr hsize_t rows = 4096, columns = 2048;

void make(const std::string& path, unsigned seed, float noise, hsize_t chunk_kib) {
  const Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  const hsize_t extents[] = {rows, columns};
  const Hdf5Handle space(H5Screate_simple(2, extents, nullptr), H5Sclose);
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const hsize_t chunk[] = {chunk_kib * 1024 / sizeof(float) / columns, columns};
  if (chunk_kib > 0) H5Pset_chunk(properties, 2, chunk);
  std::mt19937_64 values(1), scatter(seed);
  std::vector<float> tensor(rows * columns);
  bool is_written = file.is_open();
  for (int set = 0; set < num_sets; ++set) {
    for (float& each : tensor) {
      const auto uniform = [](std::uint64_t bits) { return float(bits >> 40) * 0x1p-23f - 1; };
      each = uniform(values()) * (1 + noise * uniform(scatter()));
    }
    const Hdf5Handle data(H5Dcreate2(file, ("x" + std::to_string(set)).c_str(), H5T_IEEE_F32LE,
                                     space, H5P_DEFAULT, properties, H5P_DEFAULT),
                          H5Dclose);
    is_written &=
        H5Dwrite(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data()) >= 0;
  }
  if (!is_written) throw FileError(path + ": cannot be written");
}

struct Quiet : PlainDiffListener {
  void tensor(const PlainDiffResult&) override {}
};

void time_diff(const std::string& first, const std::string& second, int threads) {
  PlainDiffOptions options;
  options.threads = threads;
  Quiet listener;
  const auto start = std::chrono::steady_clock::now();
  const PlainDiffTotals totals = diff_files(first, second, options, listener);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("{\"seconds\": %.4f, \"values\": %lld, \"matches\": %s, \"peak_mib\": %ld}\n",
              elapsed.count(), static_cast<long long>(totals.values),
              totals.matches() ? "true" : "false", usage.ru_maxrss / 1024);
}

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 5 && arguments[0] == "make")
      tokenview::make(arguments[1], unsigned(std::stoul(arguments[2])), std::stof(arguments[3]),
                      hsize_t(std::stoul(arguments[4])));
    else if (arguments.size() == 4 && arguments[0] == "compare")
      tokenview::time_diff(arguments[1], arguments[2], std::stoi(arguments[3]));
    else
      throw tokenview::UsageError(
          "expected: make FILE SEED NOISE CHUNK_KIB, or compare A B THREADS");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_diff: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
