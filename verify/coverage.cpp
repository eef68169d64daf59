// SPDX-License-Identifier: Apache-2.0
#include "verify/coverage.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/program/error.hpp"
#include "reference/program/json_section.hpp"
#include "reference/program/strict_json.hpp"
#include "verify/input_file.hpp"

namespace tokenview {
namespace {

using Texts = std::map<std::string, std::string>;

struct Catalogue {
  Texts entries, out_of_scope, missing;
  std::int64_t faults = 0, mutants = 0;
};

Texts texts_in(JsonSection& section, const std::string& key) {
  Texts texts;
  if (auto inner = section.section(key))
    for (const auto& [name, value] : inner->object().items())
      texts.emplace(name, inner->to_string(name, value));
  return texts;
}

Catalogue read_catalogue(const std::string& file) {
  const nlohmann::json document =
      parse_strict_json(read_json_file(file, "the catalogue of entries"), file);
  if (!document.is_object()) throw ConfigError(text(file, ": expected an object"));
  JsonSection section(document, "", file);
  const std::string schema = section.to_string("schema", section.required("schema"));
  if (schema != "tokenview.coverage")
    section.refuse("schema", '"' + schema + '"', "\"tokenview.coverage\"");
  return {texts_in(section, "entries"), texts_in(section, "out_of_scope"),
          texts_in(section, "missing"), section.integer("faults"), section.integer("mutants")};
}

bool has_number(const std::string& alias, char letter) {
  return alias.size() > 1 && alias[0] == letter &&
         std::isdigit(static_cast<unsigned char>(alias[1])) != 0;
}

/// B006 -> its scenarios, F1 likewise, M01 -> those of its variants M01a, M01b.
std::map<std::string, std::vector<const Scenario*>> by_entry(
    const std::vector<Scenario>& scenarios) {
  std::map<std::string, std::vector<const Scenario*>> told;
  for (const Scenario& s : scenarios)
    for (const std::string& alias : s.aliases) {
      const bool is_variant = has_number(alias, 'M') && alias.find('+') == std::string::npos;
      told[is_variant ? alias.substr(0, 3) : alias].push_back(&s);
    }
  return told;
}

std::string or_any(const std::string& text) { return text.empty() ? "any" : text; }

std::string row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += ' ' + (cell.empty() ? "" : cell + ' ') + '|';
  return line + '\n';
}
std::string head(const std::vector<std::string>& cells) {
  return row(cells) + row(std::vector<std::string>(cells.size(), "---"));
}

std::string finding_in(const Scenario& s) {
  return s.expect.operation.empty() ? s.expect.check : s.expect.check + ": " + s.expect.operation;
}

std::string told_row(const std::string& name, const std::string& source, const Scenario& s) {
  return row({name, source, '`' + s.name + '`', s.is_exact ? "exact" : "analogue",
              to_string(s.broken.protocol), or_any(s.expect.module), finding_in(s), s.title});
}

/// One table of numbered scenarios that belong to no entry: F1 to Fn, M01 to Mn.
std::string numbered(const std::map<std::string, std::vector<const Scenario*>>& told,
                     const char* letter, std::int64_t count, bool two_digits, std::int64_t& found) {
  std::string out = head({"", "source", "scenario", "", "protocol", "place", "check", ""});
  for (std::int64_t i = 1; i <= count; ++i) {
    const std::string name = text(letter, two_digits && i < 10 ? "0" : "", i);
    const auto at = told.find(name);
    if (at == told.end()) {
      out += row({name, "", "no scenario", "", "", "", "", ""});
      continue;
    }
    ++found;
    for (const Scenario* s : at->second) {
      const auto alias = std::ranges::find_if(
          s->aliases, [&](const std::string& a) { return a.starts_with(name); });
      out += told_row(*alias, s->source, *s);
    }
  }
  return out;
}

}  // namespace

Coverage coverage_of(const std::vector<Scenario>& scenarios, const std::string& file) {
  const Catalogue catalogue = read_catalogue(file);
  const auto told = by_entry(scenarios);
  for (const auto& [alias, of_alias] : told)
    if (has_number(alias, 'B') && !catalogue.entries.contains(alias))
      throw ConfigError(text(file, ": entries: no ", alias, ", which ", of_alias.front()->name,
                             " has as an alias"));
  for (const Texts* reasons : {&catalogue.out_of_scope, &catalogue.missing})
    for (const auto& [entry, reason] : *reasons)
      if (!catalogue.entries.contains(entry))
        throw ConfigError(text(file, ": ", entry, ": no such entry"));

  Coverage coverage;
  std::set<std::vector<std::string>> places;
  std::string in_scope =
      head({"entry", "source", "scenario", "", "protocol", "place", "check", "title"});
  std::string missing = head({"entry", "source", "what is missing"});
  std::string out_of_scope = head({"entry", "source", "why", "scenario"});
  for (const auto& [entry, source] : catalogue.entries) {
    ++coverage.entries;
    const auto at = told.find(entry);
    if (const auto why = catalogue.out_of_scope.find(entry); why != catalogue.out_of_scope.end()) {
      out_of_scope += row({entry, source, why->second,
                           at == told.end() ? "" : '`' + at->second.front()->name + '`'});
      continue;
    }
    ++coverage.in_scope;
    const auto lacks = catalogue.missing.find(entry);
    if ((at == told.end()) == (lacks == catalogue.missing.end()))
      throw ConfigError(text(
          file, ": ", entry,
          at == told.end() ? ": no scenario has it as an alias, and \"missing\" "
                             "does not say why"
                           : ": \"missing\" although " + at->second.front()->name + " tells it"));
    if (at == told.end()) {
      missing += row({entry, source, lacks->second});
      continue;
    }
    ++coverage.told;
    coverage.exact += at->second.front()->is_exact;
    for (const Scenario* s : at->second) {
      in_scope += told_row(entry, source, *s);
      places.insert({to_string(s->broken.protocol), s->expect.module, finding_in(*s)});
    }
  }
  coverage.places = std::int64_t(places.size());

  std::int64_t faults = 0, mutants = 0;
  const std::string fault_table = numbered(told, "F", catalogue.faults, false, faults);
  const std::string mutant_table = numbered(told, "M", catalogue.mutants, true, mutants);
  coverage.page = text(
      "# Coverage of the catalogue\n\n"
      "Written by `tokenview repro --coverage` from data/scenarios and data/coverage.json, and "
      "compared with them by a test. `tokenview repro B006` runs\nan entry. exact: the reported "
      "engine's protocol and kind of model; analogue: its nearest here.\n\n| | |\n| --- | --- "
      "|\n| entries | ",
      coverage.entries, " |\n| in scope | ", coverage.in_scope, " |\n| told by a scenario | ",
      coverage.told, ": ", coverage.exact, " exact, ", coverage.told - coverage.exact,
      " analogues |\n| distinct protocol, place and finding | ", coverage.places,
      " |\n| layout faults F1 to F", catalogue.faults, " | ", faults,
      " |\n| injectable mutants M01 to M", catalogue.mutants, " | ", mutants,
      " |\n\n## Entries\n\n", in_scope, "\n## Not told\n\n", missing, "\n## Out of scope\n\n",
      out_of_scope, "\n## Layout faults\n\n", fault_table, "\n## Mutants\n\n", mutant_table);
  return coverage;
}

}  // namespace tokenview
