// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "verify/parallel_run.hpp"
#include "verify/view_ops.hpp"

namespace tokenview {

/// A tensor that the program named on its way past, as every rank of the world had it.
struct NamedView {
  std::string name;                      // "target/model.layers.0.mlp", "step1/mtp.fc"
  std::int64_t stage = 0;                // of the pipeline
  std::vector<ViewOps::Tensor> by_rank;  // of the stage's ranks, dp x tp
  std::int64_t order = 0;  // operations of the stage's first rank before it, as Finding::order
};

/// A collective on its way between two named tensors.
struct NamedCall {
  CollectiveRecord call;
  std::string pass;        // "target", "step1"
  std::int64_t stage = 0;  // of its first rank
  std::size_t before = 0;  // index of the view that its first rank named next; the number of views
                           // up to the end of the stage where that was the last
};

struct ViewRunResult {
  std::vector<Finding> findings;  // in program order; the first is the cause of the others
  std::vector<NamedView> views;   // in program order, stage by stage
  std::vector<NamedCall> calls;   // likewise; with views
  std::string error;  // what stopped the run: shapes that a kernel refuses; empty: nothing
  bool collective_mismatch = false;  // the error is one between ranks

  bool clean() const { return findings.empty() && error.empty(); }
  /// The tensor that was named last before the finding; nullptr: none, or it is of an earlier step.
  const NamedView* last_before(const Finding& finding) const;
};

/// Throws ConfigError for what a symbolic run cannot follow: heads that do not divide, more stages
/// than layers, more than Completeness::max_summands ranks, draft steps that the model does not
/// take. Families that are known by their layout only are simulated too: views need no arithmetic.
/// They run as pre-norm layers of full attention, with the dense and sparse layers of their own
/// rule.
void require_simulable(const ModelConfig& config, const ParallelConfig& parallel,
                       std::int64_t draft_steps);

/// How the weights of one model lie, kept for many runs of it: not for several threads at once.
class ViewWeights {
 public:
  /// `config` outlives this.
  explicit ViewWeights(const ModelConfig& config) : config_(config) {}

  const ModelWeights<ViewOps::Weight>& of(const ParallelPlan& plan, const RankCoordinates& at);

 private:
  using Key = std::array<std::int64_t, 8>;
  const ModelConfig& config_;
  std::map<Key, ModelWeights<ViewOps::Weight>> loaded_;
  std::deque<ModelWeights<ViewOps::Weight>> placed_;  // of plans with weights placed otherwise
};

/// The symbolic run of a configuration: no numbers, no weights. `weights` may be shared by runs of
/// the same model; null: for this run alone.
ViewRunResult run_views(const ParallelRun& run, bool record_views, ViewWeights* weights = nullptr);

}  // namespace tokenview
