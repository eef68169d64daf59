// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "reference/program/parallel_plan.hpp"
#include "verify/view_run.hpp"

namespace tokenview {

/// The first finding that a broken configuration must give. An empty field matches anything;
/// `expected` and `actual` match where they are contained in the finding's.
struct ExpectedFinding {
  std::string check;  // a FindingKind by name
  std::string operation;
  std::string module;
  std::string tensor;
  std::string expected;
  std::string actual;

  bool matches(const Finding& finding) const;
};

/// A real bug, told so that it can be run: the smallest configuration, what must be found first,
/// and the variant that is right. Files in data/scenarios; schema in docs/scenario-schema.json.
struct Scenario {
  std::string name;  // repository and number of its first reference: "vllm-48429"
  std::vector<std::string> aliases;
  std::string title;
  std::string source;
  std::string model;  // a preset, or a path beside the scenario
  ParallelConfig parallel;
  ProtocolId protocol = ProtocolId::S;
  std::string requests = "1";
  std::int64_t draft_steps = 0;
  bool target_runs = true;  // false: the drafter is fed the rows of a correct target
  ExpectedFinding expect;
  ProtocolId repair = ProtocolId::S;  // the protocol under which the same configuration is clean
  std::string repair_note;
};

/// Throws FileError or ConfigError with file, key and what was expected.
Scenario read_scenario(const std::string& path);

/// All scenarios of a folder, by name. Throws for a name or alias that two of them have.
std::vector<Scenario> read_scenarios(const std::string& folder);

/// The scenario's configuration on token views, under `protocol`: its own is the broken variant,
/// the repair's the right one. Throws ConfigError for one that cannot be simulated.
ViewRunResult run_scenario(const Scenario& scenario, ProtocolId protocol);

/// By name or alias; letters in either case. Throws UsageError with the nearest name.
const Scenario& find_scenario(const std::vector<Scenario>& scenarios, const std::string& name);

}  // namespace tokenview
