// SPDX-License-Identifier: Apache-2.0
// Dumps of simulated runs, and their diff.
#pragma once
#include <string>
#include <vector>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "verify/dump_diff.hpp"
#include "verify/dump_run.hpp"
#include "verify/fault_text.hpp"

namespace tokenview {

/// Runs `run` with faults as parse_fault() reads them and writes what every rank had into `folder`;
/// the files, by rank. A fault that never meets its place fails the test.
inline std::vector<std::string> dumps_of(const Executor& executor, ParallelRun run,
                                         const WeightSource& weights,
                                         const std::vector<std::string>& faults,
                                         const std::string& folder, bool annotate = false) {
  std::vector<InjectedFault> injected;
  for (const std::string& fault : faults) injected.push_back(parse_fault(fault));
  std::vector<std::int64_t> hits(injected.size(), 0);
  if (!injected.empty()) {
    run.faults = &injected;
    run.fault_hits = &hits;
  }
  dump_run(executor, run, weights, {folder, "a test", annotate});
  for (const std::int64_t count : hits) BOOST_TEST(count > 0, "the fault never met its place");
  std::vector<std::string> paths;
  for (std::int64_t rank = 0; rank < run.plan.parallel.world_size(); ++rank)
    paths.push_back(text(folder, "/dump.rank", rank, ".h5"));
  return paths;
}

inline DumpDiffResult diff_with_golden(const std::vector<std::string>& dumps,
                                       const GoldenFile& golden,
                                       const DumpDiffOptions& options = DumpDiffOptions()) {
  GoldenSide side(golden, {});
  return diff_dump(side, DumpFile::open(dumps), options);
}

/// The first difference.
inline std::string in_words(const DumpDiffResult& result) {
  const TapDiff* const first = result.first_difference();
  if (first == nullptr) return text("no difference in ", result.compared, " taps");
  std::string words = text("step ", first->step, " dp=", first->dp, ' ', first->tap, ": ",
                           first->called, ": ", first->bound.metric, ' ', first->bound.observed,
                           " of ", first->bound.allowed, "; ", first->detail);
  for (const RankHolding& rank : first->ranks)
    words += text("\n  ", rank.at.world, " holds ", rank.held, ", required ", rank.required);
  return words;
}

}  // namespace tokenview
