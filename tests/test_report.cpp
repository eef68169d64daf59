// SPDX-License-Identifier: Apache-2.0
// Records of the program, read again, and what is written from them.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"
#include "verify/baseline.hpp"
#include "verify/report.hpp"
#include "verify/report_formats.hpp"
#include "verify/result_reader.hpp"
#include "verify/xml_element.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using nlohmann::json;
using Records = std::vector<ReportRecord>;

ReportRecord finding(std::int64_t rank, const std::string& module = "mtp") {
  ReportRecord record{.kind = "finding", .tap = module, .rank = rank, .verdict = "finding"};
  record.more = {{"check", "rows"},    {"operation", "exit"},
                 {"tensor", "hidden"}, {"expected", "[0,1,2,3]"},
                 {"actual", "[0,1]"},  {"first_bad_row", std::int64_t{2}},
                 {"origin", ""}};
  return record;
}

ReportRecord end_of_run(const std::string& verdict, const std::string& name = "B tp=2") {
  ReportRecord record{.kind = "summary", .case_name = name, .verdict = verdict};
  record.more = {{"verb", "run"}};
  return record;
}

ReportRecord tap(const std::string& name, double observed, bool failed) {
  ReportRecord record{.kind = "tap",
                      .file = "a.h5",
                      .case_name = "prefill",
                      .step = "target",
                      .tap = name,
                      .observed = observed,
                      .allowed = 1e-4,
                      .verdict = failed ? "difference" : "match"};
  record.more = {{"metric", "max_abs"}, {"values", std::int64_t{8}}, {"failed", failed}};
  return record;
}

/// A run of `check` of one case in which `model.norm` fails.
Records failing_check() {
  ReportRecord of_case{
      .kind = "case", .file = "a.h5", .case_name = "prefill", .verdict = "difference"};
  ReportRecord end{.kind = "summary", .verdict = "difference"};
  end.more = {{"verb", "check"}, {"seconds", 1.5}};
  return {tap("model.embed_tokens", 0, false), tap("model.norm", 0.5, true), of_case, end};
}

struct Written {
  TemporaryFolder folder;
  std::string path;

  explicit Written(const Records& records) : path(folder.file("result.jsonl")) {
    std::string lines;
    for (const ReportRecord& record : records) lines += json_line(record) + '\n';
    write_bytes(path, lines);
  }
};

Results results_of(const Records& records) { return read_results({Written(records).path}); }

std::size_t count_of(const std::string& all, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = all.find(part); at != std::string::npos; at = all.find(part, at + 1))
    ++count;
  return count;
}

/// `line` with `key` replaced by a value in JSON, or removed.
std::string with(const std::string& line, const std::string& key, const std::string& value) {
  json changed = json::parse(line);
  changed.erase(key);
  if (!value.empty()) changed[key] = json::parse(value);
  return changed.dump();
}

const std::string good_line = json_line(end_of_run("match"));

std::string refusal(const std::string& line) {
  try {
    parse_record(line);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_record_is_read_as_it_was_written) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  ReportRecord record{.kind = "tap", .file = "a.h5", .rank = 3, .observed = -infinity};
  record.more = {{"flag", true},
                 {"count", std::int64_t{7}},
                 {"ratio", 0.5},
                 {"word", "x"},
                 {"counts", std::vector<std::int64_t>{1, 2}},
                 {"numbers", std::vector<double>{0.5, infinity}},
                 {"words", std::vector<std::string>{"a", "b"}}};
  const ReportRecord read = parse_record(json_line(record));
  BOOST_TEST(json_line(read) == json_line(record));
  BOOST_TEST((read.more == record.more));
  BOOST_TEST(*read.observed == -infinity);
  BOOST_TEST(numbers_in(read, "numbers").back() == infinity);
}

BOOST_AUTO_TEST_CASE(numbers_that_json_lacks_are_numbers_again) {
  ReportRecord record{.kind = "tap"};
  record.more = {{"all", std::vector<double>{std::numeric_limits<double>::quiet_NaN()}}};
  const std::vector<double> all = numbers_in(parse_record(json_line(record)), "all");
  BOOST_REQUIRE(all.size() == 1);
  BOOST_TEST(all.front() != all.front());
}

BOOST_AUTO_TEST_CASE(a_line_that_is_no_record_is_refused_with_what_was_found) {
  BOOST_TEST(refusal("") != "");
  BOOST_TEST(refusal("[]") != "");
  BOOST_TEST(refusal("{\"schema\":") != "");
  BOOST_TEST(contains(refusal(with(good_line, "tap", "")), "\"tap\""));
  BOOST_TEST(contains(refusal(with(good_line, "version", "2")), "version: found 2, expected 1"));
  BOOST_TEST(contains(refusal(with(good_line, "schema", "\"other\"")), "schema"));
  BOOST_TEST(contains(refusal(with(good_line, "kind", "null")), "kind"));
  BOOST_TEST(contains(refusal(with(good_line, "file", "1")), "file: found 1"));
  BOOST_TEST(contains(refusal(with(good_line, "rank", "-1")), "rank: found -1"));
  BOOST_TEST(contains(refusal(with(good_line, "observed", "\"big\"")), "observed"));
  BOOST_TEST(contains(refusal(with(good_line, "more", "{}")), "more: found an object"));
  BOOST_TEST(contains(refusal(with(good_line, "more", "[1, \"a\"]")), "more"));
  BOOST_TEST(refusal(with(good_line, "more", "null")) == "");
}

