// SPDX-License-Identifier: Apache-2.0
#include "verify/scenario.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/json_section.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/seeded_weights.hpp"
#include "reference/program/strict_json.hpp"
#include "verify/data_folder.hpp"
#include "verify/fault_text.hpp"
#include "verify/input_file.hpp"
#include "verify/model_argument.hpp"
#include "verify/report.hpp"
#include "verify/requests.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(text, result.begin(),
                         [](unsigned char c) { return char(std::tolower(c)); });
  return result;
}

std::string string_of(JsonSection& section, const std::string& key, const std::string& otherwise) {
  const nlohmann::json* value = section.find_set(key);
  return value == nullptr ? otherwise : section.to_string(key, *value);
}

std::string required_string(JsonSection& section, const std::string& key) {
  return section.to_string(key, section.required(key));
}

std::vector<std::string> strings_of(JsonSection& section, const std::string& key) {
  std::vector<std::string> strings;
  if (const nlohmann::json* values = section.find_set(key))
    for (const nlohmann::json& value : section.to_array(key, *values))
      strings.push_back(section.to_string(key, value));
  return strings;
}

void refuse_unread(const JsonSection& section) {
  std::vector<std::string> unread;
  section.ignore_unread(unread);
  if (!unread.empty())
    throw ConfigError(text(section.source(), ": ", unread.front(), ": no such key in a scenario"));
}

/// The objects of a list.
template <class Read>
void each_object(JsonSection& section, const std::string& key, const Read& read) {
  const nlohmann::json* list = section.find_set(key);
  if (list == nullptr) return;
  std::size_t index = 0;
  for (const nlohmann::json& object : section.to_array(key, *list)) {
    const std::string path = text(key, '[', index++, "].");
    if (!object.is_object()) section.refuse(key, shown(object), "a list of objects");
    read(JsonSection(object, path, section.source()));
  }
}

std::string check_name(const JsonSection& section, const std::string& key, const std::string& name,
                       bool or_any) {
  std::vector<std::string> names = check_names();
  if (or_any) names.push_back("any");
  if (std::ranges::find(names, name) == names.end())
    section.refuse(key, '"' + shortened(name) + '"',
                   "one of " + joined(names) + suggestion(name, names));
  return name;
}

ExpectedFinding expected_finding(JsonSection section) {
  ExpectedFinding expect;
  expect.check = check_name(section, "check", required_string(section, "check"), false);
  expect.operation = string_of(section, "operation", "");
  expect.module = string_of(section, "module", "");
  expect.tensor = string_of(section, "tensor", "");
  expect.expected = string_of(section, "expected", "");
  expect.actual = string_of(section, "actual", "");
  refuse_unread(section);
  return expect;
}

ParallelConfig parallel_of(JsonSection section) {
  ParallelConfig parallel;
  parallel.tp = section.integer("tp", 1);
  parallel.dp = section.integer("dp", 1);
  parallel.pp = section.integer("pp", 1);
  parallel.enable_expert_parallel = section.boolean("expert_parallel", false);
  for (const auto& [key, degree] :
       {std::pair{"tp", parallel.tp}, {"dp", parallel.dp}, {"pp", parallel.pp}})
    if (degree < 1 || degree > 32) section.refuse(key, std::to_string(degree), "1 to 32");
  refuse_unread(section);
  return parallel;
}

/// The steps' requests: one text, or a list of them.
std::vector<std::string> requests_of(JsonSection& section, const std::string& key,
                                     std::int64_t dp) {
  std::vector<std::string> steps;
  const nlohmann::json& value = section.required(key);
  if (value.is_string())
    steps = {value.get<std::string>()};
  else
    for (const nlohmann::json& step : section.to_array(key, value))
      steps.push_back(section.to_string(key, step));
  if (steps.empty()) section.refuse(key, "an empty list", "requests of at least one step");
  for (const std::string& step : steps)
    in_scope(text(section.source(), ": ", key), [&] { parse_requests(step, dp); });
  return steps;
}

/// What a variant's keys say, on top of `variant`.
void read_variant(JsonSection& section, ScenarioVariant& variant, std::int64_t dp) {
  if (section.has("protocol"))
    variant.protocol = in_scope(text(section.source(), ": protocol"), [&] {
      return parse_protocol(required_string(section, "protocol"));
    });
  variant.forced = section.boolean("forced", variant.forced);
  each_object(section, "faults",
              [&](JsonSection fault) { variant.faults.push_back(read_fault(std::move(fault))); });
  each_object(section, "weights", [&](JsonSection placed) {
    variant.weights.push_back({required_string(placed, "at"), placed.boolean("whole", true)});
    refuse_unread(placed);
  });
  if (auto plan = section.section("plan")) {
    for (const std::string& flag : plan_flag_names())
      if (plan->has(flag)) variant.plan[flag] = plan->boolean(flag, false);
    refuse_unread(*plan);
  }
  if (section.has("requests") && dp > 0) variant.requests = requests_of(section, "requests", dp)[0];
}

