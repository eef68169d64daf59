// SPDX-License-Identifier: Apache-2.0
#include "verify/case_judgement.hpp"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/program/error.hpp"
#include "verify/given_run.hpp"

namespace tokenview {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::string logits_of(const std::string& ids_place) {
  return ids_place.substr(0, ids_place.size() - std::string_view("ids").size()) + "logits";
}
bool holds_experts(const std::string& place) { return place.ends_with("gate.ids"); }

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

class CaseJudge {
 public:
  CaseJudge(const GoldenCase& golden, const TapErrorModel& model, const FoundTaps& found)
      : golden_(golden),
        model_(model),
        found_(found),
        run_(run_of(golden, 1)),
        weights_(run_, golden.weights),
        ids_(trusted_ids(golden)),
        taken_(ids_),
        steps_(golden.trusted.inputs) {
    for (const auto& [place, chosen] : model.exact_context().ids) ids_.emplace(place, chosen);
    for (const auto& [place, tap] : golden.trusted.taps)
      trusted_[place] =
          Eigen::Map<const Matrix<float>>(tap.values.data(), tap.rows(), tap.cols()).cast<double>();
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
  /// Which sequence a row of a place is of.
  struct Steps {
    explicit Steps(const GoldenInputs& inputs) {
      for (std::int64_t s = 0; s < inputs.num_sequences(); ++s) {
        const auto at = std::size_t(s);
        for (std::int32_t r = inputs.query_start_loc[at]; r < inputs.query_start_loc[at + 1]; ++r)
          of_row.push_back(s);
        for (std::int32_t r = inputs.context_start_loc[at]; r < inputs.context_start_loc[at + 1];
             ++r)
          of_context_row.push_back(s);
        if (inputs.query_start_loc[at] == inputs.query_start_loc[at + 1]) continue;
        drafting.push_back(s);
        last_row.push_back(inputs.query_start_loc[at + 1] - 1);
      }
    }
    std::int64_t sequence(const std::string& place, std::int64_t row) const {
      if (place.starts_with("context/")) return of_context_row[std::size_t(row)];
      const bool one_each = place.starts_with("step") && !place.starts_with("step0/");
      return one_each ? drafting[std::size_t(row)] : of_row[std::size_t(row)];
    }
    std::vector<std::int64_t> of_row, of_context_row;
    std::vector<std::int64_t> drafting, last_row;  // of the sequences that have rows
  };

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
      const auto own_scores = found_.values.find(logits_of(choice.place));
      const bool has_own = own_scores != found_.values.end() && r < own_scores->second.rows() &&
                           own_scores->second.cols() == scores.size() &&
                           !is_absent(own_scores->first, r);
      Eigen::RowVectorXd own;
      if (has_own) own = own_scores->second.row(r);
      if (follows(choice.place, r, found, choice.ids.data() + r * k, k, scores,
                  2 * bound->row_max[std::size_t(r)], has_own ? &own : nullptr))
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
      const std::int64_t row = step == 0 ? steps_.last_row[i] : std::int64_t(i);
      const std::int64_t score_row = step <= 1 ? steps_.last_row[i] : std::int64_t(i);
      if (is_other(now.row(score_row), exact->second.row(score_row)))
        choice.ids(row, 0) = choice.own(row, 0);
      const std::int64_t* found = found_ids(choice.place, row, 1);
      if (found == nullptr) continue;
      const Eigen::RowVectorXd scores =
          trusted->second.row(score_row) + now.row(score_row) - exact->second.row(score_row);
      if (follows(choice.place, row, found, &choice.ids(row, 0), 1, scores,
                  2 * bound->row_max[std::size_t(score_row)], nullptr))
        choice.ids(row, 0) = *found;
    }
  }

  /// Whether the run's choice is taken: the same, in any order, or a tie. Notes what differs.
  bool follows(const std::string& place, std::int64_t row, const std::int64_t* found,
               const std::int64_t* due, std::int64_t count, const Eigen::RowVectorXd& scores,
               double allowed, const Eigen::RowVectorXd* own_scores) {
    const std::set<std::int64_t> taken(found, found + count), expected(due, due + count);
    if (taken == expected) return true;
    ChoiceDifference difference{.place = place,
                                .row = row,
                                .found = in_first_only(taken, expected),
                                .expected = in_first_only(expected, taken),
                                .allowed = allowed};
    const auto gap = [&](const Eigen::RowVectorXd& of) {  // of what was left out above what was not
      double worst = 0;
      for (const std::int64_t out : difference.expected)
        for (const std::int64_t in : difference.found) worst = std::max(worst, of[out] - of[in]);
      return worst;
    };
    if (std::int64_t(taken.size()) != count || *taken.begin() < 0 ||
        *taken.rbegin() >= scores.size()) {
      difference.detail = "no choice of different ids that there are";
    } else {
      difference.margin = gap(scores);
      difference.is_tie = difference.margin <= allowed;
      // Its scores may have been stored with one rounding each.
      if (difference.is_tie && own_scores != nullptr) {
        const double stored = 4 * unit_roundoff_of(model_.implementation().type) *
                              std::max(1.0, own_scores->cwiseAbs().maxCoeff());
        if (!(gap(*own_scores) <= stored)) {
          difference.is_tie = false;
          difference.detail = text("its own scores prefer what it left out by ", gap(*own_scores));
        }
      }
    }
    const bool is_tie = difference.is_tie;
    result_.choices.push_back(std::move(difference));
    return is_tie;
  }

