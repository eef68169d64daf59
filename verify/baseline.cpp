// SPDX-License-Identifier: Apache-2.0
#include "verify/baseline.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/path_names.hpp"
#include "verify/report_time.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* schema = "tokenview.baseline";

/// What a problem says of itself, in the order of a baseline's keys.
struct Key {
  const char* name;
  std::string value;
};
std::array<Key, 7> keys_of(const ResultCase& result, const Problem& problem) {
  return {{{"verb", result.verb},
           {"file", file_name(result.file)},
           {"case", result.name},
           {"rule", problem.rule},
           {"place", problem.place},
           {"operation", problem.operation},
           {"tensor", problem.tensor}}};
}
std::array<const NamePattern*, 7> patterns_of(const KnownProblem& known) {
  return {&known.verb,  &known.file,      &known.name,  &known.rule,
          &known.place, &known.operation, &known.tensor};
}

bool knows(const KnownProblem& known, const ResultCase& result, const Problem& problem) {
  const auto keys = keys_of(result, problem);
  const auto patterns = patterns_of(known);
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (!patterns[i]->matches(keys[i].value)) return false;
  return true;
}

bool is_date(const std::string& date) {
  int year = 0;
  unsigned month = 0, day = 0;
  const char* const at = date.data();
  const auto whole = [&](std::size_t begin, std::size_t count, auto& value) {
    const auto [end, error] = std::from_chars(at + begin, at + begin + count, value);
    return error == std::errc() && end == at + begin + count;
  };
  if (date.size() != 10 || date[4] != '-' || date[7] != '-' || !whole(0, 4, year) ||
      !whole(5, 2, month) || !whole(8, 2, day))
    return false;
  return (std::chrono::year(year) / std::chrono::month(month) / std::chrono::day(day)).ok();
}

KnownProblem read_entry(const Json& entry) {
  static const std::vector<std::string> names = {"verb",      "file",   "case",   "rule",   "place",
                                                 "operation", "tensor", "reason", "expires"};
  if (!entry.is_object()) throw FileError("is no object");
  for (const auto& [key, value] : entry.items())
    if (std::ranges::find(names, key) == names.end())
      throw FileError(text(printable(key), ": is no key here", suggestion(key, names)));
  const auto word = [&](const char* key, const char* otherwise) {
    const auto found = entry.find(key);
    if (found == entry.end() && otherwise != nullptr) return std::string(otherwise);
    if (found == entry.end()) throw FileError(text(key, ": is missing"));
    if (!found->is_string() || (otherwise == nullptr && found->get<std::string>().empty()))
      throw FileError(text(key, ": expected a string with something in it"));
    return found->get<std::string>();
  };
  KnownProblem known{.verb = NamePattern(word("verb", nullptr)),
                     .file = NamePattern(word("file", "*")),
                     .name = NamePattern(word("case", nullptr)),
                     .rule = NamePattern(word("rule", nullptr)),
                     .place = NamePattern(word("place", "*")),
                     .operation = NamePattern(word("operation", "*")),
                     .tensor = NamePattern(word("tensor", "*")),
                     .reason = word("reason", nullptr),
                     .expires = word("expires", nullptr)};
  if (!is_date(known.expires))
    throw FileError(
        text("expires: found ", printable(known.expires), ", expected a date such as 2027-03-31"));
  return known;
}

Json entry_of(const std::array<Key, 7>& keys, const std::string& reason,
              const std::string& expires) {
  Json entry;
  for (const Key& key : keys) entry[key.name] = key.value;
  entry["reason"] = reason;
  entry["expires"] = expires;
  return entry;
}

}  // namespace

std::string KnownProblem::str() const {
  std::string words = text(verb.text(), ": ", name.text(), ": ", rule.text());
  if (place.text() != "*" && !place.text().empty()) words += " at " + place.text();
  return printable(words + " (" + reason + ", until " + expires + ')');
}

Baseline read_baseline(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FileError(text(printable(path), ": cannot be read"));
  return in_scope(printable(path), [&] {
    const Json file = Json::parse(in, nullptr, false);
    if (!file.is_object() || !file.contains("known") || !file["known"].is_array() ||
        file.value("schema", Json()) != schema)
      throw FileError(text("is no baseline: expected an object with \"schema\": \"", schema,
                           "\", \"version\": 1 and a list \"known\""));
    if (file.value("version", Json()) != 1) throw FileError("version: expected 1");
    Baseline baseline;
    for (const Json& entry : file["known"])
      in_scope(text("known[", baseline.known.size(), ']'),
               [&] { baseline.known.push_back(read_entry(entry)); });
    return baseline;
  });
}

void mark_known(Baseline& baseline, Results& results, const std::string& today) {
  for (KnownProblem& known : baseline.known) known.is_expired = known.expires < today;
  for (ResultCase& result : results.cases) {
    if (result.outcome == Outcome::passed) continue;
    for (Problem& problem : result.problems)
      for (KnownProblem& known : baseline.known) {
        if (!knows(known, result, problem)) continue;
        ++known.seen;
        if (!known.is_expired && problem.known.empty())
          problem.known = text(known.reason, " (until ", known.expires, ')');
      }
  }
}

std::string baseline_of(const Results& results, const Baseline& before, const std::string& reason,
                        const std::string& expires) {
  Json file = {{"schema", schema}, {"version", 1}, {"known", Json::array()}};
  std::set<std::string> written;
  const auto write = [&](const Json& entry) {
    if (written.insert(entry.dump(-1, ' ', false, Json::error_handler_t::replace)).second)
      file["known"].push_back(entry);
  };
  for (const ResultCase& result : results.cases) {
    if (result.outcome == Outcome::passed) continue;
    for (const Problem& problem : result.problems) {
      const auto entry = std::ranges::find_if(before.known, [&](const KnownProblem& known) {
        return !known.is_expired && knows(known, result, problem);
      });
      auto keys = keys_of(result, problem);
      if (entry == before.known.end()) {
        write(entry_of(keys, reason, expires));
        continue;
      }
      const auto patterns = patterns_of(*entry);
      for (std::size_t i = 0; i < keys.size(); ++i) keys[i].value = patterns[i]->text();
      write(entry_of(keys, entry->reason, entry->expires));
    }
  }
  return file.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

void require_date(const std::string& option, const std::string& date) {
  if (!is_date(date))
    throw UsageError(
        text(option, ": found \"", printable(date), "\", expected a date such as 2027-03-31"));
}

std::string today() { return report_time().substr(0, 10); }

}  // namespace tokenview
