// SPDX-License-Identifier: Apache-2.0
#include "verify/result_case.hpp"

#include <algorithm>
#include <map>

namespace tokenview {

bool ResultCase::is_known() const {
  return outcome != Outcome::passed && !problems.empty() &&
         std::ranges::none_of(problems, [](const Problem& p) { return p.known.empty(); });
}

bool ResultCase::is_told_by_taps() const {
  return (verb == "check" || verb == "diff") && std::ranges::any_of(taps, &ResultTap::is_compared);
}

bool ResultCase::has_views() const {
  return std::ranges::any_of(taps, [](const ResultTap& tap) { return !tap.rows.empty(); });
}

std::optional<std::size_t> ResultCase::tap_of(const Problem& problem) const {
  if (problem.place.empty() && problem.after.empty()) return std::nullopt;
  std::optional<std::size_t> held, named;
  for (std::size_t i = 0; i < taps.size(); ++i) {
    const ResultTap& tap = taps[i];
    if (tap.place() == (problem.after.empty() ? problem.place : problem.after)) return i;
    if (tap.name.find(problem.place) == std::string::npos) continue;
    if (!named || taps[*named].step == tap.step) named = i;
    const bool is_held = std::ranges::find(tap.rows, problem.actual) != tap.rows.end();
    if (is_held && (!held || taps[*held].step == tap.step)) held = i;
  }
  return held ? held : named;
}

std::size_t Results::num_news() const {
  return std::size_t(std::ranges::count_if(cases, &ResultCase::is_news));
}

std::size_t Results::num_known() const {
  return std::size_t(std::ranges::count_if(cases, &ResultCase::is_known));
}

std::string rule_in_words(const std::string& rule) {
  static const std::map<std::string, const char*> words = {
      {"rows", "a rank holds other token rows than the operation requires"},
      {"completeness", "a partial sum is used as complete, or a value is summed more than once"},
      {"columns", "a column block does not fit"},
      {"bounds", "an index lies beyond the rows held: a device-side assert, or a read outside"},
      {"state", "a cache holds rows of another view"},
      {"routing", "a token is without its experts or has them twice, or a pad has some"},
      {"pads", "pad rows hold something else than what is due"},
      {"side", "positions, boundaries, slots or counts are not those of the step"},
      {"stage", "a value from before a norm stands where one from after it is due"},
      {"numeric", "numbers differ from those of the right run"},
      {"difference",
       "a value is further from the trusted one than allowed, or a verdict is not "
       "the expected one"},
      {"tie", "ids differ where the trusted scores are too close to tell"},
      {"missing", "a tap that is due was not compared"},
      {"unexpected", "a tap that nobody expects"},
      {"error", "an input could not be read, or a run did not come to its end"},
      {"nothing compared", "nothing was compared"},
      {"fault", "the release can meet a published fault in this configuration"},
      {"device", "the run on a device ended otherwise than predicted, or with an assert"},
  };
  const auto found = words.find(rule);
  return found == words.end() ? rule : found->second;
}

}  // namespace tokenview
