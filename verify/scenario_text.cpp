// SPDX-License-Identifier: Apache-2.0
#include "verify/scenario_text.hpp"

#include <nlohmann/json.hpp>

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

/// Sets a key to what is not its default.
template <class T, class Default>
void set(Json& object, const char* key, const T& value, const Default& otherwise) {
  if (!(value == otherwise)) object[key] = value;
}

Json json_of(const InjectedFault& fault) {
  const InjectedFault none;
  Json out = {{"act", to_string(fault.act)}, {"op", fault.op}};
  set(out, "at", fault.at, none.at);
  set(out, "group", fault.group, none.group);
  set(out, "tp", fault.tp, none.tp);
  set(out, "dp", fault.dp, none.dp);
  set(out, "pp", fault.pp, none.pp);
  set(out, "occurrence", fault.occurrence, none.occurrence);
  set(out, "nth", fault.nth, none.nth);
  set(out, "step", fault.step, none.step);
  set(out, "draft", fault.draft, none.draft);
  set(out, "least", fault.least, none.least);
  set(out, "most", fault.most, none.most);
  set(out, "with", fault.with, none.with);
  set(out, "factor", fault.factor, none.factor);
  set(out, "numbers", fault.numbers, none.numbers);
  if (fault.act == FaultAct::set && fault.numbers.empty())
    out["number"] = fault.number;
  else
    set(out, "number", fault.number, none.number);
  return out;
}

/// What a variant says on top of a protocol.
void add_variant(Json& out, const ScenarioVariant& variant) {
  set(out, "forced", variant.forced, false);
  for (const InjectedFault& fault : variant.faults) out["faults"].push_back(json_of(fault));
  for (const PlacedWeights& weights : variant.weights)
    out["weights"].push_back({{"at", weights.at}, {"whole", weights.whole}});
  for (const auto& [flag, value] : variant.plan) out["plan"][flag] = value;
}

}  // namespace

std::string scenario_json(const Scenario& s) {
  Json out = {{"schema", "tokenview.scenario"}, {"version", 1}, {"name", s.name}};
  set(out, "aliases", s.aliases, std::vector<std::string>());
  out["title"] = s.title;
  out["source"] = s.source;
  if (!s.is_exact) out["fidelity"] = "analogue";
  out["model"] = s.model;
  if (!s.model_changes.empty()) out["model_changes"] = Json::parse(s.model_changes);
  out["parallel"] = {{"tp", s.parallel.tp},
                     {"dp", s.parallel.dp},
                     {"pp", s.parallel.pp},
                     {"expert_parallel", s.parallel.enable_expert_parallel}};
  out["protocol"] = to_string(s.broken.protocol);
  set(out, "dispatch", std::string(to_string(s.dispatch)),
      to_string(Dispatch::allgather_reducescatter));
  if (s.requests.size() == 1)
    out["requests"] = s.requests.front();
  else
    out["requests"] = s.requests;
  set(out, "draft_steps", s.draft_steps, 0);
  set(out, "target_runs", s.target_runs, true);
  set(out, "aux_layers", s.aux_layers, std::vector<std::int64_t>());
  const RunnerOptions eager;
  Json runner = Json::object();
  if (s.runner.version == RunnerVersion::V2) runner["version"] = "V2";
  set(runner, "graph_sizes", s.runner.graph_sizes, eager.graph_sizes);
  set(runner, "padded_drafter", s.runner.padded_drafter, eager.padded_drafter);
  set(runner, "loop_of_most", s.runner.loop_of_most, eager.loop_of_most);
  set(runner, "idle_rows", s.runner.idle_rows, eager.idle_rows);
  if (!runner.empty()) out["runner"] = runner;
  add_variant(out, s.broken);

  Json& expect = out["expect"] = {{"check", s.expect.check}};
  const std::string none;
  set(expect, "operation", s.expect.operation, none);
  set(expect, "module", s.expect.module, none);
  set(expect, "tensor", s.expect.tensor, none);
  set(expect, "expected", s.expect.expected, none);
  set(expect, "actual", s.expect.actual, none);

  Json& repair = out["repair"] = Json::object();
  if (s.repaired.protocol != s.broken.protocol) repair["protocol"] = to_string(s.repaired.protocol);
  add_variant(repair, s.repaired);
  if (s.repaired.requests) repair["requests"] = *s.repaired.requests;
  repair["note"] = s.repair_note;

  for (const BlindSpot& spot : s.blind) {
    Json& blind = out["blind"].emplace_back(Json{{"checks", spot.checks}});
    set(blind, "at", spot.at, "*");
    if (spot.requests) blind["requests"] = *spot.requests;
    if (spot.parallel)
      blind["parallel"] = {{"tp", spot.parallel->tp},
                           {"dp", spot.parallel->dp},
                           {"pp", spot.parallel->pp},
                           {"expert_parallel", spot.parallel->enable_expert_parallel}};
    if (spot.draft_steps) blind["draft_steps"] = *spot.draft_steps;
  }
  return out.dump(2) + '\n';
}

}  // namespace tokenview
