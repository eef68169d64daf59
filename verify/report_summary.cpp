// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "verify/hdf5_text.hpp"
#include "verify/report.hpp"
#include "verify/report_formats.hpp"

namespace tokenview {
namespace {

constexpr std::size_t most_rows = 100;        // of a table
constexpr std::size_t most_characters = 600;  // of a cell

/// For a cell of a table in Markdown: nothing in it is markup.
std::string cell(const std::string& raw) {
  std::string out;
  for (const char c : raw.substr(0, most_characters)) switch (c) {
      case '\n':
      case '\r':
        out += ' ';
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '|':
      case '`':
      case '*':
      case '_':
      case '[':
      case ']':
      case '\\':
      case '~':
      case '#':
      case '@':
        out += fmt::format("&#{};", int(c));
        break;
      default:
        out += c;
    }
  while (!out.empty() && !is_utf8(out)) out.pop_back();  // the cut may be inside a character
  return out.size() < raw.size() && raw.size() > most_characters ? out + "..." : out;
}

struct RunCounts {
  std::size_t cases = 0, passed = 0, news = 0, known = 0;
};
RunCounts counts_of(const Results& results, const ResultRun& run) {
  RunCounts counts;
  for (std::size_t i = run.first_case; i < run.end_case; ++i) {
    ++counts.cases;
    counts.passed += results.cases[i].outcome == Outcome::passed;
    counts.news += results.cases[i].is_news();
    counts.known += results.cases[i].is_known();
  }
  return counts;
}

std::string verdict_in_words(const Results& results) {
  const std::size_t news = results.num_news(), known = results.num_known();
  std::string words = fmt::format("{}: {} of {}", news > 0 ? "fails" : "passes",
                                  news > 0 ? news : results.cases.size() - known,
                                  plural(std::int64_t(results.cases.size()), "configuration"));
  if (known > 0) words += fmt::format(", {} known", known);
  return words;
}

const Problem& first_news(const ResultCase& result) {
  const auto news =
      std::ranges::find_if(result.problems, [](const Problem& p) { return p.known.empty(); });
  return news == result.problems.end() ? result.problems.front() : *news;
}

}  // namespace

std::string step_summary(const Results& results, const Baseline& baseline) {
  const bool is_good = results.num_news() == 0;
  std::string out = fmt::format("## tokenview {}\n\n", verdict_in_words(results));
  out +=
      "| run | cases | passed | new | known | seconds |\n| --- | --: | --: | --: | --: | --: |\n";
  for (const ResultRun& run : results.runs) {
    const RunCounts counts = counts_of(results, run);
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n",
                       cell(run.verb.empty() ? run.source : run.verb), counts.cases, counts.passed,
                       counts.news, counts.known,
                       run.seconds ? fmt::format("{:.1f}", *run.seconds) : "");
  }
  const auto table = [&](const char* title, auto is_wanted) {
    std::size_t rows = 0, all = 0;
    for (const ResultCase& result : results.cases) {
      if (!is_wanted(result)) continue;
      if (++all > most_rows) continue;
      if (rows++ == 0)
        out += fmt::format(
            "\n### {}\n\n| configuration | rule | first problem | repair |\n"
            "| --- | --- | --- | --- |\n",
            title);
      const Problem& first = first_news(result);
      out += fmt::format(
          "| {} | {} | {}{} | {} |\n", cell(result.name), cell(first.rule), cell(first.message),
          result.problems.size() > 1 ? fmt::format(" (and {} more)", result.problems.size() - 1)
                                     : "",
          cell(first.known.empty() ? result.repair() : "known: " + first.known));
    }
    if (all > most_rows) out += fmt::format("\nand {} more\n", all - most_rows);
  };
  if (!is_good) table("New", [](const ResultCase& result) { return result.is_news(); });
  table("Known", [](const ResultCase& result) { return result.is_known(); });
  const auto list = [&](const char* title, auto is_wanted) {
    std::size_t all = 0;
    for (const KnownProblem& known : baseline.known)
      if (is_wanted(known) && ++all <= most_rows)
        out += fmt::format("{}- {}\n", all == 1 ? fmt::format("\n### {}\n\n", title) : "",
                           cell(known.str()));
    if (all > most_rows) out += fmt::format("- and {} more\n", all - most_rows);
  };
  list("Expired in the baseline", [](const KnownProblem& known) { return known.is_expired; });
  list("In the baseline and no longer seen",
       [](const KnownProblem& known) { return known.seen == 0; });
  return out;
}

std::string text_report(const Results& results, const Baseline& baseline, bool colour) {
  constexpr std::size_t most_lines = 12;
  const auto word = [&](const std::string& text, const char* escape) {
    return colour ? fmt::format("\033[{}m{}\033[0m", escape, text) : text;
  };
  std::string out;
  std::size_t lines = 0, left_out = 0;
  for (const ResultCase& result : results.cases) {
    if (result.outcome == Outcome::passed) continue;
    if (++lines > most_lines) {
      ++left_out;
      continue;
    }
    const Problem& first = first_news(result);
    out += fmt::format(
        "{} {}: {}: [{}] {}{}\n", result.is_known() ? word("known", "33") : word("FAIL ", "31"),
        result.verb, printable(result.name), first.rule, printable(first.message),
        result.problems.size() > 1 ? fmt::format(" (and {} more)", result.problems.size() - 1)
                                   : "");
  }
  if (left_out > 0) out += fmt::format("      and {} more\n", left_out);
  std::size_t expired = 0, unseen = 0;
  for (const KnownProblem& known : baseline.known) {
    if (known.is_expired && ++expired <= 5)
      out += fmt::format("{} {}\n", word("expired", "33"), known.str());
    if (known.seen == 0 && ++unseen <= 5)
      out += fmt::format("{} {}\n", word("no longer seen", "33"), known.str());
  }
  std::size_t good_runs = 0;
  for (const ResultRun& run : results.runs) {
    const RunCounts counts = counts_of(results, run);
    if (counts.news == 0 && ++good_runs > most_lines) continue;
    out += fmt::format("{} {}: {}", counts.news > 0 ? word("FAIL ", "31") : word("ok   ", "32"),
                       run.verb.empty() ? printable(run.source) : run.verb,
                       plural(std::int64_t(counts.cases), "case"));
    if (counts.news > 0) out += fmt::format(", {} new", counts.news);
    if (counts.known > 0) out += fmt::format(", {} known", counts.known);
    out += '\n';
  }
  if (good_runs > most_lines)
    out += fmt::format("      and {} more without news\n",
                       plural(std::int64_t(good_runs - most_lines), "run"));
  if (!baseline.known.empty())
    out +=
        fmt::format("baseline: {}, {} expired, {} no longer seen\n",
                    plural(std::int64_t(baseline.known.size()), "known problem"), expired, unseen);
  return out +
         fmt::format("{}\n", word(verdict_in_words(results), results.num_news() > 0 ? "31" : "32"));
}

}  // namespace tokenview
