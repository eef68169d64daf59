// SPDX-License-Identifier: Apache-2.0
#include "verify/number_run.hpp"

#include <algorithm>
#include <cmath>

#include "reference/program/error.hpp"
#include "verify/placed_compare.hpp"
#include "verify/tap_recorder.hpp"

namespace tokenview {
template <class S>
NumberRunResult run_numbers(const ParallelRun& run, const WeightSource& weights,
                            ReductionOrder order) {
  const EigenOps<S> ops;
  SimMesh mesh(run.plan.parallel, order);
  return run_numbers_on_mesh<EigenOps<S>>(
      run, weights, mesh, [&](const RankCoordinates&) -> const EigenOps<S>& { return ops; });
}

template NumberRunResult run_numbers<float>(const ParallelRun&, const WeightSource&,
                                            ReductionOrder);
template NumberRunResult run_numbers<double>(const ParallelRun&, const WeightSource&,
                                             ReductionOrder);

std::vector<Finding> number_findings(const ViewRunResult& views, const ParallelConfig& parallel,
                                     const NumberRunResult& right, const NumberRunResult& wrong,
                                     double tolerance) {
  std::vector<Finding> findings;
  std::int64_t order = 0;
  for (const NamedView& view : views.views) {
    std::int64_t in_stage = -1;
    for (std::int64_t world = 0; world < parallel.world_size(); ++world) {
      const RankCoordinates at = coordinates_of(world, parallel);
      if (at.pp != view.stage) continue;
      ++in_stage;
      if (in_stage >= std::int64_t(view.by_rank.size())) continue;
      const auto& trusted = right.taps[std::size_t(world)].values;
      const auto expected = trusted.find(view.name);
      if (expected == trusted.end()) continue;  // ids, which the weights show as well
      const auto found = wrong.taps[std::size_t(world)].values.find(view.name);
      const auto report = [&](std::string wanted, std::string actual, std::int64_t row) {
        findings.push_back({at, FindingKind::numeric, "compare", view.name, "value",
                            std::move(wanted), std::move(actual), row, "", 0, order});
      };
      if (found == wrong.taps[std::size_t(world)].values.end()) {
        report("a value", wrong.error.empty() ? "none" : wrong.error, -1);
        break;
      }
      const Matrix<double>&a = expected->second, &b = found->second;
      if (a.rows() != b.rows() || a.cols() != b.cols()) {
        report(text('[', a.rows(), ", ", a.cols(), ']'), text('[', b.rows(), ", ", b.cols(), ']'),
               std::min(a.rows(), b.rows()));
        break;
      }
      const Rows& rows = view.by_rank[std::size_t(in_stage)].rows;
      const double largest = a.size() == 0 ? 0 : a.cwiseAbs().maxCoeff();
      std::int64_t bad = -1;
      for (std::int64_t r = 0; r < a.rows() && bad < 0; ++r)
        if (rows.at(r).kind == RowKind::token &&
            !((a.row(r) - b.row(r)).cwiseAbs().maxCoeff() <= tolerance * largest))
          bad = r;
      if (bad < 0) continue;
      report(text("row ", bad, " of ", to_string(rows)),
             text("max|difference| ", (a.row(bad) - b.row(bad)).cwiseAbs().maxCoeff(), " of ",
                  largest),
             bad);
      break;
    }
    ++order;
  }
  return findings;
}

namespace {

/// The unsharded run of one data-parallel rank's requests.
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
  return alone;
}

/// Where a token's row is among `rows`; -1: nowhere.
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

class Beside {
 public:
  Beside(const ParallelRun& run, double tolerance, UnshardedComparison& result)
      : run_(run), tolerance_(tolerance), result_(result) {}

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
      compare_tap(view.name,
                  placed(view, numbers.taps, dp, run_.plan.parallel, run_.config, right, row_of),
                  right.size() == 0 ? 0 : right.cwiseAbs().maxCoeff());
    }
  }

 private:
  void compare_tap(const std::string& name, const PlacedTap& tap, double largest) {
    const double scale = std::max(largest, 1e-30);
    if (!tap.other_shapes.empty()) {
      const PlacedTap::OtherShape& first = tap.other_shapes.front();
      report(first.at, name, first.expected, first.actual, -1);
      return;
    }
    for (const PlacedValues& values : tap.values)
      for (std::size_t i = 0; i < values.found.size(); ++i) {
        const double ratio = std::abs(values.found[i] - values.trusted[i]) / scale;
        ++result_.values;
        if (!(ratio <= result_.worst)) {
          result_.worst = ratio;
          result_.worst_tap = name;
        }
        if (ratio <= tolerance_) continue;
        report(values.at, name, text(values.trusted[i]), text(values.found[i]),
               values.rows[i / std::size_t(values.columns)]);
        return;
      }
    ++result_.taps;
  }

  void report(const RankCoordinates& at, const std::string& name, std::string expected,
              std::string actual, std::int64_t row) {
    result_.findings.push_back({at, FindingKind::numeric, "compare", name, "value",
                                std::move(expected), std::move(actual), row, "", 0, order_});
  }

  const ParallelRun& run_;
  double tolerance_;
  UnshardedComparison& result_;
  std::int64_t order_ = 0;
};

}  // namespace

UnshardedComparison compare_with_unsharded(const ParallelRun& run, const WeightSource& weights,
                                           double tolerance) {
  UnshardedComparison result;
  const ViewRunResult views = run_views(run, true);
  const NumberRunResult numbers = run_numbers<double>(run, weights);
  result.error = numbers.error;
  Beside beside(run, tolerance, result);
  for (std::size_t dp = 0; dp < run.inputs.size(); ++dp) {
    const ParallelRun alone = unsharded(run, dp);
    beside.compare(views, numbers, std::int64_t(dp), run_views(alone, true),
                   run_numbers<double>(alone, weights));
  }
  return result;
}

}  // namespace tokenview
