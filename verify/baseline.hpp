// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/name_pattern.hpp"
#include "verify/result_case.hpp"

namespace tokenview {

/// A problem that is known: every pattern matches what the problem says of itself.
struct KnownProblem {
  NamePattern verb, file, name, rule, place, operation, tensor;  // file without its folder
  std::string reason;
  std::string expires;   // "2027-03-31": the last day on which it excuses anything
  std::size_t seen = 0;  // problems that it matched
  bool is_expired = false;

  std::string str() const;  // one line
};

/// Problems that are known, each with a reason and an end. File: JSON, schema "tokenview.baseline",
/// version 1; docs/reports.md.
struct Baseline {
  std::vector<KnownProblem> known;
};

/// Throws FileError, with the entry and the key, for a file that is no baseline, a date that does
/// not exist, or a reason that is empty.
Baseline read_baseline(const std::string& path);

/// Marks the problems of `results` that `baseline` knows and `today`, "2026-11-30", does not end,
/// and counts in `baseline` what was seen.
void mark_known(Baseline& baseline, Results& results, const std::string& today);

/// A baseline of everything in `results` that is no success, as a file's content: a problem that is
/// known keeps its entry of `before`, any other gets `reason` and `expires`.
std::string baseline_of(const Results& results, const Baseline& before, const std::string& reason,
                        const std::string& expires);

/// Throws UsageError for what is no date of the form 2027-03-31.
void require_date(const std::string& option, const std::string& date);

/// The date in UTC; that of SOURCE_DATE_EPOCH where the variable is set.
std::string today();

}  // namespace tokenview
