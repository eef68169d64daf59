// SPDX-License-Identifier: Apache-2.0
#include "verify/scenario.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reference/program/error.hpp"
#include "reference/program/json_section.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/strict_json.hpp"
#include "verify/data_folder.hpp"
#include "verify/model_argument.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

std::string string_of(JsonSection& section, const std::string& key, const std::string& otherwise) {
  const nlohmann::json* value = section.find_set(key);
  return value == nullptr ? otherwise : section.to_string(key, *value);
}

std::string required_string(JsonSection& section, const std::string& key) {
  return section.to_string(key, section.required(key));
}

void refuse_unread(const JsonSection& section) {
  std::vector<std::string> unread;
  section.ignore_unread(unread);
  if (!unread.empty())
    throw ConfigError(text(section.source(), ": ", unread.front(), ": no such key in a scenario"));
}

ExpectedFinding expected_finding(JsonSection section) {
  ExpectedFinding expect;
  expect.check = required_string(section, "check");
  expect.operation = string_of(section, "operation", "");
  expect.module = string_of(section, "module", "");
  expect.tensor = string_of(section, "tensor", "");
  expect.expected = string_of(section, "expected", "");
  expect.actual = string_of(section, "actual", "");
  std::vector<std::string> kinds;
  for (const FindingKind kind : {FindingKind::rows, FindingKind::completeness, FindingKind::columns,
                                 FindingKind::bounds, FindingKind::state})
    kinds.push_back(to_string(kind));
  if (std::ranges::find(kinds, expect.check) == kinds.end())
    section.refuse("check", '"' + expect.check + '"', "one of " + joined(kinds));
  refuse_unread(section);
  return expect;
}

}  // namespace

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
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError(text(path, ": cannot be read, expected a scenario"));
  std::stringstream content;
  content << file.rdbuf();
  const nlohmann::json document = parse_strict_json(content.str(), path);
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
  s.model = string_of(section, "model", "qwen3.5-moe");
  s.requests = string_of(section, "requests", "1");
  s.draft_steps = section.integer("draft_steps", 0);
  s.target_runs = section.boolean("target_runs", true);
  if (const nlohmann::json* aliases = section.find_set("aliases"))
    for (const nlohmann::json& alias : section.to_array("aliases", *aliases))
      s.aliases.push_back(section.to_string("aliases", alias));
  if (auto parallel = section.section("parallel")) {
    s.parallel.tp = parallel->integer("tp", 1);
    s.parallel.dp = parallel->integer("dp", 1);
    s.parallel.pp = parallel->integer("pp", 1);
    s.parallel.enable_expert_parallel = parallel->boolean("expert_parallel", false);
    refuse_unread(*parallel);
  }
  s.protocol = in_scope(text(path, ": protocol"),
                        [&] { return parse_protocol(required_string(section, "protocol")); });
  auto repair = section.section("repair");
  if (!repair) section.refuse("repair", "absent", "an object");
  s.repair = in_scope(text(path, ": repair.protocol"),
                      [&] { return parse_protocol(required_string(*repair, "protocol")); });
  s.repair_note = string_of(*repair, "note", "");
  refuse_unread(*repair);
  auto expect = section.section("expect");
  if (!expect) section.refuse("expect", "absent", "an object");
  s.expect = expected_finding(*expect);
  refuse_unread(section);
  in_scope(text(path, ": requests"), [&] { parse_requests(s.requests, s.parallel.dp); });
  if (!s.target_runs && s.draft_steps == 0)
    section.refuse("draft_steps", "0", "at least 1 where target_runs is false");
  if (s.draft_steps < 0 || s.draft_steps > 16)
    section.refuse("draft_steps", std::to_string(s.draft_steps), "0 to 16");
  return s;
}

std::vector<Scenario> read_scenarios(const std::string& folder) {
  std::vector<Scenario> scenarios;
  std::map<std::string, std::string> taken;
  for (const std::string& file : files_of(folder, ".json")) {
    Scenario scenario = read_scenario(file);
    std::vector<std::string> names = scenario.aliases;
    names.push_back(scenario.name);
    for (const std::string& name : names)
      if (const auto [at, is_new] = taken.emplace(lower(name), file); !is_new)
        throw ConfigError(text(file, ": name: \"", name, "\" is also in ", at->second));
    scenarios.push_back(std::move(scenario));
  }
  return scenarios;
}

ViewRunResult run_scenario(const Scenario& s, ProtocolId protocol) {
  const ModelConfig config = model_argument(s.model).reading.config;
  require_simulable(config, s.parallel, s.draft_steps);
  return run_views({.config = config,
                    .plan = plan_for(config, s.parallel, protocol),
                    .inputs = inputs_of(parse_requests(s.requests, s.parallel.dp)),
                    .draft_steps = std::size_t(s.draft_steps),
                    .target_runs = s.target_runs},
                   true);
}

const Scenario& find_scenario(const std::vector<Scenario>& scenarios, const std::string& name) {
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
