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
  mesh.record(run.collectives, true);
  return run_numbers_on_mesh<EigenOps<S>>(
      run, weights, mesh, [&](const RankCoordinates&) -> const EigenOps<S>& { return ops; });
}

template NumberRunResult run_numbers<float>(const ParallelRun&, const WeightSource&, ReductionOrder,
                                            Rounding);
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

}  // namespace tokenview
