// SPDX-License-Identifier: Apache-2.0
#include "verify/view_run.hpp"

#include <algorithm>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// Weights by name alone: a symbolic run reads no values.
class NoWeights final : public WeightSource {
 public:
  bool contains(const std::string&) const override { return true; }
  HostTensor weight(const std::string& name, const std::vector<std::int64_t>&) const override {
    throw FileError(text(name, ": a symbolic run has no weights"));
  }
};

/// Collects the views of one rank by name, in program order.
class ViewRecorder final : public RankObserver<ViewOps> {
 public:
  std::vector<std::pair<std::string, ViewOps::Tensor>> views;

  void tensor(const ModulePath& module, const char* leaf, ViewOps::Tensor& value) override {
    views.emplace_back(pass_ + module.str(leaf), value);
  }
  void routing(const ModulePath& module, ViewOps::Routing& value) override {
    ViewOps::Tensor rows;
    rows.rows = value.rows;
    rows.width = value.experts_per_token;
    views.emplace_back(pass_ + module.str("weights"), rows);
    views.emplace_back(pass_ + module.str("ids"), rows);
  }
  void lm_head(const ViewOps::Tensor& logits) override {
    views.emplace_back("target/lm_head", logits);
  }
  void before_step(std::size_t step, ViewOps::Ids&, const Batch&) override {
    pass_ = text("step", step, '/');
  }
  void after_step(std::size_t, const ViewOps::Tensor& logits) override {
    views.emplace_back(pass_ + "logits", logits);
  }

 private:
  std::string pass_ = "target/";
};

}  // namespace

void require_simulable(const ModelConfig& config, const ParallelConfig& parallel,
                       std::int64_t draft_steps) {
  if (parallel.pp != 1)
    throw ConfigError(
        text("pipeline stages are not simulated: found pp=", parallel.pp, ", expected 1"));
  constexpr auto most = std::int64_t(Completeness::max_summands);
  if (parallel.tp > most || parallel.dp > most || parallel.tp * parallel.dp > most)
    throw ConfigError(text("tp x dp = ", parallel.tp, " x ", parallel.dp, " ranks: at most ", most,
                           " are simulated"));
  validate(config, parallel);
  if (!config.has_arithmetic() && config.num_mtp_layers > 0 &&
      config.hidden_size % parallel.tp != 0)
    throw ConfigError(text("hidden_size: ", config.hidden_size,
                           " is not divisible by tensor parallel size ", parallel.tp));
  require_draft_steps(config, draft_steps);
}

ViewRunResult run_views(const ParallelRun& run, bool record_views) {
  const ParallelConfig& parallel = run.plan.parallel;
  const auto world = std::size_t(parallel.world_size());
  std::vector<std::vector<Finding>> findings(world);
  std::vector<ViewRecorder> recorders(world);
  std::vector<std::string> origins;
  std::vector<ViewOps> ops;
  for (std::size_t rank = 0; rank < world; ++rank)
    ops.emplace_back(coordinates_of(std::int64_t(rank), parallel), findings[rank],
                     record_views ? &origins : nullptr);

  ViewRunResult result;
  try {
    run_parallel<ViewOps>(
        run, NoWeights(),
        [&](const RankCoordinates& at) -> const ViewOps& { return ops[std::size_t(at.world)]; },
        [&](const RankCoordinates& at) -> RankObserver<ViewOps>* {
          return record_views ? &recorders[std::size_t(at.world)] : nullptr;
        });
  } catch (const Error& error) {
    result.error = error.what();
    result.collective_mismatch = error.fault() == Fault::comm;
  }

  for (auto& of_rank : findings)
    result.findings.insert(result.findings.end(), of_rank.begin(), of_rank.end());
  std::ranges::stable_sort(result.findings, {}, &Finding::order);
  for (std::size_t i = 0; i < recorders[0].views.size(); ++i) {
    NamedView& view = result.views.emplace_back(NamedView{recorders[0].views[i].first, {}});
    for (const ViewRecorder& of_rank : recorders)
      if (i < of_rank.views.size()) view.by_rank.push_back(of_rank.views[i].second);
  }
  return result;
}

}  // namespace tokenview
