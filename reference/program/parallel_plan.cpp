// SPDX-License-Identifier: Apache-2.0
#include "reference/program/parallel_plan.hpp"

#include <array>
#include <cctype>
#include <utility>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {
namespace {

constexpr std::array<std::pair<ProtocolId, const char*>, 13> protocol_names = {{
    {ProtocolId::S, "S"},
    {ProtocolId::A, "A"},
    {ProtocolId::B, "B"},
    {ProtocolId::C, "C"},
    {ProtocolId::D, "D"},
    {ProtocolId::E, "E"},
    {ProtocolId::deferred, "deferred"},
    {ProtocolId::vllm_48763, "vllm-48763"},
    {ProtocolId::vllm_51927, "vllm-51927"},
    {ProtocolId::vllm_53191, "vllm-53191"},
    {ProtocolId::vllm_53191_shape, "vllm-53191-shape"},
    {ProtocolId::vllm_58061, "vllm-58061"},
    {ProtocolId::sglang, "sglang"},
}};

constexpr std::array<std::pair<Dispatch, const char*>, 3> dispatch_names = {{
    {Dispatch::allgather_reducescatter, "allgather_reducescatter"},
    {Dispatch::naive, "naive"},
    {Dispatch::all_to_all, "all_to_all"},
}};

template <class Table, class Value>
const char* name_in(const Table& table, Value value) {
  for (const auto& [id, name] : table)
    if (id == value) return name;
  return "";
}

template <class Id, std::size_t n>
std::array<Id, n> ids_in(const std::array<std::pair<Id, const char*>, n>& table) {
  std::array<Id, n> ids{};
  for (std::size_t i = 0; i < n; ++i) ids[i] = table[i].first;
  return ids;
}

template <class Table>
auto value_in(const Table& table, std::string_view what, std::string_view asked) {
  std::vector<std::string> names;
  for (const auto& [id, name] : table) {
    const std::string_view known = name;
    names.emplace_back(known);
    bool same = known.size() == asked.size();
    for (std::size_t i = 0; same && i < known.size(); ++i)
      same = std::tolower(static_cast<unsigned char>(known[i])) ==
             std::tolower(static_cast<unsigned char>(asked[i]));
    if (same) return id;
  }
  const std::string shown = shortened(std::string(asked));
  throw UsageError(
      text(what, " \"", shown, "\": expected one of ", joined(names), suggestion(shown, names)));
}

constexpr std::pair<const char*, bool ParallelPlan::*> plan_flags[] = {
    {"shared_expert_whole", &ParallelPlan::shared_expert_whole},
    {"dense_whole", &ParallelPlan::dense_whole},
    {"fc_whole", &ParallelPlan::fc_whole},
    {"masks_pads", &ParallelPlan::masks_pads},
    {"slices_mask", &ParallelPlan::slices_mask},
    {"mtp_scatters", &ParallelPlan::mtp_scatters},
    {"sequence_parallel_moe", &ParallelPlan::sequence_parallel_moe}};

}  // namespace

std::vector<std::string> plan_flag_names() {
  std::vector<std::string> names;
  for (const auto& [flag, member] : plan_flags) names.emplace_back(flag);
  return names;
}

bool& plan_flag(ParallelPlan& plan, std::string_view name) {
  for (const auto& [flag, member] : plan_flags)
    if (name == flag) return plan.*member;
  const std::vector<std::string> names = plan_flag_names();
  throw UsageError(text("plan: no flag \"", name, "\": expected one of ", joined(names),
                        suggestion(std::string(name), names)));
}

const char* to_string(ProtocolId id) { return name_in(protocol_names, id); }

std::span<const ProtocolId> all_protocols() {
  static const auto ids = ids_in(protocol_names);
  return ids;
}

ProtocolId parse_protocol(std::string_view name) {
  return value_in(protocol_names, "protocol", name);
}

std::span<const Dispatch> all_dispatches() {
  static const auto ids = ids_in(dispatch_names);
  return ids;
}

const char* to_string(Dispatch dispatch) { return name_in(dispatch_names, dispatch); }

Dispatch parse_dispatch(std::string_view name) {
  return value_in(dispatch_names, "dispatch", name);
}

ParallelPlan plan_for(const ModelConfig& config, const ParallelConfig& parallel,
                      ProtocolId protocol, bool forced) {
  ParallelPlan plan;
  plan.parallel = parallel;
  plan.scatters.assign(std::size_t(config.num_hidden_layers), false);
  plan.captures_alone = !config.has_arithmetic();
  plan.norms_on_shard = config.model_type == ModelType::deepseek_v32;
  const bool possible =
      parallel.tp > 1 && parallel.enable_expert_parallel && config.num_experts > 0;
  const bool is_static = protocol == ProtocolId::E || protocol == ProtocolId::vllm_58061;
  // The gate of E is closed for pipelines; its models then leave sums to the next norm.
  if (protocol == ProtocolId::deferred || (is_static && possible && parallel.pp > 1 && !forced)) {
    plan.protocol = ProtocolId::deferred;
    return plan;
  }
  if (protocol == ProtocolId::S || !possible) return plan;

  plan.sequence_parallel_moe = plan.shared_expert_whole = true;
  plan.protocol = ProtocolId::A;
  if (protocol == ProtocolId::A) return plan;
  bool all_moe = true;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    all_moe = all_moe && config.is_moe_layer(i);
  const bool has_pipelines =
      protocol == ProtocolId::vllm_53191 || protocol == ProtocolId::vllm_53191_shape;
  const bool is_uniform = protocol == ProtocolId::D || protocol == ProtocolId::vllm_51927;
  if (!forced && ((parallel.pp > 1 && !has_pipelines) || (is_uniform && !all_moe))) return plan;

  plan.protocol = protocol;
  if (is_static || protocol == ProtocolId::sglang || is_uniform) {
    plan.scatters.assign(plan.scatters.size(), true);
    plan.mtp_scatters = true;
    plan.dense_whole = protocol == ProtocolId::E || protocol == ProtocolId::sglang;
    plan.fc_whole = plan.masks_pads = plan.slices_mask = is_static;
    plan.ragged = protocol == ProtocolId::sglang;
    return plan;
  }
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    plan.scatters[std::size_t(i)] = config.is_moe_layer(i);
  plan.mtp_scatters = config.is_moe_layer(config.first_mtp_layer());
  return plan;
}

}  // namespace tokenview
