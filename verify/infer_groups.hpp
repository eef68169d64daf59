// SPDX-License-Identifier: Apache-2.0
// Which ranks sum with which.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "verify/infer_rows.hpp"

namespace tokenview {

/// Places among the ranks given, in the order of summands.
using RankSet = std::vector<std::int32_t>;

/// The groups over which ranks of these coordinates may sum: tp, all, dp. Ranks without
/// coordinates are in none.
std::vector<RankSet> groups_by_coordinates(std::span<const RankAtHand* const> ranks,
                                           const RankSet& members);

/// The sets of `members` that may sum by what they hold: some of their rows add up to a token, or
/// are a token and zeros, and no rows contradict. Found by least squares on some rows: the factors
/// that come closest to a token are zeros and ones. A rank of zeros may be in several sets.
std::vector<RankSet> groups_by_values(std::span<const RankAtHand* const> ranks,
                                      const RankSet& members,
                                      const std::vector<std::vector<InferredRow>>& rows);

}  // namespace tokenview
