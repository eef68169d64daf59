// SPDX-License-Identifier: Apache-2.0
#include "verify/view_report.hpp"

#include <algorithm>
#include <ostream>

#include "reference/program/error.hpp"

namespace tokenview {

std::string row_map(const NamedView& view) {
  std::string map;
  for (const ViewOps::Tensor& of_rank : view.by_rank) map += to_map(of_rank.rows);
  return map;
}

namespace {

/// `word` between two escape sequences, wherever it stands in `line`.
std::string coloured(std::string line, const std::string& word, const char* colour) {
  for (std::size_t at = line.find(word); at != std::string::npos;) {
    const std::string shown = text("\033[", colour, 'm', word, "\033[0m");
    line.replace(at, word.size(), shown);
    at = line.find(word, at + shown.size());
  }
  return line;
}

ReportRecord view_record(const NamedView& view) {
  ReportRecord record{.kind = "view"};
  const std::size_t slash = view.name.find('/');
  record.step = view.name.substr(0, slash);
  record.tap = view.name.substr(slash + 1);
  std::vector<std::string> rows, sums, columns;
  for (const ViewOps::Tensor& of_rank : view.by_rank) {
    rows.push_back(to_map(of_rank.rows));
    sums.push_back(to_string(of_rank.sum));
    columns.push_back(of_rank.columns.all() ? "all" : to_string(of_rank.columns));
  }
  record.more = {{"stage", view.stage}, {"rows", rows}, {"sums", sums}, {"columns", columns}};
  return record;
}

ReportRecord call_record(const NamedCall& named) {
  ReportRecord record{.kind = "collective"};
  record.step = named.pass;
  record.tap = named.call.module;
  record.more = {{"stage", named.stage},
                 {"operation", named.call.op},
                 {"group", named.call.group},
                 {"ranks", named.call.ranks},
                 {"elements", named.call.elements}};
  return record;
}

}  // namespace

std::string in_words(const ParallelConfig& parallel) {
  return text("tp=", parallel.tp, " dp=", parallel.dp,
              parallel.pp > 1 ? text(" pp=", parallel.pp) : "",
              parallel.enable_expert_parallel ? " ep" : "");
}

std::vector<ReportRecord> view_records(const ViewRunResult& result) {
  std::vector<ReportRecord> records;
  auto call = result.calls.begin();
  for (std::size_t i = 0; i <= result.views.size(); ++i) {
    for (; call != result.calls.end() && call->before <= i; ++call)
      records.push_back(call_record(*call));
    if (i < result.views.size()) records.push_back(view_record(result.views[i]));
  }
  return records;
}

void print_views(std::ostream& out, const ViewRunResult& result, bool colour) {
  std::size_t width = 0;
  for (const NamedView& view : result.views) width = std::max(width, view.name.size());
  for (const NamedView& view : result.views) {
    std::string map = row_map(view);
    const auto differs = [](const ViewOps::Tensor& a, const ViewOps::Tensor& b) {
      return to_map(a.rows) != to_map(b.rows);
    };
    if (view.by_rank.size() > 1 &&
        std::ranges::adjacent_find(view.by_rank, differs) == view.by_rank.end())
      map = text(to_map(view.by_rank.front().rows), " on all ", view.by_rank.size());
    if (colour) map = coloured(coloured(std::move(map), "PAD", "2"), "MIX", "31");
    out << view.name << std::string(width + 2 - view.name.size(), ' ') << map;
    std::string sums, columns;
    for (const ViewOps::Tensor& of_rank : view.by_rank) {
      sums += (sums.empty() ? "" : "|") + to_string(of_rank.sum);
      if (!of_rank.columns.all())
        columns += (columns.empty() ? "" : ",") + to_string(of_rank.columns);
    }
    const bool complete = std::ranges::all_of(
        view.by_rank, [](const ViewOps::Tensor& x) { return x.sum.is_complete(); });
    if (!complete) out << "  " << sums;
    if (!columns.empty()) out << "  columns " << columns;
    out << '\n';
  }
}

void print_findings(std::ostream& out, const ViewRunResult& result, std::size_t most) {
  for (std::size_t i = 0; i < std::min(most, result.findings.size()); ++i)
    out << (i == 0 ? "first finding  " : "               ") << to_string(result.findings[i])
        << '\n';
  if (result.findings.size() > most)
    out << "               and "
        << plural(std::int64_t(result.findings.size() - most), "more finding") << '\n';
  if (!result.error.empty()) out << "stopped        " << result.error << '\n';
}

ReportRecord tap_record(const std::string& name, std::int64_t dp, bool failed,
                        const std::vector<double>& row_ratios) {
  ReportRecord record{.kind = "tap"};
  const std::size_t slash = name.find('/');
  record.step = name.substr(0, slash);
  record.tap = name.substr(slash + 1);
  record.verdict = failed ? "difference" : "match";
  record.more = {{"dp", dp}, {"failed", failed}};
  if (!row_ratios.empty()) record.more.emplace_back("row_ratios", rounded(row_ratios));
  return record;
}

ReportRecord finding_record(const Finding& finding) {
  ReportRecord record{.kind = "finding"};
  record.tap = finding.module;
  record.rank = finding.at.world;
  record.verdict = "finding";
  record.more = {{"check", std::string(to_string(finding.kind))},
                 {"operation", finding.operation},
                 {"tensor", finding.tensor},
                 {"expected", finding.expected},
                 {"actual", finding.actual},
                 {"first_bad_row", finding.first_bad_row},
                 {"origin", finding.origin},
                 {"tp", finding.at.tp},
                 {"dp", finding.at.dp},
                 {"pp", finding.at.pp}};
  return record;
}

ReportRecord finding_record(const Finding& finding, const ViewRunResult& result) {
  ReportRecord record = finding_record(finding);
  if (const NamedView* view = result.last_before(finding))
    record.more.emplace_back("after", view->name);
  return record;
}

}  // namespace tokenview
