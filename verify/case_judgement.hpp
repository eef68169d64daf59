// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "verify/check.hpp"
#include "verify/error_model.hpp"
#include "verify/followed_choices.hpp"
#include "verify/found_taps.hpp"

namespace tokenview {

/// A tap beside the golden's.
struct TapJudgement {
  std::string place;
  Verdict verdict = Verdict::match;     // tie: over the bound as far as hidden choices explain it
  Bound total = {};                     // of the error from the model's inputs on
  std::optional<Bound> own = {};        // of what its own operations added; absent: of ids
  bool is_origin = false;               // its own error is over its bound
  std::int64_t rows = 0;                // compared
  std::vector<std::int64_t> over = {};  // rows over the total bound
  std::vector<std::int64_t> own_over = {};  // rows over the own bound
  Comparison comparison = {};               // with what is trusted, given the run's choices
  std::string detail = {};

  bool holds() const { return verdict == Verdict::match || verdict == Verdict::tie; }
};

struct CaseJudgement {
  std::vector<TapJudgement> taps;  // in the order of the program
  std::vector<ChoiceDifference> choices;
  std::map<std::string, Matrix<double>> trusted = {};  // by place, given the run's choices

  std::int64_t ties() const;
  bool holds() const;                        // all choices are ties, every tap a match or a tie
  std::vector<std::string> origins() const;  // places, in the order of the program
};

/// Judges the taps that a run had. Those that it did not have are left out: whether they are
/// missing is for the caller to say.
///
/// - Each tap's error is held to TapErrorModel::bound_for().
/// - Choices that differ are a tie where the trusted scores of what was left out and of what was
///   taken instead are no further apart than their allowed errors can turn, and the run's own
///   scores, where it has them, bear out its choice. Behind a tie the trusted values are those of
///   the golden plus what the choice changes in the reference: nothing is excused but what the tie
///   explains. Behind a choice that is none they are those of the golden's choice.
/// - Choices that nobody recorded (of the context; of a tap that the run did not keep) may have
///   been ties too: a row over its bound is a `tie` as far as all of them together explain it.
/// - The reference is run once more, each operation on the values that the run itself had, where it
///   kept them whole: what is over own_bounds() there is an origin; what is over bound_for() alone
///   is inherited.
///
/// Throws as TapErrorModel.
CaseJudgement judge_case(const GoldenCase& golden, const TapErrorModel& model,
                         const FoundTaps& found);

/// A line a tap that does not hold (with `all`, every tap) with total and own error as observed /
/// allowed, origins marked; and a line a choice.
std::string judgement_table(const CaseJudgement& judgement, bool all = false);

}  // namespace tokenview
