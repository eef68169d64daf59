// SPDX-License-Identifier: Apache-2.0
#include "verify/case_judgement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/program/error.hpp"
#include "verify/given_run.hpp"
#include "verify/hidden_choices.hpp"
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

/// The golden's choices, and float64's in the context.
IdsByPlace ids_of(const GoldenCase& golden, const TapErrorModel& model) {
  IdsByPlace ids = trusted_ids(golden);
  ids.insert(model.exact_context().ids.begin(), model.exact_context().ids.end());
  return ids;
}

/// The taps that a run kept whole, from whose values the reference can go on.
std::set<std::string> known_of(const GoldenCase& golden, const FoundTaps& found) {
  std::set<std::string> known;
  for (const auto& [place, values] : found.values) {
    const auto trusted = golden.trusted.taps.find(place);
    const bool is_whole =
        trusted != golden.trusted.taps.end() && trusted->second.rows() == values.rows() &&
        trusted->second.cols() == values.cols() && !found.absent_rows.contains(place);
    if (is_whole) known.insert(place);
  }
  return known;
}

class CaseJudge {
 public:
  CaseJudge(const GoldenCase& golden, const TapErrorModel& model, const FoundTaps& found)
      : golden_(golden),
        model_(model),
        found_(found),
        run_(run_of(golden, 1)),
        weights_(run_, golden.weights),
        ids_(ids_of(golden, model)),
        taken_(ids_),
        steps_(golden.trusted),
        known_(known_of(golden, found)),
        hidden_(
            golden, model, ids_,
            [this](const std::string& place, std::int64_t row) {
              return found_ids(place, row, golden_.config.num_experts_per_tok) != nullptr;
            },
            known_) {
    for (const auto& [place, tap] : golden.trusted.taps)
      trusted_[place] = as_matrix(tap).cast<double>();
  }

  CaseJudgement judge() {
    follow_choices();
    run_on_found();
    for (const std::string& place : order_) {
      if (found_.ids.contains(place)) judge_ids(place);
      if (found_.values.contains(place)) judge_tap(place);
    }
    explain_by_hidden_choices();
    return std::move(result_);
  }

 private:
  bool is_absent(const std::string& place, std::int64_t row) const {
    const auto absent = found_.absent_rows.find(place);
    return absent != found_.absent_rows.end() && std::ranges::binary_search(absent->second, row);
  }
  /// The run's ids of a row; nullptr where it did not keep them.
  const std::int64_t* found_ids(const std::string& place, std::int64_t row,
                                std::int64_t columns) const {
    const auto ids = found_.ids.find(place);
    if (ids == found_.ids.end() || row >= ids->second.rows() || ids->second.cols() != columns ||
        is_absent(place, row))
      return nullptr;
    return ids->second.data() + row * columns;
  }

  // Choices.

  void follow_choices() {
    bool differ = false;
    for (const auto& [place, ids] : found_.ids)
      if (const auto trusted = ids_.find(place); trusted != ids_.end())
        differ |= trusted->second.rows() == ids.rows() && trusted->second.cols() == ids.cols() &&
                  trusted->second != ids;
    if (!differ) return;
    const Given given{.ids = &ids_, .choose = [&](const Choice& choice) {
                        if (choice.place.starts_with("context/")) return;
                        if (holds_experts(choice.place))
                          follow_experts(choice);
                        else
                          follow_drafts(choice);
                        taken_[choice.place] = choice.ids;
                      }};
    const RankTaps followed =
        std::move(run_given(run_, weights_, EigenOps<double>(), given).front());
    for (auto& [place, trusted] : trusted_) {
      const auto exact = model_.exact().values.find(place);
      const auto now = followed.values.find(place);
      if (exact == model_.exact().values.end() || now == followed.values.end()) continue;
      const bool weighs = place.ends_with("gate.weights");
      const std::string choice = weighs ? place.substr(0, place.size() - 7) + "ids" : "";
      for (Eigen::Index r = 0; r < trusted.rows(); ++r) {
        if (weighs && ids_.contains(choice) && taken_.at(choice).row(r) != ids_.at(choice).row(r))
          trusted.row(r) = now->second.row(r);  // of other experts
        else if (is_other(now->second.row(r), exact->second.row(r)))
          trusted.row(r) += now->second.row(r) - exact->second.row(r);
      }
    }
  }

