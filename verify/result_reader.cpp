// SPDX-License-Identifier: Apache-2.0
#include "verify/result_reader.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/path_names.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

std::string joined_by(const char* separator, const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words)
    if (!word.empty()) all += (all.empty() ? "" : separator) + word;
  return all;
}

/// What each rank holds, of "[0,1] columns 0/2 [0,1] columns 1/2".
std::vector<std::string> by_rank(const std::string& maps) {
  std::vector<std::string> ranks;
  for (std::size_t begin = 0, end; begin < maps.size(); begin = end + 1) {
    end = std::min(maps.find(" [", begin), maps.size());
    ranks.push_back(maps.substr(begin, end - begin));
  }
  return ranks;
}

/// Puts what the ranks hold, "[0,1] columns 0/2 partial 1/2" each, into `tap`.
void hold(ResultTap& tap, const std::vector<std::string>& ranks) {
  tap.rows.clear();
  tap.sums.clear();
  tap.columns.clear();
  for (const std::string& held : ranks) {
    std::istringstream words(held);
    std::string rows, columns = "all", sum;
    words >> rows;
    for (std::string word; words >> word;) {
      if (word == "columns")
        words >> columns;
      else
        sum += (sum.empty() ? "" : " ") + word;
    }
    tap.rows.push_back(rows);
    tap.sums.push_back(sum.empty() ? "complete" : sum);
    tap.columns.push_back(columns);
  }
}

