// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "verify/dump_file.hpp"
#include "verify/tolerance_rules.hpp"
#include "verify/trusted_side.hpp"

namespace tokenview {

struct DumpDiffOptions {
  ToleranceRules rules;
  /// Where the model is known and values are narrower than float32: taps are held to what a right
  /// implementation of their type may be off (judge_case()), and not to `rules`.
  bool by_error_model = true;
  std::function<bool(const std::string&)> wanted = {};  // asked with "pass/tap"; absent: all are
  int threads = 1;
};

/// One rank's part of a tap, in words.
struct RankHolding {
  RankCoordinates at;
  std::string held;      // "[0,1,2]", as found
  std::string required;  // as the nearest right protocol has it; empty: not known
};

/// What became of a tap of one data-parallel rank in one step.
struct TapDiff {
  enum class Verdict {
    match,
    difference,  // of values
    layout,      // right values, held otherwise than what follows requires
    missing,     // lost, or other ranks have it
    inputs,      // of the step, that are not those of other ranks or of the case
  };
  std::int64_t step = 0, dp = 0;
  std::string case_name;
  std::string tap;      // with its pass: "step0/mtp.norm"
  std::string against;  // the trusted tap, where it has another name
  Verdict verdict = Verdict::match;
  Bound bound;  // the limit that is nearest, or first of those that do not hold
  std::int64_t values = 0;
  double max_abs = 0, relative_l2 = 0;
  std::string kind;    // of what is held: "full", "shard", "partial", "columns"
  std::string called;  // what is wrong: "shard where full is required"
  std::string detail;  // may have several lines
  std::string repair;  // of a layout: the move that is missing, and where; empty: no single one
  std::vector<RankHolding> ranks;

  bool failed() const { return verdict != Verdict::match; }
  bool was_compared() const { return verdict != Verdict::missing && verdict != Verdict::inputs; }
};
const char* to_string(TapDiff::Verdict verdict);

struct DumpDiffResult {
  std::vector<TapDiff> taps;              // step by step, in program order; what a rank lacks as a
                                          // whole, or has other inputs for, stands first
  std::vector<std::string> not_compared;  // names of the dump without counterpart, each once
  std::int64_t not_compared_taps = 0;     // and how many taps these are
  std::vector<std::string> not_captured;  // names of the trusted side that the dump does not have;
                                          // first "all of draft step 2"
  std::int64_t not_captured_taps = 0;
  std::vector<std::string> skipped;  // steps and dp ranks without a case, in words
  std::vector<std::string> notes;
  std::vector<std::string> protocols;  // that explain the steps best: "D (412 of 412 taps)"
  std::int64_t compared = 0, failed = 0, values = 0, steps = 0;

  /// The first that fails: step, then program order. Null: none.
  const TapDiff* first_difference() const;
  bool nothing_compared() const { return compared == 0 && failed == 0; }
};

/// Holds a dump of any parallel layout against trusted values: puts the ranks' rows together, each
/// where it belongs by its values, adds up what is partial, and compares. Where a tensor fits
/// nowhere, says what its rows are instead.
///
/// Fails for what is missing (a rank, a step of a rank, a name of a manifest, a tap that other
/// ranks of the stage have, inputs where there is no manifest), for a tap that no way of holding
/// explains, for pads that are not zero where the protocol has zeros, and for the first tap whose
/// layout is not the protocol's where that leads to wrong values or where the pass ends on it.
///
/// Throws FileError for what cannot be read.
DumpDiffResult diff_dump(TrustedSide& side, const DumpFile& dump, const DumpDiffOptions& options);

}  // namespace tokenview
