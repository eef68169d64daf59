// SPDX-License-Identifier: Apache-2.0
#include "verify/unsharded.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/program/error.hpp"
#include "verify/placed_tap.hpp"

namespace tokenview {
namespace {

class Beside {
 public:
  Beside(const ParallelRun& run, const UnshardedBound& bound, UnshardedComparison& result)
      : run_(run), bound_(bound), result_(result) {}

  void compare(const ViewRunResult& views, const NumberRunResult& numbers, std::int64_t dp,
               const ViewRunResult& trusted_views, const NumberRunResult& trusted) {
    std::map<std::string, Rows> trusted_rows;
    for (const NamedView& view : trusted_views.views)
      trusted_rows[view.name] = view.by_rank.front().rows;
    for (const NamedView& view : views.views) {
      ++order_;
      const auto rows = trusted_rows.find(view.name);
      const auto values = trusted.taps.front().values.find(view.name);
      if (rows == trusted_rows.end() || values == trusted.taps.front().values.end()) continue;
      const Matrix<double>& right = values->second;
      const auto row_of = [&](const RowRun& row) { return place_of(row, rows->second); };
      UnshardedTap tap{.name = view.name, .dp = dp};
      tap.row_ratios.resize(std::size_t(right.rows()));
      compare_tap(
          tap,
          placed<double>(view, numbers.taps, dp, run_.plan.parallel, run_.config, right, row_of),
          right.size() == 0 ? 0 : right.cwiseAbs().maxCoeff());
      result_.compared.push_back(std::move(tap));
    }
  }

 private:
  void compare_tap(UnshardedTap& told, const PlacedTap<double>& tap, double largest) {
    const std::string& name = told.name;
    const double scale = std::max({bound_.least, largest, 1e-30});
    told.allowed = bound_.relative * scale;
    if (!tap.other_shapes.empty()) {
      const PlacedTap<double>::OtherShape& first = tap.other_shapes.front();
      told.failed = true;
      told.detail =
          text("rank ", first.at.world, " has ", first.actual, ", its view says ", first.expected);
      report(first.at, name, first.expected, first.actual, -1);
      return;
    }
    for (const PlacedValues<double>& values : tap.values) {
      raise_row_ratios(told.row_ratios, values, told.allowed);
      told.values += std::int64_t(values.found.size());
    }
    for (const PlacedValues<double>& values : tap.values)
      for (std::size_t i = 0; i < values.found.size(); ++i) {
        const double error = std::abs(values.found[i] - values.trusted[i]);
        const double ratio =
            std::isnan(error) ? std::numeric_limits<double>::infinity() : error / scale;
        ++result_.values;
        told.worst = std::max(told.worst, ratio * scale);
        if (ratio > result_.worst) {
          result_.worst = ratio;
          result_.worst_tap = name;
        }
        if (ratio <= bound_.relative || told.failed) continue;
        told.failed = true;
        report(values.at, name, text(values.trusted[i]), text(values.found[i]),
               values.rows[i / std::size_t(values.columns())]);
      }
    if (!told.failed && result_.error.empty() && !tap.problems().empty()) {
      told.failed = true;
      told.detail = tap.problems().front();
      report(tap.without.empty() ? RankCoordinates() : tap.without.front(), name,
             "every row on some rank", told.detail,
             tap.absent_rows.empty() ? -1 : tap.absent_rows.front());
    }
    if (!told.failed) ++result_.taps;
  }

  void report(const RankCoordinates& at, const std::string& name, std::string expected,
              std::string actual, std::int64_t row) {
    result_.findings.push_back({at, FindingKind::numeric, "compare", name, "value",
                                std::move(expected), std::move(actual), row, "", 0, order_});
  }

  const ParallelRun& run_;
  UnshardedBound bound_;
  UnshardedComparison& result_;
  std::int64_t order_ = 0;
};

}  // namespace

ParallelRun unsharded(const ParallelRun& run, std::size_t dp) {
  ParallelRun alone = run;
  alone.plan = plan_for(run.config, {}, ProtocolId::S);
  alone.plan.aux_layers = run.plan.aux_layers;
  alone.inputs = {run.inputs[dp]};
  for (auto& step : alone.later_steps) step = {step[dp]};
  alone.faults = nullptr;
  alone.fault_hits = nullptr;
  alone.finished = {};
  alone.collectives = nullptr;
  alone.group_calls = nullptr;
  return alone;
}

std::int64_t place_of(const RowRun& row, const Rows& rows) {
  std::int64_t at = 0;
  for (const RowRun& run : rows.runs()) {
    if (run.kind == RowKind::token && run.step == row.step && row.first >= run.first &&
        row.first < run.first + run.count)
      return at + row.first - run.first;
    at += run.count;
  }
  return -1;
}

UnshardedBound unsharded_bound(const Executor& executor) {
  return executor.wide ? UnshardedBound{1e-9, 0} : UnshardedBound{1e-4, 1};
}

UnshardedComparison compare_with_unsharded(const Executor& executor, const ParallelRun& run,
                                           const WeightSource& weights) {
  UnshardedComparison result;
  const ViewRunResult views = run_views(run, true);
  const NumberRunResult numbers = run_numbers_on(executor, run, weights);
  result.error = numbers.error;
  Beside beside(run, unsharded_bound(executor), result);
  for (std::size_t dp = 0; dp < run.inputs.size(); ++dp) {
    const ParallelRun alone = unsharded(run, dp);
    beside.compare(views, numbers, std::int64_t(dp), run_views(alone, true),
                   run_numbers<double>(alone, weights));
  }
  return result;
}

}  // namespace tokenview