  void follow_experts(const Choice& choice) {
    const auto exact = model_.exact().values.find(logits_of(choice.place));
    const auto trusted = trusted_.find(logits_of(choice.place));
    const TapBound* bound = model_.bound_for(logits_of(choice.place));
    if (exact == model_.exact().values.end() || trusted == trusted_.end() || bound == nullptr)
      return;
    const std::int64_t k = choice.ids.cols();
    for (Eigen::Index r = 0; r < choice.ids.rows(); ++r) {
      if (is_other(choice.logits.row(r), exact->second.row(r)))
        choice.ids.row(r) = choice.own.row(r);
      const std::int64_t* found = found_ids(choice.place, r, k);
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
    const auto trusted = trusted_.find(scores_at);
    const TapBound* bound = model_.bound_for(scores_at);
    if (exact == model_.exact().values.end() || trusted == trusted_.end() || bound == nullptr)
      return;
    for (std::size_t i = 0; i < steps_.drafting.size(); ++i) {
      const std::int64_t row = step == 0 ? steps_.sampled[i] : std::int64_t(i);
      const std::int64_t score_row = step <= 1 ? steps_.sampled[i] : std::int64_t(i);
      if (is_other(now.row(score_row), exact->second.row(score_row)))
        choice.ids(row, 0) = choice.own(row, 0);
      const std::int64_t* found = found_ids(choice.place, row, 1);
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
    const auto own = own_scores(scores_at, score_row, scores.size());
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
    result_.choices.push_back(std::move(difference));
    return is_tie;
  }

  /// The run's own scores of a row; nothing where it did not keep them.
  std::optional<Eigen::RowVectorXd> own_scores(const std::string& place, std::int64_t row,
                                               std::int64_t columns) const {
    const auto scores = found_.values.find(place);
    if (scores == found_.values.end() || row >= scores->second.rows() ||
        scores->second.cols() != columns || is_absent(place, row))
      return {};
    return scores->second.row(row);
  }

  // Own errors.

  /// The reference, each operation on the run's values.
  void run_on_found() {
    std::vector<RankTaps> values(1);
    for (const std::string& place : known_)
      values.front().values.emplace(place, found_.values.at(place));
    const Given given{
        .ids = &ids_, .values = &values, .choose = [&](const Choice& choice) {
          const std::int64_t end =
              holds_experts(choice.place) ? golden_.config.num_experts : golden_.config.vocab_size;
          for (Eigen::Index r = 0; r < choice.ids.rows(); ++r) {
            const std::int64_t columns = choice.ids.cols();
            const std::int64_t* found = found_ids(choice.place, r, columns);
            if (found == nullptr || std::any_of(found, found + columns, [&](std::int64_t id) {
                  return id < 0 || id >= end;
                }))
              continue;
            std::copy_n(found, columns, choice.ids.data() + r * columns);
          }
        }};
    made_ = std::move(run_given(run_, weights_, EigenOps<double>(), given, &order_).front());
  }

  // Verdicts.

  void judge_ids(const std::string& place) {
    const Matrix<std::int64_t>& found = found_.ids.at(place);
    const auto trusted = ids_.find(place);
    if (trusted == ids_.end()) return;
    TapJudgement tap{.place = place, .rows = found.rows()};
    tap.total = {0, 0, "rows"};
    if (found.rows() != trusted->second.rows() || found.cols() != trusted->second.cols()) {
      tap.verdict = Verdict::difference;
      tap.detail = text("shape is [", found.rows(), ", ", found.cols(), "], expected [",
                        trusted->second.rows(), ", ", trusted->second.cols(), ']');
    }
    std::set<std::int64_t> noted;
    for (const ChoiceDifference& choice : result_.choices) {
      if (choice.place != place) continue;
      noted.insert(choice.row);
      if (choice.is_tie()) {
        if (tap.verdict == Verdict::match) tap.verdict = Verdict::tie;
        continue;
      }
      tap.verdict = Verdict::difference;
      tap.over.push_back(choice.row);
      tap.is_origin |= !choice.is_borne_out();
    }
    if (!holds_experts(place) && tap.detail.empty())  // positions, and ids that nobody sampled
      for (Eigen::Index r = 0; r < found.rows(); ++r) {
        if (noted.contains(r) || is_absent(place, r) || found.row(r) == taken_.at(place).row(r))
          continue;
        tap.over.push_back(r);
        tap.verdict = Verdict::difference;
        tap.is_origin = true;
      }
    tap.total.observed = double(tap.over.size());
    result_.taps.push_back(std::move(tap));
  }

  void judge_tap(const std::string& place) {
    const Matrix<double>& found = found_.values.at(place);
    const auto trusted = trusted_.find(place);
    const TapBound* bound = model_.bound_for(place);
    if (trusted == trusted_.end() || bound == nullptr) return;
    TapJudgement tap{.place = place};
    if (found.rows() != trusted->second.rows() || found.cols() != trusted->second.cols()) {
      tap.verdict = Verdict::difference;
      tap.total = {std::numeric_limits<double>::infinity(), 0, "rows"};
      tap.detail = text("shape is [", found.rows(), ", ", found.cols(), "], expected [",
                        trusted->second.rows(), ", ", trusted->second.cols(), ']');
      result_.taps.push_back(std::move(tap));
      return;
    }
    tap.comparison = compared(found, trusted->second);
    const auto rows = kept(place, tap.comparison.rows);
    tap.rows = std::int64_t(rows.size());
    const TapBound::Judgement total = bound->judge(rows);
    tap.total = total.bound;
    tap.over = total.over;
    const Matrix<double>& made = made_.values.at(place);
    const Matrix<double>& exact = model_.exact().values.at(place);
    std::vector<double> scale;  // a fault may have made the run's values larger
    for (Eigen::Index r = 0; r < made.rows(); ++r) {
      const double usual = exact.row(r).norm(), here = made.row(r).norm();
      scale.push_back(usual > 0 && std::isfinite(here) ? std::max(1.0, here / usual) : 1.0);
    }
    const TapBound::Judgement own = model_.own_bounds(known_).at(place).judge(
        kept(place, compared(found, made).rows), {}, scale);
    tap.own = own.bound;
    tap.own_over = own.over;
    tap.is_origin = !own.holds();
    if (!total.holds() || !own.holds()) tap.verdict = Verdict::difference;
    result_.taps.push_back(std::move(tap));
  }

  static Comparison compared(const Matrix<double>& found, const Matrix<double>& right) {
    CompareOptions options{.value_type = StorageType::float64, .golden_type = StorageType::float64};
    options.columns = found.cols();
    options.keep_rows = true;
    const auto bytes = [](const Matrix<double>& x) {
      return std::as_bytes(std::span<const double>(x.data(), std::size_t(x.size())));
    };
    return compare(bytes(found), bytes(right), options);
  }
  std::vector<RowComparison> kept(const std::string& place, std::vector<RowComparison> rows) const {
    std::erase_if(rows, [&](const RowComparison& row) { return is_absent(place, row.row); });
    return rows;
  }

  // Choices that nobody recorded.

  void explain_by_hidden_choices() {
    if (!hidden_.any()) return;
    for (TapJudgement& tap : result_.taps) {
      if (!tap.own || tap.verdict != Verdict::difference || tap.comparison.mismatched > 0) continue;
      const Matrix<double>& found = found_.values.at(tap.place);
      const auto holds = [&](const Matrix<double>& right, const TapBound& bound, bool own) {
        Matrix<double> left = found - right;
        for (Eigen::Index r = 0; r < left.rows(); ++r)
          if (!is_absent(tap.place, r))
            left.row(r) =
                hidden_.unexplained(tap.place, r, left.row(r), bound.row_l2[std::size_t(r)], own);
        const Matrix<double> none = Matrix<double>::Zero(left.rows(), left.cols());
        return bound.judge(kept(tap.place, compared(left, none).rows)).holds();
      };
      if (!tap.total.holds() && !holds(trusted_.at(tap.place), *model_.bound_for(tap.place), false))
        continue;
      if (!tap.own->holds() &&
          !holds(made_.values.at(tap.place), model_.own_bounds(known_).at(tap.place), true))
        continue;
      tap.verdict = Verdict::tie;
      tap.is_origin = false;
      tap.detail = "as far as near-ties explain it whose choice is not recorded";
    }
  }

  const GoldenCase& golden_;
  const TapErrorModel& model_;
  const FoundTaps& found_;
  ParallelRun run_;
  LoadedWeights<EigenOps<double>> weights_;
  IdsByPlace ids_;    // the golden's, and float64's of the context
  IdsByPlace taken_;  // those behind which a tap is trusted
  SequenceRows steps_;
  std::set<std::string> known_;  // taps from which own errors start
  std::map<std::string, Matrix<double>>
      trusted_;                     // the golden's, behind ties with the run's choice
  RankTaps made_;                   // by the reference from the run's values
  std::vector<std::string> order_;  // places
  HiddenChoices hidden_;
  CaseJudgement result_;
};

}  // namespace

std::int64_t CaseJudgement::ties() const {
  return std::ranges::count_if(choices, &ChoiceDifference::is_tie);
}

bool CaseJudgement::holds() const {
  return std::ranges::all_of(choices, &ChoiceDifference::is_tie) &&
         std::ranges::all_of(taps, [](const TapJudgement& tap) {
           return tap.verdict == Verdict::match || tap.verdict == Verdict::tie;
         });
}

std::vector<std::string> CaseJudgement::origins() const {
  std::vector<std::string> places;
  for (const TapJudgement& tap : taps)
    if (tap.is_origin) places.push_back(tap.place);
  return places;
}

CaseJudgement judge_case(const GoldenCase& golden, const TapErrorModel& model,
                         const FoundTaps& found) {
  return CaseJudge(golden, model, found).judge();
}

std::string judgement_table(const CaseJudgement& judgement, bool all) {
  const auto ids = [](const std::vector<std::int64_t>& list) {
    std::string words;
    for (const std::int64_t id : list) words += (words.empty() ? "" : ",") + std::to_string(id);
    return words;
  };
  std::string lines;
  for (const ChoiceDifference& choice : judgement.choices) {
    lines += text(choice.is_tie() ? "tie      " : "choice   ", choice.place, " row ", choice.row,
                  ": ", ids(choice.found), " instead of ", ids(choice.expected));
    if (!choice.is_possible)
      lines += ", which is no choice";
    else
      lines += text(", margin ", choice.margin, " / ", choice.allowed);
    if (choice.own_margin)
      lines += text(", by its own scores ", *choice.own_margin, " / ", choice.own_allowed);
    lines += '\n';
  }
  for (const TapJudgement& tap : judgement.taps) {
    if (!all && tap.verdict == Verdict::match) continue;
    const char* word = tap.verdict == Verdict::match ? "match   "
                       : tap.verdict == Verdict::tie ? "tie     "
                       : tap.is_origin               ? "origin  "
                                                     : "inherits";
    const auto in_words = [](const Bound& bound) {
      return text(bound.metric, ' ', bound.observed, " / ", bound.allowed);
    };
    lines += text(word, ' ', tap.place, "  total ", in_words(tap.total),
                  tap.own ? "  own " + in_words(*tap.own) : "",
                  tap.detail.empty() ? "" : "; " + tap.detail, '\n');
  }
  return lines;
}

}  // namespace tokenview
