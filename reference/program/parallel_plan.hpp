// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "reference/program/config.hpp"

namespace tokenview {

/// How the all-to-all of expert parallelism is done (vllm all2all.py). Backends that dispatch tokens
/// in another way move the same views.
enum class DispatchKind {
  none,                           // every rank has every token it needs
  allgather_reducescatter,
};

/// What a parallel configuration switches on, decided once before any layer runs.
struct ParallelPlan {
  ParallelConfig parallel;
  bool sequence_parallel_moe = false;  // the MoE block works on token shards over tp
  std::vector<bool> scatters;  // [layers] the mixer's output is reduce-scattered (RSM); else reduced
  bool mtp_scatters = false;   // the same for the MTP layer

  bool scatters_all() const {
    for (const bool layer : scatters)
      if (!layer) return false;
    return !scatters.empty();
  }
};

}  // namespace tokenview
