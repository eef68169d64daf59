// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "verify/report_formats.hpp"
#include "verify/report_time.hpp"
#include "verify/xml_element.hpp"

namespace tokenview {
namespace {

/// A level of a class name: viewers make packages of what lies between its dots.
std::string class_part(std::string words) {
  for (char& c : words)
    if (c == '.') c = '_';
  return words;
}

std::string seconds(double value) { return fmt::format("{:.3f}", value); }

struct Counts {
  std::size_t tests = 0, failures = 0, errors = 0, skipped = 0;

  void operator+=(const Counts& other) {
    tests += other.tests;
    failures += other.failures;
    errors += other.errors;
    skipped += other.skipped;
  }
};

/// A suite as it grows.
struct Suite {
  std::string name;
  Counts counts = {};
  double seconds = 0;
  std::vector<XmlElement> tests = {};

  void add(XmlElement test) {
    ++counts.tests;
    if (!test.children.empty()) {
      const std::string& outcome = test.children.front().name;
      ++(outcome == "failure" ? counts.failures
         : outcome == "error" ? counts.errors
                              : counts.skipped);
    }
    tests.push_back(std::move(test));
  }
};

/// What a test says that did not pass: its first problem in an attribute, all of them as text.
XmlElement outcome_of(const std::vector<const Problem*>& problems, Outcome outcome) {
  constexpr std::size_t most = 50;
  bool is_known = true;
  std::string all;
  for (const Problem* problem : problems) is_known = is_known && !problem->known.empty();
  for (std::size_t i = 0; i < std::min(most, problems.size()); ++i)
    all += fmt::format("{}[{}] {}{}\n", i == 0 ? "\n" : "", problems[i]->rule, problems[i]->message,
                       problems[i]->known.empty() ? "" : "; known: " + problems[i]->known);
  if (problems.size() > most) all += fmt::format("and {} more\n", problems.size() - most);
  const Problem& first = *problems.front();
  XmlElement element{.name = is_known                    ? "skipped"
                             : outcome == Outcome::error ? "error"
                                                         : "failure"};
  element.attributes = {{"type", first.rule},
                        {"message", is_known ? "known: " + first.known : first.message}};
  element.text = all;
  return element;
}

void add_case(Suite& suite, const ResultCase& result) {
  XmlElement test{.name = "testcase"};
  const std::string stem = std::filesystem::path(result.file).stem().string();
  const std::string verb = "tokenview." + class_part(result.verb);
  const std::string in_file = stem.empty() ? verb : verb + '.' + class_part(stem);
  std::vector<const Problem*> problems;
  for (const Problem& problem : result.problems) problems.push_back(&problem);
  suite.seconds += result.seconds.value_or(0);
  if (!result.is_told_by_taps()) {
    test.attributes = {{"name", result.name}, {"classname", in_file}};
    if (result.seconds) test.attributes.emplace_back("time", seconds(*result.seconds));
    if (result.outcome != Outcome::passed && !problems.empty())
      test.children.push_back(outcome_of(problems, result.outcome));
    suite.add(std::move(test));
    return;
  }
  std::map<std::string, std::vector<const Problem*>> by_place;
  for (const Problem* problem : problems) by_place[problem->place].push_back(problem);
  for (const ResultTap& tap : result.taps) {
    if (!tap.is_compared) continue;
    test.attributes = {{"name", tap.place()},
                       {"classname", in_file + '.' + class_part(result.name)}};
    test.children.clear();
    if (const auto of_tap = by_place.find(tap.place()); of_tap != by_place.end()) {
      test.children.push_back(outcome_of(of_tap->second, result.outcome));
      by_place.erase(of_tap);
    }
    suite.add(test);
  }
  for (const auto& [place, elsewhere] : by_place) {  // what no tap tells
    test.attributes = {{"name", place.empty() ? "the case as a whole" : place},
                       {"classname", in_file + '.' + class_part(result.name)}};
    test.children = {outcome_of(elsewhere, result.outcome)};
    suite.add(test);
  }
}

void add_counts(XmlElement& element, const Counts& counts, double time, bool is_suite) {
  element.attributes.insert(element.attributes.end(),
                            {{"tests", std::to_string(counts.tests)},
                             {"failures", std::to_string(counts.failures)},
                             {"errors", std::to_string(counts.errors)}});
  if (is_suite) element.attributes.emplace_back("skipped", std::to_string(counts.skipped));
  element.attributes.emplace_back("time", seconds(time));
}

}  // namespace

std::string junit_report(const Results& results) {
  XmlElement root{.name = "testsuites", .attributes = {{"name", "tokenview"}}};
  const std::string time = report_time();
  Counts all;
  double all_seconds = 0;
  std::vector<XmlElement> suites;
  for (const ResultRun& run : results.runs) {
    std::vector<Suite> of_run;
    for (std::size_t i = run.first_case; i < run.end_case; ++i) {
      const ResultCase& result = results.cases[i];
      const std::string name = result.file.empty() ? result.verb : result.verb + ' ' + result.file;
      auto suite = std::ranges::find(of_run, name, &Suite::name);
      if (suite == of_run.end()) {
        of_run.push_back({.name = name});
        suite = of_run.end() - 1;
      }
      add_case(*suite, result);
    }
    for (Suite& suite : of_run) {
      XmlElement& element = suites.emplace_back(XmlElement{
          .name = "testsuite", .attributes = {{"name", suite.name}, {"timestamp", time}}});
      const double suite_seconds =
          of_run.size() == 1 ? run.seconds.value_or(suite.seconds) : suite.seconds;
      add_counts(element, suite.counts, suite_seconds, true);
      element.children = std::move(suite.tests);
      all += suite.counts;
      all_seconds += suite_seconds;
    }
  }
  add_counts(root, all, all_seconds, false);
  root.children = std::move(suites);
  return xml_document(root);
}

}  // namespace tokenview
