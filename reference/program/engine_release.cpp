// SPDX-License-Identifier: Apache-2.0
#include "reference/program/engine_release.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {
namespace {

using Version = EngineRelease::Version;

constexpr const char* main_build = "vllm-main-2026-07";
constexpr bool yes = true, no = false;

/// One line of the table; its columns are the members of EngineRelease.
struct Line {
  Version version;
  const char* built;
  GateEra gate;
  std::optional<ProtocolId> qwen3_next, qwen3_5, deepseek_v2, deepseek_v32;
  bool splits_shared_expert, defers_sums;
  RunnerVersion qwen_runner;
  PadMask pad_mask;
  bool qwen3_5_mtp_pipelines, loops_at_most, idle_rank_drafts;
  const char* name = nullptr;  // of a build that is no release
};

constexpr auto not_yet = std::nullopt;  // a family that does not exist yet
constexpr auto A = ProtocolId::A, B = ProtocolId::B, C = ProtocolId::C, D = ProtocolId::D,
               E = ProtocolId::E, C1 = ProtocolId::vllm_48763;
constexpr auto V1 = RunnerVersion::V1, V2 = RunnerVersion::V2;
constexpr auto G0a = GateEra::G0a, G0b = GateEra::G0b, G0c = GateEra::G0c, G1 = GateEra::G1,
               G2 = GateEra::G2;
constexpr auto none = PadMask::none, runner_v2 = PadMask::runner_v2, every = PadMask::every_runner;

// clang-format off
/// Releases that are missing here were not read.
constexpr Line lines[] = {
    // version, built, gate, Qwen3-Next, Qwen3.5, DeepSeek-V2, DeepSeek-V3.2, shared expert split,
    // sums deferred, runner, pad mask, Qwen3.5 MTP with pp, draft loop at the most, K + 1 idle rows
    {{0, 11, 0}, "2025-10-03", G0a, A, not_yet, A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 13, 0}, "",           G0a, A, not_yet, A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 14, 1}, "",           G0a, A, not_yet, A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 15, 1}, "",           G0b, A, not_yet, A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 16, 0}, "",           G0b, A, not_yet, A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 17, 1}, "",           G0b, A, A,       A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 18, 0}, "",           G0b, A, A,       A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 19, 0}, "",           G0b, A, A,       A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 19, 1}, "2026-04-18", G0b, A, A,       A,  A,  yes, no,  V1, none,      no,  no,  no},
    {{0, 20, 0}, "2026-04-27", G0b, A, A,       A,  A,  no,  no,  V1, none,      no,  no,  no},
    {{0, 21, 0}, "",           G0b, A, A,       A,  A,  no,  no,  V1, none,      no,  no,  no},
    {{0, 22, 1}, "",           G0b, A, A,       A,  A,  no,  no,  V1, none,      no,  no,  yes},
    {{0, 23, 0}, "",           G0c, A, A,       A,  A,  no,  no,  V1, none,      no,  no,  yes},
    {{0, 24, 0}, "2026-06-29", G0c, A, A,       A,  A,  no,  no,  V1, none,      no,  no,  yes},
    {{0, 25, 0}, "2026-07-11", G0c, A, A,       B,  B,  no,  no,  V1, none,      no,  no,  yes},
    {{0, 25, 1}, "2026-07-12", G0c, A, A,       B,  B,  no,  yes, V1, none,      no,  no,  yes},
    {{0, 25, 1}, "2026-07",    G1,  B, B,       C,  C,  no,  yes, V1, none,      no,  no,  yes,
     main_build},
    {{0, 26, 0}, "2026-07-25", G2,  C, C,       C,  C,  no,  yes, V1, none,      no,  no,  yes},
    {{0, 27, 0}, "2026-08-10", G2,  C, C,       C1, C1, no,  yes, V1, runner_v2, no,  no,  yes},
    {{0, 27, 1}, "2026-08-11", G2,  C, C,       C1, C1, no,  yes, V1, runner_v2, no,  no,  yes},
    {{0, 28, 0}, "2026-08-25", G2,  D, D,       C1, E,  no,  yes, V1, runner_v2, no,  no,  yes},
    {{0, 29, 0}, "2026-09-09", G2,  D, D,       C1, E,  no,  yes, V2, runner_v2, no,  no,  yes},
    {{0, 30, 0}, "",           G2,  D, D,       C1, E,  no,  yes, V2, runner_v2, yes, yes, yes},
    {{0, 31, 0}, "",           G2,  D, D,       C1, E,  no,  yes, V2, every,     yes, yes, yes},
    {{0, 32, 0}, "",           G2,  D, D,       C1, E,  no,  yes, V2, every,     yes, yes, yes},
    {{0, 33, 0}, "2026-11-01", G2,  D, D,       C1, E,  no,  yes, V2, every,     yes, yes, yes},
};
// clang-format on

