// SPDX-License-Identifier: Apache-2.0
#include "verify/dump_diff_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <sstream>

#include "verify/hdf5_text.hpp"
#include "verify/report.hpp"
#include "verify/tap_order.hpp"

namespace tokenview {
namespace {

constexpr std::size_t max_lines = 8;   // of what differs after the first
constexpr std::size_t max_ranks = 16;  // of the first difference
constexpr std::size_t max_names = 6;   // of what is not compared

/// A tap with the smallest distance from its limit, of those that were compared.
const TapDiff* worst_of(const DumpDiffResult& result) {
  const TapDiff* worst = nullptr;
  for (const TapDiff& tap : result.taps)
    if (tap.was_compared() && tap.values > 0 && tap.bound.metric != std::string("rows") &&
        tap.bound.observed > 0 && (worst == nullptr || tap.bound.ratio() > worst->bound.ratio()))
      worst = &tap;
  return worst;
}

std::string place_of(const TapDiff& tap, bool has_dp) {
  std::string place = tap.step >= 0 ? fmt::format("step {} ", tap.step) : "";
  if (has_dp) place += fmt::format("dp={} ", tap.dp);
  return place + printable(tap.tap);
}

/// False where a tap fails and its values do not: the number is no reason.
bool has_number(const TapDiff& tap) { return !tap.failed() || !tap.bound.holds(); }

std::string observed_in_words(const TapDiff& tap) {
  if (tap.bound.metric == std::string("rows"))
    return fmt::format("{} of ids differ", plural(std::int64_t(tap.bound.observed), "row"));
  if (tap.values == 0) return {};
  return fmt::format("{} {:.2g} of {:.2g}", tap.bound.metric, tap.bound.observed,
                     tap.bound.allowed);
}

std::vector<std::string> lines_of(const std::string& detail) {
  std::vector<std::string> lines;
  std::istringstream in(detail);
  for (std::string line; std::getline(in, line);) lines.push_back(printable(line));
  return lines;
}

std::string line_of(const TapDiff& tap, bool has_dp) {
  std::string line = place_of(tap, has_dp);
  const bool is_part = tap.called.empty() && !has_number(tap);
  for (const std::string& part : {is_part ? "right as far as it is there" : tap.called,
                                  has_number(tap) ? observed_in_words(tap) : ""})
    if (!part.empty()) line += (line.ends_with(':') ? " " : ": ") + part;
  for (const std::string& detail : lines_of(tap.detail)) line += "; " + detail;
  return line;
}

std::string name_list(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), max_names); ++i)
    list += (i == 0 ? "" : ", ") + printable(names[i]);
  if (names.size() > max_names) list += ", ...";
  return list;
}

class TextReport {
 public:
  TextReport(std::ostream& out, const DumpDiffResult& result, int verbosity, bool colour)
      : out_(out), result_(result), verbosity_(verbosity), colour_(colour) {
    has_dp_ = std::ranges::any_of(result.taps, [](const TapDiff& tap) { return tap.dp > 0; });
  }

  void print(const DiffSides& sides) {
    if (verbosity_ >= 2) print_all();
    if (const TapDiff* const first = result_.first_difference()) print_first(*first);
    print_others();
    for (const std::string& skipped : result_.skipped)
      out_ << "not compared      " << printable(skipped) << '\n';
    print_names("not compared", "no counterpart", result_.not_compared, result_.not_compared_taps);
    print_names("not captured", "the dump does not have them", result_.not_captured,
                result_.not_captured_taps);
    for (const std::string& note : result_.notes)
      out_ << "note              " << escaped(note) << '\n';
    if (!result_.protocols.empty())
      out_ << "layout            " << name_list(result_.protocols) << '\n';
    print_kinds();
    print_summary(sides);
  }

 private:
  std::string word(const std::string& text, bool good) const {
    return colour_ ? (good ? "\033[32m" : "\033[31m") + text + "\033[0m" : text;
  }

