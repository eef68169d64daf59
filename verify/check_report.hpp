// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "verify/check.hpp"

namespace tokenview {

/// What a case, a file or a whole run of `check` came to.
struct CheckTally {
  CheckTotals totals;
  std::int64_t cases = 0;
  std::optional<TapResult> worst;    // the tap of the largest observed / allowed
  std::optional<TapResult> float64;  // the tap of the largest float32 against float64
  std::int64_t outside_one_step = 0;

  void add(const TapResult& tap, bool ties_allowed);
  void add(const CheckTally& other);
};

/// What was given to `check`.
struct CheckedFile {
  std::string path;
  bool bfloat16 = false;
};

/// How a run of `check` ended.
struct CheckSummary {
  CheckTally tally;
  std::int64_t files = 0;   // that were compared
  std::int64_t errors = 0;  // that are no golden files, or could not be read
  std::string worst_file;
  std::string verdict;  // "match", "difference", "error", "nothing compared"
};

/// Where the results of `check` go, as they come: taps, then their case, then their file, and the
/// summary at the end.
class CheckReport {
 public:
  virtual ~CheckReport() = default;

  /// Configuration keys that mean nothing here.
  virtual void ignored_keys(const CheckedFile& file, const std::vector<std::string>& keys) = 0;
  virtual void tap(const CheckedFile& file, const TapResult& result, bool failed) = 0;
  virtual void case_done(const CheckedFile& file, const std::string& name,
                         const CheckTally& tally) = 0;
  virtual void file_done(const CheckedFile& file, const CheckTally& tally) = 0;
  /// The file cannot be read, or its taps are not those of its model.
  virtual void error(const CheckedFile& file, const std::string& problem) = 0;
  virtual void summary(const CheckSummary& summary) = 0;
};

/// Lines for people. verbosity 0: a line a file; 1: a line a case as well; 2: a line a tap as well.
/// The first 20 failed taps of a file are printed at any verbosity. What is not printed here,
/// because the command line says it on standard error: errors, ignored keys.
std::unique_ptr<CheckReport> text_check_report(std::ostream& out, int verbosity, bool colour);

/// JSON Lines, everything: see report.hpp. The keys that a record has beyond the common ones:
/// tap: metric, values, max_abs, relative_l2, failed; float64, outside_one_step, detail where
/// known. case and summary: metric, cases, taps, values, failed, ties, seconds; the place of the
/// worst tap is in step and tap. A summary without a file is that of the run. finding: detail.
std::unique_ptr<CheckReport> jsonl_check_report(std::ostream& out);

}  // namespace tokenview
