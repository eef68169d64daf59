// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "verify/result_case.hpp"

namespace tokenview {

/// A tensor or a collective on the way through a layer.
using LayerStep = std::variant<const ResultTap*, const ResultCall*>;

/// Those of `module`, in program order, of the first pass that has it: its tensors, and the
/// collectives between the first and the last of them. Throws UsageError where there are none.
std::vector<LayerStep> layer_steps(const ResultCase& result, const std::string& module);

/// The tap of the first problem; nullptr: there is none.
const ResultTap* first_bad_tap(const ResultCase& result);

/// "all_gather over tp, ranks 0 1 2 3"
std::string in_words(const ResultCall& call);

}  // namespace tokenview
