// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "reference/program/protocol_b.hpp"
#include "reference/program/protocol_d.hpp"

namespace tokenview {

/// The protocol of a plan.
template <class R>
std::unique_ptr<Protocol<R>> make_protocol(const ParallelPlan& plan) {
  switch (plan.protocol) {
    case ProtocolId::B:
      return std::make_unique<ProtocolB<R>>(plan);
    case ProtocolId::C:
      return std::make_unique<ProtocolC<R>>(plan);
    case ProtocolId::D:
      return std::make_unique<ProtocolD<R>>(plan);
    default:
      break;
  }
  return std::make_unique<Protocol<R>>(plan);
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
          .dense_whole = plan.dense_whole};
}

}  // namespace tokenview
