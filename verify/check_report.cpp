// SPDX-License-Identifier: Apache-2.0
#include "verify/check_report.hpp"

#include <fmt/format.h>

#include <limits>
#include <ostream>

#include "verify/hdf5_text.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

bool is_worse(const TapResult& a, const std::optional<TapResult>& b) {
  return !b || a.ratio() > b->ratio();
}

std::string step_of(const TapResult& tap) {
  return tap.draft_step ? fmt::format("step{}", *tap.draft_step) : "target";
}

/// "worst max_abs 9.1e-06 of 1e-04 at one/target/model"
std::string worst_text(const CheckTally& tally, const std::string& file) {
  if (!tally.worst) return "no value differs";
  const TapResult& worst = *tally.worst;
  return fmt::format("worst {} {:.2g} of {:.2g} at {}{}", worst.metric, worst.observed,
                     worst.allowed, file, printable(worst.place()));
}

class TextReport final : public CheckReport {
 public:
  TextReport(std::ostream& out, int verbosity, bool colour)
      : out_(out), verbosity_(verbosity), colour_(colour) {}

  void ignored_keys(const CheckedFile&, const std::vector<std::string>&) override {}
  void error(const CheckedFile&, const std::string&) override { failed_taps_ = 0; }

  void tap(const CheckedFile& file, const TapResult& result, bool failed) override {
    if (failed && ++failed_taps_ > max_failed_taps && verbosity_ < 2) return;
    if (failed)
      out_ << word("FAIL", red) << "  " << printable(file.path) << ": ";
    else if (verbosity_ >= 2 || (verbosity_ == 1 && result.verdict == Verdict::tie))
      out_ << "        ";
    else
      return;
    out_ << printable(result.place()) << ": " << tap_text(file, result) << '\n';
  }

  void case_done(const CheckedFile& file, const std::string& name,
                 const CheckTally& tally) override {
    if (verbosity_ < 1) return;
    std::string line = fmt::format("    case {}: {}", printable(name), counts(file, tally));
    if (tally.float64)
      line += fmt::format(", float32 against float64 {:.2g} at {}", *tally.float64->float64,
                          printable(tally.float64->place()));
    out_ << line << fmt::format(", {:.2f} s\n", tally.totals.seconds);
  }

  void file_done(const CheckedFile& file, const CheckTally& tally) override {
    if (failed_taps_ > max_failed_taps && verbosity_ < 2)
      out_ << fmt::format("      ... and {} more of this file\n", failed_taps_ - max_failed_taps);
    failed_taps_ = 0;
    const char* const verdict = tally.totals.failed > 0 ? "FAIL"
                                : tally.totals.taps > 0 ? "ok"
                                                        : "none";
    out_ << word(verdict, tally.totals.failed > 0 ? red
                          : tally.totals.taps > 0 ? green
                                                  : yellow)
         << std::string(6 - std::string(verdict).size(), ' ')
         << fmt::format("{}: {}, {}", printable(file.path), plural(tally.cases, "case"),
                        counts(file, tally));
    if (tally.float64)
      out_ << fmt::format(", float32 against float64 {:.2g}", *tally.float64->float64);
    out_ << fmt::format(", {:.2f} s\n", tally.totals.seconds) << std::flush;
  }

  void summary(const CheckSummary& run) override {
    const bool good = run.verdict == "match";
    out_ << word(run.verdict, good ? green : red) << ": " << plural(run.files, "file");
    if (run.errors > 0) out_ << ", " << plural(run.errors, "error");
    const CheckTotals& totals = run.tally.totals;
    out_ << fmt::format(", {}, {}", plural(totals.taps, "tap"), plural(totals.values, "value"));
    if (totals.failed > 0) out_ << ", " << plural(totals.failed, "failed tap");
    if (totals.ties > 0) out_ << ", " << plural(totals.ties, "tie");
    if (totals.by_float64 > 0) out_ << ", " << plural(totals.by_float64, "tap") << " by float64";
    if (totals.taps > 0) out_ << ", " << worst_text(run.tally, printable(run.worst_file) + ": ");
    out_ << fmt::format(", {:.2f} s\n", totals.seconds);
  }

