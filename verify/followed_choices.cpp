// SPDX-License-Identifier: Apache-2.0
#include "verify/followed_choices.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/program/error.hpp"
#include "verify/given_run.hpp"
#include "verify/host_matrix.hpp"

namespace tokenview {
namespace {

/// True where two rows of the reference differ by more than two ways of adding them up.
template <class A, class B>
bool is_other(const A& row, const B& exact) {
  return (row - exact).cwiseAbs().maxCoeff() > 1e-9 * std::max(1.0, exact.cwiseAbs().maxCoeff());
}

std::vector<std::int64_t> in_first_only(std::set<std::int64_t> first,
                                        const std::set<std::int64_t>& second) {
  std::erase_if(first, [&](std::int64_t id) { return second.contains(id); });
  return {first.begin(), first.end()};
}

class ChoiceFollower {
 public:
  ChoiceFollower(const GoldenCase& golden, const TapErrorModel& model, const FoundTaps& found,
                 const IdsByPlace& ids, HiddenChoices& hidden, const ParallelRun& run,
                 LoadedWeights<EigenOps<double>>& weights)
      : model_(model),
        found_(found),
        ids_(ids),
        hidden_(hidden),
        run_(run),
        weights_(weights),
        steps_(golden.trusted) {
    result_.taken = ids;
    for (const auto& [place, tap] : golden.trusted.taps)
      result_.trusted[place] = as_matrix(tap).cast<double>();
  }

  FollowedChoices follow() {
    bool differ = false;
    for (const auto& [place, ids] : found_.ids)
      if (const auto trusted = ids_.find(place); trusted != ids_.end())
        differ |= trusted->second.rows() == ids.rows() && trusted->second.cols() == ids.cols() &&
                  trusted->second != ids;
    if (!differ) return std::move(result_);
    const Given given{.ids = &ids_, .choose = [&](const Choice& choice) {
                        if (choice.place.starts_with("context/")) return;
                        if (holds_experts(choice.place))
                          follow_experts(choice);
                        else
                          follow_drafts(choice);
                        result_.taken[choice.place] = choice.ids;
                      }};
    const RankTaps followed =
        std::move(run_given(run_, weights_, EigenOps<double>(), given).front());
    for (auto& [place, trusted] : result_.trusted) {
      const auto exact = model_.exact().values.find(place);
      const auto now = followed.values.find(place);
      if (exact == model_.exact().values.end() || now == followed.values.end()) continue;
      const bool weighs = place.ends_with("gate.weights");
      const std::string choice = weighs ? place.substr(0, place.size() - 7) + "ids" : "";
      for (Eigen::Index r = 0; r < trusted.rows(); ++r) {
        if (weighs && ids_.contains(choice) &&
            result_.taken.at(choice).row(r) != ids_.at(choice).row(r))
          trusted.row(r) = now->second.row(r);  // of other experts
        else if (is_other(now->second.row(r), exact->second.row(r)))
          trusted.row(r) += now->second.row(r) - exact->second.row(r);
      }
    }
    return std::move(result_);
  }

 private:
  void follow_experts(const Choice& choice) {
    const auto exact = model_.exact().values.find(logits_of(choice.place));
    const auto trusted = result_.trusted.find(logits_of(choice.place));
    const TapBound* bound = model_.bound_for(logits_of(choice.place));
    if (exact == model_.exact().values.end() || trusted == result_.trusted.end() ||
        bound == nullptr)
      return;
    const std::int64_t k = choice.ids.cols();
    for (Eigen::Index r = 0; r < choice.ids.rows(); ++r) {
      if (is_other(choice.logits.row(r), exact->second.row(r)))
        choice.ids.row(r) = choice.own.row(r);
      const std::int64_t* found = found_.ids_of(choice.place, r, k);
      if (found == nullptr) continue;
      const Eigen::RowVectorXd scores =
          trusted->second.row(r) + choice.logits.row(r) - exact->second.row(r);
      if (follows(choice.place, r, found, choice.ids.data() + r * k, k, scores,
                  logits_of(choice.place), r, *bound))
        std::copy_n(found, k, choice.ids.data() + r * k);
    }
  }

