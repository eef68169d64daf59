// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/config.hpp"

namespace tokenview {

/// A configuration, and the keys of its file that mean nothing here ("text_config.foo"), in the
/// order of their names: print them once. Keys that are known not to touch inference (dtype,
/// token ids, dropout, the vision tower) are not among them.
struct ConfigReading {
  ModelConfig config;
  std::vector<std::string> ignored_keys;
};

/// Reads the text of a Hugging Face config.json: model types qwen3_next, qwen3_5_moe (nested in
/// `text_config`, or flat) and qwen3_5_moe_text with the published default of every absent key;
/// deepseek_v2, deepseek_v3, deepseek_v32, glm_moe_dsa, glm4_moe and glm4_moe_lite for the fields
/// that decide their token layout. The configuration has passed validate().
///
/// `source_name` stands in front of every error. Throws FileError, with line and column, for text
/// that is not one JSON value in UTF-8, is nested over 64 levels deep, repeats a key or holds NaN,
/// an infinity or a number out of range. Throws ConfigError, with key, value and what was expected,
/// for an unknown model type, a missing key, a wrong type, a size that cannot be, or a switch that
/// the program has no arithmetic for (biases, scaled rotary embeddings, other activations).
/// Sources: transformers configuration_*.py of the model types; vllm qwen3_next.py, qwen3_5.py.
ConfigReading read_config_json(std::string_view json_text, const std::string& source_name);

/// The same for a file of at most 16 MiB. Throws FileError when it cannot be read.
ConfigReading read_config_file(const std::string& path);

/// A config.json (for the Qwen3.5 family: its text config) that reads back to an equal
/// configuration, without ignored keys.
std::string write_config_json(const ModelConfig& config);

}  // namespace tokenview
