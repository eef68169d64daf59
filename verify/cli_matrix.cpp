// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_matrix.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <set>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
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

bool selected(const MatrixArguments& arguments, const MatrixEntry& entry) {
  const auto among = [](const auto& wanted, const auto& value) {
    return wanted.empty() || std::ranges::find(wanted, value) != wanted.end();
  };
  return among(arguments.tp, entry.parallel.tp) && among(arguments.dp, entry.parallel.dp) &&
         among(arguments.protocols, std::string(to_string(entry.protocol))) &&
         among(arguments.cases, entry.cases.front());
}

}  // namespace

Exit run_matrix_check(const MatrixArguments& arguments) {
  const bool records = arguments.format == OutputFormat::jsonl;
  Progress progress;
  Agreement all;
  std::set<std::string> known_cases;
  std::int64_t skipped_files = 0, refused = 0, other_ranks = 0, other_world = 0, uploads = 0;
  const Executor executor = executor_of(arguments.executor, false);
  const bool is_simulated = executor.device == Device::cpu && executor.comm == CommKind::sim;
  silence_other_ranks(executor);
  const auto start = std::chrono::steady_clock::now();
  Exit exit = Exit::match;
  for (const std::string& path : arguments.goldens) {
    std::optional<LoadedGolden> loaded;
    try {
      loaded.emplace(path);
    } catch (const Error& error) {  // the others are still checked
      std::cout.flush();
      print_error(error.what());
      exit = Exit::usage;
      continue;
    }
    const LoadedGolden& golden = *loaded;
    for (const auto& [name, unused] : golden.cases()) known_cases.insert(name);
    if (golden.dtype() != DType::float32) {  // sums over ranks round in an order of their own
      ++skipped_files;
      continue;
    }
    MatrixEntries matrix = matrix_of(golden, arguments.quick, arguments.tokens);
    std::vector<MatrixEntry>& entries = matrix.entries;
    refused += matrix.refused;
    std::erase_if(entries, [&](const MatrixEntry& entry) { return !selected(arguments, entry); });
    other_ranks += std::int64_t(std::erase_if(entries, [&](const MatrixEntry& entry) {
      if (has_ranks(executor, entry.parallel.world_size())) return false;
      other_world = entry.parallel.world_size();
      return true;
    }));
    if (entries.empty()) continue;
    Agreement of_file;
    const auto take = [&](const MatrixResult& result) {
      throw_if_interrupted();
      progress.update(
          text("matrix: ", of_file.count() + 1, '/', entries.size(), ' ', golden.name()));
      of_file.add(result);
      if (records)
        std::cout << json_line(record_of(result)) << '\n';
      else if (arguments.verbosity > 0 || !result.as_expected())
        std::cout << in_words(result) << '\n';
    };
    if (is_simulated)
      run_matrix(golden, entries, arguments.num_threads, take);
    else
      uploads += run_matrix_on(executor, golden, entries, take);
    progress.clear();
    if (!records)
      std::cout << (of_file.unexpected == 0 ? "ok    " : "FAIL  ") << printable(path) << ": "
                << plural(of_file.count(), "configuration") << ", " << plural(of_file.taps, "tap")
                << (of_file.worst_place.empty()
                        ? std::string()
                        : text(", worst ", of_file.worst.metric, ' ', of_file.worst.observed,
                               " of ", of_file.worst.allowed, " at ", of_file.worst_place))
                << '\n';
    all.add(of_file);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (all.count() == 0 && other_ranks > 0) require_ranks(executor, other_world);
  if (all.count() == 0) {
    std::string problem = "nothing compared: no configuration of these files is selected";
    for (const std::string& name : arguments.cases)
      if (!known_cases.contains(name))
        problem = text("nothing compared: --case '", printable(name), "' is in none of these files",
                       suggestion(name, {known_cases.begin(), known_cases.end()}));
    if (arguments.quick) problem += "; --matrix=full has more";
    print_error(problem);
    return more_important(exit, Exit::nothing_compared);
  }
  if (records) {
    ReportRecord summary{.kind = "summary"};
    summary.verdict = all.unexpected == 0 ? "match" : "difference";
    summary.more = {{"configurations", all.count()},
                    {"clean_match", all.clean_match},
                    {"clean_differ", all.clean_differ},
                    {"finding_match", all.finding_match},
                    {"finding_differ", all.finding_differ},
                    {"unexpected", all.unexpected},
                    {"refused", refused},
                    {"other_ranks", other_ranks},
                    {"uploads", uploads},
                    {"seconds", seconds}};
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << "                   numbers match   numbers differ\n"
              << text("views clean        ", all.clean_match, "   ", all.clean_differ, '\n')
              << text("views with finding ", all.finding_match, "   ", all.finding_differ, '\n');
    if (skipped_files > 0)
      std::cout << plural(skipped_files, "bfloat16 file") << " left out: the matrix is float32\n";
    if (other_ranks > 0)
      std::cout << plural(other_ranks, "configuration")
                << " left out: of another number of ranks than there are\n";
    if (uploads > 0) std::cout << "weights of a rank uploaded " << plural(uploads, "time") << '\n';
    std::cout << (all.unexpected == 0 ? "match: " : "difference: ")
              << plural(all.count(), "configuration") << " (" << refused << " refused), "
              << all.unexpected << " not as expected, " << all.values << " values, "
              << text(std::int64_t(seconds * 10) / 10.0) << " s\n";
  }
  return more_important(exit, all.unexpected == 0 ? Exit::match : Exit::difference);
}

}  // namespace tokenview
