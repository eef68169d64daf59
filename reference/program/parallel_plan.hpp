// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/config.hpp"

namespace tokenview {

/// The published communication protocols. C is B with the gather that the MTP lacked.
enum class ProtocolId { S, A, B, C, D };
const char* to_string(ProtocolId id);

/// "S", "a", ... Throws UsageError with the nearest name.
ProtocolId parse_protocol(std::string_view name);

/// What a parallel configuration switches on, decided once before any layer runs.
struct ParallelPlan {
  ParallelConfig parallel;
  ProtocolId protocol = ProtocolId::S;
  bool sequence_parallel_moe = false;  // SPM: the MoE block works on token shards over tp
  std::vector<bool> scatters;          // [layers] RSM: the mixer's output is reduce-scattered
  bool mtp_scatters = false;           // the same for the MTP layer

  bool scatters_all() const {
    for (const bool layer : scatters)
      if (!layer) return false;
    return !scatters.empty();
  }
};

/// The plan of `protocol` for a model on these ranks. Without tensor or expert parallelism every
/// protocol is S; pipelines, and under D models that mix dense and sparse layers, fall back to A.
/// The MTP layer follows the rule for index 0 of its own stack.
/// Source: vllm qwen3_next.py (PR 47006, PR 50685), config/parallel.py.
ParallelPlan plan_for(const ModelConfig& config, const ParallelConfig& parallel,
                      ProtocolId protocol);

}  // namespace tokenview
