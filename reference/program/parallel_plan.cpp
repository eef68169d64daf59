// SPDX-License-Identifier: Apache-2.0
#include "reference/program/parallel_plan.hpp"

#include <cctype>

#include "reference/program/error.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {

const char* to_string(ProtocolId id) {
  switch (id) {
    case ProtocolId::S:
      return "S";
    case ProtocolId::A:
      return "A";
    case ProtocolId::B:
      return "B";
    case ProtocolId::C:
      return "C";
    case ProtocolId::D:
      return "D";
  }
  return "";
}

ProtocolId parse_protocol(std::string_view name) {
  if (name.size() == 1)
    for (const ProtocolId id :
         {ProtocolId::S, ProtocolId::A, ProtocolId::B, ProtocolId::C, ProtocolId::D})
      if (std::toupper(static_cast<unsigned char>(name[0])) == to_string(id)[0]) return id;
  throw UsageError(text("protocol \"", shortened(std::string(name)), "\": expected S, A, B, C or D"));
}

ParallelPlan plan_for(const ModelConfig& config, const ParallelConfig& parallel,
                      ProtocolId protocol) {
  ParallelPlan plan;
  plan.parallel = parallel;
  plan.scatters.assign(std::size_t(config.num_hidden_layers), false);
  const bool possible =
      parallel.tp > 1 && parallel.enable_expert_parallel && config.num_experts > 0;
  if (protocol == ProtocolId::S || !possible) return plan;

  plan.sequence_parallel_moe = true;
  plan.protocol = ProtocolId::A;
  if (protocol == ProtocolId::A || parallel.pp > 1) return plan;
  bool all_moe = true;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    all_moe = all_moe && config.is_moe_layer(i);
  if (protocol == ProtocolId::D && !all_moe) return plan;

  plan.protocol = protocol;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    plan.scatters[std::size_t(i)] = config.is_moe_layer(i);
  plan.mtp_scatters = config.is_moe_layer(0);
  return plan;
}

}  // namespace tokenview
