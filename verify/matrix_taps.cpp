// SPDX-License-Identifier: Apache-2.0
#include "verify/matrix_taps.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/found_taps.hpp"
#include "verify/golden_row.hpp"
#include "verify/hidden_choices.hpp"
#include "verify/host_matrix.hpp"
#include "verify/placed_tap.hpp"
#include "verify/tap_order.hpp"
#include "verify/tolerance.hpp"

namespace tokenview {
namespace {

/// Counts a tap that was judged.
void add(MatrixTap tap, MatrixResult& result) {
  result.values += tap.values;
  result.failed += tap.failed;
  if (!tap.problem.empty() && result.problem.empty())
    result.problem = tap.name + ": " + tap.problem;
  if (tap.worst.ratio() > result.worst.ratio() || result.worst_tap.empty()) {
    result.worst = tap.worst;
    result.worst_tap = tap.name;
  }
  if (result.entry.keeps_details) result.compared.push_back(std::move(tap));
}

/// Fails the golden's taps of the run's passes that the program does not name. Protocol `deferred`
/// carries a layer's output and its residual apart, and has no name for their sum.
void add_missing(const LoadedGolden::Case& golden, const ViewRunResult& views, std::int64_t dp,
                 MatrixResult& result) {
  std::set<std::string> names, passes;
  for (const NamedView& view : views.views) {
    names.insert(view.name);
    passes.insert(pass_of(view.name));
  }
  const auto require = [&](const std::string& name) {
    const bool is_apart = result.entry.protocol == ProtocolId::deferred && is_layer_output(name);
    if (passes.contains(pass_of(name)) && !names.contains(name) && !is_apart)
      add({.name = name, .dp = dp, .problem = "the run has no such tap", .failed = true}, result);
  };
  for (const auto& [name, values] : golden.taps) require(name);
  for (const auto& [name, ids] : golden.ids)
    if (holds_experts(name)) require(name);
}

void fail(MatrixTap& tap, const std::string& problem) {
  tap.failed = true;
  tap.problem += (tap.problem.empty() ? "" : "; ") + problem;
}

void judge_values(const PlacedTap<double>& placed, const Matrix<double>& trusted, bool keeps_rows,
                  MatrixTap& tap) {
  const double allowed = float32_allowed(trusted.size() == 0 ? 0 : trusted.cwiseAbs().maxCoeff());
  if (keeps_rows) tap.row_ratios.resize(std::size_t(trusted.rows()));
  for (const PlacedValues<double>& values : placed.values) {
    const Comparison comparison =
        compare(std::span<const double>(values.found), std::span<const double>(values.trusted));
    const Bound bound = float32_bound(comparison, values.columns());
    tap.values += comparison.count;
    tap.failed |= !bound.holds();
    if (!(bound.ratio() <= tap.worst.ratio()) || tap.worst.allowed == 0) tap.worst = bound;
    if (keeps_rows) raise_row_ratios(tap.row_ratios, values, allowed);
  }
}

void judge_ids(const PlacedTap<std::int64_t>& placed, MatrixTap& tap) {
  for (const PlacedValues<std::int64_t>& values : placed.values) {
    tap.values += std::int64_t(values.found.size());
    const auto differs =
        std::ranges::mismatch(values.found, values.trusted).in1 - values.found.begin();
    if (std::size_t(differs) < values.found.size())
      fail(tap, text("rank ", values.at.world, " row ",
                     values.rows[std::size_t(differs / values.columns())], ": ids differ"));
  }
}

}  // namespace

void judge_by_fixed_bound(const ModelConfig& config,
                          const std::vector<const LoadedGolden::Case*>& cases,
                          const ViewRunResult& views, const NumberRunResult& numbers,
                          MatrixResult& result) {
  const ParallelConfig& parallel = result.entry.parallel;
  for (std::int64_t dp = 0; dp < parallel.dp; ++dp)
    add_missing(*cases[std::size_t(dp)], views, dp, result);
  for (const NamedView& view : views.views)
    for (std::int64_t dp = 0; dp < parallel.dp; ++dp) {
      const LoadedGolden::Case& golden = *cases[std::size_t(dp)];
      const auto put = [&]<class S>(const Matrix<S>& trusted) {
        return placed<S>(view, numbers.taps, dp, parallel, config, trusted, [&](const RowRun& row) {
          return golden_row(row, golden.inputs, draft_step_of(view.name));
        });
      };
      MatrixTap tap{.name = view.name, .dp = dp};
      const auto note = [&](const auto& placed) {
        for (const std::string& problem : placed.problems()) fail(tap, problem);
      };
      const auto ids = golden.ids.find(view.name);
      const auto values = golden.taps.find(view.name);
      if (ids != golden.ids.end()) {
        const Matrix<std::int64_t> trusted = as_matrix(ids->second);
        const auto placed = put(trusted);
        note(placed);
        judge_ids(placed, tap);
      } else if (values != golden.taps.end()) {
        const Matrix<double> trusted = as_matrix(values->second).cast<double>();
        const auto placed = put(trusted);
        note(placed);
        judge_values(placed, trusted, result.entry.keeps_details, tap);
      } else {
        fail(tap, "the golden has no such tap");
      }
      result.taps += tap.values > 0;
      add(std::move(tap), result);
    }
}

void judge_by_errors(CaseErrorModels& models, const LoadedGolden& golden,
                     const std::vector<const LoadedGolden::Case*>& cases,
                     const ViewRunResult& views, const NumberRunResult& numbers,
                     MatrixResult& result) {
  const ParallelConfig& parallel = result.entry.parallel;
  for (std::int64_t dp = 0; dp < parallel.dp; ++dp) {
    const LoadedGolden::Case& trusted = *cases[std::size_t(dp)];
    add_missing(trusted, views, dp, result);
    const GoldenCase golden_case(golden.config(), golden, trusted, golden.dtype());
    const RunTaps taps = taps_of_run(golden_case, views, numbers, parallel, dp);
    for (const std::string& problem : taps.problems)
      if (problem != numbers.error)
        add({.name = problem.substr(0, problem.find(':')),
             .dp = dp,
             .problem = problem.substr(problem.find(':') + 2),
             .failed = true},
            result);
    const CaseJudgement judgement =
        models.judge(result.entry.cases[std::size_t(dp)], trusted, parallel.tp, taps.found);
    for (const TapJudgement& tap : judgement.taps) {
      ++result.taps;
      add({.name = tap.place,
           .dp = dp,
           .worst = tap.total,
           .values = tap.comparison.count,
           .problem = tap.detail,
           .failed = tap.verdict != Verdict::match && tap.verdict != Verdict::tie},
          result);
    }
    for (const ChoiceDifference& choice : judgement.choices)
      if (!choice.is_tie())
        add({.name = choice.place,
             .dp = dp,
             .problem = text("row ", choice.row, ": other ids, by more than errors can turn"),
             .failed = true},
            result);
  }
}

}  // namespace tokenview
