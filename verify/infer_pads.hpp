// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "verify/infer.hpp"

namespace tokenview {

/// Unknown rows for which no token is left are pads: behind a rank's last token, where the rank has
/// every token of its dp ranks, or is a shard of those that together have each once.
void name_pads(std::span<const RankRows> ranks, std::span<const TrustedRows> trusted,
               std::int32_t step, std::vector<std::vector<InferredRow>>& rows);

}  // namespace tokenview
