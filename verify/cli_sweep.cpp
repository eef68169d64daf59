// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "reference/program/error.hpp"
#include "reference/program/strict_json.hpp"
#include "tokenview_version.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/cli_share.hpp"
#include "verify/data_folder.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/progress.hpp"
#include "verify/report.hpp"
#include "verify/scenario.hpp"
#include "verify/sweep.hpp"

namespace tokenview {
namespace {

constexpr std::size_t chunk_size = 500;

struct SweepArguments {
  std::optional<std::string> shard;
  std::vector<std::string> merge;
  std::string state;
  int threads = 0;
  bool mutants = false;
  OutputFormat format = OutputFormat::text;
};

/// What a part of the matrix came to.
struct Counts {
  std::int64_t runs = 0, clean = 0, found = 0, unexpected = 0;

  void add(const SweepResult& result) {
    ++runs;
    ++(result.has_finding ? found : clean);
    unexpected += !result.is_as_expected();
  }
  Counts& operator+=(const Counts& more) {
    runs += more.runs;
    clean += more.clean;
    found += more.found;
    unexpected += more.unexpected;
    return *this;
  }
};

/// Chunks that were done before, one line of JSON each behind a line that says of what.
class SweepState {
 public:
  SweepState(const std::string& path, std::size_t total, std::size_t num_chunks,
             const std::string& shard)
      : path_(path) {
    if (path.empty()) return;
    lock();
    const nlohmann::json head = {{"schema", "tokenview.sweep"},
                                 {"version", 1},
                                 {"program", build::version},
                                 {"total", total},
                                 {"shard", shard}};
    std::ifstream file(path, std::ios::binary);
    bool is_first = true;
    std::uintmax_t whole = 0;  // bytes of lines that were written to their end
    std::int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      const std::string where = text(path, ": line ", ++number);
      if (file.eof() && (!is_first || head.dump().starts_with(line))) break;  // interrupted
      whole += line.size() + 1;
      const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_discarded() || !record.is_object())
        throw FileError(where + ": is no state of a sweep");
      if (!is_first) {
        take(record, num_chunks, where);
      } else if (record != head) {
        throw FileError(text(where, ": is the state of another sweep: found ",
                             shortened(record.dump()), ", expected ", head.dump()));
      }
      is_first = false;
    }
    if (std::error_code error; file.is_open()) std::filesystem::resize_file(path, whole, error);
    out_.open(path, std::ios::app);
    if (!out_) throw FileError(text(path, ": cannot be written"));
    if (is_first) out_ << head.dump() << std::endl;
  }

  ~SweepState() {
    if (lock_ >= 0) close(lock_);
  }
  SweepState(const SweepState&) = delete;
  SweepState& operator=(const SweepState&) = delete;

  bool is_done(std::size_t chunk) const { return done_.contains(chunk); }
  const Counts& counts() const { return counts_; }
  void add(std::size_t chunk, const Counts& counts) {
    counts_ += counts;
    if (path_.empty()) return;
    out_ << nlohmann::json{{"chunk", chunk},
                           {"runs", counts.runs},
                           {"clean", counts.clean},
                           {"found", counts.found},
                           {"unexpected", counts.unexpected}}
                .dump()
         << std::endl;
    if (!out_) throw FileError(text(path_, ": cannot be written"));
  }

 private:
  /// The file is this process' until it ends: two that write into it would note chunks twice.
  void lock() {
    lock_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0) throw FileError(text(printable(path_), ": cannot be written"));
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw UsageError(text("sweep: --state ", printable(path_),
                            ": another sweep is writing it, expected a file of its own"));
  }

  void take(const nlohmann::json& record, std::size_t num_chunks, const std::string& where) {
    const auto number = [&](const char* key) {
      const auto found = record.find(key);
      if (found == record.end() || !found->is_number_unsigned())
        throw FileError(text(where, ": ", key, ": expected a whole number"));
      return found->get<std::int64_t>();
    };
    const auto chunk = std::size_t(number("chunk"));
    if (chunk >= num_chunks || !done_.insert(chunk).second)
      throw FileError(text(where, ": chunk ", chunk, ": expected each of 0 to ", num_chunks - 1,
                           " at most once"));
    counts_ += Counts{number("runs"), number("clean"), number("found"), number("unexpected")};
  }

  std::string path_;
  int lock_ = -1;  // a descriptor
  std::ofstream out_;
  std::set<std::size_t> done_;
  Counts counts_;
};