/// Observed / allowed; infinity where that is no number.
double ratio_of(const std::optional<double>& observed, const std::optional<double>& allowed) {
  if (observed.value_or(0) == 0) return 0;
  const double ratio = *observed / allowed.value_or(1);
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

std::vector<std::string> lines_of(const std::string& all) {
  std::vector<std::string> lines;
  std::istringstream in(all);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Why a tap fails: what that is called, and its numbers, which may be within what is allowed.
std::string failure_in_words(const ReportRecord& record) {
  const std::string called = text_in(record, "called");
  const std::string detail = joined_by("; ", lines_of(text_in(record, "detail")));
  std::string numbers;
  const bool is_over = record.observed && record.allowed && !(*record.observed <= *record.allowed);
  if (record.observed && record.allowed)
    numbers =
        text(text_in(record, "metric"), ' ', *record.observed, " of ", *record.allowed, " allowed");
  if (!called.empty()) return joined_by("; ", {called, is_over ? numbers : "", detail});
  const std::string verdict = record.verdict.value_or("difference");
  if (numbers.empty() && verdict == "difference") numbers = "right as far as it is there";
  return joined_by("; ", {joined_by(is_over ? ", " : ", but ", {verdict, numbers}), detail});
}

/// A verdict of a case or of a whole run that is as it should be.
bool is_good(const std::string& verdict) {
  static const std::set<std::string> good = {
      "match", "pays",       "does not pay", "one rank",  // of `cost`
      "agree", "equivalent", "differs",      "none",  // of a suggested repair beside the merged one
      ""};
  return good.contains(verdict);
}

/// Sorts the records of one file.
class Sorter {
 public:
  Sorter(const std::string& source, Results& results)
      : source_(source), results_(results), first_case_(results.cases.size()) {}

  void take(const std::string& line, std::size_t number) {
    line_ = number;
    const ReportRecord record = parse_record(line);
    if (record.kind == "start" && is_open_)
      break_off(text("no summary before line ", number, ", where another run starts: the run was ",
                     "interrupted, or its output cut off"));
    if (!is_open_) first_line_ = number;
    is_open_ = true;
    if (record.kind == "tap") {
      take_tap(record);
    } else if (record.kind == "view") {
      take_view(record);
    } else if (record.kind == "collective") {
      take_call(record);
    } else if (record.kind == "finding") {
      take_finding(record);
    } else if (record.kind == "device_run") {
      take_device_run(record);
    } else if (record.kind == "blame") {
      pending(record).result.hangs_on = text_in(record, "hangs_on");
    } else if (record.kind == "repair") {
      pending(record).result.repairs.push_back(
          text_in(record, "words") + (flag_in(record, "holds") ? "" : "; not at every row count"));
    } else if (record.kind == "case") {
      take_case(record);
    } else if (record.kind == "fault") {
      take_fault(record);
    } else if (record.kind == "summary") {
      take_summary(record);
    }
  }

  /// At the end of the file.
  void finish() {
    if (is_open_)
      break_off(
          "no summary at the end of the file: the run was interrupted, or its output cut off");
  }

  /// Where a run ends before its end: what has been found is kept, what was right so far is not.
  void break_off(const std::string& problem) {
    std::erase_if(pending_, [](const auto& own) { return own.second.result.problems.empty(); });
    take_the_rest("");
    add_error("the run did not come to its end", problem);
    end_run({"", "error", {}});
  }

 private:
  struct Ending {
    std::string verb, verdict;
    std::optional<double> seconds;
  };

  /// An error of the run as a whole.
  void add_error(const std::string& title, const std::string& problem) {
    const std::string place = first_line_ > 1 ? text(source_, ':', first_line_) : source_;
    ResultCase& broken = new_case(source_, text(place, ": ", title));
    broken.outcome = Outcome::error;
    broken.problems.push_back({.rule = "error", .message = problem, .line = line_});
  }

  /// A summary says how many records were before it: some may be lost, or be those of another run.
  void hold_to_count(const ReportRecord& summary) {
    const auto require = [&](const char* key, const char* kind, std::int64_t least,
                             std::int64_t most) {
      const std::int64_t said = whole_in(summary, key, least);
      if (least <= said && said <= most) return;
      add_error("its records are not those of its run",
                text("the summary counts ", plural(said, kind), ", found ", most,
                     ": records are lost, or those of another run are among them"));
    };
    require("taps", "tap", counts_.compared, counts_.taps);
    require("configurations", "configuration", counts_.cases, counts_.cases);
  }

  /// What a record is about. What a diff says of a dump has a step, and is kept apart by dp rank;
  /// what is missing of a step has no case, and what is missing of all steps is of none.
  struct Subject {
    std::string file, case_name;
    std::int64_t step = -1, dp = 0;

    bool is_step() const { return step >= 0; }
    auto operator<=>(const Subject&) const = default;
  };

  static Subject subject_of(const ReportRecord& record) {
    const std::string file = record.file.value_or("");
    if (std::ranges::find(record.more, "engine_step", [](const auto& key) { return key.first; }) ==
        record.more.end())
      return {file, record.case_name.value_or("")};
    return {file, "", whole_in(record, "engine_step"), whole_in(record, "dp")};
  }

  /// A configuration whose records come.
  struct Pending {
    ResultCase result;
    std::map<std::string, std::size_t> taps;      // by place
    std::map<std::string, std::size_t> problems;  // by all but the rank
  };

  Pending& pending(const ReportRecord& record) {
    Pending& of = pending_[subject_of(record)];
    if (of.result.name.empty()) of.result.name = record.case_name.value_or("");
    return of;
  }

  /// The tap of a record. Stages of a pipeline may use a name again.
  ResultTap& tap_of(Pending& of, const ReportRecord& record) {
    const std::string step = record.step.value_or(""), name = record.tap.value_or("");
    const std::int64_t stage = whole_in(record, "stage");
    const std::string key = step + '/' + name;
    auto place = of.taps.find(key);
    if (place != of.taps.end() && stage != of.result.taps[place->second].stage)
      place = of.taps.find(text(key, '/', stage));
    if (place == of.taps.end()) {
      place =
          of.taps
              .emplace(of.taps.contains(key) ? text(key, '/', stage) : key, of.result.taps.size())
              .first;
      of.result.taps.push_back({.step = step, .name = name, .stage = stage});
    }
    return of.result.taps[place->second];
  }

  void take_view(const ReportRecord& record) {
    ResultTap& tap = tap_of(pending(record), record);
    tap.rows = texts_in(record, "rows");
    tap.sums = texts_in(record, "sums");
    tap.columns = texts_in(record, "columns");
  }

  void take_tap(const ReportRecord& record) {
    Pending& of = pending(record);
    ResultTap& tap = tap_of(of, record);
    const bool failed = flag_in(record, "failed");
    ++counts_.taps;
    counts_.compared += record.verdict != "missing" && record.verdict != "unexpected";
    tap.values += whole_in(record, "values");
    if (const auto held = by_rank(text_in(record, "held")); !held.empty()) hold(tap, held);
    tap.ranks = wholes_in(record, "ranks");
    if (failed) tap.required = by_rank(text_in(record, "required"));
    // Of several records of one tap, those of the ranks, the worst.
    if (!tap.is_compared || (failed && !tap.failed) ||
        (failed == tap.failed &&
         ratio_of(record.observed, record.allowed) > ratio_of(tap.observed, tap.allowed))) {
      tap.observed = record.observed;
      tap.allowed = record.allowed;
      tap.metric = text_in(record, "metric");
      tap.verdict = record.verdict.value_or("");
      tap.detail = joined_by("; ", {text_in(record, "called"), text_in(record, "detail")});
    }
    // Data-parallel ranks have rows of their own, one rank after the other.
    const std::vector<double> ratios = numbers_in(record, "row_ratios");
    tap.row_ratios.insert(tap.row_ratios.end(), ratios.begin(), ratios.end());
    tap.is_compared = true;
    tap.failed = tap.failed || failed;
    if (!failed) return;
    const std::string verdict = record.verdict.value_or("difference");
    const std::string called = text_in(record, "called");
    add_problem(of, record,
                {.rule = verdict,
                 .place = tap.place(),
                 .expected = text_in(record, "required"),
                 .actual = text_in(record, "held"),
                 .called = called == verdict ? "" : called,
                 .message = tap.place() + ": " + failure_in_words(record)});
    const std::string repair = text_in(record, "repair");
    if (of.result.problems.size() == 1 && !repair.empty()) of.result.repairs = {repair};
  }

  void take_call(const ReportRecord& record) {
    ResultCase& result = pending(record).result;
    ResultCall call{.before = result.taps.size(),
                    .step = record.step.value_or(""),
                    .module = record.tap.value_or(""),
                    .operation = text_in(record, "operation"),
                    .group = text_in(record, "group"),
                    .ranks = wholes_in(record, "ranks"),
                    .elements = number_in(record, "elements").value_or(0)};
    result.calls.push_back(std::move(call));
  }

  void take_finding(const ReportRecord& record) {
    if (record.verdict == "note") return;
    if (record.verdict == "error") {
      Pending& of = pending(record);
      of.result.outcome = Outcome::error;
      add_problem(of, record, {.rule = "error", .message = text_in(record, "detail")});
      return;
    }
    Problem problem{.rule = text_in(record, "check"),
                    .place = record.tap.value_or(""),
                    .operation = text_in(record, "operation"),
                    .tensor = text_in(record, "tensor"),
                    .expected = text_in(record, "expected"),
                    .actual = text_in(record, "actual"),
                    .after = text_in(record, "after"),
                    .first_bad_row = whole_in(record, "first_bad_row", -1)};
    if (problem.rule == "numeric" && complete(pending(record), record, problem)) return;
    problem.message =
        joined_by(" ", {problem.place, problem.operation}) +
        text(": ", problem.tensor, ": expected ", problem.expected, ", actual ", problem.actual);
    if (record.rank) problem.message += text(" on rank ", *record.rank);
    if (problem.first_bad_row >= 0)
      problem.message += text(" (first bad row ", problem.first_bad_row, ')');
    if (const std::string origin = text_in(record, "origin"); !origin.empty())
      problem.message += "; rows from " + origin;
    add_problem(pending(record), record, std::move(problem));
  }

  /// Where a finding of the numbers is about a tap that failed, the tap's problem gets its values.
  static bool complete(Pending& of, const ReportRecord& record, const Problem& finding) {
    for (Problem& problem : of.result.problems) {
      if (problem.rule != "difference" || problem.place != finding.place) continue;
      if (problem.expected.empty()) {
        problem.tensor = finding.tensor;
        problem.expected = finding.expected;
        problem.actual = finding.actual;
        problem.first_bad_row = finding.first_bad_row;
        if (record.rank) problem.ranks = {*record.rank};
      }
      return true;
    }
    return false;
  }

  void take_device_run(const ReportRecord& record) {
    if (flag_in(record, "agrees") && record.verdict == "match") return;
    Problem problem{.rule = "device", .place = record.tap.value_or("")};
    problem.message = joined_by(
        "; ", {text(record.verdict.value_or(""),
                    flag_in(record, "agrees") ? ", as the views say" : ", not what the views say"),
               text_in(record, "kernel"), text_in(record, "noticed")});
    add_problem(pending(record), record, std::move(problem));
  }

  void add_problem(Pending& of, const ReportRecord& record, Problem problem) {
    const std::string key =
        problem.rule + '\n' + problem.place + '\n' + problem.operation + '\n' + problem.tensor;
    const auto [place, is_new] = of.problems.emplace(key, of.result.problems.size());
    if (is_new) {
      problem.line = line_;
      of.result.problems.push_back(std::move(problem));
    }
    std::vector<std::int64_t>& ranks = of.result.problems[place->second].ranks;
    if (record.rank && std::ranges::find(ranks, *record.rank) == ranks.end())
      ranks.push_back(*record.rank);
  }

  void take_case(const ReportRecord& record) {
    ++counts_.cases;
    Pending of = std::move(pending(record));
    pending_.erase(subject_of(record));
    ResultCase& result = of.result;
    result.file = record.file.value_or("");
    result.name = record.case_name.value_or("");
    describe(result, record);
    result.expected_to_fail = flag_in(record, "expected_to_fail");
    if (!is_good(result.verdict)) {
      result.outcome = Outcome::failed;
      if (result.problems.empty())
        result.problems.push_back(
            {.rule = "difference",
             .place = record.tap.value_or(""),
             .message = result.detail.empty() ? unexpected_in_words(record) : result.detail,
             .line = line_});
    }
    results_.cases.push_back(std::move(result));
  }

  /// Why a configuration of a matrix without a problem of its own is not as expected.
  static std::string unexpected_in_words(const ReportRecord& record) {
    if (flag_in(record, "expected_to_fail"))
      return "expected to fail, as this protocol must at this row count, and does not";
    std::string words = text(plural(whole_in(record, "findings"), "finding"), " of the views, ",
                             plural(whole_in(record, "failed"), "failed tap"));
    if (record.tap && record.observed && record.allowed)
      words +=
          text("; worst ", *record.observed, " of ", *record.allowed, " allowed at ", *record.tap);
    return words;
  }

  void take_fault(const ReportRecord& record) {
    ResultCase& result = new_case("", text_in(record, "fault") + ": " + text_in(record, "title"));
    result.outcome = flag_in(record, "derived") ? Outcome::passed : Outcome::failed;
    result.verdict = record.verdict.value_or("");
    result.detail = text_in(record, "detail");
    result.line = line_;
    const std::string gone = text_in(record, "gone_from");
    if (!gone.empty()) result.repairs = {"gone from " + gone + " on"};
    result.problems.push_back(
        {.rule = "fault",
         .place = record.tap.value_or(""),
         .operation = text_in(record, "fault"),
         .message = text(flag_in(record, "loud") ? "loud" : "silent", ", first --requests ",
                         text_in(record, "first_batch"), ": ", result.detail),
         .line = line_});
  }

  void take_summary(const ReportRecord& record) {
    const std::string verb = text_in(record, "verb");
    if (verb.empty()) return;  // of one file of a run
    const std::string verdict = record.verdict.value_or("");
    if (results_.cases.size() == first_case_ && pending_.empty()) pending_[{}];  // but a verdict
    if (auto own = pending_.find({}); own != pending_.end()) {  // a run of one configuration
      ResultCase& result = own->second.result;
      result.file = record.file.value_or("");
      result.name = record.case_name.value_or(verb);
      describe(result, record);
      if (!is_good(verdict)) fail(result, verdict);
      results_.cases.push_back(std::move(result));
      pending_.erase(own);
    }
    const std::string trusted = text_in(record, "trusted");
    take_the_rest(trusted.empty()
                      ? ""
                      : joined_by(", ", {text_in(record, "parallel"), "held against " + trusted}),
                  text_in(record, "label"));
    const auto of_run = std::ranges::subrange(results_.cases.begin() + std::ptrdiff_t(first_case_),
                                              results_.cases.end());
    if (!is_good(verdict) && std::ranges::all_of(of_run, [](const ResultCase& result) {
          return result.outcome == Outcome::passed;
        }))
      fail(new_case("", verb), verdict);  // the whole is worse than its parts say
    hold_to_count(record);
    end_run({verb, verdict, number_in(record, "seconds")});
  }

  /// Configurations without a record of their own: steps of a dump, files that cannot be read.
  /// `label`: what tells the run from others of its verb.
  void take_the_rest(const std::string& title, const std::string& label = {}) {
    std::vector<Problem> of_all_steps;
    for (auto own = pending_.begin(); own != pending_.end(); ++own) {
      const auto& [file, case_name, step, dp] = own->first;
      ResultCase& result = own->second.result;
      if (!own->first.is_step()) {
        of_all_steps.clear();
        const auto next = std::next(own);
        if (next != pending_.end() && next->first.is_step() && next->first.file == file) {
          of_all_steps = std::move(result.problems);
          continue;
        }
      }
      if (result.problems.empty() && result.taps.empty()) continue;
      result.file = file;
      result.title = title;
      if (result.name.empty() && label.empty())
        result.name = file.empty() ? source_ : file_name(file);
      else
        result.name = joined_by(" of ", {result.name, label});
      if (step > 0) result.name += text(", engine step ", step);
      if (dp > 0) result.name += text(", dp rank ", dp);
      if (!of_all_steps.empty()) {
        result.problems.insert(result.problems.begin(), of_all_steps.begin(), of_all_steps.end());
        result.repairs.clear();  // of what is a consequence
      }
      name_worst(result);
      if (result.outcome == Outcome::passed && !result.problems.empty())
        result.outcome = Outcome::failed;
      results_.cases.push_back(std::move(result));
    }
    pending_.clear();
  }

  /// The tap that is nearest to its limit, or furthest over it.
  static void name_worst(ResultCase& result) {
    double worst = 0;
    for (const ResultTap& tap : result.taps) {
      const double ratio = ratio_of(tap.observed, tap.allowed);
      if (!tap.allowed || tap.metric == "rows" || ratio <= worst) continue;
      worst = ratio;
      result.observed = tap.observed;
      result.allowed = tap.allowed;
      result.metric = tap.metric;
      result.worst_place = tap.place();
    }
  }

  void fail(ResultCase& result, const std::string& verdict) const {
    if (result.outcome == Outcome::passed)
      result.outcome = verdict == "error" ? Outcome::error : Outcome::failed;
    if (result.problems.empty())
      result.problems.push_back({.rule = verdict == "nothing compared" ? verdict : "difference",
                                 .message = joined_by(": ", {verdict, result.detail}),
                                 .line = line_});
  }

  /// What a case's own record, or the summary of a run of one case, says of it.
  void describe(ResultCase& result, const ReportRecord& record) const {
    result.line = line_;
    result.verdict = record.verdict.value_or("");
    result.detail = text_in(record, "detail");
    result.title = text_in(record, "title");
    if (const std::string repair = text_in(record, "repair"); !repair.empty())
      result.repairs.push_back((result.repairs.empty() ? "" : "as it was made: ") + repair);
    result.observed = record.observed;
    result.allowed = record.allowed;
    result.metric = text_in(record, "metric");
    result.worst_place = joined_by("/", {record.step.value_or(""), record.tap.value_or("")});
    result.seconds = number_in(record, "seconds");
  }

  ResultCase& new_case(const std::string& file, const std::string& name) {
    return results_.cases.emplace_back(
        ResultCase{.source = source_, .file = file, .name = name, .line = line_});
  }

  void end_run(const Ending& ending) {
    for (std::size_t i = first_case_; i < results_.cases.size(); ++i) {
      results_.cases[i].source = source_;
      results_.cases[i].verb = ending.verb.empty() ? "unknown" : ending.verb;
    }
    results_.runs.push_back(
        {source_, ending.verb, ending.verdict, ending.seconds, first_case_, results_.cases.size()});
    first_case_ = results_.cases.size();
    counts_ = {};
    is_open_ = false;
  }

  const std::string& source_;
  Results& results_;
  std::size_t first_case_;
  std::size_t line_ = 0, first_line_ = 0;  // at hand; of the run
  struct {
    std::int64_t taps = 0, compared = 0, cases = 0;
  } counts_;              // records of the run; `compared`: taps that both sides have
  bool is_open_ = false;  // records came since the last run ended
  std::map<Subject, Pending> pending_;
};

/// Longer than a record of any verb: a tap of a million rows has 10 MB.
constexpr std::streamsize longest_line = 64 << 20;

void read_lines(std::istream& in, const std::string& file, Sorter& sorter) {
  const auto buffer = std::make_unique_for_overwrite<char[]>(longest_line);
  std::size_t number = 0, records = 0;
  while (in.getline(buffer.get(), longest_line)) {
    ++number;
    throw_if_interrupted();
    const std::string line(buffer.get(), std::size_t(in.gcount() - (in.eof() ? 0 : 1)));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++records;
    in_scope(text(printable(file), ':', number), [&] { sorter.take(line, number); });
  }
  if (in.bad()) throw FileError(printable(file) + ": cannot be read to its end");
  if (!in.eof())
    throw FileError(text(printable(file), ':', number + 1, ": is longer than ", longest_line >> 20,
                         " MiB, expected a line of a report"));
  if (records == 0) throw FileError(printable(file) + ": is empty, expected a line of a report");
}

void read_file(const std::string& file, Results& results) {
  const bool is_standard_input = file == "-";
  std::ifstream own;
  if (!is_standard_input) {
    std::error_code none;
    if (std::filesystem::is_directory(file, none))
      throw FileError(printable(file) + ": is a folder, expected a file of records");
    own.open(file, std::ios::binary);
    if (!own) throw FileError(printable(file) + ": cannot be read");
  }
  const std::string name = is_standard_input ? "standard input" : file;
  Sorter sorter(name, results);
  std::istream& in = is_standard_input ? std::cin : own;
  try {
    read_lines(in, name, sorter);
  } catch (const FileError& error) {  // the other files are still read
    results.unreadable.push_back(error.what());
    sorter.break_off(text(error.what(), in.eof() ? "; the file ends here: the run was interrupted, "
                                                   "or its output cut off"
                                                 : ""));
    return;
  }
  sorter.finish();
}

}  // namespace

Results read_results(const std::vector<std::string>& files) {
  Results results;
  for (const std::string& file : files) read_file(file, results);
  return results;
}

}  // namespace tokenview
