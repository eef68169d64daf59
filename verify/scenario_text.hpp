// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "verify/scenario.hpp"

namespace tokenview {

/// The scenario as parse_scenario() reads it: JSON, two spaces deep, a newline at its end. What has
/// its default is left out.
std::string scenario_json(const Scenario& scenario);

}  // namespace tokenview
