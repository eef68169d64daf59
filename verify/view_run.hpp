// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "reference/program/drafter.hpp"
#include "reference/program/protocols.hpp"
#include "verify/view_ops.hpp"

namespace tokenview {

using ViewRank = Rank<ViewOps, SimComm<ViewOps>>;

/// One symbolic run: a model, its parallel plan and protocol, and what each data-parallel rank is
/// given.
struct ViewRun {
  const ModelConfig& config;
  const Protocol<ViewRank>& protocol;
  std::vector<Batch> batches = {};  // one a dp rank; metadata across dp is filled in
  std::size_t draft_steps = 0;
  bool target_runs = true;  // false: the drafter is fed a correct target's rows
  std::vector<std::vector<std::int32_t>> rejected = {};  // [dp][request] drafts; empty: none
  bool record_views = false;
};

/// A tensor that the program named on its way past, as every rank of the world had it.
struct NamedView {
  std::string name;  // "model.layers.0.mlp"; of a draft step with "step1/" before it
  std::vector<ViewOps::Tensor> by_rank;
};

struct ViewRunResult {
  std::vector<Finding> findings;  // in program order; the first is the cause of the others
  std::vector<NamedView> views;   // in program order
  std::string error;  // what stopped the run: shapes that a kernel refuses; empty: nothing
};

ViewRunResult run_views(const ViewRun& run);

}  // namespace tokenview