  void print_all() {
    for (const TapDiff& tap : result_.taps)
      out_ << fmt::format("{:<6}{:<62} {:<8} {}\n", tap.failed() ? "FAIL" : "ok",
                          place_of(tap, has_dp_), tap.kind,
                          has_number(tap) ? observed_in_words(tap) : tap.called);
  }

  void print_first(const TapDiff& first) {
    out_ << word("first difference", false) << "  " << place_of(first, has_dp_);
    if (!first.against.empty()) out_ << " (against " << printable(first.against) << ')';
    out_ << ": " << (first.called.empty() ? "other values" : first.called) << '\n';
    const std::size_t shown = std::min(first.ranks.size(), max_ranks);
    for (std::size_t i = 0; i < shown; ++i) {
      const RankHolding& rank = first.ranks[i];
      if (rank.held.empty() && rank.required.empty()) continue;
      out_ << fmt::format("  rank {:<3} tp={}{}  ", rank.at.world, rank.at.tp,
                          has_dp_ ? fmt::format(" dp={}", rank.at.dp) : "");
      if (!rank.held.empty()) out_ << "holds " << rank.held;
      if (!rank.required.empty() && rank.required != rank.held)
        out_ << (rank.held.empty() ? "" : ", ") << "required " << rank.required;
      out_ << '\n';
    }
    if (shown < first.ranks.size())
      out_ << fmt::format("  and {} more ranks\n", first.ranks.size() - shown);
    const std::string observed = observed_in_words(first);
    if (!observed.empty() && has_number(first))
      out_ << "  observed " << observed << ", max|error| "
           << fmt::format("{:.2g}, relative L2 {:.2g}", first.max_abs, first.relative_l2) << '\n';
    for (const std::string& line : lines_of(first.detail)) out_ << "  " << line << '\n';
    if (!first.repair.empty()) out_ << "  suggest " << printable(first.repair) << '\n';
  }

  void print_others() {
    const std::size_t most = verbosity_ >= 1 ? result_.taps.size() : max_lines;
    std::size_t count = 0, shown = 0;
    for (const TapDiff& tap : result_.taps) {
      if (!tap.failed() || &tap == result_.first_difference()) continue;
      if (++count > most) continue;
      ++shown;
      out_ << "differs           " << line_of(tap, has_dp_) << '\n';
    }
    if (count > shown) out_ << fmt::format("                  and {} more (-v)\n", count - shown);
  }

  void print_names(const char* what, const char* why, const std::vector<std::string>& names,
                   std::int64_t taps) {
    if (names.empty()) return;
    out_ << fmt::format("{:<18}{}, {}: {}\n", what, plural(taps, "tap"), why, name_list(names));
  }

  void print_kinds() {
    std::map<std::string, std::int64_t> kinds;
    for (const TapDiff& tap : result_.taps)
      if (!tap.kind.empty()) ++kinds[tap.kind];
    std::string words;
    for (const auto& [kind, count] : kinds)
      words += fmt::format("{}{} {}", words.empty() ? "" : ", ", count, kind);
    if (!words.empty()) out_ << "held as           " << words << '\n';
  }

  void print_summary(const DiffSides& sides) {
    const std::string verdict = verdict_of(result_);
    out_ << word(verdict, verdict == "match") << ": " << printable(sides.dump) << " ("
         << sides.parallel << ") against " << printable(sides.trusted) << ": "
         << plural(result_.steps, "step") << ", " << plural(result_.compared, "tap") << ", "
         << plural(result_.values, "value");
    if (result_.failed > 0) out_ << ", " << result_.failed << " failed";
    if (const TapDiff* const worst = worst_of(result_))
      out_ << fmt::format(", worst {} at {}", observed_in_words(*worst), place_of(*worst, has_dp_));
    out_ << '\n';
  }

  std::ostream& out_;
  const DumpDiffResult& result_;
  int verbosity_;
  bool colour_;
  bool has_dp_ = false;
};