RunnerOptions runner_of(JsonSection section) {
  RunnerOptions runner;
  const std::string version = string_of(section, "version", "V1");
  if (version != "V1" && version != "V2")
    section.refuse("version", '"' + shortened(version) + '"', "V1 or V2");
  runner.version = version == "V2" ? RunnerVersion::V2 : RunnerVersion::V1;
  runner.graph_sizes = section.integers("graph_sizes");
  if (!std::ranges::is_sorted(runner.graph_sizes))
    section.refuse("graph_sizes", "not in order", "sizes in ascending order");
  runner.padded_drafter = section.boolean("padded_drafter", true);
  runner.loop_of_most = section.boolean("loop_of_most", false);
  runner.idle_rows = section.integer("idle_rows", -1);
  refuse_unread(section);
  return runner;
}

}  // namespace

std::vector<std::string> check_names() {
  std::vector<std::string> names;
  for (const FindingKind kind : finding_kinds) names.push_back(to_string(kind));
  for (const char* more : {"collective", "shape", "cost"}) names.push_back(more);
  return names;
}

bool ExpectedFinding::matches(const Finding& finding) const {
  const auto same = [](const std::string& wanted, const std::string& found) {
    return wanted.empty() || wanted == found;
  };
  return same(check, to_string(finding.kind)) && same(operation, finding.operation) &&
         same(module, finding.module) && same(tensor, finding.tensor) &&
         finding.expected.find(expected) != std::string::npos &&
         finding.actual.find(actual) != std::string::npos;
}

Scenario read_scenario(const std::string& path) {
  return parse_scenario(read_json_file(path, "a scenario"), path);
}

Scenario parse_scenario(std::string_view json, const std::string& path) {
  const nlohmann::json document = parse_strict_json(json, path);
  if (!document.is_object()) throw ConfigError(text(path, ": expected an object"));
  JsonSection section(document, "", path);

  const std::string schema = required_string(section, "schema");
  if (schema != "tokenview.scenario")
    section.refuse("schema", '"' + schema + '"', "\"tokenview.scenario\"");
  if (section.integer("version") != 1)
    section.refuse("version", std::to_string(section.integer("version")), "1");

  Scenario s;
  s.name = required_string(section, "name");
  s.title = required_string(section, "title");
  s.source = required_string(section, "source");
  const std::string fidelity = string_of(section, "fidelity", "exact");
  if (fidelity != "exact" && fidelity != "analogue")
    section.refuse("fidelity", '"' + shortened(fidelity) + '"', "exact or analogue");
  s.is_exact = fidelity == "exact";
  s.model = string_of(section, "model", "qwen3.5-moe");
  if (const nlohmann::json* changes = section.find_set("model_changes")) {
    if (!changes->is_object()) section.refuse("model_changes", shown(*changes), "an object");
    s.model_changes = changes->dump();
  }
  if (auto parallel = section.section("parallel")) s.parallel = parallel_of(*parallel);
  s.dispatch = in_scope(text(path, ": dispatch"), [&] {
    return parse_dispatch(string_of(section, "dispatch", to_string(s.dispatch)));
  });
  s.requests = requests_of(section, "requests", s.parallel.dp);
  s.draft_steps = section.integer("draft_steps", 0);
  s.target_runs = section.boolean("target_runs", true);
  s.aux_layers = section.integers("aux_layers");
  s.aliases = strings_of(section, "aliases");
  if (auto runner = section.section("runner")) s.runner = runner_of(*runner);
  section.required("protocol");
  read_variant(section, s.broken, 0);

  auto repair = section.section("repair");
  if (!repair) section.refuse("repair", "absent", "an object");
  s.repaired.protocol = s.broken.protocol;
  read_variant(*repair, s.repaired, s.parallel.dp);
  s.repair_note = string_of(*repair, "note", "");
  refuse_unread(*repair);
  auto expect = section.section("expect");
  if (!expect) section.refuse("expect", "absent", "an object");
  s.expect = expected_finding(*expect);
  each_object(section, "blind", [&](JsonSection spot) {
    BlindSpot& blind = s.blind.emplace_back();
    for (const std::string& check : strings_of(spot, "checks"))
      blind.checks.push_back(check_name(spot, "checks", check, true));
    if (blind.checks.empty()) spot.refuse("checks", "absent", "a list of checks");
    blind.at = string_of(spot, "at", "*");
    if (auto parallel = spot.section("parallel")) blind.parallel = parallel_of(*parallel);
    const std::int64_t dp = blind.parallel ? blind.parallel->dp : s.parallel.dp;
    if (spot.has("requests")) blind.requests = requests_of(spot, "requests", dp);
    if (spot.has("draft_steps")) blind.draft_steps = spot.integer("draft_steps");
    refuse_unread(spot);
  });
  refuse_unread(section);

  if (!s.target_runs && s.draft_steps == 0)
    section.refuse("draft_steps", "0", "at least 1 where target_runs is false");
  if (s.draft_steps < 0 || s.draft_steps > 16)
    section.refuse("draft_steps", std::to_string(s.draft_steps), "0 to 16");
  return s;
}

