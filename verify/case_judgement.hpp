// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "verify/check.hpp"
#include "verify/error_model.hpp"

namespace tokenview {

/// A token whose experts, or draft ids, are not those of the golden.
struct ChoiceDifference {
  std::string place;  // "target/model.layers.0.mlp.gate.ids", "step1/input_ids"
  std::int64_t row = 0;
  std::vector<std::int64_t> found, expected;  // experts of the token, or its one id
  double margin = 0;        // by which the trusted scores prefer what was left out
  double allowed = 0;       // that the error of two scores may turn
  std::string detail = {};  // why it is no tie where the margin is within
  bool is_tie = false;
};

/// A tap beside the golden's.
struct TapJudgement {
  std::string place;
  Verdict verdict = Verdict::match;  // tie: of ids; or over the bound as far as a tie explains it
  Bound total;                       // of the error from the model's inputs on
  std::optional<Bound> own;  // of the error that its own operations added, from the values that the
                             // judged run itself had in the taps before; absent: not known
  bool is_origin = false;    // its own error is over its bound
  std::int64_t rows = 0;     // compared
  std::vector<std::int64_t> over = {};      // rows over the total bound
  std::vector<std::int64_t> own_over = {};  // rows over the own bound
  Comparison comparison = {};               // with the trusted values of the same choices
};

struct CaseJudgement {
  std::vector<TapJudgement> taps;  // in the order of the program
  std::vector<ChoiceDifference> choices;
  std::int64_t ties = 0;  // of `choices`

  bool holds() const;                        // every tap is a match or a tie
  std::vector<std::string> origins() const;  // places, in the order of the program
};

/// Judges the taps that a run had, whole: `found` holds [rows, columns] of each tap by its place
/// and ids likewise; NaN rows of a tap that are wholly NaN in `absent` rows are rows that the run
/// did not keep. Taps that are absent are not judged: what is missing is for the caller to say.
///
/// - Each tap's error is held to TapErrorModel::bound_for().
/// - Ids that differ are a tie where the trusted scores of what was left out and of what was taken
///   instead differ by no more than their allowed errors can turn, and the run's own scores, where
///   it has them, bear out its choice. Behind a tie the trusted values are those of the reference
///   with the run's choice, so nothing is excused but what the tie explains. Outside, the taps
///   behind are held to the golden's choice.
/// - Where a sequence's context has near-ties, which no file records, a value over its bound is a
///   tie as far as flips of them, all together, explain it.
/// - The reference is run again, each operation on the values that the run itself had: what is
///   over own_bound_for() there is an origin; what is over bound_for() alone is inherited.
CaseJudgement judge_case(const GoldenCase& golden, const TapErrorModel& model,
                         const RankTaps& found);

/// The table of origins: a line a tap that does not hold, its own and total error as
/// observed / allowed; with `all`, a line a tap.
std::string judgement_table(const CaseJudgement& judgement, bool all = false);

}  // namespace tokenview
