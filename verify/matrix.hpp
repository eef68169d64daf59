// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "reference/program/parallel_plan.hpp"
#include "verify/executor.hpp"
#include "verify/loaded_golden.hpp"
#include "verify/tolerance.hpp"
#include "verify/view_run.hpp"

namespace tokenview {

/// One configuration of `check --matrix`: a golden case a dp rank, on a parallel layout.
struct MatrixEntry {
  std::string file;                // name without folder and .h5
  std::vector<std::string> cases;  // [dp]
  ParallelConfig parallel;
  ProtocolId protocol = ProtocolId::S;  // asked for; the plan says what becomes of it
  std::int64_t tokens = 0;              // the first rows of each case alone; 0: all
  bool keeps_details = false;           // the result has its views and taps

  /// "qwen3_next_tiny prefill D tp=2 dp=1 ep"
  std::string name() const;
};

/// A tap of one data-parallel rank beside the golden, over the ranks that hold its rows.
struct MatrixTap {
  std::string name;  // "target/model.layers.0.mlp"
  std::int64_t dp = 0;
  Bound worst = {};
  std::int64_t values = 0;
  std::string problem = {};  // what is wrong but for a bound
  bool failed = false;
  std::vector<double> row_ratios = {};  // of the golden's rows: max|error| / allowed
};

/// What a configuration gave.
struct MatrixResult {
  MatrixEntry entry;
  std::vector<Finding> findings;  // of the views
  std::string error;              // of either run
  std::int64_t taps = 0;          // compared, over all dp ranks
  std::int64_t values = 0;
  Bound worst;  // of the taps
  std::string worst_tap;
  std::int64_t failed = 0;               // taps over their bound, or ids that differ
  std::string problem;                   // the first of them that is no bound, in words
  bool expected_to_fail = false;         // a historical protocol at a row count that it cannot tell
  ViewRunResult views;                   // where MatrixEntry::keeps_details
  std::vector<MatrixTap> compared = {};  // likewise

  bool views_clean() const { return findings.empty() && error.empty(); }
  bool numbers_match() const { return failed == 0 && error.empty() && taps > 0; }
  /// Views and numbers agree, and both with what is known of the protocol.
  bool as_expected() const {
    return views_clean() == numbers_match() && numbers_match() != expected_to_fail;
  }
};

struct MatrixEntries {
  std::vector<MatrixEntry> entries;
  std::int64_t refused = 0;  // an engine refuses their degrees at construction
};

/// The legal configurations of a golden file: every tp that its sizes allow out of 1, 2, 3, 4, 8,
/// dp 1 and 2 (rank 1 runs the next case of the file), expert parallelism off and on, every
/// protocol; every case, and the first 1, 2, 3, 4, 5, 8, 12 and 13 tokens of the longest prefill
/// (rank 1 has one more). `quick` keeps the corners: two cases, no prefixes, tp 1 and the two
/// largest. `tokens`: these prefixes alone.
MatrixEntries matrix_of(const LoadedGolden& golden, bool quick,
                        const std::vector<std::int64_t>& tokens = {});

/// Runs the sharded program on simulated ranks twice, with numbers and with views, and holds each
/// rank's taps to the golden by their view: the rows of a token to the row of that token, column
/// blocks to their columns, and partial sums together over the ranks that share them.
MatrixResult run_entry(const LoadedGolden& golden, const MatrixEntry& entry);

/// The same with other weights than the file's, or with a protocol that is none of the shipped ones
/// under the plan of the entry's.
MatrixResult run_entry(const LoadedGolden& golden, const MatrixEntry& entry,
                       const WeightSource& weights, const OwnProtocol* own = nullptr);

/// Runs all entries on `num_threads` threads; `done` is told of each result, in the order of the
/// entries, on the calling thread. A bfloat16 model has the rounding points `of_bfloat16`, and is
/// held to its error model; choices of experts that errors can turn are ties.
void run_matrix(const LoadedGolden& golden, const std::vector<MatrixEntry>& entries,
                Rounding of_bfloat16, int num_threads,
                const std::function<void(const MatrixResult&)>& done);

/// The same as `executor` says, one entry after the other, in float32 and without the second
/// opinion of float64: the CPU's says nothing of a GPU. An entry of which the views predict a
/// device-side assert is not run on a GPU, for it would end the others; its error says so. Returns
/// how often weights of a rank were uploaded to a GPU with virtual ranks.
std::int64_t run_matrix_on(const Executor& executor, const LoadedGolden& golden,
                           const std::vector<MatrixEntry>& entries,
                           const std::function<void(const MatrixResult&)>& done);

}  // namespace tokenview
