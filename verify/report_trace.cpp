// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/program/error.hpp"
#include "verify/report_formats.hpp"
#include "verify/report_layer.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

/// The world ranks of each stage, in order: those that its tensors name, or take part in its
/// collectives, and where there are none as many as hold its tensors.
std::map<std::int64_t, std::vector<std::int64_t>> ranks_of_stages(const ResultCase& result) {
  std::map<std::int64_t, std::set<std::int64_t>> named;
  for (const ResultTap& tap : result.taps)
    if (!tap.ranks.empty()) named[tap.stage].insert(tap.ranks.begin(), tap.ranks.end());
  if (!named.empty()) {
    std::map<std::int64_t, std::vector<std::int64_t>> ranks;
    for (const auto& [stage, of_stage] : named) ranks[stage] = {of_stage.begin(), of_stage.end()};
    return ranks;
  }
  std::map<std::int64_t, std::size_t> counts;
  for (const ResultTap& tap : result.taps)
    counts[tap.stage] = std::max(counts[tap.stage], tap.rows.size());
  // Ranks of the world are dp x pp x tp, so a stage's are those of its remainder by blocks of tp.
  std::size_t world = 0;
  for (const auto& [stage, count] : counts) world += count;
  std::int64_t tp = 1;
  for (const ResultCall& call : result.calls)
    if (call.group == "tp") tp = std::max<std::int64_t>(tp, std::int64_t(call.ranks.size()));
  const auto stages = std::int64_t(counts.size());
  std::map<std::int64_t, std::vector<std::int64_t>> ranks;
  for (std::int64_t rank = 0; rank < std::int64_t(world); ++rank)
    ranks[stages == 1 ? counts.begin()->first : rank / tp % stages].push_back(rank);
  return ranks;
}

class Trace {
 public:
  explicit Trace(const ResultCase& result) : result_(result), stages_(ranks_of_stages(result)) {}

  std::string str() {
    name_processes();
    const ResultTap* const bad = first_bad_tap(result_);
    auto call = result_.calls.begin();
    for (std::size_t i = 0; i < result_.taps.size(); ++i) {
      for (; call != result_.calls.end() && call->before <= i; ++call) add(*call);
      if (!result_.taps[i].rows.empty()) add(result_.taps[i], &result_.taps[i] == bad);
    }
    for (; call != result_.calls.end(); ++call) add(*call);
    const Json trace = {{"displayTimeUnit", "ns"},
                        {"otherData", {{"configuration", result_.name}, {"verb", result_.verb}}},
                        {"traceEvents", std::move(events_)}};
    return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }

 private:
  static constexpr int step = 10;  // microseconds of the trace, of no clock

  void name_processes() {
    for (const auto& [stage, ranks] : stages_)
      for (const std::int64_t rank : ranks) {
        const auto meta = [&](const char* what, const Json& arguments) {
          events_.push_back(
              {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", 0}, {"args", arguments}});
        };
        meta("process_name",
             {{"name", text("rank ", rank, stages_.size() > 1 ? text(", stage ", stage) : "")}});
        meta("process_sort_index", {{"sort_index", rank}});
        meta("thread_name", {{"name", "program order"}});
      }
  }

  Json slice(const std::string& name, const char* category, std::int64_t rank,
             const Json& arguments) {
    return {{"ph", "X"},       {"name", name}, {"cat", category}, {"ts", now_},
            {"dur", step - 2}, {"pid", rank},  {"tid", 0},        {"args", arguments}};
  }

  void add(const ResultTap& tap, bool is_bad) {
    const auto& ranks = stages_[tap.stage];
    for (std::size_t i = 0; i < std::min(ranks.size(), tap.rows.size()); ++i) {
      Json arguments = {{"rows", tap.rows[i]}};
      if (i < tap.sums.size()) arguments["sum"] = tap.sums[i];
      if (i < tap.columns.size()) arguments["columns"] = tap.columns[i];
      Json event = slice(tap.place(), is_bad ? "first finding" : "tensor",
                         tap.ranks.empty() ? ranks[i] : tap.rank_of(i), arguments);
      if (is_bad) event["cname"] = "terrible";
      events_.push_back(std::move(event));
    }
    if (is_bad && !ranks.empty())
      events_.push_back({{"ph", "i"},
                         {"name", text("first finding: ", result_.problems.front().message)},
                         {"cat", "first finding"},
                         {"s", "g"},
                         {"ts", now_},
                         {"pid", ranks.front()},
                         {"tid", 0}});
    now_ += step;
  }

  /// Flows go from the first rank of a collective to the others: in Chrome's format a flow binds to
  /// the slice that encloses its time.
  void add(const ResultCall& call) {
    ++flow_;
    for (std::size_t i = 0; i < call.ranks.size(); ++i) {
      const std::int64_t rank = call.ranks[i];
      events_.push_back(slice(text(call.operation, " over ", call.group), "collective", rank,
                              {{"module", call.module},
                               {"ranks", call.ranks},
                               {"elements sent by the first", call.elements}}));
      if (call.ranks.size() < 2) continue;
      const bool is_first = i == 0, is_last = i + 1 == call.ranks.size();
      Json flow = {{"ph", is_first  ? "s"
                          : is_last ? "f"
                                    : "t"},
                   {"name", call.operation},
                   {"cat", "collective"},
                   {"id", flow_},
                   {"ts", double(now_) + 1 + double(i) * (step - 4) / double(call.ranks.size())},
                   {"pid", rank},
                   {"tid", 0}};
      if (is_last) flow["bp"] = "e";
      events_.push_back(std::move(flow));
    }
    now_ += step;
  }

  const ResultCase& result_;
  std::map<std::int64_t, std::vector<std::int64_t>> stages_;
  Json events_ = Json::array();
  std::int64_t now_ = 0;
  std::int64_t flow_ = 0;
};

}  // namespace

std::string perfetto_trace(const ResultCase& result) { return Trace(result).str(); }

}  // namespace tokenview
