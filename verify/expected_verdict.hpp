// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "verify/parallel_run.hpp"

namespace tokenview {

/// Why a configuration is known to be wrong, in a word or two; an empty string for those that are
/// right. Of the protocols alone, without injected faults:
/// - B and its kin take a shard for full rows at T = 1 (vllm issue 50681);
/// - B's MTP hands over a shard (PR 48429);
/// - the shape-driven form of PR 53191 misses a shard of fewer rows than ranks;
/// - E with split dense feed-forwards sums rows of different tokens (PR 58061);
/// - deferred sums reach a pipeline stage as partials, and are summed again where the MoE block has
///   completed them (releases 0.25.1 to 0.33.0, derived).
std::string known_fault(const ParallelRun& run);

}  // namespace tokenview
