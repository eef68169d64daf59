// SPDX-License-Identifier: Apache-2.0
#include "verify/number_run.hpp"

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

template <class S>
class TapRecorder final : public RankObserver<EigenOps<S>> {
 public:
  RankTaps taps;

  void tensor(const ModulePath& module, const char* leaf, Matrix<S>& value) override {
    taps.values[pass_ + module.str(leaf)] = value.template cast<double>();
  }
  void routing(const ModulePath& module, typename EigenOps<S>::Routing& value) override {
    taps.values[pass_ + module.str("weights")] = value.weights.template cast<double>();
    taps.ids[pass_ + module.str("ids")] = value.ids;
  }
  void lm_head(const Matrix<S>& logits) override {
    taps.values["target/lm_head"] = logits.template cast<double>();
  }
  void before_step(std::size_t step, std::vector<std::int64_t>&, const Batch&) override {
    pass_ = text("step", step, '/');
  }
  void after_step(std::size_t, const Matrix<S>& logits) override {
    taps.values[pass_ + "logits"] = logits.template cast<double>();
  }

 private:
  std::string pass_ = "target/";
};

}  // namespace

template <class S>
NumberRunResult run_numbers(const ParallelRun& run, const WeightSource& weights,
                            ReductionOrder order) {
  const EigenOps<S> ops;
  std::vector<TapRecorder<S>> recorders(std::size_t(run.plan.parallel.world_size()));
  NumberRunResult result;
  try {
    run_parallel<EigenOps<S>>(
        run, weights, [&](const RankCoordinates&) -> const EigenOps<S>& { return ops; },
        [&](const RankCoordinates& at) { return &recorders[std::size_t(at.world)]; }, order);
  } catch (const Error& error) {
    result.error = error.what();
  }
  for (TapRecorder<S>& recorder : recorders) result.taps.push_back(std::move(recorder.taps));
  return result;
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

}  // namespace tokenview