/// An all-to-all backend, and the releases in whose set it is.
/// Source: vllm config/parallel.py, all2all.py.
struct Backend {
  const char* name;
  Version from, until;                  // half-open; the same twice: in none
  std::optional<Version> removed = {};  // from here on it falls back to the default
  Dispatch dispatch = Dispatch::all_to_all;
};
constexpr Version first{0, 11, 0}, later{1 << 20, 0, 0};
constexpr Backend backends[] = {
    {default_backend, first, later, {}, Dispatch::allgather_reducescatter},
    {"naive", first, {0, 19, 0}, Version{0, 19, 0}, Dispatch::naive},
    {"pplx", first, first, Version{0, 17, 1}},
    {"deepep_high_throughput", first, later},
    {"deepep_low_latency", first, later},
    {"mori", {0, 15, 1}, {0, 23, 0}},
    {"mori_high_throughput", {0, 23, 0}, later},
    {"mori_low_latency", {0, 23, 0}, later},
    {"nixl_ep", {0, 18, 0}, later},
    {"flashinfer_nvlink_one_sided", {0, 29, 0}, later},
    {"flashinfer_nvlink_two_sided", first, first},
    {"flashinfer_all2allv", first, first},  // alias of the one before
    {"deepep_v2", {0, 31, 0}, later},
    {"passthrough", {0, 32, 0}, later, {}, Dispatch::allgather_reducescatter},
    {"moonep", first, first},
};

const Backend& backend_named(std::string_view name) {
  std::vector<std::string> names;
  for (const Backend& backend : backends) {
    if (name == backend.name) return backend;
    names.emplace_back(backend.name);
  }
  const std::string shown = shortened(std::string(name));
  throw UsageError(text("all2all backend \"", shown, "\": expected one of ", joined(names),
                        suggestion(shown, names)));
}

/// The one that runs when `name` is asked for.
const Backend& backend_in(const EngineRelease& release, std::string_view name) {
  const Backend& asked = backend_named(name);
  return asked.removed && release.version >= *asked.removed ? backend_named(default_backend)
                                                            : asked;
}

std::string name_of(const Version& v) { return text("vllm-", v[0], '.', v[1], '.', v[2]); }

/// "0.26.0" or "vllm-0.26.0".
std::optional<Version> parse_version(std::string_view name) {
  if (name.starts_with("vllm-")) name.remove_prefix(5);
  Version version{};
  const char* at = name.data();
  const char* const end = at + name.size();
  for (std::size_t i = 0; i < version.size(); ++i) {
    if (i > 0 && (at == end || *at++ != '.')) return {};
    const auto [stop, error] = std::from_chars(at, end, version[i]);
    if (error != std::errc() || version[i] < 0) return {};
    at = stop;
  }
  if (at != end) return {};
  return version;
}

bool is_qwen(ReleaseFamily family) {
  return family == ReleaseFamily::qwen3_next || family == ReleaseFamily::qwen3_5;
}

/// Of two neighbours that were read, one before and one after `version`.
EngineRelease interpolated(const Version& version, const EngineRelease& before,
                           const EngineRelease& after) {
  const auto same_minor = [&](const EngineRelease& release) {
    return release.version[0] == version[0] && release.version[1] == version[1];
  };
  EngineRelease release = same_minor(after) && !same_minor(before) ? after : before;
  release.interpolated = text(name_of(version), " was not read: it lies between ", before.name,
                              " and ", after.name, " and is taken as ", release.name);
  release.name = name_of(version);
  release.version = version;
  release.built = "";
  return release;
}

}  // namespace

