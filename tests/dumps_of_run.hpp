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
#include "verify/golden_case.hpp"
#include "verify/loaded_golden.hpp"

namespace tokenview {

/// A case of a golden file on `tp` ranks, all of whose experts are spread over them.
inline ParallelRun run_of_case(const LoadedGolden& golden, const std::string& of_case,
                               ProtocolId protocol, std::int64_t tp) {
  const LoadedGolden::Case& trusted = golden.cases().at(of_case);
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = tp > 1};
  ParallelRun run{.config = golden.config(),
                  .plan = plan_for(golden.config(), parallel, protocol),
                  .draft_steps = std::size_t(trusted.draft_steps)};
  CaseBatches batches = case_batches(trusted.inputs);
  run.inputs.push_back({std::move(batches.context), std::move(batches.step)});
  return run;
}

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
