// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/report.hpp"
#include "verify/report_formats.hpp"

namespace tokenview {
namespace {

constexpr std::size_t most_annotations = 10;  // in one step, of all kinds together

/// Source: actions/toolkit, command.ts, escapeData and escapeProperty.
std::string escaped(const std::string& raw, bool is_property) {
  std::string out;
  for (const char c : raw) switch (c) {
      case '%':
        out += "%25";
        break;
      case '\r':
        out += "%0D";
        break;
      case '\n':
        out += "%0A";
        break;
      case ':':
        out += is_property ? "%3A" : ":";
        break;
      case ',':
        out += is_property ? "%2C" : ",";
        break;
      default:
        out += c;
    }
  return out;
}

std::string command(const char* kind, const std::string& title, const std::string& message) {
  return text("::", kind, " title=", escaped(title, true), "::", escaped(message, false), '\n');
}

/// Problems of one rule at one place, over all configurations.
struct Group {
  const ResultCase* first_case;
  const Problem* first;
  std::size_t configurations = 0;
  const ResultCase* last_case = nullptr;
};

std::vector<Group> groups_of(const Results& results) {
  std::vector<Group> groups;
  for (const ResultCase& result : results.cases) {
    if (!result.is_news()) continue;
    // The first problem is the cause of the others of a configuration; taps fail one by one.
    const bool is_by_tap = result.is_told_by_taps();
    for (const Problem& problem : result.problems) {
      if (!problem.known.empty()) continue;
      auto group = std::ranges::find_if(groups, [&](const Group& g) {
        return g.first_case->verb == result.verb && g.first->rule == problem.rule &&
               g.first->place == problem.place;
      });
      if (group == groups.end()) group = groups.insert(groups.end(), {&result, &problem});
      group->configurations += group->last_case != &result;
      group->last_case = &result;
      if (!is_by_tap) break;
    }
  }
  return groups;
}

}  // namespace

std::string github_annotations(const Results& results, const Baseline& baseline) {
  std::vector<std::string> others;
  std::string ended, unseen;
  std::size_t num_ended = 0, num_unseen = 0;
  for (const KnownProblem& known : baseline.known) {
    if (known.is_expired && num_ended++ < 5) ended += (ended.empty() ? "" : "\n") + known.str();
    if (known.seen == 0 && num_unseen++ < 5) unseen += (unseen.empty() ? "" : "\n") + known.str();
  }
  if (num_ended > 0)
    others.push_back(command(
        "warning",
        text("baseline: ", num_ended, num_ended == 1 ? " entry" : " entries", " expired"), ended));
  if (num_unseen > 0)
    others.push_back(command("notice", text("baseline: ", num_unseen, " no longer seen"), unseen));

  const std::vector<Group> groups = groups_of(results);
  const std::size_t room = most_annotations - others.size();
  const std::size_t shown = groups.size() <= room ? groups.size() : room - 1;
  std::string out;
  for (std::size_t i = 0; i < shown; ++i) {
    const Group& group = groups[i];
    std::string message = text(group.first_case->name, ": ", group.first->message);
    if (group.configurations > 1)
      message +=
          text("\nand ", plural(std::int64_t(group.configurations) - 1, "more configuration"));
    if (!group.first_case->repairs.empty()) message += "\nrepair: " + group.first_case->repair();
    out += command("error", text("tokenview ", group.first_case->verb, ": ", group.first->rule),
                   message);
  }
  if (shown < groups.size())
    out += command("error", "tokenview",
                   text("and ", plural(std::int64_t(groups.size() - shown), "more problem"),
                        ": see the step summary or the report"));
  for (const std::string& other : others) out += other;
  return out;
}

}  // namespace tokenview
