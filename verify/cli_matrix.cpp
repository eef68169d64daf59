// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_matrix.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <set>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/cli_checkpoint.hpp"
#include "verify/cli_share.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/matrix.hpp"
#include "verify/progress.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

/// Configurations by what views and numbers say.
struct Agreement {
  std::int64_t clean_match = 0, clean_differ = 0, finding_match = 0, finding_differ = 0;
  std::int64_t unexpected = 0;
  std::int64_t taps = 0, values = 0;
  Bound worst;
  std::string worst_place;

  std::int64_t count() const { return clean_match + clean_differ + finding_match + finding_differ; }

  void add(const MatrixResult& r) {
    (r.views_clean() ? (r.numbers_match() ? clean_match : clean_differ)
                     : (r.numbers_match() ? finding_match : finding_differ)) += 1;
    unexpected += !r.as_expected();
    taps += r.taps;
    values += r.values;
    if (r.numbers_match() && r.worst.ratio() > worst.ratio()) {
      worst = r.worst;
      worst_place = r.entry.name() + ' ' + r.worst_tap;
    }
  }
  void add(const Agreement& other) {
    clean_match += other.clean_match;
    clean_differ += other.clean_differ;
    finding_match += other.finding_match;
    finding_differ += other.finding_differ;
    unexpected += other.unexpected;
    taps += other.taps;
    values += other.values;
    if (other.worst.ratio() > worst.ratio()) {
      worst = other.worst;
      worst_place = other.worst_place;
    }
  }
};

std::string in_words(const MatrixResult& r) {
  std::string line = text(
      r.as_expected() ? "ok    " : "FAIL  ", r.entry.name(), ": views ",
      r.views_clean() ? "clean" : plural(std::int64_t(r.findings.size()), "finding"), ", numbers ",
      r.numbers_match()  ? std::string("match")
      : !r.error.empty() ? "stopped: " + r.error
                         : plural(r.failed, "failed tap"));
  if (r.expected_to_fail) line += ", as this protocol must at this row count";
  if (!r.as_expected() || r.expected_to_fail) {
    if (!r.findings.empty()) line += "; first " + to_string(r.findings.front());
    if (!r.problem.empty()) line += "; " + r.problem;
  }
  return line;
}

ReportRecord record_of(const MatrixResult& r) {
  ReportRecord record{.kind = "case"};
  record.file = r.entry.file;
  record.case_name = r.entry.name();
  record.tap = r.worst_tap;
  record.observed = r.worst.observed;
  record.allowed = r.worst.allowed;
  record.verdict = r.as_expected() ? "match" : "difference";
  record.more = {{"protocol", std::string(to_string(r.entry.protocol))},
                 {"tp", r.entry.parallel.tp},
                 {"dp", r.entry.parallel.dp},
                 {"expert_parallel", r.entry.parallel.enable_expert_parallel},
                 {"findings", std::int64_t(r.findings.size())},
                 {"failed", r.failed},
                 {"taps", r.taps},
                 {"values", r.values},
                 {"expected_to_fail", r.expected_to_fail},
                 {"detail", r.error.empty() ? r.problem : r.error}};
  return record;
}

/// What the record of a configuration is the sum of: what the ranks held, findings, and taps.
std::vector<ReportRecord> detail_records(const MatrixResult& r) {
  std::vector<ReportRecord> records = view_records(r.views);
  for (const Finding& finding : r.findings) records.push_back(finding_record(finding, r.views));
  for (const MatrixTap& tap : r.compared) {
    ReportRecord& record =
        records.emplace_back(tap_record(tap.name, tap.dp, tap.failed, tap.row_ratios));
    record.more.emplace_back("values", tap.values);
    if (tap.worst.allowed > 0) {
      record.observed = tap.worst.observed;
      record.allowed = tap.worst.allowed;
      record.more.emplace_back("metric", tap.worst.metric);
    }
    if (!tap.problem.empty()) record.more.emplace_back("detail", tap.problem);
  }
  for (ReportRecord& record : records) {
    record.file = r.entry.file;
    record.case_name = r.entry.name();
  }
  return records;
}

/// The lines of a configuration in JSON Lines.
std::vector<std::string> lines_of(const MatrixResult& r) {
  std::vector<std::string> lines;
  if (r.entry.keeps_details)
    for (const ReportRecord& record : detail_records(r)) lines.push_back(json_line(record));
  lines.push_back(json_line(record_of(r)));
  return lines;
}

bool selected(const MatrixArguments& arguments, const MatrixEntry& entry) {
  const auto among = [](const auto& wanted, const auto& value) {
    return wanted.empty() || std::ranges::find(wanted, value) != wanted.end();
  };
  return among(arguments.tp, entry.parallel.tp) && among(arguments.dp, entry.parallel.dp) &&
         among(arguments.protocols, std::string(to_string(entry.protocol))) &&
         among(arguments.cases, entry.cases.front());
}

