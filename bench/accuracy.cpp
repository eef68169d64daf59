// SPDX-License-Identifier: Apache-2.0
// How often the judgement of a case is wrong: alarms of clean runs, mutants that are not seen.
//
//   bench_accuracy [SEEDS [FIRST [THREADS]]]     1000 seeds from 0 on, on one thread
//
// Exits 1 where there is an alarm.
#include "verify/accuracy.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "reference/program/error.hpp"
#include "verify/parallel_for.hpp"

int main(int argc, char** argv) {
  using namespace tokenview;
  const auto argument = [&](int i, long otherwise) {
    return argc > i ? std::atol(argv[i]) : otherwise;
  };
  const long seeds = argument(1, 1000), first = argument(2, 0), threads = argument(3, 1);
  const auto start = std::chrono::steady_clock::now();
  AccuracyResult all;
  std::map<long, double> nearest;
  std::mutex mutex;
  parallel_for(seeds, int(threads), [&](std::int64_t i, int) {
    const AccuracyResult result = [&] {
      try {
        return measure_accuracy(std::uint64_t(first + i));
      } catch (const Error& error) {
        std::fprintf(stderr, "seed %ld: %s\n", first + long(i), error.what());
        throw;
      }
    }();
    const std::scoped_lock lock(mutex);
    all.clean += result.clean;
    all.mutants += result.mutants;
    all.taps += result.taps;
    all.ties += result.ties;
    all.equivalent += result.equivalent;
    for (const std::string& alarm : result.alarms) {
      std::printf("ALARM  %s\n", alarm.c_str());
      all.alarms.push_back(alarm);
    }
    for (const std::string& missed : result.missed) {
      std::printf("MISSED %s\n", missed.c_str());
      all.missed.push_back(missed);
    }
    if (std::getenv("NEAR") && result.nearest > 0.6) std::printf("NEAR %.2f %s\n", result.nearest, result.nearest_place.c_str());
    if (result.nearest > all.nearest) {
      all.nearest = result.nearest;
      all.nearest_place = result.nearest_place;
    }
    std::fflush(stdout);
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf(
      "%ld seeds: %ld false alarms of %ld clean runs (%ld taps, %ld ties; nearest %.2f of what is "
      "allowed); %ld of %ld mutants seen (%ld equivalent); %.0f s\n",
      seeds, long(all.alarms.size()), long(all.clean), long(all.taps), long(all.ties),
      all.nearest, long(all.mutants) - long(all.missed.size()), long(all.mutants),
      long(all.equivalent), elapsed.count());
  return all.alarms.empty() ? 0 : 1;
}