const char* to_string(GateEra era) {
  constexpr const char* names[] = {"G0a", "G0b", "G0c", "G1", "G2"};
  return names[std::size_t(era)];
}

const char* to_string(ReleaseFamily family) {
  constexpr const char* names[num_release_families] = {"Qwen3-Next", "Qwen3.5",
                                                       "DeepSeek-V2 family", "DeepSeek-V3.2 class"};
  return names[std::size_t(family)];
}

ReleaseFamily family_of(const ModelConfig& config) {
  switch (config.model_type) {
    case ModelType::qwen3_next:
      return ReleaseFamily::qwen3_next;
    case ModelType::qwen3_5_moe:
      return ReleaseFamily::qwen3_5;
    case ModelType::deepseek_v2:
    case ModelType::deepseek_v3:
      return ReleaseFamily::deepseek_v2;
    case ModelType::deepseek_v32:
    case ModelType::glm_moe:
      return ReleaseFamily::deepseek_v32;
    case ModelType::glm4_moe:
      break;
  }
  throw ConfigError(text("model_type: is ", to_string(config.model_type),
                         ", whose layout in the releases is not known; expected qwen3_next, "
                         "qwen3_5_moe_text, deepseek_v2, deepseek_v3, deepseek_v32 or "
                         "glm_moe_dsa"));
}

std::span<const EngineRelease> engine_releases() {
  static const std::vector<EngineRelease> releases = [] {
    std::vector<EngineRelease> all;
    for (const Line& l : lines)
      all.push_back({.name = l.name != nullptr ? l.name : name_of(l.version),
                     .version = l.version,
                     .built = l.built,
                     .gate = l.gate,
                     .protocols = {l.qwen3_next, l.qwen3_5, l.deepseek_v2, l.deepseek_v32},
                     .splits_shared_expert = l.splits_shared_expert,
                     .defers_sums = l.defers_sums,
                     .qwen_runner = l.qwen_runner,
                     .pad_mask = l.pad_mask,
                     .qwen3_5_mtp_pipelines = l.qwen3_5_mtp_pipelines,
                     .loops_at_most = l.loops_at_most,
                     .idle_rank_drafts = l.idle_rank_drafts,
                     .is_release = l.name == nullptr});
    return all;
  }();
  return releases;
}

EngineRelease engine_release(std::string_view name) {
  const auto releases = engine_releases();
  std::vector<std::string> names;
  for (const EngineRelease& release : releases) {
    if (name == release.name) return release;
    names.push_back(release.name);
  }
  const std::string shown = shortened(std::string(name));
  const auto version = parse_version(name);
  if (!version)
    throw UsageError(text("engine \"", shown, "\": expected a release such as ", names.back(),
                          ", or ", main_build, suggestion(shown, names)));
  if (*version < releases.front().version || *version > releases.back().version)
    throw UsageError(text("engine \"", shown, "\": known are ", names.front(), " to ", names.back(),
                          "; nothing is guessed for ",
                          *version < releases.front().version ? "an older" : "a newer", " one"));
  const EngineRelease* before = nullptr;
  for (const EngineRelease& release : releases) {
    if (!release.is_release) continue;
    if (release.version == *version) return release;
    if (release.version > *version) return interpolated(*version, *before, release);
    before = &release;
  }
  return *before;  // not reached: the last release is not older than `version`
}

Gate gate_of(const EngineRelease& release, const ParallelConfig& parallel, std::string_view asked) {
  const Backend& backend = backend_in(release, asked);
  Gate gate{.backend = backend.name};
  if (gate.backend != asked)
    gate.warning = text("the '", asked, "' all2all backend has been removed: falling back to '",
                        gate.backend, '\'');
  if (parallel.tp < 2)
    gate.reason = "tp is 1";
  else if (!parallel.enable_expert_parallel)
    gate.reason = "expert parallelism is off";
  else if (parallel.dp < 2 && release.gate != GateEra::G1)
    gate.reason = "dp is 1";
  else if (release.version < backend.from || release.version >= backend.until)
    gate.reason = text("backend ", gate.backend, " is not in its set");
  gate.open = gate.reason.empty();
  return gate;
}

