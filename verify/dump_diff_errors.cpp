// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/case_judgement.hpp"
#include "verify/dump_diff_parts.hpp"
#include "verify/report.hpp"
#include "verify/trusted_dump.hpp"

namespace tokenview {
namespace {

using Verdict = TapDiff::Verdict;

std::string in_words(const Bound& bound) {
  return text(bound.metric, ' ', bound.observed, " of ", bound.allowed);
}

/// The way of putting a tap together that is `nearest`'s, whether it fits or not: a choice of
/// experts or a draft may have moved the values. Else what comes nearest to the trusted ones.
const PutTogether* chosen(const ExplainedTap& tap, const CleanLayout* nearest) {
  const std::vector<TokenView> required =
      nearest == nullptr ? std::vector<TokenView>() : required_views(*nearest, tap);
  const auto rank = [&](const PutTogether& whole) {
    return std::pair(
        !required.empty() && (same_layout(tap.diff.tap, whole.views, required) ||
                              (whole.are_copies && is_summed_already(whole.views, required))),
        -whole.distance);
  };
  const auto best = std::ranges::max_element(tap.put_together, {}, rank);
  return best == tap.put_together.end() ? nullptr : &*best;
}

void take(const TapJudgement& judgement, const PutTogether& whole, JudgedTaps which,
          ExplainedTap& tap) {
  const bool is_tie = judgement.verdict == tokenview::Verdict::tie;
  const bool is_right = judgement.holds();
  if (which == JudgedTaps::failing && (!is_right || tap.diff.verdict == Verdict::match)) return;
  tap.diff.bound = judgement.total;
  if (is_right && whole.zeros.empty()) {
    if (std::ranges::none_of(tap.ways, [&](const TapWay& way) {
          return same_layout(tap.diff.tap, way.views, whole.views);
        }))
      tap.ways.push_back({whole.views, whole.garbage});
    tap.diff.verdict = Verdict::match;
    tap.diff.called.clear();
    tap.diff.detail = is_tie ? "explained by choices that errors can turn" : "";
    return;
  }
  tap.ways.clear();
  tap.zeros = whole.zeros;
  tap.diff.verdict = Verdict::difference;
  tap.diff.detail = judgement.detail;
  if (judgement.own && !is_right)  // right: bounds that are wider than the row
    tap.diff.detail =
        text(judgement.is_origin ? "origin: of its own operations "
                                 : "inherited: of its own operations ",
             in_words(*judgement.own), judgement.detail.empty() ? "" : "; ", judgement.detail);
  if (!whole.zeros.empty()) tap.diff.detail += (tap.diff.detail.empty() ? "" : "\n") + whole.zeros;
}

}  // namespace

std::optional<DType> narrow_type(const StageStep& stage, DType trusted) {
  const DType mine = arithmetic_of(stage.of(*stage.ranks.front()));
  if (mine != DType::float32) return mine;
  if (trusted != DType::float32) return DType::float32;
  return std::nullopt;
}

JudgedStep judge_by_errors(const GoldenCase& golden, const TapErrorModel& errors, std::int64_t dp,
                           const CleanLayout* nearest, JudgedTaps which,
                           std::vector<ExplainedTap>& taps) {
  FoundTaps found;
  std::vector<std::pair<ExplainedTap*, const PutTogether*>> judged;
  for (ExplainedTap& tap : taps) {
    const PutTogether* const whole = tap.diff.dp == dp ? chosen(tap, nearest) : nullptr;
    if (whole == nullptr || tap.diff.tap == "draft_ids") continue;
    judged.emplace_back(&tap, whole);
    if (whole->ids.size() > 0)
      found.ids[tap.diff.tap] = whole->ids;
    else
      found.values[tap.diff.tap] = whole->values;
    if (!whole->absent_rows.empty()) found.absent_rows[tap.diff.tap] = whole->absent_rows;
  }
  CaseJudgement judgement = judge_case(golden, errors, found);
  JudgedStep step{.values = std::move(judgement.trusted)};
  for (const auto& [tap, whole] : judged) {
    const auto of_tap = std::ranges::find(judgement.taps, tap->diff.tap, &TapJudgement::place);
    if (of_tap == judgement.taps.end()) continue;
    const bool is_right = of_tap->holds() && whole->zeros.empty();
    if (is_right && whole->values.size() > 0 && whole->absent_rows.empty())
      step.values[tap->diff.tap] = whole->values;
    take(*of_tap, *whole, which, *tap);
  }
  if (const std::int64_t ties = judgement.ties())
    step.ties = text(plural(ties, "choice"), " of experts or drafts within their errors");
  return step;
}

JudgedTrustedStep::JudgedTrustedStep(std::shared_ptr<const TrustedStep> base,
                                     std::map<std::string, Matrix<double>> values)
    : base_(std::move(base)), values_(std::move(values)) {}

std::vector<HostTensor> JudgedTrustedStep::ways(const std::string& tap) const {
  std::vector<HostTensor> ways = base_->ways(tap);
  const auto judged = values_.find(tap);
  if (judged == values_.end() || judged->second.rows() != ways.front().rows() ||
      judged->second.cols() != ways.front().cols())
    return ways;
  HostTensor& values = ways.front();
  Eigen::Map<Matrix<float>>(values.values.data(), values.rows(), values.cols()) =
      judged->second.cast<float>();
  return ways;
}

}  // namespace tokenview
