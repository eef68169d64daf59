// SPDX-License-Identifier: Apache-2.0
#include "verify/fault_text.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {
namespace {

constexpr FaultAct acts[] = {FaultAct::drop,  FaultAct::repeat, FaultAct::replace, FaultAct::before,
                             FaultAct::after, FaultAct::group,  FaultAct::axis,    FaultAct::order,
                             FaultAct::count, FaultAct::sizes,  FaultAct::stale,   FaultAct::poison,
                             FaultAct::leave, FaultAct::rows,   FaultAct::scale,   FaultAct::set,
                             FaultAct::side,  FaultAct::due};

FaultAct act_named(const std::string& name, bool& known) {
  for (const FaultAct act : acts)
    if (name == to_string(act)) return act;
  known = false;
  return FaultAct::drop;
}

}  // namespace

std::span<const FaultAct> all_fault_acts() { return acts; }

std::vector<std::string> act_names() {
  std::vector<std::string> names;
  for (const FaultAct act : acts) names.push_back(to_string(act));
  return names;
}

const std::vector<std::string>& group_names() {
  static const std::vector<std::string> groups = {"tp", "dp", "ep", "pp"};
  return groups;
}

const std::vector<std::string>* words_of(FaultAct act) {
  static const std::vector<std::string> collectives = {"all_reduce", "all_gather",
                                                       "reduce_scatter"};
  static const std::vector<std::string> moves = {
      "all_reduce", "all_gather", "reduce_scatter", "gather", "scatter", "chunk", "trim", "prefix"};
  static const std::vector<std::string> orders = {"reverse", "rotate", "swap", "round_robin",
                                                  "tp_major"};
  static const std::vector<std::string> contents = {"nan", "large", "stale"};
  static const std::vector<std::string> rows = {"prefix",      "floor", "round_robin",    "reverse",
                                                "repeat_last", "mix",   "shift_in_shards"};
  static const std::vector<std::string> sides = {
      "positions shard", "boundaries merged", "boundaries padded", "slots first", "slots unguarded",
      "no row counts",   "local row counts",  "row counts",        "tokens"};
  switch (act) {
    case FaultAct::replace:
      return &collectives;
    case FaultAct::before:
    case FaultAct::after:
      return &moves;
    case FaultAct::group:
      return &group_names();
    case FaultAct::order:
      return &orders;
    case FaultAct::poison:
      return &contents;
    case FaultAct::rows:
      return &rows;
    case FaultAct::side:
      return &sides;
    default:
      return nullptr;
  }
}

InjectedFault read_fault(JsonSection section) {
  const auto string_of = [&](const std::string& key, const std::string& otherwise) {
    const nlohmann::json* value = section.find_set(key);
    return value == nullptr ? otherwise : section.to_string(key, *value);
  };
  InjectedFault fault;
  const std::string act = section.to_string("act", section.required("act"));
  bool known = true;
  fault.act = act_named(act, known);
  if (!known)
    section.refuse("act", '"' + shortened(act) + '"',
                   "one of " + joined(act_names()) + suggestion(act, act_names()));
  fault.op = fault.act == FaultAct::side ? string_of("op", "batch")
                                         : section.to_string("op", section.required("op"));
  fault.at = string_of("at", "*");
  fault.group = string_of("group", "");
  if (const auto& groups = group_names();
      !fault.group.empty() && std::ranges::find(groups, fault.group) == groups.end())
    section.refuse("group", '"' + shortened(fault.group) + '"',
                   "one of " + joined(groups) + suggestion(fault.group, groups));
  const auto place = [&](const char* key, std::int64_t anywhere) {
    const std::int64_t value = section.integer(key, anywhere);
    if (value < anywhere) section.refuse(key, std::to_string(value), text("at least ", anywhere));
    return value;
  };
  fault.tp = place("tp", -1);
  fault.dp = place("dp", -1);
  fault.pp = place("pp", -1);
  fault.occurrence = place("occurrence", 0);
  fault.nth = place("nth", 0);
  fault.step = place("step", -1);
  fault.draft = place("draft", -2);
  fault.least = place("least", 0);
  fault.most = place("most", -1);
  fault.with = string_of("with", "");
  fault.factor = section.number("factor", 1);
  fault.number = section.integer("number", 0);
  fault.numbers = section.integers("numbers");
  if (const auto* words = words_of(fault.act);
      words != nullptr && std::ranges::find(*words, fault.with) == words->end())
    section.refuse("with", '"' + shortened(fault.with) + '"',
                   "one of " + joined(*words) + suggestion(fault.with, *words));
  if (fault.act == FaultAct::sizes && fault.numbers.empty())
    section.refuse("numbers", "absent", "rows of each rank");
  if (fault.act == FaultAct::order && fault.with == "swap" && fault.numbers.size() != 2)
    section.refuse("numbers", text(fault.numbers.size(), " numbers"), "the two ranks to swap");
  std::vector<std::string> unread;
  section.ignore_unread(unread);
  if (!unread.empty())
    throw ConfigError(text(section.source(), ": ", unread.front(), ": no such key of a fault"));
  return fault;
}

