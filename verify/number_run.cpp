// SPDX-License-Identifier: Apache-2.0
#include "verify/number_run.hpp"

#include <algorithm>
#include <cmath>

#include "reference/program/error.hpp"
#include "verify/tap_recorder.hpp"

namespace tokenview {
template <class S>
NumberRunResult run_numbers(const ParallelRun& run, const WeightSource& weights,
                            ReductionOrder order, Rounding rounding) {
  const EigenOps<S> ops(1, rounding);
  SimMesh mesh(run.plan.parallel, order);
  return run_numbers_on_mesh<EigenOps<S>>(
      run, weights, mesh, [&](const RankCoordinates&) -> const EigenOps<S>& { return ops; });
}

template NumberRunResult run_numbers<float>(const ParallelRun&, const WeightSource&,
                                            ReductionOrder, Rounding);
template NumberRunResult run_numbers<double>(const ParallelRun&, const WeightSource&,
                                             ReductionOrder, Rounding);

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

std::vector<std::int64_t> columns_of(const std::string& tap, const ColumnBlock& block,
                                     std::int64_t width, const ModelConfig& config) {
  std::vector<std::int64_t> columns;
  const auto add = [&](std::int64_t begin, std::int64_t extent) {
    const std::int64_t share = extent / block.of;
    for (std::int64_t c = begin + block.begin * share; c < begin + block.end * share; ++c)
      columns.push_back(c);
  };
  if (tap.ends_with("in_proj_qkv")) {  // three segments, each cut by itself
    add(0, config.key_dim());
    add(config.key_dim(), config.key_dim());
    add(2 * config.key_dim(), config.value_dim());
  } else {
    add(0, width);
  }
  return columns;
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
      compare_tap(view, numbers, dp, rows->second, values->second);
    }
  }

 private:
  void compare_tap(const NamedView& view, const NumberRunResult& numbers, std::int64_t dp,
                   const Rows& trusted_rows, const Matrix<double>& trusted) {
    const std::string tap = view.name.substr(view.name.find('/') + 1);
    const ParallelConfig& parallel = run_.plan.parallel;
    Matrix<double> sum = Matrix<double>::Zero(trusted.rows(), trusted.cols());
    std::vector<bool> is_summed(std::size_t(trusted.rows()), false);
    std::int64_t in_stage = -1, partial_ranks = 0;
    RankCoordinates last;
    for (std::int64_t world = 0; world < parallel.world_size(); ++world) {
      const RankCoordinates at = coordinates_of(world, parallel);
      if (at.pp != view.stage) continue;
      ++in_stage;
      if (at.dp != dp || in_stage >= std::int64_t(view.by_rank.size())) continue;
      const ViewOps::Tensor& held = view.by_rank[std::size_t(in_stage)];
      const auto found = numbers.taps[std::size_t(world)].values.find(view.name);
      if (found == numbers.taps[std::size_t(world)].values.end()) continue;
      const Matrix<double>& mine = found->second;
      const auto columns = columns_of(tap, held.columns, trusted.cols(), run_.config);
      if (mine.rows() != held.rows.size() || mine.cols() != std::int64_t(columns.size())) {
        report(at, view.name, text('[', held.rows.size(), ", ", columns.size(), ']'),
               text('[', mine.rows(), ", ", mine.cols(), ']'), -1);
        return;
      }
      last = at;
      partial_ranks += held.sum.is_partial();
      for (std::int64_t r = 0; r < held.rows.size(); ++r) {
        const RowRun row = held.rows.at(r);
        if (row.kind != RowKind::token || row.dp != dp) continue;
        const std::int64_t place = place_of(row, trusted_rows);
        if (place < 0) continue;
        for (std::size_t c = 0; c < columns.size(); ++c) {
          if (held.sum.is_partial()) {
            sum(place, columns[c]) += mine(r, std::int64_t(c));
            is_summed[std::size_t(place)] = true;
          } else if (!judge(at, view.name, trusted, mine(r, std::int64_t(c)), place, columns[c],
                            r)) {
            return;
          }
        }
      }
    }
    ++result_.taps;
    if (partial_ranks != parallel.tp) return;  // views say what is missing
    for (std::int64_t r = 0; r < trusted.rows(); ++r)
      for (std::int64_t c = 0; is_summed[std::size_t(r)] && c < trusted.cols(); ++c)
        if (!judge(last, view.name, trusted, sum(r, c), r, c, r)) return;
  }

  bool judge(const RankCoordinates& at, const std::string& name, const Matrix<double>& trusted,
             double found, std::int64_t row, std::int64_t col, std::int64_t held_row) {
    const double largest = std::max(trusted.cwiseAbs().maxCoeff(), 1e-30);
    const double ratio = std::abs(found - trusted(row, col)) / largest;
    ++result_.values;
    if (!(ratio <= result_.worst)) {
      result_.worst = ratio;
      result_.worst_tap = name;
    }
    if (ratio <= tolerance_) return true;
    report(at, name, text(trusted(row, col)), text(found), held_row);
    return false;
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
