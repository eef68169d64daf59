// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <set>

#include "reference/program/error.hpp"
#include "verify/path_names.hpp"
#include "verify/report_formats.hpp"
#include "verify/report_time.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

/// A path as a URI reference: all but unreserved characters and '/' as %XX.
/// Source: RFC 3986, section 2.
std::string uri_of(const std::string& path) {
  constexpr char digits[] = "0123456789ABCDEF";
  std::string uri = path.starts_with('/') ? "file://" : "";
  for (const char c : path) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') ||
                          std::string_view("-._~/").find(c) != std::string_view::npos;
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain)
      uri += c;
    else
      uri += {'%', digits[byte >> 4], digits[byte & 15]};
  }
  return uri;
}

Json result_of(const ResultCase& result, const Problem& problem, std::size_t rule_index) {
  Json json = {{"ruleId", problem.rule},
               {"ruleIndex", rule_index},
               {"kind", "fail"},
               {"level", "error"},
               {"message", {{"text", text(result.verb, " ", result.name, ": ", problem.message)}}}};
  Json location = {
      {"physicalLocation",
       {{"artifactLocation", {{"uri", uri_of(result.source)}}},
        {"region", {{"startLine", problem.line == 0 ? std::size_t{1} : problem.line}}}}}};
  Json logical = {
      {"name", problem.place.empty() ? result.name : problem.place},
      {"fullyQualifiedName", text(result.name, problem.place.empty() ? "" : "::", problem.place)},
      {"kind", "module"}};
  location["logicalLocations"] = Json::array({logical});
  json["locations"] = Json::array({location});
  // What is the same problem in the next run: neither its numbers nor its line.
  json["partialFingerprints"] = {
      {"tokenviewProblem/v2",
       text(result.verb, '|', file_name(result.file), '|', result.name, '|', problem.rule, '|',
            problem.place, '|', problem.operation, '|', problem.tensor)}};
  if (!problem.known.empty())
    json["suppressions"] = Json::array({{{"kind", "external"}, {"justification", problem.known}}});
  Json& more = json["properties"] = {{"file", result.file}, {"ranks", problem.ranks}};
  if (!problem.expected.empty()) more["expected"] = problem.expected;
  if (!problem.actual.empty()) more["actual"] = problem.actual;
  if (problem.first_bad_row >= 0) more["firstBadRow"] = problem.first_bad_row;
  if (!result.repairs.empty()) more["repair"] = result.repair();
  return json;
}

}  // namespace

std::string sarif_report(const Results& results, const std::string& version) {
  std::vector<std::string> rules;
  Json found = Json::array();
  bool is_complete = true;  // no run was cut short
  for (const ResultCase& result : results.cases) {
    if (result.outcome == Outcome::passed) continue;
    is_complete = is_complete && result.outcome != Outcome::error;
    for (const Problem& problem : result.problems) {
      auto rule = std::ranges::find(rules, problem.rule);
      if (rule == rules.end()) rule = rules.insert(rules.end(), problem.rule);
      found.push_back(result_of(result, problem, std::size_t(rule - rules.begin())));
    }
  }
  Json descriptors = Json::array();
  for (const std::string& rule : rules)
    descriptors.push_back({{"id", rule}, {"shortDescription", {{"text", rule_in_words(rule)}}}});
  const Json driver = {
      {"name", "tokenview"}, {"version", version}, {"rules", std::move(descriptors)}};
  const Json run = {
      {"tool", {{"driver", driver}}},
      {"invocations", {{{"executionSuccessful", is_complete}, {"endTimeUtc", report_time()}}}},
      {"columnKind", "unicodeCodePoints"},
      {"results", std::move(found)}};
  const Json log = {{"$schema",
                     "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/"
                     "sarif-schema-2.1.0.json"},
                    {"version", "2.1.0"},
                    {"runs", Json::array({run})}};
  return log.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace tokenview