std::optional<RunnerVersion> default_runner(const EngineRelease& release, ReleaseFamily family) {
  if (!is_qwen(family)) return {};
  return release.qwen_runner;
}

std::optional<std::int64_t> idle_rank_rows(const EngineRelease& release, std::int64_t draft_steps) {
  if (!release.idle_rank_drafts) return {};
  return draft_steps + 1;
}

ParallelPlan plan_for(const ModelConfig& config, const ParallelConfig& parallel,
                      const EngineRelease& release, std::string_view asked) {
  const ReleaseFamily family = family_of(config);
  const Gate gate = gate_of(release, parallel, asked);
  ProtocolId protocol = release.protocols[std::size_t(family)].value_or(ProtocolId::S);
  if (family == ReleaseFamily::deepseek_v32 && release.defers_sums && parallel.tp > 1 &&
      (!gate.open || parallel.pp > 1))
    protocol = ProtocolId::deferred;
  else if (!gate.open)
    protocol = ProtocolId::S;

  ParallelPlan plan = plan_for(config, parallel, protocol);
  if (is_qwen(family) && release.splits_shared_expert) plan.shared_expert_whole = false;
  plan.runner = default_runner(release, family).value_or(RunnerVersion::V1);
  plan.masks_pads = release.pad_mask == PadMask::every_runner ||
                    (release.pad_mask == PadMask::runner_v2 && plan.runner == RunnerVersion::V2);
  plan.slices_mask = plan.masks_pads && plan.protocol == ProtocolId::E;
  plan.norms_on_shard = family == ReleaseFamily::deepseek_v32;
  // With the gate shut the rows of a token lie on all tp ranks, and no backend sends them by
  // expert.
  if (gate.open) plan.dispatch = backend_in(release, asked).dispatch;
  return plan;
}

RunnerOptions runner_options(const EngineRelease& release, const ParallelPlan& plan) {
  RunnerOptions options;
  options.version = plan.runner;
  options.loop_of_most = release.loops_at_most && plan.runner == RunnerVersion::V2;
  return options;
}

const char* mtp_form(ProtocolId protocol) {
  switch (protocol) {
    case ProtocolId::B:
      return "without a gather";
    case ProtocolId::C:
      return "gathers hidden and residual";
    case ProtocolId::vllm_48763:
      return "adds on the shard, then gathers hidden";
    case ProtocolId::D:
      return "sharded from its layer's entry to its norm";
    case ProtocolId::E:
      return "sharded from its projection to its norm";
    case ProtocolId::deferred:
      return "leaves its sum to the norm";
    default:
      return "full rows at its layer's ends";
  }
}

void require_accepted(const ModelConfig& config, const ParallelConfig& parallel,
                      const EngineRelease& release, std::int64_t draft_steps) {
  validate(config, parallel);
  require_draft_steps(config, draft_steps);
  const ReleaseFamily family = family_of(config);
  if (!release.protocols[std::size_t(family)]) {
    const auto releases = engine_releases();
    const auto has_it = std::ranges::find_if(releases, [&](const EngineRelease& other) {
      return other.protocols[std::size_t(family)].has_value();
    });
    throw ConfigError(text(release.name, " has no ", to_string(family), ": expected ", has_it->name,
                           " or later"));
  }
  if (family == ReleaseFamily::qwen3_next) {
    bool has_moe = false;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      has_moe = has_moe || config.is_moe_layer(layer);
    if (!has_moe)
      throw ConfigError(
          "No Qwen3Next layer found in the model.layers: every layer is dense, expected a MoE "
          "layer");
    if (draft_steps > 0 && !config.is_moe_layer(0))
      throw ConfigError(
          "No Qwen3Next layer found in the model.layers of the MTP: it counts as layer 0, which is "
          "dense; expected a MoE layer");
  }
  if (draft_steps > 0 && parallel.pp > 1 &&
      !(family == ReleaseFamily::qwen3_5 && release.qwen3_5_mtp_pipelines))
    throw ConfigError(text("Pipeline parallelism is not supported for the MTP of ",
                           to_string(family), " in ", release.name, ": found pp=", parallel.pp,
                           ", expected 1",
                           family == ReleaseFamily::qwen3_5 ? ", or vllm-0.30.0 or later" : ""));
}

}  // namespace tokenview
