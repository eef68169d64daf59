// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "verify/repair.hpp"

namespace tokenview {

/// Edits as an instruction to whoever writes the program: "gather hidden and residual (one
/// all-gather of width 2H) and trim to T, between mtp.layers.0 and mtp.norm". `visits` are the
/// places of the run that they repair.
std::string in_words(const std::vector<RepairEdit>& edits, std::span<const PlaceVisit> visits);

}  // namespace tokenview