/// What one part of the sweep found.
struct Swept {
  Counts counts;
  std::int64_t before = 0;  // of the counts, from an earlier run
  std::vector<SweepResult> unexpected;
  double seconds = 0;
};

Swept sweep_part(const SweepArguments& arguments, const Share& share, const SweepMatrix& matrix,
                 int threads) {
  const std::size_t num_chunks = (matrix.distinct.size() + chunk_size - 1) / chunk_size;
  const std::string path = arguments.state.empty() || !share.is_mpirun
                               ? arguments.state  // the processes of mpirun have one each
                               : text(arguments.state, '.', share.index + 1, "-of-", share.count);
  SweepState state(path, matrix.distinct.size(), num_chunks, share.str());
  std::vector<std::size_t> chunks;
  std::size_t items = 0;
  for (std::size_t chunk = 0; chunk < num_chunks; ++chunk)
    if (share.has(std::int64_t(chunk)) && !state.is_done(chunk)) {
      chunks.push_back(chunk);
      items += std::min(chunk_size, matrix.distinct.size() - chunk * chunk_size);
    }
  const std::int64_t before = state.counts().runs;
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> runs{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr error;
  std::vector<SweepResult> unexpected;
  const auto start = std::chrono::steady_clock::now();
  const auto work = [&] {
    try {
      Sweeper sweeper;
      for (std::size_t i = next++; i < chunks.size() && !stop; i = next++) {
        Counts counts;
        std::vector<SweepResult> bad;
        const std::size_t end = std::min(matrix.distinct.size(), (chunks[i] + 1) * chunk_size);
        for (std::size_t k = chunks[i] * chunk_size; k < end && !stop; ++k) {
          SweepResult result = sweeper.run(matrix.distinct[k]);
          counts.add(result);
          ++runs;
          if (!result.is_as_expected()) bad.push_back(std::move(result));
        }
        if (stop) return;
        const std::lock_guard lock(mutex);
        state.add(chunks[i], counts);
        unexpected.insert(unexpected.end(), bad.begin(), bad.end());
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      stop = true;
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int t = 0; t < threads; ++t) workers.emplace_back(work);
    Progress progress;
    const auto all = std::int64_t(items);
    while (runs < all && !stop && next < chunks.size() + std::size_t(threads)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      try {
        throw_if_interrupted();
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        stop = true;
      }
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const double left = runs == 0 ? 0 : seconds / double(runs) * double(all - runs);
      progress.update(text("sweep: ", runs.load(), " of ", all, " distinct configurations, ",
                           std::int64_t(left), " s left"));
    }
  }
  if (error) std::rethrow_exception(error);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  return {state.counts(), before, std::move(unexpected), seconds};
}

ReportRecord case_record(const SweepResult& result) {
  ReportRecord record{.kind = "case", .case_name = in_words(result.key)};
  record.verdict = "difference";
  record.more = {{"detail", text(result.has_finding ? result.first : "clean", ", expected ",
                                 result.known_fault.empty() ? "no finding"
                                                            : "a finding: " + result.known_fault)}};
  return record;
}

ReportRecord summary_record(const SweepMatrix& matrix, const Counts& counts, double seconds) {
  ReportRecord summary{.kind = "summary"};
  summary.verdict = counts.unexpected == 0 ? "match" : "difference";
  summary.more = {{"verb", "sweep"},
                  {"covered", matrix.covered},
                  {"distinct", std::int64_t(matrix.distinct.size())},
                  {"refused", matrix.refused},
                  {"runs", counts.runs},
                  {"clean", counts.clean},
                  {"findings", counts.found},
                  {"unexpected", counts.unexpected},
                  {"seconds", seconds}};
  return summary;
}

void print_unexpected(const std::string& name, const std::string& detail) {
  std::cout << "unexpected  " << name << ": " << detail << '\n';
}

/// `of`: which part, or how many were put together; `speed`: behind the seconds.
void print_summary(const SweepMatrix& matrix, const Counts& counts, const std::string& of,
                   double seconds, const std::string& speed) {
  std::cout << matrix.covered << " configurations covered by " << matrix.distinct.size()
            << " distinct runs, " << matrix.refused << " refused\n"
            << (counts.unexpected == 0 ? "match: " : "difference: ") << counts.runs << " run" << of
            << ", " << counts.clean << " clean, " << counts.found << " with a known fault found, "
            << counts.unexpected << " not as expected; " << text(std::int64_t(seconds * 10) / 10.0)
            << " s" << speed << '\n';
}

Exit exit_of(const Counts& counts) {
  if (counts.runs == 0) return Exit::nothing_compared;
  return counts.unexpected == 0 ? Exit::match : Exit::difference;
}

/// The verdict of all parts together.
Exit report_parts(const std::vector<Part>& parts, OutputFormat format) {
  const SweepMatrix matrix = sweep_matrix();
  if (sum_of(parts, "all") != std::int64_t(matrix.distinct.size() * parts.size()))
    throw FileError(text(parts.front().source, ": is of a sweep of another version"));
  const Counts counts{sum_of(parts, "runs"), sum_of(parts, "clean"), sum_of(parts, "findings"),
                      sum_of(parts, "unexpected")};
  const double seconds = largest_of(parts, "seconds");
  for (const Part& part : parts)
    for (const nlohmann::json& record : part.cases)
      if (format == OutputFormat::jsonl)
        std::cout << record.dump() << '\n';
      else
        print_unexpected(word_in(record, "case"), word_in(record, "detail"));
  if (format == OutputFormat::jsonl)
    std::cout << json_line(summary_record(matrix, counts, seconds)) << '\n';
  else
    print_summary(matrix, counts, text(" (", plural(std::int64_t(parts.size()), "part"), ')'),
                  seconds, "");
  return exit_of(counts);
}

Exit sweep(const SweepArguments& arguments) {
  if (!arguments.merge.empty())
    return report_parts(read_parts("sweep", arguments.merge), arguments.format);
  const Share share = share_of(arguments.shard);
  const int threads = arguments.threads > 0 ? arguments.threads
                      : share.is_mpirun     ? 1
                                            : available_threads();
  const SweepMatrix matrix = sweep_matrix();
  const auto part_summary = [&](const Swept& swept) {
    ReportRecord summary = summary_record(matrix, swept.counts, swept.seconds);
    if (share.count > 1)
      add_share(summary, share, swept.counts.runs, std::int64_t(matrix.distinct.size()));
    return json_line(summary);
  };
  if (share.is_mpirun && share.count > 1)
    return report_parts(gathered_parts("sweep", share,
                                       [&] {
                                         const Swept swept =
                                             sweep_part(arguments, share, matrix, threads);
                                         std::vector<std::string> lines;
                                         for (const SweepResult& result : swept.unexpected)
                                           lines.push_back(json_line(case_record(result)));
                                         lines.push_back(part_summary(swept));
                                         return lines;
                                       }),
                        arguments.format);

  const Swept swept = sweep_part(arguments, share, matrix, threads);
  const bool records = arguments.format == OutputFormat::jsonl;
  for (const SweepResult& result : swept.unexpected) {
    const ReportRecord record = case_record(result);
    if (records)
      std::cout << json_line(record) << '\n';
    else
      print_unexpected(*record.case_name, std::get<std::string>(record.more.front().second));
  }
  if (records)
    std::cout << part_summary(swept) << '\n';
  else
    print_summary(matrix, swept.counts, share.count > 1 ? text(" (shard ", share.str(), ')') : "",
                  swept.seconds,
                  text(", ",
                       std::int64_t(double(swept.counts.runs - swept.before) /
                                    std::max(swept.seconds, 1e-9) / threads),
                       " a second and thread"));
  return exit_of(swept.counts);
}

/// The score of the mutants: each is caught by the check that it names, its repaired variant is
/// clean, and its blind spots are blind.
Exit score_mutants(const SweepArguments& arguments) {
  const auto scenarios = read_scenarios(default_data_folder("scenarios", ".json", build::data_dir));
  std::int64_t mutants = 0, caught = 0, spots = 0;
  for (const Scenario& s : scenarios) {
    std::string alias;
    for (const std::string& name : s.aliases)
      if (name.size() >= 3 && (name[0] == 'M' || name[0] == 'm') && std::isdigit(name[1]) != 0)
        alias = name;
    if (alias.empty()) continue;
    ++mutants;
    std::string problem;
    bool ok = behaves_as_told(s, run_scenario(s, s.broken), problem);
    if (ok && !run_scenario(s, s.repaired).clean()) {
      ok = false;
      problem = "without the mutation it is not clean";
    }
    for (const BlindSpot& spot : s.blind) {
      ++spots;
      if (ok && !is_blind(s, spot, problem)) ok = false;
    }
    caught += ok;
    if (arguments.format == OutputFormat::jsonl) {
      ReportRecord record{.kind = "case", .case_name = alias};
      record.verdict = ok ? "match" : "difference";
      record.more = {{"check", s.expect.check}, {"detail", ok ? std::string() : problem}};
      std::cout << json_line(record) << '\n';
    } else {
      std::cout << (ok ? "caught  " : "MISSED  ") << alias
                << std::string(6 - std::min<std::size_t>(5, alias.size()), ' ') << s.expect.check
                << ": " << s.title << (ok ? "" : "\n        " + problem) << '\n';
    }
  }
  if (mutants == 0)
    throw UsageError("no mutants among the scenarios: expected aliases such as M01a");
  if (arguments.format == OutputFormat::jsonl) {
    ReportRecord summary{.kind = "summary"};
    summary.verdict = caught == mutants ? "match" : "difference";
    summary.more = {{"verb", "sweep --mutants"},
                    {"mutants", mutants},
                    {"caught", caught},
                    {"blind_spots", spots}};
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << "score " << caught << " of " << mutants << ", " << plural(spots, "blind spot")
              << " shown\n";
  }
  return caught == mutants ? Exit::match : Exit::difference;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<SweepArguments>();
  app.add_option(
         "--shard", arguments->shard,
         "Part i of n of the distinct configurations: 2/8; default: that of this process of "
         "mpirun or task of a Slurm array, else all")
      ->type_name("I/N");
  app.add_option("--merge", arguments->merge,
                 "Instead: put together what the parts printed as JSON Lines, each in a file")
      ->type_name("FILE ...")
      ->expected(1, 100000);
  app.add_option("--state", arguments->state,
                 "Notes what is done in this file, and goes on from there")
      ->type_name("FILE");
  add_number(app, "--threads", arguments->threads, 1, max_threads, "Threads; default: all cores");
  CLI::Option* const mutants =
      app.add_flag("--mutants", arguments->mutants,
                   "Instead: which check catches each injected fault of the catalogue");
  for (const char* other : {"--shard", "--state", "--threads"}) {
    mutants->excludes(app.get_option(other));
    app.get_option("--merge")->excludes(app.get_option(other));
  }
  mutants->excludes(app.get_option("--merge"));
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  return [arguments] { return arguments->mutants ? score_mutants(*arguments) : sweep(*arguments); };
}

}  // namespace

constinit const Verb sweep_verb = {
    "sweep", "Check the whole matrix of layouts on token views",
    "tokenview sweep\n"
    "    over a million legal configurations, by what is distinct of them\n"
    "tokenview sweep --shard 2/8 --state sweep-2.jsonl\n"
    "    one part of eight; interrupted, it goes on where it was\n"
    "tokenview sweep --shard 2/8 --format jsonl > part2.jsonl\n"
    "tokenview sweep --merge part*.jsonl\n"
    "    the parts, each of a run of its own, and then all of them\n"
    "mpirun -n 8 tokenview sweep\n"
    "    a part a process, one verdict\n"
    "tokenview sweep --mutants\n"
    "    the score of the injected faults",
    add_options};

}  // namespace tokenview