  // Own errors.

  /// The reference, each operation on the run's values.
  void run_on_found() {
    std::vector<RankTaps> values(1);
    for (const auto& [place, found] : found_.values) {
      const auto trusted = trusted_.find(place);
      if (trusted == trusted_.end() || trusted->second.rows() != found.rows() ||
          trusted->second.cols() != found.cols())
        continue;
      Matrix<double>& given = values.front().values[place] = found;
      const auto absent = found_.absent_rows.find(place);
      if (absent != found_.absent_rows.end())
        for (const std::int64_t row : absent->second) given.row(row).setConstant(not_a_number);
    }
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
      if (!choice.is_tie) tap.over.push_back(choice.row);
      if (tap.verdict == Verdict::match || !choice.is_tie)
        tap.verdict = choice.is_tie ? Verdict::tie : Verdict::difference;
    }
    if (!holds_experts(place) && tap.detail.empty())  // positions, and ids that nobody sampled
      for (Eigen::Index r = 0; r < found.rows(); ++r) {
        if (noted.contains(r) || is_absent(place, r) || found.row(r) == taken_.at(place).row(r))
          continue;
        tap.over.push_back(r);
        tap.verdict = Verdict::difference;
      }
    tap.total.observed = double(tap.over.size());
    tap.is_origin = tap.verdict == Verdict::difference;
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
    const TapBound::Judgement own =
        model_.own_bound_for(place)->judge(kept(place, compared(found, made).rows), {}, scale);
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

  struct HiddenTie {
    std::string place;
    std::int64_t row, taken, next;
  };

  /// Near-ties of the experts of tokens whose choice is not known, of each sequence.
  std::vector<std::vector<HiddenTie>> hidden_ties() const {
    std::vector<std::vector<HiddenTie>> ties(std::size_t(golden_.trusted.inputs.num_sequences()));
    const auto add = [&](const std::string& place, const Matrix<double>& logits,
                         const Matrix<std::int64_t>& ids, const TapBound* bound,
                         const Matrix<double>& of_bound) {
      if (bound == nullptr || of_bound.size() == 0) return;
      double relative = 0;  // error of a score, to the largest of its row
      for (std::int64_t r = 0; r < bound->rows(); ++r)
        if (const double largest = of_bound.row(r).cwiseAbs().maxCoeff(); largest > 0)
          relative = std::max(relative, bound->row_max[std::size_t(r)] / largest);
      for (Eigen::Index r = 0; r < logits.rows(); ++r) {
        if (found_ids(place, r, ids.cols()) != nullptr) continue;
        const std::set<std::int64_t> chosen(ids.row(r).begin(), ids.row(r).end());
        std::int64_t last = -1, next = -1;
        for (std::int64_t e = 0; e < logits.cols(); ++e) {
          std::int64_t& best = chosen.contains(e) ? last : next;
          const bool better = best < 0 || (chosen.contains(e) ? logits(r, e) < logits(r, best)
                                                              : logits(r, e) > logits(r, best));
          if (better) best = e;
        }
        if (next < 0) continue;
        const double allowed = 2 * relative * logits.row(r).cwiseAbs().maxCoeff();
        if (logits(r, last) - logits(r, next) <= allowed)
          ties[std::size_t(steps_.sequence(place, r))].push_back({place, r, last, next});
      }
    };
    for (const auto& [place, ids] : ids_) {
      if (!holds_experts(place)) continue;
      const bool is_context = place.starts_with("context/");
      const std::string of_step =
          is_context ? (place.starts_with("context/mtp.") ? "step0/" : "target/") + place.substr(8)
                     : place;
      const auto& exact = model_.exact().values;
      const auto bound_values = exact.find(logits_of(of_step));
      if (bound_values == exact.end()) continue;
      add(place,
          is_context ? model_.exact_context().values.at(logits_of(place)) : bound_values->second,
          ids, model_.bound_for(logits_of(of_step)), bound_values->second);
    }
    return ties;
  }