std::string maps_of(const TapDiff& tap, std::string RankHolding::*which) {
  std::string maps;
  for (const RankHolding& rank : tap.ranks) maps += (maps.empty() ? "" : " ") + rank.*which;
  return maps;
}

}  // namespace

std::string verdict_of(const DumpDiffResult& result) {
  return result.failed > 0           ? "difference"
         : result.nothing_compared() ? "nothing compared"
                                     : "match";
}

void print_dump_diff(std::ostream& out, const DiffSides& sides, const DumpDiffResult& result,
                     int verbosity, bool colour) {
  TextReport(out, result, verbosity, colour).print(sides);
}

void write_dump_diff(std::ostream& out, const DiffSides& sides, const DumpDiffResult& result) {
  const TapDiff* const first = result.first_difference();
  for (const TapDiff& tap : result.taps) {
    const std::string pass = pass_of(tap.tap);
    ReportRecord record{
        .kind = "tap",
        .file = sides.dump,
        .case_name = tap.case_name.empty() ? std::nullopt : std::optional(tap.case_name),
        .step = pass.empty() ? std::nullopt : std::optional(pass),
        .tap = name_of(tap.tap),
        .verdict = to_string(tap.verdict)};
    if ((tap.values > 0 || tap.bound.observed > 0) && has_number(tap)) {
      record.observed = tap.bound.observed;
      record.allowed = tap.bound.allowed;
      record.more.emplace_back("metric", tap.bound.metric);
    }
    record.more.insert(record.more.end(), {{"values", tap.values},
                                           {"max_abs", tap.max_abs},
                                           {"relative_l2", tap.relative_l2},
                                           {"failed", tap.failed()},
                                           {"engine_step", tap.step},
                                           {"dp", tap.dp},
                                           {"first", &tap == first},
                                           {"kind_of_view", tap.kind},
                                           {"held", maps_of(tap, &RankHolding::held)}});
    if (!tap.ranks.empty()) {
      std::vector<std::int64_t> ranks;
      for (const RankHolding& rank : tap.ranks) ranks.push_back(rank.at.world);
      record.more.emplace_back("ranks", ranks);
    }
    const std::string required = maps_of(tap, &RankHolding::required);
    if (!required.empty()) record.more.emplace_back("required", required);
    if (!tap.against.empty()) record.more.emplace_back("against", tap.against);
    if (!tap.called.empty()) record.more.emplace_back("called", tap.called);
    if (!tap.detail.empty()) record.more.emplace_back("detail", tap.detail);
    if (!tap.repair.empty()) record.more.emplace_back("repair", tap.repair);
    out << json_line(record) << '\n';
  }
  ReportRecord summary{.kind = "summary", .file = sides.dump, .verdict = verdict_of(result)};
  if (const TapDiff* const worst = worst_of(result)) {
    summary.case_name = worst->case_name;
    summary.step = pass_of(worst->tap);
    summary.tap = name_of(worst->tap);
    summary.observed = worst->bound.observed;
    summary.allowed = worst->bound.allowed;
    summary.more.emplace_back("metric", worst->bound.metric);
  }
  summary.more.insert(summary.more.end(), {{"verb", "diff"},
                                           {"trusted", sides.trusted},
                                           {"parallel", sides.parallel},
                                           {"label", sides.label},
                                           {"steps", result.steps},
                                           {"taps", result.compared},
                                           {"values", result.values},
                                           {"failed", result.failed},
                                           {"not_compared", result.not_compared},
                                           {"not_compared_taps", result.not_compared_taps},
                                           {"not_captured", result.not_captured},
                                           {"not_captured_taps", result.not_captured_taps},
                                           {"skipped", result.skipped},
                                           {"protocols", result.protocols},
                                           {"notes", result.notes}});
  out << json_line(summary) << '\n';
}

}  // namespace tokenview
