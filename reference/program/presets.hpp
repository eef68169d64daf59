// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/config.hpp"

namespace tokenview {

/// A configuration that is known by name. `qwen3-next` and `qwen3.5-moe` are tiny and meant for
/// seeded weights; the others have the published sizes and serve symbolic work. Nothing for an
/// unknown name.
std::optional<ModelConfig> preset(std::string_view name);

/// All names, the tiny ones first.
std::vector<std::string> preset_names();

}  // namespace tokenview