 private:
  static constexpr std::int64_t max_failed_taps = 20;  // printed of one file
  static constexpr const char* red = "\033[31m";
  static constexpr const char* green = "\033[32m";
  static constexpr const char* yellow = "\033[33m";

  std::string word(const std::string& text, const char* colour) const {
    return colour_ ? colour + text + "\033[0m" : text;
  }

  static std::string tap_text(const CheckedFile& file, const TapResult& tap) {
    std::string line = to_string(tap.verdict);
    const bool is_ids = tap.metric == "rows";
    if (is_ids && tap.observed > 0)
      line += fmt::format(", {} of ids differ", plural(std::int64_t(tap.observed), "row"));
    if (!is_ids && !tap.metric.empty())
      line += fmt::format(", {} {:.2g} of {:.2g}", tap.metric, tap.observed, tap.allowed);
    if (!tap.detail.empty()) line += "; " + tap.detail;
    if (tap.values > 0) line += fmt::format(" ({} values", tap.values);
    if (tap.values > 0 && !is_ids)
      line += fmt::format(", max_abs {:.2g}, relative_l2 {:.2g}", tap.max_abs, tap.relative_l2);
    if (tap.float64) line += fmt::format(", float32 against float64 {:.2g}", *tap.float64);
    if (file.bfloat16 && tap.outside_one_step > 0)
      line += fmt::format(", {} outside one bfloat16 step", tap.outside_one_step);
    return tap.values > 0 ? line + ')' : line;
  }

  static std::string counts(const CheckedFile& file, const CheckTally& tally) {
    const CheckTotals& totals = tally.totals;
    std::string line =
        fmt::format("{}, {}", plural(totals.taps, "tap"), plural(totals.values, "value"));
    if (totals.failed > 0) line += ", " + plural(totals.failed, "failed tap");
    if (totals.ties > 0) line += ", " + plural(totals.ties, "tie");
    if (totals.by_float64 > 0) line += ", " + plural(totals.by_float64, "tap") + " by float64";
    if (totals.taps > 0) line += ", " + worst_text(tally, "");
    if (file.bfloat16)
      line +=
          fmt::format(", {} outside one bfloat16 step", plural(tally.outside_one_step, "value"));
    return line;
  }

  std::ostream& out_;
  int verbosity_;
  bool colour_;
  std::int64_t failed_taps_ = 0;  // of the file at hand
};

class JsonlReport final : public CheckReport {
 public:
  explicit JsonlReport(std::ostream& out) : out_(out) {}

  void ignored_keys(const CheckedFile& file, const std::vector<std::string>& keys) override {
    std::string list;
    for (const std::string& key : keys) list += (list.empty() ? "" : ", ") + key;
    write({.kind = "finding",
           .file = file.path,
           .verdict = "note",
           .more = {{"detail", "ignored configuration keys: " + list}}});
  }

  void error(const CheckedFile& file, const std::string& problem) override {
    write(error_record(file.path, problem));
  }

  void tap(const CheckedFile& file, const TapResult& result, bool failed) override {
    ReportRecord record{.kind = "tap",
                        .file = file.path,
                        .case_name = result.case_name,
                        .step = step_of(result),
                        .tap = result.tap,
                        .verdict = to_string(result.verdict)};
    if (!result.metric.empty()) {
      record.observed = result.observed;
      record.allowed = result.allowed;
      record.more = {{"metric", result.metric}};
    }
    record.more.insert(record.more.end(), {{"values", result.values},
                                           {"max_abs", result.max_abs},
                                           {"relative_l2", result.relative_l2},
                                           {"failed", failed}});
    if (result.float64) record.more.emplace_back("float64", *result.float64);
    if (file.bfloat16) record.more.emplace_back("outside_one_step", result.outside_one_step);
    if (!result.row_ratios.empty())
      record.more.emplace_back("row_ratios", rounded(result.row_ratios));
    if (!result.detail.empty()) record.more.emplace_back("detail", result.detail);
    write(record);
  }

