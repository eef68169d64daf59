// SPDX-License-Identifier: Apache-2.0
#include "verify/view_run.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

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
  struct Recorded {
    std::string name;
    ViewOps::Tensor tensor;
    std::int64_t order;  // operations of this rank before it
    std::size_t calls;   // of all groups before it
  };
  std::vector<Recorded> views;

  /// `calls`: of all groups, as they come.
  ViewRecorder(const ViewOps& ops, const std::vector<CollectiveRecord>& calls)
      : ops_(ops), calls_(calls) {}

  /// How many tensors this rank had named when call `index` came; nothing: it is of an earlier
  /// step.
  std::optional<std::size_t> views_before(std::size_t index) const {
    if (index < first_call_) return std::nullopt;
    return std::size_t(std::ranges::upper_bound(views, index, {}, &Recorded::calls) -
                       views.begin());
  }

  void starts() override { first_call_ = calls_.size(); }
  void tensor(const ModulePath& module, const char* leaf, ViewOps::Tensor& value) override {
    record(pass_ + module.str(leaf), value);
  }
  void routing(const ModulePath& module, ViewOps::Routing& value) override {
    ViewOps::Tensor rows;
    rows.rows = value.rows;
    rows.width = value.experts_per_token;
    record(pass_ + module.str("weights"), rows);
    record(pass_ + module.str("ids"), rows);
  }
  void lm_head(const ViewOps::Tensor& logits) override { record("target/lm_head", logits); }
  void before_step(std::size_t step, ViewOps::Ids&, const Batch&) override {
    pass_ = text("step", step, '/');
  }
  void after_step(std::size_t, const ViewOps::Tensor& logits) override {
    record(pass_ + "logits", logits);
  }

 private:
  void record(std::string name, const ViewOps::Tensor& tensor) {
    views.push_back({std::move(name), tensor, ops_.mark().order, calls_.size()});
  }

  const ViewOps& ops_;
  const std::vector<CollectiveRecord>& calls_;
  std::size_t first_call_ = 0;
  std::string pass_ = "target/";
};

/// Adds the calls of a stage, whose views are to be added next.
void add_calls(const std::vector<CollectiveRecord>& calls,
               const std::vector<ViewRecorder>& recorders, std::int64_t stage,
               const ParallelConfig& parallel, ViewRunResult& result) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::int64_t first = calls[i].ranks.front();
    if (coordinates_of(first, parallel).pp != stage) continue;
    const ViewRecorder& of_first = recorders[std::size_t(first)];
    const auto before = of_first.views_before(i);
    if (!before) continue;
    std::string pass = "target";
    if (!of_first.views.empty()) {
      const std::string& name = of_first.views[std::min(*before, of_first.views.size() - 1)].name;
      pass = name.substr(0, name.find('/'));
    }
    result.calls.push_back({calls[i], std::move(pass), stage, result.views.size() + *before});
  }
  std::ranges::stable_sort(result.calls, {}, &NamedCall::before);
}

}  // namespace

void require_simulable(const ModelConfig& config, const ParallelConfig& parallel,
                       std::int64_t draft_steps) {
  if (parallel.pp > config.num_hidden_layers)
    throw ConfigError(text("pipeline stages: found pp=", parallel.pp, ", expected at most ",
                           config.num_hidden_layers, ", a layer each"));
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

const ModelWeights<ViewOps::Weight>& ViewWeights::of(const ParallelPlan& plan,
                                                     const RankCoordinates& at) {
  std::vector<Finding> none;
  const auto load = [&] {
    const ViewOps ops({}, none, nullptr);
    return WeightLoader<ViewOps>(ops, NoWeights(), config_, placement_of(plan, at.tp, at.ep))
        .model();
  };
  if (!plan.placed.empty()) return placed_.emplace_back(load());
  const ParallelConfig& parallel = plan.parallel;
  const Key key{at.tp,
                at.ep,
                parallel.tp,
                parallel.dp,
                parallel.enable_expert_parallel,
                plan.shared_expert_whole,
                plan.dense_whole,
                plan.fc_whole};
  const auto found = loaded_.find(key);
  return found != loaded_.end() ? found->second : loaded_.emplace(key, load()).first->second;
}

ViewRunResult run_views(const ParallelRun& asked, bool record_views, ViewWeights* weights) {
  const ParallelConfig& parallel = asked.plan.parallel;
  std::vector<CollectiveRecord> calls;
  ParallelRun run = asked;
  if (record_views) run.group_calls = &calls;
  const auto world = std::size_t(parallel.world_size());
  std::vector<std::vector<Finding>> findings(world);
  std::vector<std::string> origins;
  std::vector<ViewOps> ops;
  for (std::size_t rank = 0; rank < world; ++rank)
    ops.emplace_back(coordinates_of(std::int64_t(rank), parallel), findings[rank],
                     record_views ? &origins : nullptr, 0, run.most_findings);
  std::vector<ViewRecorder> recorders;
  recorders.reserve(world);
  for (const ViewOps& of_rank : ops) recorders.emplace_back(of_rank, calls);

  ViewRunResult result;
  try {
    ViewWeights own(run.config);
    ViewWeights& shared = weights == nullptr ? own : *weights;
    run_with_weights<ViewOps>(
        run,
        [&](const RankCoordinates& at) -> const ModelWeights<ViewOps::Weight>& {
          return shared.of(run.plan, at);
        },
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
  // A stage of a pipeline begins when the one before it has ended.
  std::ranges::stable_sort(result.findings, {}, [](const Finding& finding) {
    return std::tuple(finding.step, finding.at.pp, finding.order);
  });
  // Stages of a pipeline name other tensors: each stage's own ranks side by side.
  for (std::int64_t stage = 0; stage < parallel.pp; ++stage) {
    add_calls(calls, recorders, stage, parallel, result);
    const ViewRecorder& first = recorders[std::size_t(stage * parallel.tp)];
    for (std::size_t i = 0; i < first.views.size(); ++i) {
      NamedView& view = result.views.emplace_back(
          NamedView{first.views[i].name, stage, {}, first.views[i].order});
      for (std::size_t rank = 0; rank < world; ++rank)
        if (coordinates_of(std::int64_t(rank), parallel).pp == stage &&
            i < recorders[rank].views.size())
          view.by_rank.push_back(recorders[rank].views[i].tensor);
    }
  }
  return result;
}

const NamedView* ViewRunResult::last_before(const Finding& finding) const {
  const NamedView* last = nullptr;
  for (const NamedView& view : views)
    if (view.stage == finding.at.pp && view.order <= finding.order) last = &view;
  return last;
}

}  // namespace tokenview
