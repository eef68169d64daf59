// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/parallel_run.hpp"
#include "verify/view_ops.hpp"

namespace tokenview {

/// A tensor that the program named on its way past, as every rank of the world had it.
struct NamedView {
  std::string name;  // "target/model.layers.0.mlp", "step1/mtp.fc"
  std::vector<ViewOps::Tensor> by_rank;
};

struct ViewRunResult {
  std::vector<Finding> findings;  // in program order; the first is the cause of the others
  std::vector<NamedView> views;   // in program order
  std::string error;  // what stopped the run: shapes that a kernel refuses; empty: nothing
  bool collective_mismatch = false;  // the error is one between ranks

  bool clean() const { return findings.empty() && error.empty(); }
};

/// Throws ConfigError for what a symbolic run cannot follow: heads that do not divide, pipeline
/// stages, more than Completeness::max_summands ranks, draft steps that the model does not take.
/// Families that are known by their layout only are simulated too: views need no arithmetic. They
/// run as pre-norm layers of full attention, with the dense and sparse layers of their own rule.
void require_simulable(const ModelConfig& config, const ParallelConfig& parallel,
                       std::int64_t draft_steps);

/// The symbolic run of a configuration: no numbers, no weights.
ViewRunResult run_views(const ParallelRun& run, bool record_views);

}  // namespace tokenview