InjectedFault parse_fault(std::string_view input) {
  const auto refuse = [&](const std::string& problem) -> void {
    throw UsageError(text("fault \"", shortened(std::string(input)), "\": ", problem,
                          ", expected ACT:OPERATION[@MODULE][,key=value...], for example "
                          "drop:all_gather@mtp.*,tp=1"));
  };
  nlohmann::json object = nlohmann::json::object();
  std::string_view rest = input;
  const auto take_until = [&](std::string_view stops) {
    const std::size_t end = std::min(rest.find_first_of(stops), rest.size());
    const std::string taken(rest.substr(0, end));
    rest.remove_prefix(end);
    return taken;
  };
  object["act"] = take_until(":@,");
  if (rest.starts_with(':')) {
    rest.remove_prefix(1);
    object["op"] = take_until("@,");
  }
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    object["at"] = take_until(",");
  }
  while (rest.starts_with(',')) {
    rest.remove_prefix(1);
    const std::string key = take_until("=,");
    if (!rest.starts_with('=')) refuse(text("no value for \"", key, '"'));
    rest.remove_prefix(1);
    const std::string value = take_until(",");
    if (key == "with" || key == "group") {
      object[key] = value;
      continue;
    }
    const nlohmann::json parsed = nlohmann::json::parse(value, nullptr, false);
    if (key == "numbers") {
      // Numbers with a plus between them: a comma would end the value.
      nlohmann::json list = nlohmann::json::array();
      std::string_view left = value;
      while (!left.empty()) {
        const std::size_t end = std::min(left.find('+'), left.size());
        const auto number = nlohmann::json::parse(left.substr(0, end), nullptr, false);
        if (!number.is_number_integer()) refuse(text("no number in \"", value, '"'));
        list.push_back(number);
        left.remove_prefix(std::min(end + 1, left.size()));
      }
      object[key] = list;
    } else {
      if (!parsed.is_number()) refuse(text("no number in \"", key, '=', value, '"'));
      object[key] = parsed;
    }
  }
  const std::string source = text("fault \"", shortened(std::string(input)), '"');
  try {
    return read_fault(JsonSection(object, "", source));
  } catch (const ConfigError& error) {
    throw UsageError(error.what());
  }
}

std::string to_string(const InjectedFault& fault) {
  std::string out = text(to_string(fault.act), ':', fault.op);
  if (fault.at != "*") out += '@' + fault.at;
  const auto number = [&](const char* key, std::int64_t value, std::int64_t none) {
    if (value != none) out += text(',', key, '=', value);
  };
  if (!fault.group.empty()) out += ",group=" + fault.group;
  number("tp", fault.tp, -1);
  number("dp", fault.dp, -1);
  number("pp", fault.pp, -1);
  number("occurrence", fault.occurrence, 0);
  number("nth", fault.nth, 0);
  number("step", fault.step, -1);
  number("draft", fault.draft, -2);
  number("least", fault.least, 0);
  number("most", fault.most, -1);
  if (!fault.with.empty()) out += ",with=" + fault.with;
  number("number", fault.number, fault.act == FaultAct::set ? fault.number - 1 : 0);
  if (fault.factor != 1) out += text(",factor=", fault.factor);
  for (std::size_t i = 0; i < fault.numbers.size(); ++i)
    out += text(i == 0 ? ",numbers=" : "+", fault.numbers[i]);
  return out;
}

}  // namespace tokenview