  void follow_drafts(const Choice& choice) {
    const std::int64_t step = std::stoll(choice.place.substr(4));
    const std::string scores_at = step == 0 ? "target/lm_head" : text("step", step - 1, "/logits");
    const Matrix<double>& now = choice.before.values.at(scores_at);
    const auto exact = model_.exact().values.find(scores_at);
    const auto trusted = result_.trusted.find(scores_at);
    const TapBound* bound = model_.bound_for(scores_at);
    if (exact == model_.exact().values.end() || trusted == result_.trusted.end() ||
        bound == nullptr)
      return;
    for (std::size_t i = 0; i < steps_.drafting.size(); ++i) {
      const std::int64_t row = step == 0 ? steps_.sampled[i] : std::int64_t(i);
      const std::int64_t score_row = step <= 1 ? steps_.sampled[i] : std::int64_t(i);
      if (is_other(now.row(score_row), exact->second.row(score_row)))
        choice.ids(row, 0) = choice.own(row, 0);
      const std::int64_t* found = found_.ids_of(choice.place, row, 1);
      if (found == nullptr) continue;
      const Eigen::RowVectorXd scores =
          trusted->second.row(score_row) + now.row(score_row) - exact->second.row(score_row);
      if (follows(choice.place, row, found, &choice.ids(row, 0), 1, scores, scores_at, score_row,
                  *bound))
        choice.ids(row, 0) = *found;
    }
  }

  /// Whether the run's choice is taken: the same, in any order, or a tie. Notes what differs.
  /// `scores` are the trusted ones, row `score_row` of the tap `scores_at`.
  bool follows(const std::string& place, std::int64_t row, const std::int64_t* found,
               const std::int64_t* due, std::int64_t count, const Eigen::RowVectorXd& scores,
               const std::string& scores_at, std::int64_t score_row, const TapBound& bound) {
    const auto own = found_.values_of(scores_at, score_row, scores.size());
    const double allowed =  // of the difference of two errors
        std::sqrt(2.0) * bound.row_max[std::size_t(score_row)];
    const std::set<std::int64_t> taken(found, found + count), expected(due, due + count);
    if (taken == expected) return true;
    ChoiceDifference difference{.place = place,
                                .row = row,
                                .found = in_first_only(taken, expected),
                                .expected = in_first_only(expected, taken),
                                .allowed = allowed};
    const auto gap = [&](const Eigen::RowVectorXd& of) {  // of what was left out above what was not
      double worst = -std::numeric_limits<double>::infinity();
      for (const std::int64_t out : difference.expected)
        for (const std::int64_t in : difference.found) worst = std::max(worst, of[out] - of[in]);
      return worst;
    };
    difference.is_possible = std::int64_t(taken.size()) == count && *taken.begin() >= 0 &&
                             *taken.rbegin() < scores.size();
    if (difference.is_possible) {
      difference.margin = gap(scores);
      if (own) {  // stored with one rounding each
        difference.own_margin = gap(*own);
        difference.own_allowed = 4 * unit_roundoff_of(model_.implementation().type) *
                                 std::max(1.0, own->cwiseAbs().maxCoeff());
      }
    }
    if (!difference.is_tie() && difference.is_borne_out() && hidden_.any()) {
      const double of_row = bound.row_l2[std::size_t(score_row)];
      const Eigen::RowVectorXd error = *own - scores;
      difference.is_explained =
          hidden_.unexplained(scores_at, score_row, error, of_row, false).norm() <= of_row;
    }
    const bool is_tie = difference.is_tie();
    result_.differences.push_back(std::move(difference));
    return is_tie;
  }

  const TapErrorModel& model_;
  const FoundTaps& found_;
  const IdsByPlace& ids_;
  HiddenChoices& hidden_;
  const ParallelRun& run_;
  LoadedWeights<EigenOps<double>>& weights_;
  SequenceRows steps_;
  FollowedChoices result_;
};

}  // namespace

FollowedChoices follow_choices(const GoldenCase& golden, const TapErrorModel& model,
                               const FoundTaps& found, const IdsByPlace& ids, HiddenChoices& hidden,
                               const ParallelRun& run, LoadedWeights<EigenOps<double>>& weights) {
  return ChoiceFollower(golden, model, found, ids, hidden, run, weights).follow();
}

}  // namespace tokenview
