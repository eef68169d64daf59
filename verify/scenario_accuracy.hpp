// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "reference/program/host_tensor.hpp"
#include "verify/scenario.hpp"

namespace tokenview {

/// Whether the judgement of a case sees the fault of a scenario.
struct ScenarioSight {
  enum Outcome {
    seen,
    missed,
    unchanged,  // the fault changes no value of a token: others see it (cost, pads, hangs)
    not_run,
  };
  Outcome outcome = not_run;
  std::string detail = {};  // why it was not run; what was seen first
};

/// Runs the broken variant of a scenario with numbers, in float32 or in bfloat16 (rounded as
/// Hugging Face, on a float32 golden), and judges the taps of each data-parallel rank, placed by
/// what they are. A model that has no arithmetic here, or is large, is replaced by a tiny
/// Qwen3-Next of two layers. The target runs, whatever the scenario says. A fault that changes no
/// token's value in float64 by 16 roundings of the type is `unchanged`.
ScenarioSight see_scenario(const Scenario& scenario, DType type);

}  // namespace tokenview
