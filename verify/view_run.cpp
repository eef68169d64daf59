// SPDX-License-Identifier: Apache-2.0
#include "verify/view_run.hpp"

#include <algorithm>
#include <map>

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

/// Collects views by name, in the order in which rank 0 named them.
class ViewRecorder final : public TapSink<ViewOps>, public DraftObserver<ViewRank> {
 public:
  explicit ViewRecorder(std::vector<std::pair<std::string, ViewOps::Tensor>>& views)
      : views_(views) {}

  void tensor(const ModulePath& module, const char* leaf, ViewOps::Tensor& value) override {
    views_.emplace_back(pass_ + module.str(leaf), value);
  }
  void routing(const ModulePath&, ViewOps::Routing&) override {}
  void before_step(std::size_t step, ViewOps::Ids&, const Batch&) override {
    pass_ = text("step", step, '/');
  }
  void after_step(std::size_t, const ViewOps::Tensor& logits) override {
    views_.emplace_back(pass_ + "logits", logits);
  }

 private:
  std::vector<std::pair<std::string, ViewOps::Tensor>>& views_;
  std::string pass_;
};

}  // namespace

ViewRunResult run_views(const ViewRun& run) {
  const ParallelPlan& plan = run.protocol.plan;
  const ParallelConfig& parallel = plan.parallel;
  std::vector<Batch> batches = run.batches;
  std::vector<std::int64_t> tokens, requests;
  for (const Batch& batch : batches) {
    tokens.push_back(batch.num_tokens());
    requests.push_back(std::int64_t(sample_rows(batch).rows.size()));
  }
  for (Batch& batch : batches) {
    batch.tokens_across_dp = tokens;
    batch.requests_across_dp = requests;
  }

  const auto world = std::size_t(parallel.world_size());
  std::vector<std::vector<Finding>> findings(world);
  std::vector<std::vector<std::pair<std::string, ViewOps::Tensor>>> views(world);
  std::vector<ViewOps> ops;
  for (std::size_t rank = 0; rank < world; ++rank)
    ops.emplace_back(coordinates_of(std::int64_t(rank), parallel), findings[rank]);

  const NoWeights source;
  ViewRunResult result;
  SimMesh mesh(parallel);
  try {
    mesh.run(
        [&](const RankCoordinates& at) -> const ViewOps& { return ops[std::size_t(at.world)]; },
        [&](SimComms<ViewOps>& comms) {
          const ViewOps& mine = ops[std::size_t(comms.at.world)];
          ViewRank rank(mine, comms.tp, comms.dp, comms.ep);
          ViewRecorder recorder(views[std::size_t(comms.at.world)]);
          if (run.record_views) rank.taps = &recorder;
          const auto weights = WeightLoader<ViewOps>(mine, source, run.config,
                                                     placement_of(plan, comms.at.tp, comms.at.ep))
                                   .model();
          const RankShapes shapes = rank_shapes(run.config, comms.at.tp, parallel.tp);
          auto state = empty_state(mine, run.config, shapes);
          const Batch& batch = batches[std::size_t(comms.at.dp)];
          ViewOps::Tensor hidden;
          if (run.target_runs) {
            hidden = forward(rank, run.protocol, weights, run.config, shapes, state, batch);
          } else {
            hidden.rows = mine.expected(batch);
            hidden.width = run.config.hidden_size;
          }
          const SampleRows sampled = sample_rows(batch);
          const auto logits =
              compute_logits(rank, weights, run.config, mine.index_rows(hidden, sampled.rows));
          const auto next = mine.argmax(logits);
          if (run.draft_steps > 0)
            draft(rank, run.protocol, weights, run.config, shapes, state, batch, hidden, sampled,
                  next, run.draft_steps,
                  run.rejected.empty() ? std::vector<std::int32_t>{}
                                       : run.rejected[std::size_t(comms.at.dp)],
                  false, run.record_views ? &recorder : nullptr);
          return 0;
        });
  } catch (const Error& error) {
    result.error = error.what();
  }

  for (auto& of_rank : findings)
    result.findings.insert(result.findings.end(), of_rank.begin(), of_rank.end());
  std::stable_sort(result.findings.begin(), result.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.order < b.order; });
  if (run.record_views && world > 0)
    for (std::size_t i = 0; i < views[0].size(); ++i) {
      NamedView& view = result.views.emplace_back();
      view.name = views[0][i].first;
      for (std::size_t rank = 0; rank < world; ++rank)
        if (i < views[rank].size()) view.by_rank.push_back(views[rank][i].second);
    }
  return result;
}

}  // namespace tokenview
