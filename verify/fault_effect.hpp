// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>

#include "reference/program/config.hpp"
#include "reference/program/injected_fault.hpp"

namespace tokenview {

/// Why a fault that meets its place changes nothing there: its act is none for such a place
/// (`before` of a named value), or it is stale and the same place is met in one pass only. Empty:
/// it acts, or it does not meet its place. `visits` are those of the run; rows of a pass (`least`,
/// `most`) are not looked at.
std::string why_without_effect(const InjectedFault& fault, std::span<const PlaceVisit> visits,
                               const ParallelConfig& parallel);

}  // namespace tokenview
