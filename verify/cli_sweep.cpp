// SPDX-License-Identifier: Apache-2.0
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
#include "verify/data_folder.hpp"
#include "verify/interrupt.hpp"
#include "verify/progress.hpp"
#include "verify/report.hpp"
#include "verify/scenario.hpp"
#include "verify/sweep.hpp"

namespace tokenview {
namespace {

constexpr std::size_t chunk_size = 500;

struct SweepArguments {
  std::string shard = "1/1";
  std::string state;
  int threads = 0;
  bool mutants = false;
  OutputFormat format = OutputFormat::text;
};

/// `i/n`, from 1.
std::pair<std::size_t, std::size_t> parse_shard(const std::string& words) {
  unsigned long long i = 0, n = 0;
  char end = 0;
  if (std::sscanf(words.c_str(), "%llu/%llu%c", &i, &n, &end) != 2 || i < 1 || i > n || n > 100000)
    throw UsageError(text("--shard \"", shortened(words), "\": expected i/n with 1 <= i <= n"));
  return {std::size_t(i) - 1, std::size_t(n)};
}

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
  std::ofstream out_;
  std::set<std::size_t> done_;
  Counts counts_;
};

Exit sweep(const SweepArguments& arguments) {
  const auto [shard, shards] = parse_shard(arguments.shard);
  const SweepMatrix matrix = sweep_matrix();
  const std::size_t num_chunks = (matrix.distinct.size() + chunk_size - 1) / chunk_size;
  SweepState state(arguments.state, matrix.distinct.size(), num_chunks, arguments.shard);
  std::vector<std::size_t> chunks;
  for (std::size_t chunk = shard; chunk < num_chunks; chunk += shards)
    if (!state.is_done(chunk)) chunks.push_back(chunk);

  const bool records = arguments.format == OutputFormat::jsonl;
  const int threads = arguments.threads > 0 ? arguments.threads : available_threads();
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
    const auto all = std::int64_t(std::min(chunks.size() * chunk_size, matrix.distinct.size()));
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

  const Counts& counts = state.counts();
  for (const SweepResult& result : unexpected) {
    const std::string verdict =
        text(result.has_finding ? result.first : "clean", ", expected ",
             result.known_fault.empty() ? "no finding" : "a finding: " + result.known_fault);
    if (records) {
      ReportRecord record{.kind = "case", .case_name = in_words(result.key)};
      record.verdict = "difference";
      record.more = {{"detail", verdict}};
      std::cout << json_line(record) << '\n';
    } else {
      std::cout << "unexpected  " << in_words(result.key) << ": " << verdict << '\n';
    }
  }
  if (records) {
    ReportRecord summary{.kind = "summary"};
    summary.verdict = counts.unexpected == 0 ? "match" : "difference";
    summary.more = {
        {"covered", matrix.covered},       {"distinct", std::int64_t(matrix.distinct.size())},
        {"refused", matrix.refused},       {"runs", counts.runs},
        {"clean", counts.clean},           {"findings", counts.found},
        {"unexpected", counts.unexpected}, {"seconds", seconds}};
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << matrix.covered << " configurations covered by " << matrix.distinct.size()
              << " distinct runs, " << matrix.refused << " refused\n"
              << (counts.unexpected == 0 ? "match: " : "difference: ") << counts.runs << " run"
              << (shards > 1 ? text(" (shard ", arguments.shard, ')') : "") << ", " << counts.clean
              << " clean, " << counts.found << " with a known fault found, " << counts.unexpected
              << " not as expected; " << text(std::int64_t(seconds * 10) / 10.0) << " s, "
              << std::int64_t(double(counts.runs - before) / std::max(seconds, 1e-9) / threads)
              << " a second and thread\n";
  }
  if (counts.runs == 0) return Exit::nothing_compared;
  return counts.unexpected == 0 ? Exit::match : Exit::difference;
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
    summary.more = {{"mutants", mutants}, {"caught", caught}, {"blind_spots", spots}};
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << "score " << caught << " of " << mutants << ", " << plural(spots, "blind spot")
              << " shown\n";
  }
  return caught == mutants ? Exit::match : Exit::difference;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<SweepArguments>();
  app.add_option("--shard", arguments->shard, "Part i of n of the distinct configurations: 2/8")
      ->type_name("I/N");
  app.add_option("--state", arguments->state,
                 "Notes what is done in this file, and goes on from there")
      ->type_name("FILE");
  add_number(app, "--threads", arguments->threads, 1, max_threads, "Threads; default: all cores");
  CLI::Option* const mutants =
      app.add_flag("--mutants", arguments->mutants,
                   "Instead: which check catches each injected fault of the catalogue");
  for (const char* other : {"--shard", "--state", "--threads"})
    mutants->excludes(app.get_option(other));
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
    "tokenview sweep --mutants\n"
    "    the score of the injected faults",
    add_options};

}  // namespace tokenview
