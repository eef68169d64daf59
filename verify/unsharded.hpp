// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/executor.hpp"

namespace tokenview {

/// The unsharded run of one data-parallel rank's requests, without injected faults.
ParallelRun unsharded(const ParallelRun& run, std::size_t dp);

/// Where a token's row is among `rows`, of a tensor of its own dp rank; -1: nowhere.
std::int64_t place_of(const RowRun& row, const Rows& rows);
/// A tensor of one data-parallel rank's requests beside the unsharded model's.
struct UnshardedTap {
  std::string name;
  std::int64_t dp = 0;
  double worst = 0;  // max|difference|; infinite where one is NaN
  double allowed = 0;
  std::int64_t values = 0;
  bool failed = false;
  std::string detail = {};
  std::vector<double> row_ratios = {};  // of the trusted rows: max|difference| / what is allowed
};

/// A run's numbers beside those of the unsharded model.
struct UnshardedComparison {
  std::vector<Finding> findings;  // kind numeric: in program order
  std::int64_t taps = 0, values = 0;
  double worst = 0;  // of |difference| / scale, see UnshardedBound
  std::string worst_tap;
  std::vector<UnshardedTap> compared;  // in program order, dp rank by dp rank
  std::string error;                   // what stopped the run; empty: nothing
};

/// What is allowed: |difference| <= relative * max(least, max|value of the tap|).
struct UnshardedBound {
  double relative, least;
};

/// Of a float64 run: accumulated rounding is some 1e-14 of the largest value. Of a float32 run the
/// acceptance of float32 golden files (tolerance.hpp): both sides are one model, and the trusted
/// one is in float64.
UnshardedBound unsharded_bound(const Executor& executor);

/// Runs `run` with numbers as `executor` says, and the unsharded model in float64 on each
/// data-parallel rank's requests, and compares every named value: by its view, each rank's token
/// rows where they are complete, the sum over tp where they are partial. Row counts that differ
/// from the unsharded model's pads do not matter; a row that no rank has is a difference. Throws as
/// run_numbers_on().
UnshardedComparison compare_with_unsharded(const Executor& executor, const ParallelRun& run,
                                           const WeightSource& weights);

}  // namespace tokenview
