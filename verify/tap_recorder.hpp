// SPDX-License-Identifier: Apache-2.0
// The sharded program with numbers, in any arithmetic and over any mesh.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "verify/number_run.hpp"

namespace tokenview {

/// A tensor's values, and a routing's experts, on the host.
template <class S>
Matrix<double> to_double(const EigenOps<S>&, const Matrix<S>& x) {
  return x.template cast<double>();
}
template <class S>
Matrix<std::int64_t> expert_ids(const EigenOps<S>&, const typename EigenOps<S>::Routing& x) {
  return x.ids;
}

/// Keeps the taps of one rank where they were made, so that a GPU is not waited for in between.
template <class Ops, class Comm>
class TapRecorder final : public RankObserver<Ops, Comm> {
 public:
  explicit TapRecorder(const Ops& ops) : ops_(ops) {}

  /// The taps, on the host.
  RankTaps taps() const {
    RankTaps taps;
    taps.ids = fed_;
    for (const auto& [name, value] : values_) taps.values[name] = to_double(ops_, value);
    for (const auto& [name, value] : routings_) {
      taps.values[name + "weights"] = to_double(ops_, value.weights);
      taps.ids[name + "ids"] = expert_ids(ops_, value);
    }
    return taps;
  }
  const std::string& last_name() const { return last_name_; }

  void tensor(const ModulePath& module, const char* leaf, typename Ops::Tensor& value) override {
    keep(pass_ + module.str(leaf), value);
  }
  void routing(const ModulePath& module, typename Ops::Routing& value) override {
    last_name_ = pass_ + module.str();
    routings_.insert_or_assign(last_name_ + '.', value);
  }
  void lm_head(const typename Ops::Tensor& logits) override { keep("target/lm_head", logits); }
  void before_step(std::size_t step, typename Ops::Ids& ids, const Batch&) override {
    pass_ = text("step", step, '/');
    if constexpr (std::is_same_v<typename Ops::Ids, std::vector<std::int64_t>>)
      fed_[pass_ + "input_ids"] =
          Eigen::Map<const Matrix<std::int64_t>>(ids.data(), Eigen::Index(ids.size()), 1);
  }
  void after_step(std::size_t, const typename Ops::Tensor& logits) override {
    keep(pass_ + "logits", logits);
  }

 private:
  void keep(std::string name, const typename Ops::Tensor& value) {
    values_.insert_or_assign(name, value);
    last_name_ = std::move(name);
  }

  const Ops& ops_;
  std::string pass_ = "target/", last_name_;
  std::map<std::string, typename Ops::Tensor> values_;
  std::map<std::string, Matrix<std::int64_t>> fed_;  // ids of draft steps, where the host has them
  std::map<std::string, typename Ops::Routing> routings_;  // by what comes before "weights", "ids"
};

/// Runs `run` on the ranks of `mesh` that are in this process, with the arithmetic
/// `ops_of(coordinates)` and the weights `weights_of(coordinates)`; the taps of other ranks stay
/// empty.
template <class Ops, class Mesh, class OpsOf, class WeightsOf>
NumberRunResult run_numbers_on_mesh(const ParallelRun& run, Mesh& mesh, OpsOf ops_of,
                                    WeightsOf weights_of) {
  using Recorder = TapRecorder<Ops, typename Mesh::template CommOf<Ops>>;
  std::vector<std::optional<Recorder>> recorders(std::size_t(run.plan.parallel.world_size()));
  NumberRunResult result;
  const auto stopped_by = [&result](const Error& error) {
    if (!result.error.empty()) return;  // the first is the cause
    result.error = error.what();
    result.fault = error.fault();
  };
  try {
    run_on_mesh<Ops>(run, mesh, weights_of, ops_of, [&](const auto& at) {
      return &recorders[std::size_t(at.world)].emplace(ops_of(at));
    });
  } catch (const Error& error) {
    stopped_by(error);
  }
  for (const std::optional<Recorder>& recorder : recorders) {
    RankTaps& taps = result.taps.emplace_back();
    if (!recorder) continue;
    try {
      taps = recorder->taps();
    } catch (const Error& error) {  // what has ended a GPU shows at the latest here
      stopped_by(error);
    }
    taps.last_name = recorder->last_name();
  }
  return result;
}

/// The same with weights from `source`, each rank its own.
template <class Ops, class Mesh, class OpsOf>
NumberRunResult run_numbers_on_mesh(const ParallelRun& run, const WeightSource& source, Mesh& mesh,
                                    OpsOf ops_of) {
  LoadedWeights<Ops> weights(run, source);
  return run_numbers_on_mesh<Ops>(
      run, mesh, ops_of, [&](const auto& at) -> const auto& { return weights.of(at, ops_of(at)); });
}

}  // namespace tokenview
