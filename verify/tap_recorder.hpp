// SPDX-License-Identifier: Apache-2.0
// The sharded program with numbers, in any arithmetic and over any mesh.
#pragma once
#include <deque>
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

/// Keeps the taps of one rank.
template <class Ops, class Comm>
class TapRecorder final : public RankObserver<Ops, Comm> {
 public:
  explicit TapRecorder(const Ops& ops) : ops_(ops) {}

  RankTaps taps;

  void tensor(const ModulePath& module, const char* leaf, typename Ops::Tensor& value) override {
    taps.values[pass_ + module.str(leaf)] = to_double(ops_, value);
  }
  void routing(const ModulePath& module, typename Ops::Routing& value) override {
    taps.values[pass_ + module.str("weights")] = to_double(ops_, value.weights);
    taps.ids[pass_ + module.str("ids")] = expert_ids(ops_, value);
  }
  void lm_head(const typename Ops::Tensor& logits) override {
    taps.values["target/lm_head"] = to_double(ops_, logits);
  }
  void before_step(std::size_t step, typename Ops::Ids&, const Batch&) override {
    pass_ = text("step", step, '/');
  }
  void after_step(std::size_t, const typename Ops::Tensor& logits) override {
    taps.values[pass_ + "logits"] = to_double(ops_, logits);
  }

 private:
  const Ops& ops_;
  std::string pass_ = "target/";
};

/// Runs `run` on the ranks of `mesh` that are in this process, with the arithmetic
/// `ops_of(coordinates)`; the taps of other ranks stay empty.
template <class Ops, class Mesh, class OpsOf>
NumberRunResult run_numbers_on_mesh(const ParallelRun& run, const WeightSource& source, Mesh& mesh,
                                    OpsOf ops_of) {
  using Recorder = TapRecorder<Ops, typename Mesh::template CommOf<Ops>>;
  std::vector<std::optional<Recorder>> recorders(std::size_t(run.plan.parallel.world_size()));
  LoadedWeights<Ops> weights(run, source);
  NumberRunResult result;
  try {
    run_on_mesh<Ops>(
        run, mesh, [&](const auto& at) -> const auto& { return weights.of(at, ops_of(at)); },
        ops_of,
        [&](const auto& at) { return &recorders[std::size_t(at.world)].emplace(ops_of(at)); });
  } catch (const Error& error) {
    result.error = error.what();
  }
  for (std::optional<Recorder>& recorder : recorders)
    result.taps.push_back(recorder ? std::move(recorder->taps) : RankTaps{});
  return result;
}

}  // namespace tokenview