/// What one part of the matrix came to.
struct Checked {
  Agreement all;
  std::int64_t selected = 0, refused = 0;  // of the whole matrix
  std::int64_t other_ranks = 0;  // selected, but of another number of ranks than there are
  std::int64_t uploads = 0;      // of a rank's weights to a GPU
  std::set<std::string> known_cases;
  double seconds = 0;
  Exit exit = Exit::match;
};

/// Checks the configurations of `share`; `tell_case` is told of each, `tell_file` of each file that
/// has some, `tell_error` of each file that cannot be read.
template <class TellCase, class TellFile, class TellError>
Checked check_part(const MatrixArguments& arguments, const Executor& executor, const Share& share,
                   TellCase tell_case, TellFile tell_file, TellError tell_error) {
  const bool is_simulated = executor.device == Device::cpu && executor.comm == CommKind::sim;
  std::int64_t other_world = 0;
  Progress progress;
  Checked checked;
  const std::unique_ptr<const Checkpoint> checkpoint = opened_checkpoint(arguments.checkpoint);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& path : arguments.goldens) {
    std::optional<LoadedGolden> loaded;
    try {
      loaded.emplace(path, checkpoint.get());
    } catch (const Error& error) {  // the others are still checked
      std::cout.flush();
      print_error(error.what());
      tell_error(path, error.what());
      checked.exit = Exit::usage;
      continue;
    }
    const LoadedGolden& golden = *loaded;
    for (const auto& [name, unused] : golden.cases()) checked.known_cases.insert(name);
    MatrixEntries matrix = matrix_of(golden, arguments.quick, arguments.tokens);
    std::vector<MatrixEntry>& entries = matrix.entries;
    checked.refused += matrix.refused;
    std::erase_if(entries, [&](const MatrixEntry& entry) {
      return !selected(arguments, entry) || !share.has(checked.selected++);
    });
    checked.other_ranks += std::int64_t(std::erase_if(entries, [&](const MatrixEntry& entry) {
      if (has_ranks(executor, entry.parallel.world_size())) return false;
      other_world = entry.parallel.world_size();
      return true;
    }));
    if (entries.empty()) continue;
    for (MatrixEntry& entry : entries)
      entry.keeps_details = arguments.verbosity > 0 && arguments.format == OutputFormat::jsonl;
    Agreement of_file;
    const auto take = [&](const MatrixResult& result) {
      throw_if_interrupted();
      progress.update(
          text("matrix: ", of_file.count() + 1, '/', entries.size(), ' ', golden.name()));
      of_file.add(result);
      tell_case(result);
    };
    if (is_simulated)
      run_matrix(golden, entries, executor.rounding, arguments.num_threads, take);
    else
      checked.uploads += run_matrix_on(executor, golden, entries, take);
    progress.clear();
    tell_file(path, of_file);
    checked.all.add(of_file);
  }
  if (checked.all.count() == 0 && checked.other_ranks > 0) require_ranks(executor, other_world);
  checked.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return checked;
}

ReportRecord summary_record(const Agreement& all, std::int64_t refused, double seconds, Exit exit) {
  ReportRecord summary{.kind = "summary"};
  summary.verdict = exit == Exit::usage   ? "error"
                    : all.count() == 0    ? "nothing compared"
                    : all.unexpected == 0 ? "match"
                                          : "difference";
  summary.more = {{"verb", "check --matrix"},
                  {"configurations", all.count()},
                  {"clean_match", all.clean_match},
                  {"clean_differ", all.clean_differ},
                  {"finding_match", all.finding_match},
                  {"finding_differ", all.finding_differ},
                  {"unexpected", all.unexpected},
                  {"values", all.values},
                  {"refused", refused},
                  {"seconds", seconds}};
  return summary;
}

ReportRecord part_record(const Checked& checked, const Share& share) {
  ReportRecord summary =
      summary_record(checked.all, checked.refused, checked.seconds, checked.exit);
  summary.more.emplace_back("other_ranks", checked.other_ranks);
  summary.more.emplace_back("uploads", checked.uploads);
  if (share.count > 1) {
    add_share(summary, share, checked.all.count(), checked.selected);
    summary.more.emplace_back("exit", std::int64_t(checked.exit));
  }
  return summary;
}

void print_summary(const Agreement& all, std::int64_t refused, const std::string& of,
                   double seconds) {
  std::cout << "                   numbers match   numbers differ\n"
            << text("views clean        ", all.clean_match, "   ", all.clean_differ, '\n')
            << text("views with finding ", all.finding_match, "   ", all.finding_differ, '\n');
  std::cout << (all.unexpected == 0 ? "match: " : "difference: ")
            << plural(all.count(), "configuration") << of << " (" << refused << " refused), "
            << all.unexpected << " not as expected, " << all.values << " values, "
            << text(std::int64_t(seconds * 10) / 10.0) << " s\n";
}

Exit nothing_compared(const MatrixArguments& arguments, const std::set<std::string>& known_cases) {
  std::string problem = "nothing compared: no configuration of these files is selected";
  for (const std::string& name : arguments.cases)
    if (!known_cases.contains(name))
      problem = text("nothing compared: --case '", printable(name), "' is in none of these files",
                     suggestion(name, {known_cases.begin(), known_cases.end()}));
  if (arguments.quick) problem += "; --matrix=full has more";
  print_error(problem);
  return Exit::nothing_compared;
}

