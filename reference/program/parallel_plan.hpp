// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/config.hpp"

namespace tokenview {

/// The published communication protocols; each is one file, protocol_*.hpp.
enum class ProtocolId {
  S,           // sequence parallelism off
  A,           // the MoE block alone chunks and gathers
  B,           // reduce-scatter before the MoE, layout inferred (vllm PR 47006)
  C,           // B, and the MTP gathers hidden and residual (PR 48429, PR 48036)
  D,           // static: sharded from entry to exit (PR 50685)
  E,           // static, dense feed-forwards replicated, MTP sharded at width 2H (PR 51434)
  deferred,    // E's model with sequence parallelism off: sums are left to the next norm
  vllm_48763,  // B, and the MTP adds on the shard, then gathers H
  vllm_51927,  // D with auxiliary states packed into the exit's gather (closed)
  vllm_53191,  // B with pipeline hand-over by flag; fewer tokens than ranks run replicated (open)
  vllm_53191_shape,  // the same decided by row counts (vllm-ascend's form)
  vllm_58061,        // E with the dense feed-forward still split over tp
  sglang,            // scattered layout by a static table, ragged shards
};
const char* to_string(ProtocolId id);
std::span<const ProtocolId> all_protocols();

/// "S", "a", "vllm-48763", ... Throws UsageError with the nearest name.
ProtocolId parse_protocol(std::string_view name);

/// How rows reach the ranks that hold their experts.
enum class Dispatch {
  allgather_reducescatter,  // vllm all2all.py
  naive,                    // a broadcast a rank, then an all-reduce; last in vllm 0.18.0
  all_to_all,               // every row to the ranks of its experts, and back
};
const char* to_string(Dispatch dispatch);
std::span<const Dispatch> all_dispatches();
Dispatch parse_dispatch(std::string_view name);

/// The model runner's generation. Source: vllm gpu_model_runner.py, gpu/model_runner.py.
enum class RunnerVersion { V1, V2 };

/// Weights by module, as a glob, that are whole on every rank, or split over tp, whatever the plan
/// says of them.
struct PlacedWeights {
  std::string at;
  bool whole = true;

  bool operator==(const PlacedWeights&) const = default;
};

/// What a parallel configuration switches on, decided once before any layer runs.
struct ParallelPlan {
  ParallelConfig parallel;
  ProtocolId protocol = ProtocolId::S;
  bool sequence_parallel_moe = false;    // SPM: the MoE block works on token shards over tp
  std::vector<bool> scatters;            // [layers] RSM: the mixer's output is reduce-scattered
  bool mtp_scatters = false;             // the same for the MTP layer
  bool shared_expert_whole = false;      // not split over tp; false under SPM is vllm issue 37856
  bool dense_whole = false;              // dense feed-forwards not split over tp
  bool fc_whole = false;                 // nor the MTP's projection
  bool masks_pads = false;               // a mask tells the router which rows are pads
  bool slices_mask = false;              // and is cut like the rows, so that no pad is routed
  bool ragged = false;                   // shards differ by a row and have no pads
  bool norms_on_shard = false;           // of vllm_48763: the newer class of models
  bool captures_alone = false;           // of B: an auxiliary state is gathered by itself
  std::vector<std::int64_t> aux_layers;  // states captured before these layers, or after the last
  Dispatch dispatch = Dispatch::allgather_reducescatter;
  RunnerVersion runner = RunnerVersion::V1;
  std::vector<PlacedWeights> placed;  // weights that lie otherwise than the plan says

  bool scatters_all() const {
    for (const bool layer : scatters)
      if (!layer) return false;
    return !scatters.empty();
  }

  bool operator==(const ParallelPlan&) const = default;
};

/// The flags of a plan that scenarios and repairs set by name: "shared_expert_whole", ...
std::vector<std::string> plan_flag_names();

/// A flag by one of those names. Throws UsageError with the nearest.
bool& plan_flag(ParallelPlan& plan, std::string_view name);

/// The plan of `protocol` for a model on these ranks, where its gate is open: without tensor or
/// expert parallelism every protocol is S; pipelines, and under D models that mix dense and sparse
/// layers, fall back to A. The MTP layer follows the rule for index 0 of its own stack, in the
/// DeepSeek and GLM families for the layer after the last.
/// Source: vllm qwen3_next.py (PR 47006, PR 50685), deepseek_v2.py, config/parallel.py.
/// `forced`: without the fallbacks, as where one is forgotten.
ParallelPlan plan_for(const ModelConfig& config, const ParallelConfig& parallel,
                      ProtocolId protocol, bool forced = false);

}  // namespace tokenview
