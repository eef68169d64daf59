// SPDX-License-Identifier: Apache-2.0
#include "verify/hidden_choices.hpp"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <set>

namespace tokenview {

SequenceRows::SequenceRows(const LoadedGolden::Case& of) {
  const GoldenInputs& inputs = of.inputs;
  const std::vector<std::int32_t> rejected = rejected_of(of);
  for (std::int64_t s = 0; s < inputs.num_sequences(); ++s) {
    const auto at = std::size_t(s);
    of_row.resize(std::size_t(inputs.query_start_loc[at + 1]), s);
    of_context_row.resize(std::size_t(inputs.context_start_loc[at + 1]), s);
    if (inputs.query_start_loc[at] == inputs.query_start_loc[at + 1]) continue;
    drafting.push_back(s);
    sampled.push_back(inputs.query_start_loc[at + 1] - 1 - (rejected.empty() ? 0 : rejected[at]));
  }
}

std::int64_t SequenceRows::sequence_of(const std::string& place, std::int64_t row) const {
  const auto at = std::size_t(row);
  if (place.starts_with("context/")) return of_context_row[at];
  const bool one_each = place.starts_with("step") && !place.starts_with("step0/");
  return one_each ? drafting[at] : of_row[at];
}

std::string logits_of(const std::string& ids_place) {
  return ids_place.substr(0, ids_place.size() - std::string_view("ids").size()) + "logits";
}

bool holds_experts(const std::string& place) { return place.ends_with("gate.ids"); }

HiddenChoices::HiddenChoices(
    const GoldenCase& golden, const TapErrorModel& model, const IdsByPlace& ids,
    const std::function<bool(const std::string& place, std::int64_t row)>& is_known,
    const std::set<std::string>& known)
    : model_(model),
      ids_(ids),
      known_(known),
      rows_(golden.trusted),
      run_(run_of(golden, 1)),
      weights_(run_, golden.weights),
      ties_(std::size_t(golden.trusted.inputs.num_sequences())) {
  const auto& exact = model.exact().values;
  for (const auto& [place, chosen] : ids) {
    if (!holds_experts(place)) continue;
    const bool is_context = place.starts_with("context/");
    // Scores of the context are as far off as those of the step, relative to the largest of a row.
    const std::string of_step =
        is_context ? (place.starts_with("context/mtp.") ? "step0/" : "target/") + place.substr(8)
                   : place;
    const TapBound* bound = model.bound_for(logits_of(of_step));
    if (bound == nullptr) continue;
    const Matrix<double>& scores = exact.at(logits_of(of_step));
    double relative = 0;
    for (std::int64_t r = 0; r < bound->rows(); ++r)
      if (const double largest = scores.row(r).cwiseAbs().maxCoeff(); largest > 0)
        relative = std::max(relative, bound->row_max[std::size_t(r)] / largest);
    add_near_ties(place, is_context ? model.exact_context().values.at(logits_of(place)) : scores,
                  chosen, relative, is_known);
  }
  for (const auto& of_sequence : ties_) most_ = std::max(most_, of_sequence.size());
}

void HiddenChoices::add_near_ties(
    const std::string& place, const Matrix<double>& logits, const Matrix<std::int64_t>& ids,
    double relative_error, const std::function<bool(const std::string&, std::int64_t)>& is_known) {
  for (Eigen::Index r = 0; r < logits.rows(); ++r) {
    if (is_known(place, r)) continue;
    const std::set<std::int64_t> chosen(ids.row(r).begin(), ids.row(r).end());
    std::int64_t last = -1, next = -1;  // the least of what was taken, the best of what was not
    for (std::int64_t e = 0; e < logits.cols(); ++e) {
      if (chosen.contains(e)) {
        if (last < 0 || logits(r, e) < logits(r, last)) last = e;
      } else if (next < 0 || logits(r, e) > logits(r, next)) {
        next = e;
      }
    }
    if (next < 0) continue;  // all are taken
    // Of two errors' difference, and without what other implementations may have on top: a choice
    // that is farther than that from turning is no explanation.
    const double allowed =
        std::sqrt(2.0) / TapBound::safety * relative_error * logits.row(r).cwiseAbs().maxCoeff();
    auto& ties = ties_[std::size_t(rows_.sequence_of(place, r))];
    // Any exchange is a sum of these, to first order.
    bool is_first = true;
    const auto add = [&](std::int64_t out, std::int64_t in) {
      ties.push_back({place, r, out, in, is_first});
      is_first = false;
    };
    if (logits(r, last) - logits(r, next) > allowed) continue;
    add(last, next);
    for (std::int64_t e = 0; e < logits.cols(); ++e) {
      if (e == last || e == next) continue;
      if (chosen.contains(e) && logits(r, e) - logits(r, next) <= allowed) add(e, next);
      if (!chosen.contains(e) && logits(r, last) - logits(r, e) <= allowed) add(last, e);
    }
  }
}

const HiddenChoices::Effects& HiddenChoices::effects(bool own) {
  std::optional<Effects>& effects = own ? own_ : total_;
  if (effects) return *effects;
  effects.emplace();
  const std::map<std::string, Matrix<double>>& exact = model_.exact().values;
  std::vector<RankTaps> values(1);
  for (const auto& [place, value] : exact)
    if (own && known_.contains(place)) values.front().values.emplace(place, value);
  // The i-th of every sequence at once, and at last one of each token.
  for (std::size_t i = 0; i <= most_; ++i) {
    const Given given{.ids = &ids_, .values = &values, .choose = [&](const Choice& choice) {
                        for (const auto& of_sequence : ties_)
                          for (std::size_t t = 0; t < of_sequence.size(); ++t) {
                            const NearTie& tie = of_sequence[t];
                            if (tie.place != choice.place) continue;
                            if (i < most_ ? t != i : !tie.is_first) continue;
                            auto row = choice.ids.row(tie.row);
                            std::ranges::replace(row, tie.taken, tie.next);
                          }
                      }};
    const RankTaps other = std::move(run_given(run_, weights_, EigenOps<double>(), given).front());
    for (const auto& [place, value] : exact) {
      Effect& effect = (*effects)[place];
      if (i < most_)
        effect.of_each.push_back(other.values.at(place) - value);
      else
        effect.together = other.values.at(place) - value;
    }
  }
  return *effects;
}

Eigen::RowVectorXd HiddenChoices::unexplained(const std::string& place, std::int64_t row,
                                              const Eigen::RowVectorXd& error, double allowed,
                                              bool own) {
  const std::vector<NearTie>& ties = ties_[std::size_t(rows_.sequence_of(place, row))];
  const std::size_t count = ties.size();
  if (count == 0) return error;
  const Effect& effect = effects(own).at(place);
  Eigen::MatrixXd changes(error.size(), Eigen::Index(count));
  for (std::size_t i = 0; i < count; ++i)
    changes.col(Eigen::Index(i)) = effect.of_each[i].row(row).transpose();
  if (!(error.norm() <= allowed + changes.colwise().norm().sum())) return error;
  const Eigen::VectorXd times = changes.completeOrthogonalDecomposition().solve(error.transpose());
  const Eigen::RowVectorXd left = error - (changes * times).transpose();
  // Together they change something else than one by one: so far no sum can be fitted.
  Eigen::RowVectorXd unlike = effect.together.row(row);
  for (std::size_t i = 0; i < count; ++i)
    if (ties[i].is_first) unlike -= effect.of_each[i].row(row);
  return left * std::max(0.0, 1 - unlike.norm() / std::max(left.norm(), 1e-300));
}

}  // namespace tokenview