/// The verdict of all parts together.
Exit report_parts(const MatrixArguments& arguments, const std::vector<Part>& parts) {
  Agreement all;
  all.clean_match = sum_of(parts, "clean_match");
  all.clean_differ = sum_of(parts, "clean_differ");
  all.finding_match = sum_of(parts, "finding_match");
  all.finding_differ = sum_of(parts, "finding_differ");
  all.unexpected = sum_of(parts, "unexpected");
  all.values = sum_of(parts, "values");
  const double seconds = largest_of(parts, "seconds");
  const std::int64_t refused = std::int64_t(largest_of(parts, "refused"));
  const bool records = arguments.format == OutputFormat::jsonl;
  for (const Part& part : parts)
    for (const nlohmann::json& record : part.cases)
      if (records)
        std::cout << record.dump() << '\n';
      else if (word_in(record, "kind") != "case")
        continue;
      else if (arguments.verbosity > 0 || word_in(record, "verdict") != "match")
        std::cout << (word_in(record, "verdict") == "match" ? "ok    " : "FAIL  ")
                  << word_in(record, "case") << ": " << word_in(record, "detail") << '\n';
  const Exit exit =
      largest_of(parts, "exit") > 0 ? Exit::usage : Exit::match;  // a file that cannot be read
  if (records) std::cout << json_line(summary_record(all, refused, seconds, exit)) << '\n';
  if (all.count() == 0) return more_important(exit, nothing_compared(arguments, {}));
  if (!records)
    print_summary(all, refused, text(" in ", plural(std::int64_t(parts.size()), "part")), seconds);
  return more_important(exit, all.unexpected == 0 ? Exit::match : Exit::difference);
}

}  // namespace

Exit run_matrix_check(const MatrixArguments& arguments) {
  if (!arguments.merge.empty())
    return report_parts(arguments, read_parts("check --matrix", arguments.merge));
  Executor executor = executor_of(arguments.executor, false);
  executor.rounding = arguments.rounding;
  silence_other_ranks(executor);
  // Processes that are the ranks of one run do not share the work.
  const Share share = executor.comm == CommKind::sim ? share_of(arguments.shard) : Share();
  if (share.is_mpirun && share.count > 1)
    return report_parts(arguments, gathered_parts("check --matrix", share, [&] {
                          std::vector<std::string> lines;
                          const Checked checked = check_part(
                              arguments, executor, share,
                              [&](const MatrixResult& r) {
                                for (std::string& line : lines_of(r))
                                  lines.push_back(std::move(line));
                              },
                              [](const std::string&, const Agreement&) {},
                              [&](const std::string& path, const std::string& problem) {
                                lines.push_back(json_line(error_record(path, problem)));
                              });
                          lines.push_back(json_line(part_record(checked, share)));
                          return lines;
                        }));

  const bool records = arguments.format == OutputFormat::jsonl;
  const Checked checked = check_part(
      arguments, executor, share,
      [&](const MatrixResult& result) {
        if (records)
          for (const std::string& line : lines_of(result)) std::cout << line << '\n';
        else if (arguments.verbosity > 0 || !result.as_expected())
          std::cout << in_words(result) << '\n';
      },
      [&](const std::string& path, const Agreement& of_file) {
        if (!records)
          std::cout << (of_file.unexpected == 0 ? "ok    " : "FAIL  ") << printable(path) << ": "
                    << plural(of_file.count(), "configuration") << ", "
                    << plural(of_file.taps, "tap")
                    << (of_file.worst_place.empty()
                            ? std::string()
                            : text(", worst ", of_file.worst.metric, ' ', of_file.worst.observed,
                                   " of ", of_file.worst.allowed, " at ", of_file.worst_place))
                    << '\n';
      },
      [&](const std::string& path, const std::string& problem) {
        if (records) std::cout << json_line(error_record(path, problem)) << '\n';
      });
  if (records) std::cout << json_line(part_record(checked, share)) << '\n';
  if (checked.all.count() == 0 && (share.count == 1 || checked.selected == 0))
    return more_important(checked.exit, nothing_compared(arguments, checked.known_cases));
  if (!records) {
    if (checked.other_ranks > 0)
      std::cout << plural(checked.other_ranks, "configuration")
                << " left out: of another number of ranks than there are\n";
    if (checked.uploads > 0)
      std::cout << "weights of a rank uploaded " << plural(checked.uploads, "time") << '\n';
    print_summary(checked.all, checked.refused,
                  share.count > 1 ? text(" (shard ", share.str(), ')') : "", checked.seconds);
  }
  if (checked.all.count() == 0) return more_important(checked.exit, Exit::nothing_compared);
  return more_important(checked.exit, checked.all.unexpected == 0 ? Exit::match : Exit::difference);
}

}  // namespace tokenview
