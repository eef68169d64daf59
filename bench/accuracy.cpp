// SPDX-License-Identifier: Apache-2.0
// How often the judgement of a case is wrong: alarms of clean runs, mutants that are not seen.
//
//   bench_accuracy [SEEDS [FIRST [THREADS]]]     1000 seeds from 0 on, on one thread
//   bench_accuracy FOLDER                        the scenarios of a folder, in both types
//
// Exits 1 where there is an alarm, or a mutant of the first kind is missed.
#include "verify/accuracy.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "verify/parallel_for.hpp"
#include "verify/scenario_accuracy.hpp"

namespace tokenview {
namespace {

/// Exits 1 where a scenario is missed.
int see_scenarios(const std::string& folder) {
  int missed = 0;
  for (const DType type : {DType::float32, DType::bfloat16}) {
    std::map<ScenarioSight::Outcome, int> count;
    for (const Scenario& scenario : read_scenarios(folder)) {
      const ScenarioSight sight = see_scenario(scenario, type);
      ++count[sight.outcome];
      constexpr const char* words[] = {"seen", "missed", "unchanged", "not run"};
      std::printf("%-9s  %s  %s: %s\n", words[sight.outcome], to_string(type),
                  scenario.name.c_str(), sight.detail.substr(0, sight.detail.find('\n')).c_str());
    }
    std::printf("%s: %d of %d scenarios seen; %d change no value, %d not run\n", to_string(type),
                count[ScenarioSight::seen],
                count[ScenarioSight::seen] + count[ScenarioSight::missed],
                count[ScenarioSight::unchanged], count[ScenarioSight::not_run]);
    missed += count[ScenarioSight::missed];
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  using namespace tokenview;
  if (argc == 2 && std::filesystem::is_directory(argv[1])) return see_scenarios(argv[1]);
  const auto argument = [&](int i, long otherwise) {
    return argc > i ? std::atol(argv[i]) : otherwise;
  };
  const long seeds = argument(1, 1000), first = argument(2, 0), threads = argument(3, 1);
  const auto start = std::chrono::steady_clock::now();
  AccuracyResult all;
  std::mutex mutex;
  parallel_for(seeds, int(threads), [&](std::int64_t i, int) {
    const AccuracyResult result = measure_accuracy(std::uint64_t(first + i));
    const std::scoped_lock lock(mutex);
    all += result;
    for (const std::string& alarm : result.alarms) std::printf("alarm  %s\n", alarm.c_str());
    for (const MutantCount* count : {&result.plain, &result.in_context, &result.small})
      for (const std::string& missed : count->missed) std::printf("missed  %s\n", missed.c_str());
    std::fflush(stdout);
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("%ld seeds, %.0f s\n", seeds, elapsed.count());
  std::printf("clean runs: %ld false alarms of %ld (%ld taps, %ld ties of choices)\n",
              long(all.alarms.size()), long(all.clean), long(all.taps), long(all.ties));
  std::printf("  nearest to its bound: %.2f, %s\n", all.nearest, all.nearest_place.c_str());
  const auto print = [](const char* which, const MutantCount& count) {
    std::printf("%s: %ld of %ld seen\n", which, long(count.mutants) - long(count.missed.size()),
                long(count.mutants));
  };
  print("mutants", all.plain);
  print("mutants that change the step through the context's caches alone", all.in_context);
  print("mutants that change a value by 1 to 16 roundings", all.small);
  std::printf("mutants that change less: %ld\n", long(all.equivalent));
  return all.alarms.empty() && all.plain.missed.empty() ? 0 : 1;
}
