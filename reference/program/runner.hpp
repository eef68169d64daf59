// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "reference/program/drafter.hpp"

namespace tokenview {

/// What a model runner does to the batches of a step before the model sees them.
struct RunnerOptions {
  RunnerVersion version = RunnerVersion::V1;
  std::vector<std::int64_t> graph_sizes = {};  // CUDA graph capture sizes, ascending; empty: eager
  std::int64_t draft_steps = 0;                // K
  bool padded_drafter = true;
  std::int64_t idle_rows = -1;  // of the dummy that an idle rank runs; -1: K + 1, or 1 (K = 0)
  bool loop_of_most = false;  // V2 from vllm 0.30.0 on: eager draft loops run at the most requests
};

/// Capture sizes as they are used: with drafts, V1 rounds them up to multiples of K + 1.
/// Source: vllm config/compilation.py.
std::vector<std::int64_t> effective_graph_sizes(const RunnerOptions& options);

/// The batches of one step, one a data-parallel rank, padded as the runner pads them and told what
/// the ranks exchange:
/// - a rank without requests, beside others with some, runs a dummy of K + 1 rows (one without
///   drafts);
/// - where graphs are used, rows are padded to the next capture size; if every rank has one, all
///   ranks take the largest, else each keeps its own count;
/// - rows of the later draft passes likewise, of requests instead of rows.
/// Source: vllm gpu_model_runner.py, dp_utils.py, forward_context.py (DPMetadata).
void prepare_step(std::vector<Batch*> batches,
                  const std::vector<std::vector<std::int32_t>>& rejected,
                  const RunnerOptions& options);

}  // namespace tokenview
