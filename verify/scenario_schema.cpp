// SPDX-License-Identifier: Apache-2.0
#include "verify/scenario_schema.hpp"

#include <nlohmann/json.hpp>

#include "reference/program/parallel_plan.hpp"
#include "verify/fault_text.hpp"
#include "verify/scenario.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

Json integer(std::int64_t least) { return {{"type", "integer"}, {"minimum", least}}; }
Json integer(std::int64_t least, std::int64_t most) {
  return {{"type", "integer"}, {"minimum", least}, {"maximum", most}};
}
Json list_of(Json items, std::size_t least = 0) {
  Json list = {{"type", "array"}, {"items", std::move(items)}};
  if (least > 0) list["minItems"] = least;
  return list;
}
Json one_of(const std::vector<std::string>& words) { return {{"enum", words}}; }
Json defined(const char* name) { return {{"$ref", std::string("#/$defs/") + name}}; }
Json object(Json properties, const std::vector<std::string>& required = {}) {
  Json out = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) out["required"] = required;
  out["additionalProperties"] = false;
  return out;
}

const Json string = {{"type", "string"}};
const Json name = {{"type", "string"}, {"minLength", 1}};
const Json boolean = {{"type", "boolean"}};

template <class Ids>
std::vector<std::string> words_for(const Ids& ids) {
  std::vector<std::string> words;
  for (const auto id : ids) words.emplace_back(to_string(id));
  return words;
}

/// Of one act: its words, or numbers that it cannot do without; null for most.
Json rule_of(FaultAct act) {
  Json then = Json::object();
  if (const auto* words = words_of(act)) {
    then["properties"]["with"] = one_of(*words);
    then["required"].push_back("with");
  }
  if (act == FaultAct::sizes) {
    then["properties"]["numbers"] = {{"minItems", 1}};
    then["required"].push_back("numbers");
  }
  if (then.empty()) return {};
  return {{"if", {{"properties", {{"act", {{"const", to_string(act)}}}}}}}, {"then", then}};
}

Json fault() {
  Json out = object({{"act", one_of(act_names())},
                     {"op", name},
                     {"at", name},
                     {"group", one_of(group_names())},
                     {"tp", integer(-1)},
                     {"dp", integer(-1)},
                     {"pp", integer(-1)},
                     {"occurrence", integer(0)},
                     {"nth", integer(0)},
                     {"step", integer(-1)},
                     {"draft", integer(-2)},
                     {"least", integer(0)},
                     {"most", integer(-1)},
                     {"with", name},
                     {"factor", {{"type", "number"}}},
                     {"number", {{"type", "integer"}}},
                     {"numbers", list_of({{"type", "integer"}})}},
                    {"act"});
  out["if"] = {{"properties", {{"act", {{"const", to_string(FaultAct::side)}}}}}};
  out["else"] = {{"required", {"op"}}};
  for (const FaultAct act : all_fault_acts())
    if (const Json rule = rule_of(act); !rule.is_null()) out["allOf"].push_back(rule);
  out["allOf"].push_back(
      {{"if", {{"properties", {{"with", {{"const", "swap"}}}}}, {"required", {"with"}}}},
       {"then",
        {{"properties", {{"numbers", {{"minItems", 2}, {"maxItems", 2}}}}},
         {"required", {"numbers"}}}}});
  return out;
}

Json plan_flags_object() {
  Json flags = Json::object();
  for (const std::string& flag : plan_flag_names()) flags[flag] = boolean;
  return object(flags);
}

}  // namespace

std::string scenario_schema() {
  std::vector<std::string> checks = check_names(), blind_checks = checks;
  blind_checks.push_back("any");
  const Json variant = {{"protocol", defined("protocol")},
                        {"forced", boolean},
                        {"faults", list_of(defined("fault"))},
                        {"weights", list_of(object({{"at", name}, {"whole", boolean}}, {"at"}))},
                        {"plan", defined("plan")},
                        {"requests", defined("requests")}};

  Json properties = {{"schema", {{"const", "tokenview.scenario"}}},
                     {"version", {{"const", 1}}},
                     {"name", name},
                     {"aliases", list_of(name)},
                     {"title", name},
                     {"source", name},
                     {"fidelity", one_of({"exact", "analogue"})},
                     {"model", name},
                     {"model_changes", {{"type", "object"}}},
                     {"parallel", defined("parallel")},
                     {"dispatch", one_of(words_for(all_dispatches()))},
                     {"draft_steps", integer(0, 16)},
                     {"target_runs", boolean},
                     {"aux_layers", list_of(integer(0))},
                     {"runner", object({{"version", one_of({"V1", "V2"})},
                                        {"graph_sizes", list_of(integer(1))},
                                        {"padded_drafter", boolean},
                                        {"loop_of_most", boolean},
                                        {"idle_rows", integer(-1)}})}};
  properties.update(variant);
  properties["expect"] = object({{"check", one_of(checks)},
                                 {"operation", string},
                                 {"module", string},
                                 {"tensor", string},
                                 {"expected", string},
                                 {"actual", string}},
                                {"check"});
  Json repair = variant;
  repair["note"] = string;
  properties["repair"] = object(repair);
  properties["blind"] = list_of(object({{"checks", list_of(one_of(blind_checks), 1)},
                                        {"at", name},
                                        {"requests", defined("requests")},
                                        {"parallel", defined("parallel")},
                                        {"draft_steps", integer(0, 16)}},
                                       {"checks"}));

  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "A scenario of tokenview: a real bug, told so that it can be run"},
                 {"description",
                  "Written by tokenview --generate scenario-schema; docs/scenarios.md has the "
                  "meanings."}};
  schema.update(object(properties, {"schema", "version", "name", "title", "source", "protocol",
                                    "requests", "expect", "repair"}));
  schema["if"] = {{"properties", {{"target_runs", {{"const", false}}}}},
                  {"required", {"target_runs"}}};
  schema["then"] = {{"properties", {{"draft_steps", {{"minimum", 1}}}}},
                    {"required", {"draft_steps"}}};
  const Json step = {{"type", "string"}, {"pattern", "^[0-9cvr+/,]+$"}};
  schema["$defs"] = {{"protocol", one_of(words_for(all_protocols()))},
                     {"requests", {{"anyOf", {step, list_of(step, 1)}}}},
                     {"parallel", object({{"tp", integer(1, 32)},
                                          {"dp", integer(1, 32)},
                                          {"pp", integer(1, 32)},
                                          {"expert_parallel", boolean}})},
                     {"plan", plan_flags_object()},
                     {"fault", fault()}};
  return schema.dump(2) + '\n';
}

}  // namespace tokenview
