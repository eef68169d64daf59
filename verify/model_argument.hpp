// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "reference/program/config_json.hpp"

namespace tokenview {

/// The configuration that an argument of the command line names: a preset, a config.json, a golden
/// file, or a checkpoint folder with its config.json. Throws UsageError for a name that is none of
/// them, and what their readers throw.
struct ModelArgument {
  ConfigReading reading;
  std::string config_json;  // the text it was read from; written anew for a preset
};
ModelArgument model_argument(const std::string& name);

/// What reports call it, the same from wherever it is typed: a preset's name, else that of the file
/// or folder without the folders above it; of a config.json that of its folder.
std::string model_name(const std::string& name);

}  // namespace tokenview
