// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "reference/program/protocol_b.hpp"
#include "reference/program/protocol_d.hpp"
#include "reference/program/protocol_deferred.hpp"
#include "reference/program/protocol_e.hpp"
#include "reference/program/protocol_sglang.hpp"
#include "reference/program/protocol_variants.hpp"

namespace tokenview {

/// The protocol of a plan.
template <class R>
std::unique_ptr<Protocol<R>> make_protocol(const ParallelPlan& plan) {
  switch (plan.protocol) {
    case ProtocolId::S:
    case ProtocolId::A:
      return std::make_unique<Protocol<R>>(plan);
    case ProtocolId::B:
      return std::make_unique<ProtocolB<R>>(plan);
    case ProtocolId::C:
      return std::make_unique<ProtocolC<R>>(plan);
    case ProtocolId::D:
      return std::make_unique<ProtocolD<R>>(plan);
    case ProtocolId::E:
    case ProtocolId::vllm_58061:
      return std::make_unique<ProtocolE<R>>(plan);
    case ProtocolId::deferred:
      return std::make_unique<ProtocolDeferred<R>>(plan);
    case ProtocolId::vllm_48763:
      return std::make_unique<Protocol48763<R>>(plan);
    case ProtocolId::vllm_51927:
      return std::make_unique<Protocol51927<R>>(plan);
    case ProtocolId::vllm_53191:
      return std::make_unique<Protocol53191<R>>(plan);
    case ProtocolId::vllm_53191_shape:
      return std::make_unique<Protocol53191Shape<R>>(plan);
    case ProtocolId::sglang:
      return std::make_unique<ProtocolSglang<R>>(plan);
  }
  return nullptr;
}

/// How a rank's weights lie under a plan.
inline WeightPlacement placement_of(const ParallelPlan& plan, std::int64_t tp_rank,
                                    std::int64_t ep_rank) {
  return {.tp_rank = tp_rank,
          .tp_size = plan.parallel.tp,
          .expert_rank = ep_rank,
          .expert_size = plan.parallel.tp * plan.parallel.dp,
          .expert_parallel = plan.parallel.enable_expert_parallel,
          .shared_expert_whole = plan.shared_expert_whole,
          .dense_whole = plan.dense_whole,
          .fc_whole = plan.fc_whole,
          .placed = plan.placed};
}

}  // namespace tokenview