BOOST_AUTO_TEST_CASE(a_line_may_be_as_deep_as_it_likes) {
  const std::string deep(1'000'000, '[');
  BOOST_TEST(refusal(deep) != "");
  const std::string nested = deep + std::string(deep.size(), ']');
  BOOST_TEST(
      contains(refusal(good_line.substr(0, good_line.size() - 1) + ",\"more\":" + nested + '}'),
               "more: found a list"));
}

namespace {

/// The error of a file whose end is `end`, behind a good run.
std::string error_of_end(const std::string& end) {
  const Written written({finding(0), end_of_run("finding")});
  write_bytes(written.path, read_bytes(written.path) + end);
  const Results results = read_results({written.path});
  if (results.cases.size() == 1) return "";
  BOOST_TEST(results.cases.size() == 2);
  const ResultCase& broken = results.cases.back();
  BOOST_TEST((broken.outcome == Outcome::error));
  BOOST_TEST(results.unreadable.size() == 1);
  const std::string message = broken.problems.front().message;
  BOOST_TEST(contains(message, written.path + ":"), message);
  BOOST_TEST(contains(message, results.unreadable.front()), message);
  return message;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_line_that_is_no_record_is_an_error_with_file_and_line) {
  BOOST_TEST(contains(error_of_end("{}\n"), ":3: "));
  BOOST_TEST(contains(error_of_end("{}\n" + good_line + '\n'), ":3: "));
  BOOST_TEST(contains(error_of_end("\n\n{}\n"), ":5: "));
}

BOOST_AUTO_TEST_CASE(a_line_that_is_cut_off_is_an_error_that_says_so) {
  const std::string cut = error_of_end(good_line.substr(0, 40));
  BOOST_TEST(contains(cut, ":3: "), cut);
  BOOST_TEST(contains(cut, "cut off"), cut);
  BOOST_TEST(!contains(error_of_end("{}\n"), "cut off"));
}

BOOST_AUTO_TEST_CASE(a_line_that_is_longer_than_any_record_is_not_read) {
  const std::string error = error_of_end(std::string(65 << 20, '\0'));
  BOOST_TEST(contains(error, ":3: is longer than 64 MiB"), error);
}

BOOST_AUTO_TEST_CASE(blank_lines_and_an_end_without_a_newline_are_read) {
  BOOST_TEST(error_of_end("") == "");
  BOOST_TEST(error_of_end("\n") == "");
  BOOST_TEST(error_of_end(" \r\n\t\n") == "");
  const Written written({});
  write_bytes(written.path, good_line);
  BOOST_TEST(read_results({written.path}).num_news() == 0);
  for (const std::string none : {"", "\n\n"}) {
    write_bytes(written.path, none);
    const Results results = read_results({written.path});
    BOOST_REQUIRE(results.cases.size() == 1);
    BOOST_TEST(contains(results.cases.front().problems.front().message, "is empty"));
  }
}

BOOST_AUTO_TEST_CASE(findings_that_differ_in_their_rank_are_one_problem) {
  const Results results =
      results_of({finding(0), finding(1), finding(1, "lm_head"), end_of_run("finding")});
  BOOST_REQUIRE(results.cases.size() == 1);
  const ResultCase& only = results.cases.front();
  BOOST_TEST((only.outcome == Outcome::failed));
  BOOST_TEST(only.name == "B tp=2");
  BOOST_REQUIRE(only.problems.size() == 2);
  BOOST_TEST((only.problems[0].ranks == std::vector<std::int64_t>{0, 1}));
  BOOST_TEST(only.problems[0].line == 1);
  BOOST_TEST(only.problems[1].line == 3);
}

BOOST_AUTO_TEST_CASE(a_run_without_its_last_summary_is_an_error) {
  Results results = results_of({tap("model.norm", 0, false)});
  BOOST_REQUIRE(results.cases.size() == 1);
  BOOST_TEST((results.cases.front().outcome == Outcome::error));

  results = results_of({finding(0), tap("model.norm", 0, false)});  // what is found is kept
  BOOST_REQUIRE(results.cases.size() == 2);
  BOOST_TEST((results.cases[0].outcome == Outcome::failed));
  BOOST_TEST((results.cases[1].outcome == Outcome::error));
  BOOST_TEST(results.cases[0].verb == "unknown");
}

namespace {

ReportRecord start_of(const std::string& verb) {
  ReportRecord record{.kind = "start"};
  record.more = {{"command", verb}};
  return record;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_run_that_is_cut_is_an_error_though_another_follows) {
  const Records whole = {start_of("run"), end_of_run("match")};
  Records records = {start_of("check"), tap("model.norm", 0, false)};
  records.insert(records.end(), whole.begin(), whole.end());
  records.push_back(start_of("run"));  // refused, or killed before it had anything to say
  records.insert(records.end(), whole.begin(), whole.end());
  const Results results = results_of(records);
  BOOST_REQUIRE(results.cases.size() == 4);
  const std::vector<std::size_t> broken = {0, 2}, good = {1, 3};
  for (const std::size_t i : broken) {
    BOOST_TEST((results.cases[i].outcome == Outcome::error));
    BOOST_TEST(contains(results.cases[i].problems.front().message, "another run starts"));
  }
  BOOST_TEST(results.cases[2].problems.front().line == 6);
  BOOST_TEST(results.cases[0].name != results.cases[2].name);
  for (const std::size_t i : good) BOOST_TEST((results.cases[i].outcome == Outcome::passed));
  BOOST_TEST(results.runs.size() == 4);
}

BOOST_AUTO_TEST_CASE(whole_runs_one_behind_the_other_are_no_error) {
  const Records run = {start_of("run"), end_of_run("match")};
  Records records = run;
  records.insert(records.end(), run.begin(), run.end());
  records.push_back(end_of_run("match"));  // of a release that says no start
  const Results results = results_of(records);
  BOOST_TEST(results.cases.size() == 3);
  BOOST_TEST(results.num_news() == 0);
}

BOOST_AUTO_TEST_CASE(a_summary_that_counts_other_records_than_there_are_is_an_error) {
  const auto problem_of = [](std::int64_t said) -> std::string {
    ReportRecord missing = tap("mtp.fc", 0, true);
    missing.verdict = "missing";
    ReportRecord of_case{
        .kind = "case", .file = "a.h5", .case_name = "prefill", .verdict = "match"};
    ReportRecord end{.kind = "summary", .verdict = "match"};
    end.more = {{"verb", "check"}, {"taps", said}};
    const Results results =
        results_of({tap("model", 0, false), tap("model.norm", 0, false), missing, of_case, end});
    BOOST_TEST((results.cases.back().outcome == Outcome::error) == (results.cases.size() == 2));
    return results.cases.size() < 2 ? "" : results.cases.back().problems.front().message;
  };
  BOOST_TEST(problem_of(2) == "");  // a verb may count what is missing, or not
  BOOST_TEST(problem_of(3) == "");
  BOOST_TEST(contains(problem_of(4), "counts 4 taps, found 3"));  // one is lost
  BOOST_TEST(contains(problem_of(1), "counts 1 tap, found 3"));   // another run's are among them
}

BOOST_AUTO_TEST_CASE(a_configuration_that_is_lost_is_an_error) {
  ReportRecord of_case{.kind = "case", .case_name = "B tp=2", .verdict = "match"};
  ReportRecord end{.kind = "summary", .verdict = "match"};
  end.more = {{"verb", "check --matrix"}, {"configurations", std::int64_t{2}}};
  BOOST_TEST(results_of({of_case, of_case, end}).num_news() == 0);
  BOOST_TEST(results_of({of_case, end}).num_news() == 1);
}

BOOST_AUTO_TEST_CASE(a_run_that_fails_without_a_failing_case_fails) {
  ReportRecord good{.kind = "case", .file = "a.h5", .case_name = "one", .verdict = "match"};
  ReportRecord end{.kind = "summary", .verdict = "difference"};
  end.more = {{"verb", "check --matrix"}};
  const Results results = results_of({good, end});
  BOOST_TEST(results.cases.size() == 2);
  BOOST_TEST(results.num_news() == 1);
}

BOOST_AUTO_TEST_CASE(taps_without_a_case_of_their_own_are_cases) {
  ReportRecord good = tap("model.norm", 0, false), bad = tap("mtp.norm", 1, true);
  bad.case_name = "decode";
  ReportRecord end{.kind = "summary", .file = "a.h5", .verdict = "difference"};
  end.more = {{"verb", "diff"}};
  const Results results = results_of({good, bad, end});
  BOOST_REQUIRE(results.cases.size() == 2);
  BOOST_TEST(results.num_news() == 1);
  const auto failing = std::ranges::find_if(results.cases, &ResultCase::is_news);
  BOOST_TEST(failing->name == "decode");
}

namespace {

/// What `diff` says of a tap of a dump.
ReportRecord tap_of_dump(const std::string& name, std::int64_t step, std::int64_t dp,
                         const std::string& called = "") {
  ReportRecord record = tap(name, 2e-5, !called.empty());
  record.more.insert(record.more.end(), {{"engine_step", step}, {"dp", dp}, {"called", called}});
  return record;
}

/// What `diff` says is missing: of a step, or with step -1 of the dump.
ReportRecord missing_of_dump(const std::string& name, std::int64_t step, std::int64_t dp = 0) {
  ReportRecord record = tap_of_dump(name, step, dp, "missing");
  record.case_name = record.step = {};
  record.observed = record.allowed = {};
  record.verdict = "missing";
  return record;
}

Results results_of_diff(Records records) {
  ReportRecord end{.kind = "summary", .file = "a.h5", .verdict = "difference"};
  end.more = {{"verb", "diff"}};
  records.push_back(end);
  return results_of(records);
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_each_rank_of_a_dump_holds_is_kept_apart) {
  ReportRecord columns = tap_of_dump("q_proj", 0, 0), sums = tap_of_dump("o_proj", 0, 0),
               rows = tap_of_dump("mtp.norm", 0, 0, "shard where full is required");
  columns.more.insert(columns.more.end(), {{"held", "[0-16] columns 0/2 [0-16] columns 1/2"},
                                           {"ranks", std::vector<std::int64_t>{1, 3}}});
  sums.more.emplace_back("held", "[0,1] columns 0-1/4 partial 0,1*2/2 [0,2xd1:1,?] x2/3");
  rows.more.insert(rows.more.end(), {{"held", "[0,1] [2,PAD]"}, {"required", "[0,1,2] [0,1,2]"}});
  const Results results = results_of_diff({columns, sums, rows});
  BOOST_REQUIRE(results.cases.size() == 1);
  const std::vector<ResultTap>& taps = results.cases.front().taps;
  using Words = std::vector<std::string>;
  BOOST_TEST(taps[0].rows == (Words{"[0-16]", "[0-16]"}));
  BOOST_TEST(taps[0].columns == (Words{"0/2", "1/2"}));
  BOOST_TEST(taps[0].ranks == (std::vector<std::int64_t>{1, 3}));
  BOOST_TEST(contains(layer_dot(results.cases.front(), "q_proj"), "{rank\\ 3|"));
  const std::string picture = layer_svg(results.cases.front(), "q_proj");
  BOOST_TEST(contains(picture, "rank 1<"));
  BOOST_TEST(contains(picture, "rank 3<"));
  BOOST_TEST(!contains(picture, "rank 0<"));
  BOOST_TEST(contains(perfetto_trace(results.cases.front()), "\"pid\":3"));
  BOOST_TEST(taps[0].sums == (Words{"complete", "complete"}));
  BOOST_TEST(taps[1].rows == (Words{"[0,1]", "[0,2xd1:1,?]"}));
  BOOST_TEST(taps[1].columns == (Words{"0-1/4", "all"}));
  BOOST_TEST(taps[1].sums == (Words{"partial 0,1*2/2", "x2/3"}));
  BOOST_TEST(taps[2].rows == (Words{"[0,1]", "[2,PAD]"}));
  BOOST_TEST(taps[2].required == (Words{"[0,1,2]", "[0,1,2]"}));
}

BOOST_AUTO_TEST_CASE(a_step_of_a_dump_is_one_configuration_with_its_cause_first) {
  ReportRecord cause = tap_of_dump("mtp.norm", 0, 0, "shard where full is required");
  cause.more.emplace_back("repair", "gather over tp");
  const Results results = results_of_diff({cause, missing_of_dump("the rest of the step", 0)});
  BOOST_REQUIRE(results.cases.size() == 1);
  const ResultCase& only = results.cases.front();
  BOOST_TEST(only.name == "prefill");
  BOOST_REQUIRE(only.problems.size() == 2);
  BOOST_TEST(only.problems[0].called == "shard where full is required");
  BOOST_TEST(only.problems[1].message == "the rest of the step: missing");
  BOOST_TEST(only.repair() == "gather over tp");
  BOOST_TEST(only.worst_place == "target/mtp.norm");
}

BOOST_AUTO_TEST_CASE(steps_and_dp_ranks_of_a_dump_are_configurations_in_their_order) {
  const Results results =
      results_of_diff({tap_of_dump("a", 10, 0), tap_of_dump("a", 2, 1), tap_of_dump("a", 2, 0),
                       missing_of_dump("the rest of the step", 2, 1)});
  BOOST_REQUIRE(results.cases.size() == 3);
  BOOST_TEST(results.cases[0].name == "prefill, engine step 2");
  BOOST_TEST(results.cases[1].name == "prefill, engine step 2, dp rank 1");
  BOOST_TEST(results.cases[2].name == "prefill, engine step 10");
  BOOST_TEST(results.num_news() == 1);
  BOOST_TEST(results.cases[1].is_news());
}

BOOST_AUTO_TEST_CASE(a_rank_without_a_file_is_the_cause_in_every_step) {
  ReportRecord wrong = tap_of_dump("a", 0, 0, "a part of the value");
  wrong.more.emplace_back("repair", "gather over tp");
  Results results = results_of_diff({missing_of_dump("rank 2", -1), wrong, tap_of_dump("a", 1, 0)});
  BOOST_REQUIRE(results.cases.size() == 2);
  BOOST_TEST(results.num_news() == 2);
  for (const ResultCase& result : results.cases)
    BOOST_TEST(result.problems.front().place == "rank 2");
  BOOST_TEST(results.cases[0].problems.size() == 2);
  BOOST_TEST(results.cases[0].repair() == "");
  const std::string xml = junit_report(results);
  BOOST_TEST(count_of(xml, "<failure ") == 3);
  BOOST_TEST(count_of(xml, "<testcase name=\"rank 2\"") == 2);

  results = results_of_diff({missing_of_dump("rank 2", -1)});
  BOOST_REQUIRE(results.cases.size() == 1);
  BOOST_TEST(results.cases.front().name == "a.h5");
}

BOOST_AUTO_TEST_CASE(a_tap_that_fails_says_why_and_shows_numbers_only_where_they_are_why) {
  const auto message = [](const ReportRecord& record) {
    return results_of_diff({record}).cases.front().problems.front().message;
  };
  const ReportRecord called = tap_of_dump("a", 0, 0, "zeros where tokens are due");
  BOOST_TEST(message(called) == "target/a: zeros where tokens are due");
  ReportRecord over = called;
  over.observed = 0.5;
  BOOST_TEST(message(over) ==
             "target/a: zeros where tokens are due; max_abs 0.5 of 0.0001 allowed");
  over.more.emplace_back("detail", "one\ntwo");
  BOOST_TEST(message(over) ==
             "target/a: zeros where tokens are due; max_abs 0.5 of 0.0001 allowed; one; two");
  over.observed = std::numeric_limits<double>::quiet_NaN();
  BOOST_TEST(contains(message(over), "max_abs nan of"));
  BOOST_TEST(message(tap("a", 0.5, true)) == "target/a: difference, max_abs 0.5 of 0.0001 allowed");
  BOOST_TEST(message(tap("a", 2e-5, true)) ==
             "target/a: difference, but max_abs 2e-05 of 0.0001 allowed");
  ReportRecord part = tap("a", 0, true);
  part.observed = part.allowed = {};
  BOOST_TEST(message(part) == "target/a: difference, but right as far as it is there");
}

BOOST_AUTO_TEST_CASE(a_tap_of_two_stages_is_two) {
  const auto view = [](std::int64_t stage) {
    ReportRecord record{.kind = "view", .step = "target", .tap = "model.norm"};
    record.more = {{"stage", stage}, {"rows", std::vector<std::string>{"[0]"}}};
    return record;
  };
  const Results results = results_of({view(0), view(1), view(1), end_of_run("match")});
  BOOST_TEST(results.cases.front().taps.size() == 2);
}

BOOST_AUTO_TEST_CASE(the_smallest_repair_stands_first) {
  ReportRecord blame{.kind = "blame"}, repair{.kind = "repair"}, other{.kind = "repair"};
  blame.more = {{"hangs_on", "reduce_scatter in mtp.layers.0"}};
  repair.more = {{"words", "gather"}, {"holds", true}};
  other.more = {{"words", "trim"}, {"holds", false}};
  const Results results = results_of({finding(0), blame, repair, other, end_of_run("finding")});
  const ResultCase& only = results.cases.front();
  BOOST_TEST(only.hangs_on == "reduce_scatter in mtp.layers.0");
  BOOST_TEST(only.repair() == "gather");
  BOOST_TEST(only.repairs[1] == "trim; not at every row count");
}

BOOST_AUTO_TEST_CASE(a_numeric_finding_and_its_tap_are_one_problem) {
  ReportRecord numbers = finding(1, "target/model.norm");
  numbers.more[0].second = "numeric";
  ReportRecord failing = tap("model.norm", 1, true);
  failing.file = failing.case_name = {};
  const Results results = results_of({failing, numbers, end_of_run("difference")});
  BOOST_REQUIRE(results.cases.front().problems.size() == 1);
  BOOST_TEST(results.cases.front().problems[0].actual == "[0,1]");
}

BOOST_AUTO_TEST_CASE(every_run_of_a_file_is_read) {
  const Results results =
      results_of({end_of_run("match", "one"), finding(0), end_of_run("finding", "two")});
  BOOST_REQUIRE(results.runs.size() == 2);
  BOOST_TEST((results.cases[0].outcome == Outcome::passed));
  BOOST_TEST((results.cases[1].outcome == Outcome::failed));
  BOOST_TEST(results.runs[1].first_case == 1);
}

BOOST_AUTO_TEST_CASE(junit_has_a_test_for_each_tap_of_a_check) {
  const std::string xml = junit_report(results_of(failing_check()));
  BOOST_TEST(count_of(xml, "<testcase ") == 2);
  BOOST_TEST(count_of(xml, "<failure ") == 1);
  BOOST_TEST(contains(xml, "tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\" time=\"1.500\""),
             xml);
  BOOST_TEST(contains(xml, "classname=\"tokenview.check.a.prefill\""), xml);
}

BOOST_AUTO_TEST_CASE(sarif_points_at_the_line_of_the_record) {
  const json log = json::parse(sarif_report(results_of(failing_check()), "1.2.3"));
  const json& results = log["runs"][0]["results"];
  BOOST_REQUIRE(results.size() == 1);
  BOOST_TEST(results[0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 2);
  BOOST_TEST(results[0]["ruleId"] == "difference");
  BOOST_TEST(log["runs"][0]["tool"]["driver"]["version"] == "1.2.3");
}

BOOST_DATA_TEST_CASE(annotations_are_ten_at_most, data::make({1, 9, 10, 11, 500}), count) {
  Records records;
  for (int i = 0; i < count; ++i) {
    records.push_back(finding(0, "module" + std::to_string(i)));
    records.push_back(end_of_run("finding", "run" + std::to_string(i)));
  }
  Baseline baseline;
  const std::string all = github_annotations(results_of(records), baseline);
  BOOST_TEST(count_of(all, "::error ") == std::size_t(std::min(count, 10)));
  BOOST_TEST(count_of(all, "\n") == std::size_t(std::min(count, 10)));
  BOOST_TEST(contains(all, "more problems") == (count > 10));

  baseline.known.resize(
      2, {NamePattern("*"), NamePattern("*"), NamePattern("*"), NamePattern("*"), NamePattern("*"),
          NamePattern("*"), NamePattern("*"), "why", "2000-01-01"});
  baseline.known[0].is_expired = true;  // and both are no longer seen
  BOOST_TEST(count_of(github_annotations(results_of(records), baseline), "\n::") <= 9);
}

BOOST_AUTO_TEST_CASE(what_is_the_same_in_many_configurations_is_one_annotation) {
  const Results results = results_of(
      {finding(0), end_of_run("finding", "a\n::error::b"), finding(0), end_of_run("finding", "c")});
  const std::string all = github_annotations(results, {});
  BOOST_TEST(count_of(all, "\n") == 1);
  BOOST_TEST(contains(all, "and 1 more configuration"), all);
  BOOST_TEST(contains(all, "a%0A::error::b"), all);
}

BOOST_AUTO_TEST_CASE(a_name_is_no_markup_in_a_summary) {
  const std::string page =
      step_summary(results_of({finding(0), end_of_run("finding", "a|b <img> `c` @d")}), {});
  BOOST_TEST(contains(page, "a&#124;b &lt;img&gt; &#96;c&#96; &#64;d"), page);
}

BOOST_AUTO_TEST_CASE(a_summary_stays_small) {
  Records records;
  for (int i = 0; i < 3000; ++i) {
    records.push_back(finding(0));
    records.push_back(end_of_run("finding", std::string(2000, '|') + std::to_string(i)));
  }
  BOOST_TEST(step_summary(results_of(records), {}).size() < (1u << 20));
}

BOOST_AUTO_TEST_CASE(xml_has_no_character_that_xml_lacks) {
  const std::string xml =
      xml_document({.name = "a", .attributes = {{"b", "\x01\"<"}}, .text = "\xff]]>\xef\xbf\xbf&"});
  BOOST_TEST(contains(xml, "b=\"\xef\xbf\xbd&quot;&lt;\""), xml);
  BOOST_TEST(contains(xml, "\xef\xbf\xbd]]&gt;"), xml);
  BOOST_TEST(contains(xml, "&amp;</a>"), xml);
}

BOOST_AUTO_TEST_CASE(where_nothing_can_be_drawn_every_other_output_is_written) {
  const Written written(failing_check());
  std::vector<std::string> line = {"report", written.path};
  const std::vector<std::pair<std::string, std::string>> outputs = {
      {"--html", written.folder.file("html")},
      {"--junit", written.folder.file("junit")},
      {"--sarif", written.folder.file("sarif")},
      {"--step-summary", written.folder.file("md")}};
  for (const auto& [option, path] : outputs) line.insert(line.end(), {option, path});
  line.insert(line.end(), {"--svg", written.folder.file("svg")});
  const Ended end = run(line);
  BOOST_TEST(end.code == 2);
  BOOST_TEST(end.error_lines() == 1);
  BOOST_TEST(contains(end.err, "has views"), end.err);
  BOOST_TEST(contains(end.out, "FAIL  check"), end.out);
  for (const auto& [option, path] : outputs) BOOST_TEST(read_bytes(path) != "", option);
  BOOST_TEST(!std::filesystem::exists(written.folder.file("svg")));
}

BOOST_AUTO_TEST_CASE(a_line_break_in_an_attribute_is_a_reference) {
  const std::string document =
      xml_document({.name = "a", .attributes = {{"name", "one\n\ttwo\x01"}}, .text = "x\ny"});
  BOOST_TEST(contains(document, "name=\"one&#10;&#9;two\xef\xbf\xbd\""), document);
  BOOST_TEST(contains(document, "x\ny"), document);
}

// ---- baseline

namespace {

Baseline baseline_in(const std::string& content) {
  const TemporaryFolder folder;
  write_bytes(folder.file("known.json"), content);
  return read_baseline(folder.file("known.json"));
}

std::string entry(const std::string& more = "", const std::string& expires = "2027-03-31") {
  return R"({"schema":"tokenview.baseline","version":1,"known":[{"verb":"run","case":"B*","rule":"rows",)" +
         more + R"("reason":"vllm 48429","expires":")" + expires + "\"}]}";
}

Records one_finding() { return {finding(0), end_of_run("finding")}; }

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_known_is_no_news) {
  Results results = results_of(one_finding());
  Baseline baseline = baseline_in(entry());
  mark_known(baseline, results, "2027-03-31");
  BOOST_TEST(results.num_news() == 0);
  BOOST_TEST(results.num_known() == 1);
  BOOST_TEST(baseline.known[0].seen == 1);
  const std::string xml = junit_report(results);
  BOOST_TEST(contains(xml, "<skipped type=\"rows\" message=\"known: vllm 48429"), xml);
}

BOOST_AUTO_TEST_CASE(what_has_expired_is_news_again) {
  Results results = results_of(one_finding());
  Baseline baseline = baseline_in(entry());
  mark_known(baseline, results, "2027-04-01");
  BOOST_TEST(results.num_news() == 1);
  BOOST_TEST(baseline.known[0].is_expired);
  BOOST_TEST(contains(text_report(results, baseline, false), "expired run: B*: rows"));
}

BOOST_AUTO_TEST_CASE(a_case_with_one_new_problem_is_news) {
  Records records = one_finding();
  records.insert(records.begin(), finding(0, "lm_head"));
  Results results = results_of(records);
  Baseline baseline = baseline_in(entry(R"("place":"mtp",)"));
  mark_known(baseline, results, "2027-01-01");
  BOOST_TEST(results.num_news() == 1);
}

BOOST_AUTO_TEST_CASE(what_is_no_longer_seen_is_said) {
  Results results = results_of({end_of_run("match")});
  Baseline baseline = baseline_in(entry());
  mark_known(baseline, results, "2027-01-01");
  BOOST_TEST(baseline.known[0].seen == 0);
  BOOST_TEST(contains(text_report(results, baseline, false), "no longer seen run: B*: rows"));
}

BOOST_AUTO_TEST_CASE(a_written_baseline_knows_what_it_was_written_from_and_no_more) {
  Results results = results_of(one_finding());
  Baseline baseline = baseline_in(baseline_of(results, {}, "why", "2027-01-01"));
  mark_known(baseline, results, "2027-01-01");
  BOOST_TEST(results.num_news() == 0);

  Results other = results_of({finding(0, "elsewhere"), end_of_run("finding")});
  mark_known(baseline, other, "2027-01-01");
  BOOST_TEST(other.num_news() == 1);

  const Baseline again = baseline_in(baseline_of(results, baseline, "new", "2028-01-01"));
  BOOST_TEST(again.known[0].reason == "why");
}

BOOST_AUTO_TEST_CASE(a_file_that_is_no_baseline_is_refused) {
  const auto refused = [](const std::string& content, const std::string& part) {
    BOOST_CHECK_EXCEPTION(baseline_in(content), FileError,
                          [&](const FileError& error) { return contains(error.what(), part); });
  };
  refused("", "is no baseline");
  refused("[]", "is no baseline");
  refused(R"({"schema":"tokenview.baseline","version":2,"known":[]})", "version: expected 1");
  refused(R"({"schema":"tokenview.baseline","version":1,"known":[1]})", "known[0]: is no object");
  refused(entry(R"("resaon":"x",)"), "known[0]: resaon: is no key here, did you mean reason?");
  refused(entry(R"("place":1,)"), "known[0]: place");
  refused(entry("", "2027-02-29"), "expires");
  refused(entry("", "soon"), "expires");
  refused(R"({"schema":"tokenview.baseline","version":1,"known":[{"verb":"run"}]})",
          "case: is missing");
}

// ---- the program

BOOST_AUTO_TEST_CASE(the_program_ends_as_its_results_do) {
  const Written good({end_of_run("match")}), bad(one_finding()), cut({finding(0)});
  ReportRecord nothing{.kind = "summary", .verdict = "nothing compared"};
  nothing.more = {{"verb", "check"}};
  const Written none({nothing});
  BOOST_TEST(run({"report", good.path}).code == 0);
  BOOST_TEST(run({"report", bad.path}).code == 1);
  BOOST_TEST(run({"report", cut.path, bad.path}).code == 2);
  BOOST_TEST(run({"report", none.path}).code == 3);
  BOOST_TEST(run({"report", none.path, bad.path, good.path}).code == 1);
}

BOOST_AUTO_TEST_CASE(a_baseline_comes_and_goes_by_the_command_line) {
  const Written bad(one_finding());
  const std::string known = bad.folder.file("known.json");
  const auto written_at = [&](const std::string& epoch) {
    return run({"report", bad.path, "--write-baseline", known, "--reason", "why", "--expires",
                "2027-03-31"},
               {.variables = {{"SOURCE_DATE_EPOCH", epoch}}});
  };
  const auto at = [&](const std::string& epoch) {
    return run({"report", bad.path, "--baseline", known},
               {.variables = {{"SOURCE_DATE_EPOCH", epoch}}});
  };
  const Ended late = written_at("1806537600");  // 2027-04-01
  BOOST_TEST(late.code == 2);
  BOOST_TEST(contains(late.err, "--expires: 2027-03-31 is over, expected 2027-04-01"), late.err);
  BOOST_TEST(!std::filesystem::exists(known));
  BOOST_TEST(written_at("1806451200").code == 1);
  BOOST_TEST(at("1806451200").code == 0);  // 2027-03-31
  BOOST_TEST(at("1806537600").code == 1);  // a day later
  const Ended wrong = at("soon");
  BOOST_TEST(wrong.code == 2);
  BOOST_TEST(contains(wrong.err, "SOURCE_DATE_EPOCH"), wrong.err);
}

BOOST_AUTO_TEST_CASE(what_the_command_line_asks_for_must_make_sense) {
  const Written good({end_of_run("match")});
  const auto refused = [&](std::vector<std::string> words, const std::string& part) {
    words.insert(words.begin(), {"report", good.path});
    const Ended ended = run(words);
    BOOST_TEST(ended.code == 2);
    BOOST_TEST(contains(ended.err, part), ended.err);
    BOOST_TEST(ended.error_lines() == 1);
  };
  refused({"--write-baseline", good.folder.file("x")}, "--reason and --expires");
  refused({"--write-baseline", good.folder.file("x"), "--reason", "y", "--expires", "2027-13-01"},
          "--expires");
  refused({"--junit", good.path}, "--junit: " + good.path + " is read");
  refused({good.folder.file("")}, "is a folder");
  refused({"--junit", good.folder.file("no/such/folder")}, "cannot be written");
  refused({"--baseline", good.folder.file("none.json")}, "cannot be read");
  refused({good.folder.file("none.jsonl")}, "cannot be read");
  BOOST_TEST(run({"report"}).code == 2);
}

BOOST_AUTO_TEST_CASE(two_outputs_are_never_one_file) {
  const Written good({end_of_run("match")});
  const std::string file = good.folder.file("a"), other = good.folder.file("b");
  const auto refused = [&](const std::vector<std::string>& words) {
    std::vector<std::string> line = {"report", good.path};
    line.insert(line.end(), words.begin(), words.end());
    const Ended ended = run(line);
    if (ended.code == 0) return false;
    BOOST_TEST(ended.code == 2);
    BOOST_TEST(contains(ended.err, words[0] + " and " + words[2] + " both write"), ended.err);
    BOOST_TEST(ended.error_lines() == 1);
    return true;
  };
  BOOST_TEST(refused({"--html", file, "--junit", file}));
  BOOST_TEST(refused({"--html", file, "--junit", good.folder.file("./a")}));
  BOOST_TEST(!std::filesystem::exists(file));
  BOOST_TEST(!refused({"--html", file, "--junit", other}));
  std::filesystem::remove(other);
  std::filesystem::create_hard_link(file, other);
  BOOST_TEST(refused({"--html", file, "--sarif", other}));
  BOOST_TEST(!refused({"--html", "/dev/null", "--junit", "/dev/null"}));
}

BOOST_AUTO_TEST_CASE(a_baseline_is_replaced_by_another_baseline_alone) {
  const Written bad(one_finding());
  const std::string known = bad.folder.file("known.json");
  write_bytes(known, entry("", "2999-12-31"));
  const Ended ended = run({"report", bad.path, "--baseline", known, "--html", known});
  BOOST_TEST(ended.code == 2);
  BOOST_TEST(contains(ended.err, "is read"), ended.err);
  BOOST_TEST(run({"report", bad.path, "--baseline", known, "--write-baseline", known, "--reason",
                  "why", "--expires", "2999-12-31"})
                 .code == 0);
}

BOOST_AUTO_TEST_CASE(a_file_that_is_cut_off_does_not_stop_the_reports) {
  const Written good({end_of_run("match")}), cut({});
  write_bytes(cut.path, good_line.substr(0, 40));
  const std::string junit = cut.folder.file("junit.xml"), sarif = cut.folder.file("r.sarif");
  const Ended ended = run({"report", good.path, cut.path, "--junit", junit, "--sarif", sarif});
  BOOST_TEST(ended.code == 2);
  BOOST_TEST(ended.error_lines() == 1);
  BOOST_TEST(contains(ended.err, cut.path + ":1: "), ended.err);
  BOOST_TEST(contains(ended.out, cut.path), ended.out);
  const std::string xml = read_bytes(junit);
  BOOST_TEST(contains(xml, "tests=\"2\" failures=\"0\" errors=\"1\""), xml);
  BOOST_TEST(json::parse(read_bytes(sarif))["runs"][0]["results"].size() == 1);
}

BOOST_AUTO_TEST_CASE(results_are_read_from_standard_input_too) {
  const Written bad(one_finding());
  const auto piped = [&](const std::string& from) {
    return Process({"sh", "-c", "\"$0\" report - < \"$1\"", TOKENVIEW_PROGRAM, from}).end();
  };
  const Ended ended = piped(bad.path);
  BOOST_TEST(ended.code == 1);
  BOOST_TEST(contains(ended.out, "B tp=2"), ended.out);
  const Ended empty = piped("/dev/null");
  BOOST_TEST(empty.code == 2);
  BOOST_TEST(contains(empty.err, "standard input: is empty"), empty.err);
}

BOOST_AUTO_TEST_CASE(a_good_info_is_a_good_report) {
  const TemporaryFolder folder;
  const std::string result = folder.file("info.jsonl"),
                    golden = TOKENVIEW_SOURCE_DIR "/data/engine/golden.h5";
  write_bytes(result, run({"info", golden, "--format", "jsonl"}).out);
  BOOST_TEST(run({"report", result}).code == 0);
  write_bytes(result, run({"info", golden, folder.file("none.h5"), "--format", "jsonl"}).out);
  BOOST_TEST(run({"report", result}).code == 2);
}

}  // namespace tokenview