std::vector<Scenario> read_scenarios(const std::string& folder,
                                     std::vector<RefusedScenario>* refused) {
  std::vector<Scenario> scenarios;
  std::map<std::string, std::string> taken;
  for (const std::string& file : files_of(folder, ".json")) {
    try {
      Scenario scenario = read_scenario(file);
      std::vector<std::string> names = scenario.aliases;
      names.push_back(scenario.name);
      for (const std::string& name : names)
        if (const auto at = taken.find(lower(name)); at != taken.end())
          throw ConfigError(text(file, ": name: \"", name, "\" is also in ", at->second));
      for (const std::string& name : names) taken.emplace(lower(name), file);
      scenarios.push_back(std::move(scenario));
    } catch (const Error& error) {
      if (refused == nullptr) throw;
      refused->push_back({std::filesystem::path(file).stem().string(), error.what()});
    }
  }
  return scenarios;
}

const Finding* ScenarioResult::first(const std::string& check) const {
  const std::vector<Finding>& findings = check == "numeric" ? numeric : views.findings;
  return findings.empty() ? nullptr : &findings.front();
}

void require_met(const std::vector<InjectedFault>& faults, const std::vector<std::int64_t>& hits,
                 const ViewRunResult& run, const std::string& source) {
  if (!run.error.empty()) return;
  for (std::size_t i = 0; i < faults.size(); ++i)
    if (hits[i] == 0)
      throw ConfigError(text(source, ": fault ", to_string(faults[i]),
                             ": never met its place: no such operation in such a module, on such "
                             "a rank, or so many times"));
}

ModelConfig config_of(const Scenario& s) {
  const ModelArgument model = model_argument(s.model);
  if (s.model_changes.empty()) return model.reading.config;
  nlohmann::json config = parse_strict_json(model.config_json, s.model);
  config.merge_patch(nlohmann::json::parse(s.model_changes));
  return in_scope(s.name, [&] { return read_config_json(config.dump(), "model_changes").config; });
}

ParallelRun run_of(const Scenario& s, const ScenarioVariant& variant, const ModelConfig& config) {
  ParallelRun run{.config = config,
                  .plan = plan_for(config, s.parallel, variant.protocol, variant.forced)};
  run.plan.dispatch = s.dispatch;
  run.plan.aux_layers = s.aux_layers;
  run.plan.placed = variant.weights;
  for (const auto& [flag, value] : variant.plan) plan_flag(run.plan, flag) = value;
  run.draft_steps = std::size_t(s.draft_steps);
  run.target_runs = s.target_runs;
  run.runner = s.runner;
  if (!variant.faults.empty()) run.faults = &variant.faults;
  for (std::size_t step = 0; step < s.requests.size(); ++step) {
    const std::string& requests =
        step == 0 && variant.requests ? *variant.requests : s.requests[step];
    std::vector<StepInputs> inputs = inputs_of(parse_requests(requests, s.parallel.dp));
    for (std::size_t dp = 0; dp < inputs.size(); ++dp)
      for (Batch* batch : {&inputs[dp].context, &inputs[dp].step})
        spread_ids(*batch, std::int64_t(dp), std::int64_t(step), config.vocab_size);
    if (step == 0)
      run.inputs = std::move(inputs);
    else
      run.later_steps.push_back(std::move(inputs));
  }
  return run;
}

ScenarioResult run_scenario(const Scenario& s, const ScenarioVariant& variant, bool may_miss) {
  const ModelConfig config = config_of(s);
  require_simulable(config, s.parallel, s.draft_steps);
  ParallelRun run = run_of(s, variant, config);
  ScenarioResult result;
  run.finished = [&](const SimMesh& mesh) {
    for (std::int64_t rank = 0; rank < s.parallel.world_size(); ++rank)
      result.elements_sent += mesh.traffic(rank).elements;
  };
  std::vector<std::int64_t> hits(variant.faults.size(), 0);
  run.fault_hits = &hits;
  result.views = run_views(run, true);
  run.fault_hits = nullptr;
  if (!may_miss) require_met(variant.faults, hits, result.views, s.name);
  if (s.expect.check != "numeric" || &variant == &s.repaired) return result;

  // The repaired variant's numbers are the trusted ones.
  run.finished = {};
  const ParallelRun right = run_of(s, s.repaired, config);
  require_arithmetic(config);
  const SeededWeights weights(config, 1);
  result.numeric =
      number_findings(run_views(right, true), s.parallel, run_numbers<double>(right, weights),
                      run_numbers<double>(run, weights), 1e-9);
  result.numbers_ran = true;
  return result;
}

