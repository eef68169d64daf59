// SPDX-License-Identifier: Apache-2.0
// What the formats of `report` are written from: the records of one or more runs, sorted into
// configurations.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokenview {

/// A tensor that the program named, as the records of a configuration tell it: what the ranks held
/// (kind "view") and how it compares (kind "tap").
struct ResultTap {
  std::string step = {}, name = {};                             // "target", "model.layers.0.mlp"
  std::int64_t stage = 0;                                       // of the pipeline
  std::vector<std::string> rows = {}, sums = {}, columns = {};  // [rank of the stage]; or no view
  std::vector<std::string> required = {};  // [rank of the stage] where it fails and that is known
  std::vector<std::int64_t> ranks = {};    // of the world, whose those are; empty: 0, 1, ...
  bool is_compared = false;
  std::optional<double> observed = {}, allowed = {};
  std::string metric = {}, verdict = {}, detail = {};
  bool failed = false;
  std::int64_t values = 0;
  std::vector<double> row_ratios = {};  // [token] observed / allowed of its row; empty: not known

  std::string place() const { return step.empty() ? name : step + '/' + name; }
  /// Whose rows[i] are: of the world where that is known, else of the stage.
  std::int64_t rank_of(std::size_t i) const {
    return i < ranks.size() ? ranks[i] : static_cast<std::int64_t>(i);
  }
};

/// A collective between two tensors that the program named.
struct ResultCall {
  std::size_t before = 0;  // index of the tap that follows it
  std::string step = {}, module = {}, operation = {}, group = {};
  std::vector<std::int64_t> ranks = {};  // of the world
  double elements = 0;                   // that the first of them sends, on a ring
};

/// Why a configuration is not as it should be. Findings that differ in their rank alone are one.
struct Problem {
  std::string rule = {};   // "rows", "completeness", ...; "difference", "missing", "error", ...
  std::string place = {};  // a tap or a module; may be empty
  std::string operation = {}, tensor = {}, expected = {}, actual = {};
  std::string after = {};   // the place of the tensor that was named last before it
  std::string called = {};  // what it is called: "shard where full is required"; may be empty
  std::int64_t first_bad_row = -1;
  std::vector<std::int64_t> ranks = {};
  std::string message = {};  // one line
  std::size_t line = 0;      // of the record in ResultCase::source
  std::string known = {};    // why it is no news: the reason of a baseline; empty: it is
};

enum class Outcome { passed, failed, error };

/// One configuration, one case of a golden file, or one step of a dp rank of a dump.
struct ResultCase {
  std::string source = {};  // the report file
  std::string verb = {};    // "check", "check --matrix", "run", ...
  std::string file = {};    // golden file or scenario; may be empty
  std::string name = {};
  Outcome outcome = Outcome::passed;
  std::string verdict = {}, detail = {}, title = {};
  std::string hangs_on = {};              // the collective, or the missing place of one
  std::vector<std::string> repairs = {};  // in words, the smallest first
  bool expected_to_fail = false;
  std::optional<double> observed = {}, allowed = {};  // of the worst tap
  std::string worst_place = {}, metric = {};
  std::optional<double> seconds = {};
  std::size_t line = 0;  // of its record
  std::vector<Problem> problems = {};
  std::vector<ResultTap> taps = {};
  std::vector<ResultCall> calls = {};

  /// It fails, but for nothing that a baseline does not know.
  bool is_known() const;
  /// It fails, and not all of it is known.
  bool is_news() const { return outcome != Outcome::passed && !is_known(); }
  /// Its tests in a report of tests are its taps, and not it.
  bool is_told_by_taps() const;
  /// The smallest repair; empty: none is known.
  std::string repair() const { return repairs.empty() ? "" : repairs.front(); }
  /// There are taps with what the ranks held.
  bool has_views() const;
  /// The tap that a problem is about, by index: the one of its place, or that was named last before
  /// it; else, in the first pass that has one, the last tap of its module that a rank held as the
  /// problem says, or the last of its module.
  std::optional<std::size_t> tap_of(const Problem& problem) const;
};

/// A run of the program: what ends with a summary that names its verb.
struct ResultRun {
  std::string source = {}, verb = {}, verdict = {};
  std::optional<double> seconds = {};
  std::size_t first_case = 0, end_case = 0;  // of Results::cases
};

struct Results {
  std::vector<ResultCase> cases = {};
  std::vector<ResultRun> runs = {};
  std::vector<std::string> unreadable = {};  // why, of each file that is not read to its end

  std::size_t num_news() const;
  std::size_t num_known() const;
};

/// A rule of a Problem in words: "a rank holds other token rows than the operation requires".
std::string rule_in_words(const std::string& rule);

}  // namespace tokenview
