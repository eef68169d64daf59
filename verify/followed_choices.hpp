// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "verify/error_model.hpp"
#include "verify/found_taps.hpp"
#include "verify/hidden_choices.hpp"

namespace tokenview {

/// A token whose experts, or draft id, are not those that are due.
struct ChoiceDifference {
  std::string place;  // "target/model.layers.0.mlp.gate.ids", "step1/input_ids"
  std::int64_t row = 0;
  std::vector<std::int64_t> found, expected;  // what was taken instead of what
  double margin = 0;                      // by which the trusted scores prefer what was left out
  double allowed = 0;                     // that the errors of two scores may turn
  std::optional<double> own_margin = {};  // the same of the run's own scores, where it kept them
  double own_allowed = 0;                 // that storing two of them may turn
  bool is_possible = true;                // false: ids that repeat, or that there are none of
  bool is_explained = false;  // its own scores are what near-ties make of them that nobody recorded

  /// The run's own scores led to it.
  bool is_borne_out() const { return is_possible && own_margin && *own_margin <= own_allowed; }
  bool is_tie() const {
    return is_explained || (is_possible && margin <= allowed && (!own_margin || is_borne_out()));
  }
};

/// What is trusted of a case, given the choices that a run made.
struct FollowedChoices {
  std::vector<ChoiceDifference> differences;      // in the order of the program
  IdsByPlace taken;                               // behind which the values are trusted
  std::map<std::string, Matrix<double>> trusted;  // by place: the golden's, moved by the ties
};

/// Takes the run's choices wherever they are the golden's or a tie, and the golden's elsewhere; see
/// judge_case(). `ids` are the golden's, and float64's of the context; `run` and `weights` those of
/// the reference.
FollowedChoices follow_choices(const GoldenCase& golden, const TapErrorModel& model,
                               const FoundTaps& found, const IdsByPlace& ids, HiddenChoices& hidden,
                               const ParallelRun& run, LoadedWeights<EigenOps<double>>& weights);

}  // namespace tokenview
