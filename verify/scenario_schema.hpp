// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace tokenview {

/// docs/scenario-schema.json: the JSON Schema (draft 2020-12) of scenario files, with the words
/// that this program takes. `tokenview --generate scenario-schema` prints it.
std::string scenario_schema();

}  // namespace tokenview
