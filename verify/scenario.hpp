// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/injected_fault.hpp"
#include "reference/program/parallel_plan.hpp"
#include "verify/number_run.hpp"
#include "verify/view_run.hpp"

namespace tokenview {

/// What must be found first in a broken configuration. An empty field matches anything; `expected`
/// and `actual` match where they are contained in the finding's.
struct ExpectedFinding {
  /// A FindingKind by name; `collective`: ranks disagree before anything moves; `shape`: a kernel
  /// refuses its operands; `cost`: nothing is wrong, and more is sent than by the repaired variant.
  std::string check;
  std::string operation;
  std::string module;
  std::string tensor;
  std::string expected;
  std::string actual;

  bool matches(const Finding& finding) const;
};

/// What may differ between the broken and the repaired variant of a scenario.
struct ScenarioVariant {
  ProtocolId protocol = ProtocolId::S;
  bool forced = false;  // without the protocol's fallbacks
  std::vector<InjectedFault> faults;
  std::vector<PlacedWeights> weights;
  std::map<std::string, bool> plan;  // flags of the plan by name
  std::optional<std::string> requests;
};

/// A configuration in which checks of some kinds find nothing, although the fault is there: why the
/// others are needed.
struct BlindSpot {
  std::vector<std::string> checks;  // kinds; "shape": the run is not stopped; "any": all of them
  std::string at = "*";             // findings in these modules, as a glob
  std::optional<std::vector<std::string>> requests;
  std::optional<ParallelConfig> parallel;
  std::optional<std::int64_t> draft_steps;
};

/// A real bug, told so that it can be run: the smallest configuration, what must be found first,
/// and the variant that is right. Files in data/scenarios; schema in docs/scenario-schema.json.
struct Scenario {
  std::string name;  // repository and number of its first reference: "vllm-48429"
  std::vector<std::string> aliases;
  std::string title;
  std::string source;
  bool is_exact = true;  // false: an analogue on a model, or a protocol, that the report is not of
  std::string model;     // a preset, or a path
  std::string model_changes;  // keys of its config.json that differ, as JSON; empty: none
  ParallelConfig parallel;
  Dispatch dispatch = Dispatch::allgather_reducescatter;
  std::vector<std::string> requests = {"1"};  // of each engine step
  std::int64_t draft_steps = 0;
  bool target_runs = true;  // false: the drafter is fed the rows of a correct target
  std::vector<std::int64_t> aux_layers;
  RunnerOptions runner;
  ScenarioVariant broken, repaired;
  ExpectedFinding expect;
  std::string repair_note;
  std::vector<BlindSpot> blind;
};

/// The checks that a scenario may expect.
std::vector<std::string> check_names();

/// Throws FileError or ConfigError with file, key and what was expected.
Scenario read_scenario(const std::string& path);
/// The same of a file's text; `source` names it in errors.
Scenario parse_scenario(std::string_view json, const std::string& source);

/// A file of a folder of scenarios that is none.
struct RefusedScenario {
  std::string stem;     // the file's name without .json: as a rule, the scenario's
  std::string problem;  // file, key and what was expected
};

/// All scenarios of a folder, in order of files. A file that cannot be read, or that has a name or
/// alias of one before it, goes to `refused` and the others are read; without `refused` it throws.
std::vector<Scenario> read_scenarios(const std::string& folder,
                                     std::vector<RefusedScenario>* refused = nullptr);

/// By name or alias; letters in either case. Throws UsageError with the nearest name.
const Scenario& find_scenario(const std::vector<Scenario>& scenarios, std::string_view name);

/// By name or alias among the scenarios of `folder`, or by path, where `name` ends in .json. Other
/// files of the folder that are none go to `refused`, where it is given.
Scenario scenario_named(const std::string& name, const std::function<std::string()>& folder,
                        std::vector<RefusedScenario>* refused = nullptr);

/// "protocol B, tp=4 dp=1 ep, requests 10, 1 draft step, a correct target"
std::string in_words(const Scenario& scenario, const ScenarioVariant& variant);

/// What a variant runs: its model, and the configuration with inputs. Scenario, variant and model
/// outlive the run.
ModelConfig config_of(const Scenario& scenario);
ParallelRun run_of(const Scenario& scenario, const ScenarioVariant& variant,
                   const ModelConfig& config);

/// A run of one variant.
struct ScenarioResult {
  ViewRunResult views;
  std::vector<Finding> numeric;  // where the numbers leave the repaired variant's
  bool numbers_ran = false;
  double elements_sent = 0;  // by all ranks

  bool clean() const { return views.clean() && numeric.empty(); }
  /// The finding that comes first in what `check` looks at; nullptr: none.
  const Finding* first(const std::string& check) const;
};

/// Throws ConfigError, in the name of `source`, for a fault that never met its place in a run that
/// went to its end.
void require_met(const std::vector<InjectedFault>& faults, const std::vector<std::int64_t>& hits,
                 const ViewRunResult& run, const std::string& source);

/// The scenario's variant on token views; with numbers too where the expected check is `numeric`.
/// Throws ConfigError for one that cannot be simulated, and, unless `may_miss`, for a fault that
/// never met its place.
ScenarioResult run_scenario(const Scenario& scenario, const ScenarioVariant& variant,
                            bool may_miss = false);

/// Whether the broken variant behaves as the scenario says; `problem` says how not.
bool behaves_as_told(const Scenario& scenario, const ScenarioResult& broken, std::string& problem);

/// Whether the checks of a blind spot find nothing there.
bool is_blind(const Scenario& scenario, const BlindSpot& spot, std::string& problem);

}  // namespace tokenview