  /// Rows over a bound, where the sequence has hidden near-ties: whether what those change, each by
  /// itself, adds up to the row's error.
  void explain_by_hidden_choices() {
    const auto ties = hidden_ties();
    std::size_t most = 0;
    std::set<std::int64_t> wanted;
    for (const TapJudgement& tap : result_.taps) {
      if (!tap.own) continue;
      for (const auto* rows : {&tap.over, &tap.own_over})
        for (const std::int64_t row : *rows) wanted.insert(steps_.sequence(tap.place, row));
    }
    for (const std::int64_t s : wanted) most = std::max(most, ties[std::size_t(s)].size());
    if (most == 0) return;
    const Effects total = effects_of(ties, wanted, most, nullptr);
    const std::vector<RankTaps> given{model_.exact()};
    const Effects own = effects_of(ties, wanted, most, &given);
    for (TapJudgement& tap : result_.taps) {
      if (!tap.own || tap.verdict != Verdict::difference) continue;
      if (!explained(tap, total.at(tap.place), own.at(tap.place))) continue;
      tap.verdict = Verdict::tie;
      tap.is_origin = false;
      tap.detail = "as far as near-ties explain it whose choice is not recorded";
    }
  }

  /// What each near-tie would change of a tap, by place.
  using Effects = std::map<std::string, std::vector<Matrix<double>>>;

  Effects effects_of(const std::vector<std::vector<HiddenTie>>& ties,
                     const std::set<std::int64_t>& wanted, std::size_t most,
                     const std::vector<RankTaps>* values) {
    Effects effects;
    for (std::size_t i = 0; i < most; ++i) {  // the i-th of every sequence at once
      const Given given{.ids = &ids_, .values = values, .choose = [&](const Choice& choice) {
                          for (const std::int64_t s : wanted) {
                            const auto& of_sequence = ties[std::size_t(s)];
                            if (i >= of_sequence.size() || of_sequence[i].place != choice.place)
                              continue;
                            auto row = choice.ids.row(of_sequence[i].row);
                            std::ranges::replace(row, of_sequence[i].taken, of_sequence[i].next);
                          }
                        }};
      const RankTaps flipped =
          std::move(run_given(run_, weights_, EigenOps<double>(), given).front());
      for (const auto& [place, exact] : model_.exact().values)
        effects[place].push_back(flipped.values.at(place) - exact);
    }
    return effects;
  }

  /// True where each row's error is within its bound but for a sum of the near-ties' changes (least
  /// squares: a near-tie may have been broken in part of the sequence's rows' past only), and no
  /// larger than all of them together. A row of fewer columns than near-ties has the latter alone.
  bool explained(const TapJudgement& tap, const std::vector<Matrix<double>>& total,
                 const std::vector<Matrix<double>>& own) const {
    if (tap.comparison.mismatched > 0) return false;
    const TapBound& bound = *model_.bound_for(tap.place);
    const TapBound& own_bound = *model_.own_bound_for(tap.place);
    const Matrix<double>& found = found_.values.at(tap.place);
    const auto within = [&](const Matrix<double>& right, const std::vector<std::int64_t>& over,
                            const TapBound& of, const std::vector<Matrix<double>>& effects) {
      return std::ranges::all_of(over, [&](std::int64_t row) {
        const Eigen::VectorXd error = (found.row(row) - right.row(row)).transpose();
        Eigen::MatrixXd changes(error.size(), Eigen::Index(effects.size()));
        for (std::size_t i = 0; i < effects.size(); ++i)
          changes.col(Eigen::Index(i)) = effects[i].row(row).transpose();
        const Eigen::VectorXd times = changes.completeOrthogonalDecomposition().solve(error);
        const double allowed = of.row_l2[std::size_t(row)];
        return (error - changes * times).norm() <= allowed &&
               error.norm() <= allowed + changes.colwise().norm().sum();
      });
    };
    // Over the limit of all rows together only: no row is to blame, nor to be excused.
    if (tap.over.empty() && !tap.total.holds()) return false;
    if (tap.own_over.empty() && !tap.own->holds()) return false;
    return within(trusted_.at(tap.place), tap.over, bound, total) &&
           within(made_.values.at(tap.place), tap.own_over, own_bound, own);
  }

  const GoldenCase& golden_;
  const TapErrorModel& model_;
  const FoundTaps& found_;
  ParallelRun run_;
  LoadedWeights<EigenOps<double>> weights_;
  IdsByPlace ids_;    // the golden's, and float64's of the context
  IdsByPlace taken_;  // those behind which a tap is trusted
  Steps steps_;
  std::map<std::string, Matrix<double>>
      trusted_;                     // the golden's, behind ties with the run's choice
  RankTaps made_;                   // by the reference from the run's values
  std::vector<std::string> order_;  // places
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
  for (const ChoiceDifference& choice : judgement.choices)
    lines +=
        text(choice.is_tie ? "tie     " : "choice  ", choice.place, " row ", choice.row, ": ",
             ids(choice.found), " instead of ", ids(choice.expected), ", margin ", choice.margin,
             " of ", choice.allowed, choice.detail.empty() ? "" : "; " + choice.detail, '\n');
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