  void case_done(const CheckedFile& file, const std::string& name,
                 const CheckTally& tally) override {
    ReportRecord record = tally_record("case", file.path, tally);
    record.case_name = name;
    record.verdict = tally.totals.failed > 0 ? "difference" : "match";
    if (file.bfloat16) record.more.emplace_back("outside_one_step", tally.outside_one_step);
    write(record);
  }

  void file_done(const CheckedFile& file, const CheckTally& tally) override {
    ReportRecord record = tally_record("summary", file.path, tally);
    record.verdict = tally.totals.failed > 0 ? "difference"
                     : tally.totals.taps > 0 ? "match"
                                             : "nothing compared";
    if (file.bfloat16) record.more.emplace_back("outside_one_step", tally.outside_one_step);
    write(record);
    out_.flush();
  }

  void summary(const CheckSummary& run) override {
    ReportRecord record = tally_record("summary", {}, run.tally);
    record.verdict = run.verdict;
    record.more.emplace_back("verb", "check");
    record.more.emplace_back("files", run.files);
    record.more.emplace_back("errors", run.errors);
    if (run.tally.worst) record.more.emplace_back("worst_file", run.worst_file);
    write(record);
  }

 private:
  static ReportRecord tally_record(const std::string& kind, const std::optional<std::string>& file,
                                   const CheckTally& tally) {
    const CheckTotals& totals = tally.totals;
    ReportRecord record{.kind = kind, .file = file};
    if (tally.worst) {
      record.case_name = tally.worst->case_name;
      record.step = step_of(*tally.worst);
      record.tap = tally.worst->tap;
      record.observed = tally.worst->observed;
      record.allowed = tally.worst->allowed;
      record.more = {{"metric", tally.worst->metric}};
    } else if (totals.taps > 0) {
      record.observed = 0;
    }
    record.more.insert(record.more.end(), {{"cases", tally.cases},
                                           {"taps", totals.taps},
                                           {"values", totals.values},
                                           {"failed", totals.failed},
                                           {"ties", totals.ties},
                                           {"by_float64", totals.by_float64},
                                           {"seconds", totals.seconds}});
    if (tally.float64) record.more.emplace_back("float64", *tally.float64->float64);
    return record;
  }

  void write(const ReportRecord& record) { out_ << json_line(record) << '\n'; }

  std::ostream& out_;
};

}  // namespace

void CheckTally::add(const TapResult& tap, bool ties_allowed) {
  totals.add(tap, ties_allowed);
  outside_one_step += tap.outside_one_step;
  // Rows of ids that differ are counted, not measured.
  if (tap.metric != "rows" && tap.observed > 0 && is_worse(tap, worst)) worst = tap;
  if (tap.float64 && (!float64 || *tap.float64 > *float64->float64)) float64 = tap;
}

void CheckTally::add(const CheckTally& other) {
  totals.add(other.totals);
  cases += other.cases;
  outside_one_step += other.outside_one_step;
  if (other.worst && is_worse(*other.worst, worst)) worst = other.worst;
  if (other.float64 && (!float64 || *other.float64->float64 > *float64->float64))
    float64 = other.float64;
}

std::unique_ptr<CheckReport> text_check_report(std::ostream& out, int verbosity, bool colour) {
  return std::make_unique<TextReport>(out, verbosity, colour);
}

std::unique_ptr<CheckReport> jsonl_check_report(std::ostream& out) {
  return std::make_unique<JsonlReport>(out);
}

}  // namespace tokenview
