// SPDX-License-Identifier: Apache-2.0
#include "verify/case_judgement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/program/error.hpp"
#include "verify/given_run.hpp"
#include "verify/hidden_choices.hpp"

namespace tokenview {
namespace {

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
        known_(known_of(golden, found)),
        hidden_(
            golden, model, ids_,
            [this](const std::string& place, std::int64_t row) {
              return found_.ids_of(place, row, golden_.config.num_experts_per_tok) != nullptr;
            },
            known_),
        followed_(follow_choices(golden, model, found, ids_, hidden_, run_, weights_)) {}

  CaseJudgement judge() {
    result_.choices = followed_.differences;
    run_on_found();
    for (const std::string& place : order_) {
      if (found_.ids.contains(place)) judge_ids(place);
      if (found_.values.contains(place)) judge_tap(place);
    }
    explain_by_hidden_choices();
    result_.trusted = std::move(followed_.trusted);
    return std::move(result_);
  }

 private:
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
            const std::int64_t* found = found_.ids_of(choice.place, r, columns);
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
        if (noted.contains(r) || found_.is_absent(place, r) ||
            found.row(r) == followed_.taken.at(place).row(r))
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
    const auto trusted = followed_.trusted.find(place);
    const TapBound* bound = model_.bound_for(place);
    if (trusted == followed_.trusted.end() || bound == nullptr) return;
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
    std::erase_if(rows, [&](const RowComparison& row) { return found_.is_absent(place, row.row); });
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
          if (!found_.is_absent(tap.place, r))
            left.row(r) =
                hidden_.unexplained(tap.place, r, left.row(r), bound.row_l2[std::size_t(r)], own);
        const Matrix<double> none = Matrix<double>::Zero(left.rows(), left.cols());
        return bound.judge(kept(tap.place, compared(left, none).rows)).holds();
      };
      if (!tap.total.holds() &&
          !holds(followed_.trusted.at(tap.place), *model_.bound_for(tap.place), false))
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
  IdsByPlace ids_;                  // the golden's, and float64's of the context
  std::set<std::string> known_;     // taps from which own errors start
  RankTaps made_;                   // by the reference from the run's values
  std::vector<std::string> order_;  // places
  HiddenChoices hidden_;
  FollowedChoices followed_;
  CaseJudgement result_;
};

}  // namespace

std::int64_t CaseJudgement::ties() const {
  return std::ranges::count_if(choices, &ChoiceDifference::is_tie);
}

bool CaseJudgement::holds() const {
  return std::ranges::all_of(choices, &ChoiceDifference::is_tie) &&
         std::ranges::all_of(taps, &TapJudgement::holds);
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
