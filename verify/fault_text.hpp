// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/injected_fault.hpp"
#include "reference/program/json_section.hpp"

namespace tokenview {

std::span<const FaultAct> all_fault_acts();
std::vector<std::string> act_names();

/// Which words `with` takes; null: none is needed.
const std::vector<std::string>* words_of(FaultAct act);

/// The groups that a fault of a collective may name.
const std::vector<std::string>& group_names();

/// A fault from a scenario: `{"act": "drop", "op": "all_gather", "at": "mtp.*", "group": "tp",
/// "tp": 1, "occurrence": 2, "step": 0, "draft": 1, "with": "reverse", "number": -1, "factor": 2,
/// "numbers": [2, 2]}`; `act` and `op` are required. Throws ConfigError with the key and what was
/// expected.
InjectedFault read_fault(JsonSection section);

/// A fault of the command line: `drop:all_gather@mtp.*,tp=1,occurrence=2`, the same keys behind the
/// commas. Throws UsageError with the text and what was expected.
InjectedFault parse_fault(std::string_view text);

/// In the form that parse_fault() reads.
std::string to_string(const InjectedFault& fault);

}  // namespace tokenview
