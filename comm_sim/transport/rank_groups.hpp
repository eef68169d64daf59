// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

/// The ranks of the world in each group of one rank, in ascending order.
struct RankGroups {
  std::vector<std::int64_t> tp, dp, ep, pp;
};
inline RankGroups groups_of(const RankCoordinates& at, const ParallelConfig& parallel) {
  RankGroups groups;
  for (std::int64_t world = 0; world < parallel.world_size(); ++world) {
    const RankCoordinates other = coordinates_of(world, parallel);
    const bool same_tp = other.tp == at.tp, same_dp = other.dp == at.dp,
               same_pp = other.pp == at.pp;
    if (same_dp && same_pp) groups.tp.push_back(world);
    if (same_tp && same_pp) groups.dp.push_back(world);
    if (same_pp) groups.ep.push_back(world);
    if (same_tp && same_dp) groups.pp.push_back(world);
  }
  return groups;
}

/// Throws ConfigError where `size` ranks are not the world of `parallel`.
inline void require_world(std::int64_t size, const ParallelConfig& parallel) {
  if (size != parallel.world_size())
    throw ConfigError(text("dp x pp x tp = ", parallel.dp, " x ", parallel.pp, " x ", parallel.tp,
                           " are ", parallel.world_size(), " ranks, found ", size));
}

/// "tp=1 dp=0 pp=0".
inline std::string in_words(const RankCoordinates& at) {
  return text("tp=", at.tp, " dp=", at.dp, " pp=", at.pp);
}

}  // namespace tokenview
