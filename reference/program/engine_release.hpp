// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "reference/program/parallel_plan.hpp"

namespace tokenview {

/// When sequence-parallel MoE is on: the backend is one of a set, expert parallelism is on, tp > 1,
/// and dp > 1 everywhere but in G1. Source: vllm config/parallel.py.
enum class GateEra {
  G0a,  // PR 24982; 0.11.0 to 0.14.1
  G0b,  // mori added (0.15.1), nixl_ep added (0.18.0), naive removed (0.19.0)
  G0c,  // mori split in two; 0.23.0 to 0.25.1
  G1,   // PR 47070, PR 48036: dp may be one; in no release
  G2,   // PR 48849: dp > 1 restored; 0.26.0 and later
};
const char* to_string(GateEra era);

/// The model families that have a column of their own in the release table.
enum class ReleaseFamily { qwen3_next, qwen3_5, deepseek_v2, deepseek_v32 };
inline constexpr std::size_t num_release_families = 4;

/// "Qwen3-Next", "DeepSeek-V3.2 class", ...
const char* to_string(ReleaseFamily family);

/// DeepSeek-V2 and V3 are the V2 family, DeepSeek-V3.2 and GLM-5.x the V3.2 class. Throws
/// ConfigError for a model whose layout in the releases is not known.
ReleaseFamily family_of(const ModelConfig& config);

/// Which runners tell the router which rows are pads, by default (VLLM_MOE_SKIP_PADDING).
enum class PadMask { none, runner_v2, every_runner };

/// What one build of an engine does with token rows.
/// Source: the Python text of the published vllm wheels.
struct EngineRelease {
  using Version = std::array<int, 3>;

  std::string name;        // "vllm-0.26.0"
  Version version{};       // of a build between releases: of the release before it
  const char* built = "";  // date; empty: not recorded
  GateEra gate = GateEra::G2;
  /// [family] Target and MTP where the gate is open; nothing: the family does not exist yet.
  std::array<std::optional<ProtocolId>, num_release_families> protocols;
  bool splits_shared_expert = false;  // Qwen's stays split over tp (issue 37856; PR 39181 repairs)
  bool defers_sums = false;  // the V3.2 class with its gate shut leaves sums to the next norm
  RunnerVersion qwen_runner = RunnerVersion::V1;  // by default, for the Qwen families
  PadMask pad_mask = PadMask::none;
  bool qwen3_5_mtp_pipelines = false;  // its MTP runs with pp > 1
  bool idle_rank_drafts = false;       // an idle dp rank runs K + 1 dummy rows; else not known
  bool is_release = true;              // false: a build of the main branch
  std::string interpolated = {};       // why and from what, where this release was not read
};

/// The builds that were read, oldest first.
std::span<const EngineRelease> engine_releases();

/// "vllm-0.26.0", "0.26.0" or "vllm-main-2026-07". A release between two that were read is
/// interpolated: it has the facts of the nearest of its minor version, else of the one before it.
/// Throws UsageError for an older or newer one, and with the nearest name for anything else.
EngineRelease engine_release(std::string_view name);

inline constexpr const char* default_backend = "allgather_reducescatter";

/// Whether a configuration's MoE is sequence parallel in a release.
struct Gate {
  bool open = false;
  std::string backend = {};  // the one that runs: a removed one falls back to the default
  std::string reason = {};   // what keeps it shut; empty when open
  std::string warning = {};  // of a backend that was removed
};

/// Throws UsageError, with the nearest name, for a backend that no release knows.
Gate gate_of(const EngineRelease& release, const ParallelConfig& parallel,
             std::string_view backend = default_backend);

/// The runner that a release takes by default, where known: for the Qwen families.
std::optional<RunnerVersion> default_runner(const EngineRelease& release, ReleaseFamily family);

/// Rows of the dummy request of a dp rank without work, where known. Source: vllm gpu_worker.py.
std::optional<std::int64_t> idle_rank_rows(const EngineRelease& release, std::int64_t draft_steps);

/// The plan that a release makes for a model on these ranks. Where the runner is not known, V1.
ParallelPlan plan_for(const ModelConfig& config, const ParallelConfig& parallel,
                      const EngineRelease& release, std::string_view backend = default_backend);

/// What the MTP of a protocol does at its exit, in a few words.
const char* mtp_form(ProtocolId protocol);

/// Throws ConfigError for what this release refuses at start-up: everything that
/// validate(config, parallel) and require_draft_steps() refuse, a family that it does not have, a
/// Qwen3-Next without a MoE layer in the model or the MTP that runs, MTP with pipeline stages where
/// it cannot run. Source: vllm config/speculative.py, qwen3_next.py, qwen3_next_mtp.py, issue
/// 52069.
void require_accepted(const ModelConfig& config, const ParallelConfig& parallel,
                      const EngineRelease& release, std::int64_t draft_steps);

}  // namespace tokenview