bool behaves_as_told(const Scenario& s, const ScenarioResult& broken, std::string& problem) {
  const ExpectedFinding& expect = s.expect;
  const Finding* first = broken.first(expect.check);
  const std::string found = first != nullptr             ? "found " + to_string(*first)
                            : broken.views.error.empty() ? std::string("found nothing")
                                                         : "stopped: " + broken.views.error;
  problem =
      text("expected first ", expect.check, ' ', expect.module, ' ', expect.operation, ": ", found);
  const std::string& error = broken.views.error;
  const auto says = [&](const std::string& words) {
    return error.find(words) != std::string::npos;
  };
  if (expect.check == "collective")
    return broken.views.collective_mismatch && broken.views.findings.empty() &&
           says(expect.operation) && says(expect.module) && says(expect.actual);
  if (expect.check == "shape")
    return !error.empty() && !broken.views.collective_mismatch && broken.views.findings.empty() &&
           says(expect.operation) && says(expect.actual);
  if (expect.check == "cost") {
    const double repaired = run_scenario(s, s.repaired).elements_sent;
    problem = text("expected more to be sent than by the repaired variant: ", broken.elements_sent,
                   " and ", repaired, " elements; ", found);
    return broken.views.clean() && broken.elements_sent > repaired;
  }
  return first != nullptr && expect.matches(*first);
}

bool is_blind(const Scenario& s, const BlindSpot& spot, std::string& problem) {
  Scenario there = s;
  if (spot.requests) there.requests = *spot.requests;
  if (spot.parallel) there.parallel = *spot.parallel;
  if (spot.draft_steps) there.draft_steps = *spot.draft_steps;
  const auto looks_at = [&](const std::string& check) {
    return std::ranges::find(spot.checks, check) != spot.checks.end() ||
           std::ranges::find(spot.checks, "any") != spot.checks.end();
  };
  const bool has_numbers = config_of(there).has_arithmetic();
  there.expect.check = looks_at("numeric") && has_numbers ? "numeric" : "rows";
  const ScenarioResult result = run_scenario(there, there.broken, true);
  const auto sees = [&](const Finding& finding) {
    return looks_at(to_string(finding.kind)) && fits(spot.at, finding.module);
  };
  for (const std::vector<Finding>* findings : {&result.views.findings, &result.numeric})
    for (const Finding& finding : *findings)
      if (sees(finding)) {
        problem = "sees " + to_string(finding);
        return false;
      }
  if (!result.views.error.empty() &&
      looks_at(result.views.collective_mismatch ? "collective" : "shape")) {
    problem = "sees " + result.views.error;
    return false;
  }
  return true;
}

Scenario scenario_named(const std::string& name, const std::function<std::string()>& folder,
                        std::vector<RefusedScenario>* refused) {
  if (name.ends_with(".json")) return read_scenario(name);
  std::vector<RefusedScenario> others;
  const auto scenarios = read_scenarios(folder(), &others);
  for (const RefusedScenario& file : others)
    if (file.stem == name) throw ConfigError(file.problem);
  if (refused != nullptr) *refused = std::move(others);
  return find_scenario(scenarios, name);
}

std::string in_words(const Scenario& s, const ScenarioVariant& variant) {
  std::string requests;
  for (const std::string& step : s.requests) requests += (requests.empty() ? "" : ", then ") + step;
  return text("protocol ", to_string(variant.protocol), ", ", in_words(s.parallel), ", requests ",
              requests, ", ", plural(s.draft_steps, "draft step"),
              s.target_runs ? "" : ", a correct target");
}

const Scenario& find_scenario(const std::vector<Scenario>& scenarios, std::string_view name) {
  std::vector<std::string> names;
  for (const Scenario& scenario : scenarios) {
    names.push_back(scenario.name);
    if (lower(scenario.name) == lower(name)) return scenario;
    for (const std::string& alias : scenario.aliases) {
      names.push_back(alias);
      if (lower(alias) == lower(name)) return scenario;
    }
  }
  throw UsageError(
      text("no scenario \"", name, '"', suggestion(name, names), "; repro --list shows all"));
}

}  // namespace tokenview
