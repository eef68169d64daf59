// SPDX-License-Identifier: Apache-2.0
// The program from the command line: verbs, exit codes and output.
#include <pty.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "reference/program/config_json.hpp"
#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_writer.hpp"
#include "verify/result_reader.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Json = nlohmann::json;

const std::vector<std::string> verbs = {"check", "record", "info"};

std::string shipped(const std::string& name) {
  return std::string(TOKENVIEW_SOURCE_DIR) + "/data/golden/" + name + ".h5";
}

/// Two small golden files that every test may read: made once.
struct Goldens {
  TemporaryFolder folder;
  std::string small = folder.file("small.h5");
  std::string rounded = folder.file("rounded.h5");

  Goldens() {
    for (const auto& [path, dtype] : {std::pair(small, "float32"), {rounded, "bfloat16"}}) {
      const Ended end =
          run({"record", "--config", "qwen3-next", "--seed", "5", "--cases", "a=3,b=2:1+1:1",
               "--draft-steps", "2", "--dtype", dtype, "--out", path});
      if (end.code != 0) throw std::runtime_error(end.err);
    }
  }
};
const Goldens& goldens() {
  static const Goldens made;
  return made;
}

/// A copy of the small golden file in which one float of a tap is another one.
void write_changed_golden(const std::string& path) {
  std::string bytes = read_bytes(goldens().small);
  const HostTensor tap = GoldenFile::open(goldens().small).tap("a", "model.norm");
  const std::string_view stored(reinterpret_cast<const char*>(tap.values.data()),
                                tap.values.size() * sizeof(float));
  const float wrong = tap.values[7] + 1;
  // The same values lie there twice, as `model` and as `model.norm`: the first one is changed.
  bytes.replace(bytes.find(stored) + 7 * sizeof(float), sizeof(float),
                reinterpret_cast<const char*>(&wrong), sizeof(float));
  write_bytes(path, bytes);
}

std::vector<Json> records(const std::string& lines) {
  std::vector<Json> parsed;
  std::size_t begin = 0;
  for (std::size_t end; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1)
    parsed.push_back(Json::parse(lines.substr(begin, end - begin)));
  return parsed;
}

/// The records of a run but the first, which starts it.
std::vector<Json> behind_start(const std::string& lines) {
  std::vector<Json> parsed = records(lines);
  BOOST_TEST_REQUIRE(!parsed.empty());
  BOOST_TEST(parsed.front()["kind"] == "start");
  parsed.erase(parsed.begin());
  return parsed;
}

std::int64_t count_kind(const std::vector<Json>& all, const std::string& kind) {
  return std::count_if(all.begin(), all.end(), [&](const Json& r) { return r["kind"] == kind; });
}

// ---- the command line

BOOST_AUTO_TEST_CASE(help_shows_verbs_exit_codes_and_examples) {
  const Ended end = run({"--help"});
  BOOST_TEST(end.code == 0);
  for (const std::string part : {"check", "record", "info", "130", "TOKENVIEW_DATA", "Examples:"})
    BOOST_TEST(contains(end.out, part), part);
  BOOST_TEST(end.err == "");
}

BOOST_DATA_TEST_CASE(help_of_each_verb_shows_its_examples, data::make(verbs), verb) {
  const Ended end = run({verb, "--help"});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.out, "Usage: tokenview " + verb));
  BOOST_TEST(contains(end.out, "Examples:\n  tokenview " + verb));
}

BOOST_AUTO_TEST_CASE(version_says_what_it_was_built_with) {
  const Ended end = run({"--version"});
  BOOST_TEST(end.code == 0);
  for (const std::string part : {"tokenview ", "commit: ", "compiler: ", "HDF5: ", "CUDA: "})
    BOOST_TEST(contains(end.out, part), part);
}

struct WrongLine {
  std::vector<std::string> arguments;
  std::string said;
};
std::ostream& operator<<(std::ostream& out, const WrongLine& line) { return out << line.said; }

const std::vector<WrongLine> wrong_lines = {
    {{}, "no verb is given, expected one of check, diff, record"},
    {{"chekc"}, "there is no verb 'chekc', did you mean check?"},
    {{"frobnicate"}, "there is no verb 'frobnicate', expected one of check, diff, record"},
    {{"--versoin"}, "there is no option '--versoin', did you mean --version?"},
    {{"check", "--thread", "2"}, "check: there is no option '--thread', did you mean --threads?"},
    {{"check", "--thread=2"}, "there is no option '--thread', did you mean --threads?"},
    {{"check", "--threads", "0"}, "--threads: '0' is no whole number from 1 to 256"},
    {{"check", "--threads", "257"}, "--threads: '257' is no whole number from 1 to 256"},
    {{"check", "--threads", "2x"}, "--threads: '2x' is no whole number from 1 to 256"},
    {{"check", "--threads"}, "--threads"},
    {{"check", "--dtype", "bfloat"},
     "'bfloat' is none of float32, float64, bfloat16, did you mean "
     "bfloat16?"},
    {{"check", "--rounding", "HF"}, "'HF' is none of hf, vllm"},
    {{"check", "--gdn", "chunk"}, "'chunk' is none of recurrent, chunked, did you mean chunked?"},
    {{"check", "--format", "xml"}, "'xml' is none of text, jsonl"},
    {{"check", "--only", "("}, "--only: '(' is no regular expression"},
    {{"info"}, "FILE"},
    {{"record", "--config", "qwen3-next"}, "--out"},
    {{"record", "--out", "x.h5"}, "neither --from nor --config nor --checkpoint is given"},
    {{"record", "--out", "x.h5", "--seed", "1"}, "--config"},
    {{"record", "--out", "x.h5", "--from", "a", "--config", "b"}, "--config"},
    {{"record", "--out", "x.h5", "--config", "qwen3-nxt"}, "did you mean qwen3-next?"},
    {{"record", "--out", "x.h5", "--config", "deepseek-v2"}, "layout"},
    {{"record", "--out", "x.h5", "--config", "qwen3.5-397b"}, "GB of memory"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--seed", "-1"},
     "'-1' is no whole number"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "prefil"},
     "did you mean prefill?"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "a=0"},
     "'0' in '0' is no number"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "a=1+"}, "is no number"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "a=1e9"}, "is no number"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "a=131072+1"}, "more tokens"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "a/b=1"},
     "is no name of a case"},
    {{"record", "--out", "x.h5", "--config", "qwen3-next", "--cases", "one,one"}, "comes twice"},
};

BOOST_DATA_TEST_CASE(a_wrong_command_line_is_one_line_and_exit_code_2, data::make(wrong_lines),
                     line) {
  const TemporaryFolder folder;
  const Ended end = run(line.arguments, {.folder = folder.file("")});
  BOOST_TEST(end.code == 2);
  BOOST_TEST(end.out == "");
  BOOST_TEST(end.err.starts_with("tokenview: error: "));
  BOOST_TEST(end.error_lines() == 1);
  BOOST_TEST(contains(end.err, line.said), end.err);
  BOOST_TEST(folder.count() == 0u);
}

BOOST_AUTO_TEST_CASE(the_man_page_has_every_option_and_exit_code) {
  const Ended end = run({"--generate", "man"});
  BOOST_TEST(end.code == 0);
  for (const std::string part : {".TH TOKENVIEW 1", "\\-\\-allow\\-ties", "\\-\\-draft\\-steps",
                                 ".B 130", ".SH EXAMPLES", "NO_COLOR"})
    BOOST_TEST(contains(end.out, part), part);
  BOOST_TEST(!contains(end.out, "generate\\ man"));
}

/// What bash offers for the last of `words`, as the generated script has it.
std::string completions(const std::string& words) {
  const TemporaryFolder folder;
  write_bytes(folder.file("complete"), run({"--generate", "bash-completion"}).out + "COMP_WORDS=(" +
                                           words +
                                           ")\n"
                                           "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                                           "_tokenview\necho \"${COMPREPLY[*]}\"\n");
  const Ended end = Process({"bash", folder.file("complete")}).end();
  return end.code == 0 && end.err.empty() ? end.out : end.err;
}

BOOST_AUTO_TEST_CASE(completion_offers_verbs_options_and_words) {
  BOOST_TEST(completions("tokenview ''") ==
             "check diff record info run repro cost affected sweep shrink report devices -h --help "
             "--version\n");
  BOOST_TEST(completions("tokenview check --al") == "--allow-ties\n");
  BOOST_TEST(completions("tokenview check -v --format ''") == "text jsonl\n");
  BOOST_TEST(completions("tokenview check --dtype = bf") == "bfloat16\n");
  BOOST_TEST(completions("tokenview record --config qwen3-next") == "qwen3-next qwen3-next-80b\n");
  BOOST_TEST(completions("tokenview check ''") == "\n");  // files, by the shell
  BOOST_TEST(completions("tokenview check -v ''") == "\n");
}

// ---- run

BOOST_AUTO_TEST_CASE(numbers_of_no_token_are_no_match) {
  const std::vector<std::string> line = {"run", "--protocol", "D",         "--tp",
                                         "2",   "--ep",       "--numeric", "--tokens"};
  const auto of = [&](const std::string& tokens, std::vector<std::string> more = {}) {
    std::vector<std::string> words = line;
    words.push_back(tokens);
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  BOOST_TEST(of("1").code == 0);
  const Ended none = of("0");
  BOOST_TEST(none.code == 3);
  BOOST_TEST(contains(none.err, "nothing compared"));
  BOOST_TEST(records(of("0", {"--format", "jsonl"}).out).back()["verdict"] == "nothing compared");
}

BOOST_AUTO_TEST_CASE(rows_that_all_ranks_hold_are_written_once) {
  const Ended end = run({"run", "--protocol", "D", "--tp", "2", "--ep", "--tokens", "3"});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.out, "target/model.embed_tokens"));
  BOOST_TEST(contains(end.out, "  [0,1,2] on all 2\n"));
  BOOST_TEST(contains(end.out, "  [0,1][2,PAD]\n"));
  BOOST_TEST(!contains(end.out, "[0,1,2][0,1,2]"));
}

// ---- cost

BOOST_AUTO_TEST_CASE(the_cost_of_a_protocol_ends_with_its_sum) {
  const Ended end = run({"cost", "--tp", "4", "--tokens", "64"});
  BOOST_TEST(end.code == 0);
  std::istringstream in(end.out);
  std::map<std::string, std::int64_t> sums, totals;  // of bytes, by protocol
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string protocol, purpose, word, last;
    words >> protocol >> purpose;
    for (last = purpose; words >> word;) last = word;
    if (last.find_first_not_of("0123456789") != std::string::npos) continue;  // the heading
    (purpose == "all" ? totals : sums)[protocol] += std::stoll(last);
  }
  BOOST_TEST(totals.size() == 7);
  BOOST_TEST((sums == totals));
}

// ---- devices

BOOST_AUTO_TEST_CASE(devices_are_listed_and_none_is_no_failure) {
  const Ended end = run({"devices"});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(end.err == "");
  BOOST_TEST(contains(end.out, "GPU 0  ") != end.out.starts_with("no GPU: "));
  for (const char* library : {"CUDA   driver ", "\nNCCL   ", "\nMPI    "})
    BOOST_TEST(contains(end.out, library));
}

BOOST_AUTO_TEST_CASE(devices_are_counted_in_the_summary_and_paired_by_links) {
  const Ended end = run({"devices", "--format", "jsonl"});
  BOOST_TEST(end.code == 0);
  const std::vector<Json> all = records(end.out);
  BOOST_REQUIRE(count_kind(all, "summary") == 1);
  const Json& summary = all.back();
  const auto devices = summary["devices"].get<std::int64_t>();
  BOOST_TEST(count_kind(all, "device") == devices);
  BOOST_TEST(count_kind(all, "link") == devices * (devices - 1));
  BOOST_TEST((devices == 0) == (summary["detail"] != ""));
}

// ---- check

BOOST_AUTO_TEST_CASE(a_match_is_a_line_a_file_and_a_summary) {
  const Ended end = run({"check", goldens().small});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(std::count(end.out.begin(), end.out.end(), '\n') == 2);
  BOOST_TEST(end.out.starts_with("ok    " + goldens().small + ": 2 cases, "));
  BOOST_TEST(contains(end.out, "\nmatch: 1 file, "));
  BOOST_TEST(end.err == "");
}

BOOST_AUTO_TEST_CASE(a_shipped_golden_matches_with_its_worst_figure) {
  const Ended end = run({"check", "--threads", "1", shipped("qwen3_next_tiny")});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.out, "worst "));
}

BOOST_AUTO_TEST_CASE(a_difference_is_named_and_exit_code_1) {
  const TemporaryFolder folder;
  write_changed_golden(folder.file("changed.h5"));
  const Ended end = run({"check", folder.file("changed.h5"), goldens().small});
  BOOST_TEST(end.code == 1);
  BOOST_TEST(contains(end.out, "changed.h5: a/target/model"), end.out);
  BOOST_TEST(contains(end.out, "1 failed tap"));
  BOOST_TEST(contains(end.out, "at row 0, column 7"));
  BOOST_TEST(contains(end.out, "ok    " + goldens().small));
  BOOST_TEST(contains(end.out, "\ndifference: 2 files"));
}

BOOST_AUTO_TEST_CASE(verbosity_adds_a_line_a_case_and_a_line_a_tap) {
  const auto lines = [](const Ended& end) {
    return std::count(end.out.begin(), end.out.end(), '\n');
  };
  const Ended cases = run({"check", "-v", goldens().small});
  BOOST_TEST(lines(cases) == 4);
  BOOST_TEST(contains(cases.out, "case a: "));
  BOOST_TEST(contains(cases.out, "float32 against float64"));
  const Ended taps = run({"check", "-vv", "--only", "/a/step1/", goldens().small});
  BOOST_TEST(lines(taps) > 20);
  BOOST_TEST(contains(taps.out, "a/step1/mtp.fc: match"));
  BOOST_TEST(!contains(taps.out, "a/target/"));
}

BOOST_AUTO_TEST_CASE(only_selects_by_file_case_step_and_tap) {
  for (const std::string pattern :
       {"^small/b/step0/logits$", "b/step0/logit", "^small.*b.*0/logits"}) {
    const Ended end = run({"check", "--only", pattern, goldens().small});
    BOOST_TEST(end.code == 0);
    BOOST_TEST(contains(end.out, "1 case, 1 tap, "), end.out);
  }
}

BOOST_AUTO_TEST_CASE(nothing_compared_is_exit_code_3) {
  const Ended end = run({"check", "--only", "nowhere", goldens().small});
  BOOST_TEST(end.code == 3);
  BOOST_TEST(contains(end.err, "nothing compared: no tap matches --only 'nowhere'"));
  BOOST_TEST(end.error_lines() == 1);
  BOOST_TEST(contains(end.out, "nothing compared: 0 files"));
}

BOOST_AUTO_TEST_CASE(a_bad_file_does_not_keep_the_others_from_being_checked) {
  const TemporaryFolder folder;
  write_changed_golden(folder.file("changed.h5"));
  const Ended end =
      run({"check", folder.file("absent.h5"), folder.file("changed.h5"), goldens().small});
  BOOST_TEST(end.code == 2);  // before the 1 of the difference
  BOOST_TEST(contains(end.err, "absent.h5"));
  BOOST_TEST(end.error_lines() == 1);
  BOOST_TEST(contains(end.out, "FAIL"));
  BOOST_TEST(contains(end.out, "ok    " + goldens().small));
  BOOST_TEST(contains(end.out, "2 files, 1 error"));
}

BOOST_AUTO_TEST_CASE(a_folder_stands_for_its_golden_files) {
  const Ended end = run({"check", goldens().folder.file("")});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.out, "rounded.h5"));
  BOOST_TEST(contains(end.out, "small.h5"));
  BOOST_TEST(contains(end.out, "match: 2 files"));
}

BOOST_AUTO_TEST_CASE(without_a_name_data_golden_above_the_current_folder_is_checked) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.file("data/golden"));
  std::filesystem::create_directories(folder.file("deep/down"));
  std::filesystem::copy(goldens().small, folder.file("data/golden/here.h5"));
  const Ended end = run({"check"}, {.folder = folder.file("deep/down")});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.out, "../../data/golden/here.h5"));
}

BOOST_AUTO_TEST_CASE(without_any_golden_file_the_places_are_named) {
  // A copy of the program, far from the source tree.
  const TemporaryFolder folder;
  std::filesystem::copy(TOKENVIEW_PROGRAM, folder.file("tokenview"));
  const Ended end = Process({folder.file("tokenview"), "check"},
                            {.folder = folder.file(""), .variables = {{"TOKENVIEW_DATA", ""}}})
                        .end();
  if (end.code != 2) {
    BOOST_TEST_MESSAGE("skipped: golden files are installed on this machine");
    return;
  }
  BOOST_TEST(contains(end.err, "TOKENVIEW_DATA"));
  BOOST_TEST(end.error_lines() == 1);

  const Ended found = Process({folder.file("tokenview"), "check"},
                              {.folder = folder.file(""),
                               .variables = {{"TOKENVIEW_DATA", goldens().folder.file("")}}})
                          .end();
  BOOST_TEST(found.code == 0);
  BOOST_TEST(contains(found.out, "match: 2 files"));
}

BOOST_AUTO_TEST_CASE(bfloat16_of_a_float32_file_is_refused_by_its_name) {
  const Ended end = run({"check", "--dtype", "bfloat16", goldens().small});
  BOOST_TEST(end.code == 2);
  BOOST_TEST(contains(end.err, "small.h5: is a float32 file"));
}

BOOST_AUTO_TEST_CASE(every_record_has_the_common_keys) {
  const TemporaryFolder folder;
  write_changed_golden(folder.file("changed.h5"));
  const Ended end = run({"check", "--format", "jsonl", folder.file("changed.h5"), goldens().rounded,
                         folder.file("absent.h5")});
  BOOST_TEST(end.code == 2);
  BOOST_TEST(end.error_lines() == 1);
  const std::vector<Json> all = records(end.out);
  const std::set<std::string> kinds = {"start", "tap", "case", "finding", "summary"};
  for (const Json& record : all) {
    BOOST_TEST(record["schema"] == "tokenview.report");
    BOOST_TEST(record["version"] == 1);
    BOOST_TEST(kinds.contains(record["kind"].get<std::string>()));
    for (const char* const key :
         {"file", "case", "step", "tap", "rank", "observed", "allowed", "verdict"})
      BOOST_TEST(record.contains(key), key);
  }
  BOOST_TEST(count_kind(all, "case") == 4);
  BOOST_TEST(count_kind(all, "finding") == 1);
  BOOST_TEST(count_kind(all, "summary") == 3);
  BOOST_TEST(all.back()["file"].is_null());
  BOOST_TEST(all.back()["verdict"] == "error");
  BOOST_TEST(all.back()["failed"] == 1);
  BOOST_TEST(all.back()["taps"] == count_kind(all, "tap"));

  const auto failed = std::find_if(all.begin(), all.end(), [](const Json& record) {
    return record["kind"] == "tap" && record["verdict"] != "match";
  });
  BOOST_TEST_REQUIRE((failed != all.end()));
  BOOST_TEST((*failed)["verdict"] == "difference");
  BOOST_TEST((*failed)["case"] == "a");
  BOOST_TEST((*failed)["step"] == "target");
  BOOST_TEST((*failed)["observed"].get<double>() > (*failed)["allowed"].get<double>());
}

BOOST_AUTO_TEST_CASE(output_that_does_not_arrive_is_an_error) {
  const Ended end = run({"check", goldens().small}, {.out = "/dev/full"});
  BOOST_TEST(end.code == 2);
  BOOST_TEST(contains(end.err, "standard output: cannot be written"));
}

// ---- terminals

/// What the program shows on a terminal. It is interrupted once it has shown `enough`, if that is
/// not empty.
std::string on_terminal(const std::vector<std::string>& arguments, bool no_colour = false,
                        const std::string& enough = "") {
  int master = -1;
  const pid_t child = forkpty(&master, nullptr, nullptr, nullptr);
  if (child == 0) {
    std::vector<std::string> words = program_line(arguments);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    setenv("TERM", "xterm", 1);
    if (no_colour)
      setenv("NO_COLOR", "1", 1);
    else
      unsetenv("NO_COLOR");
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::string all;
  char part[4096];
  for (ssize_t n; (n = read(master, part, sizeof(part))) > 0;) {
    const bool had_enough = contains(all, enough);
    all.append(part, std::size_t(n));
    if (!had_enough && contains(all, enough)) kill(child, SIGINT);
  }
  close(master);
  waitpid(child, nullptr, 0);
  return all;
}

BOOST_AUTO_TEST_CASE(colours_are_for_terminals_without_no_color) {
  BOOST_TEST(contains(on_terminal({"check", goldens().small}), "\033[32mok\033[0m"));
  BOOST_TEST(!contains(on_terminal({"check", goldens().small}, true), "\033["));
  BOOST_TEST(!contains(run({"check", goldens().small}).out, "\033["));
}

BOOST_AUTO_TEST_CASE(long_work_shows_its_progress_on_a_terminal) {
  const TemporaryFolder folder;
  const std::string progress = "\r\033[Krecord: long";
  const std::string shown = on_terminal({"record", "--config", "qwen3-next", "--cases", "long=8000",
                                         "--threads", "1", "--out", folder.file("long.h5")},
                                        false, progress);
  BOOST_TEST(contains(shown, progress));
  BOOST_TEST(shown.ends_with("\r\033[Ktokenview: error: interrupted\r\n"), shown);
}

// ---- record

struct Recipe {
  std::string model, dtype, rounding;
};
std::ostream& operator<<(std::ostream& out, const Recipe& r) {
  return out << r.model << ' ' << r.dtype << ' ' << r.rounding;
}
const std::vector<Recipe> recipes = {
    {"qwen3-next", "float32", "hf"},    {"qwen3.5-moe", "float32", "hf"},
    {"qwen3-next", "bfloat16", "hf"},   {"qwen3.5-moe", "bfloat16", "hf"},
    {"qwen3-next", "bfloat16", "vllm"}, {"qwen3.5-moe", "bfloat16", "vllm"},
};

/// Every tap of a file, compared by check, equal to the bit.
void require_equal_to_the_bit(const std::string& path) {
  const Ended end = run({"check", "--format", "jsonl", path});
  BOOST_TEST_REQUIRE(end.code == 0, end.err);
  std::int64_t taps = 0;
  for (const Json& record : records(end.out)) {
    if (record["kind"] != "tap") continue;
    ++taps;
    BOOST_TEST(record["observed"] == 0.0);
    BOOST_TEST(record["verdict"] == "match");
  }
  BOOST_TEST(taps > 100);
}

BOOST_DATA_TEST_CASE(a_seeded_recording_is_reproduced_to_the_bit, data::make(recipes), recipe) {
  const TemporaryFolder folder;
  const Ended end =
      run({"record", "--config", recipe.model, "--seed", "11", "--dtype", recipe.dtype,
           "--rounding", recipe.rounding, "--out", folder.file("a.h5")});
  BOOST_TEST_REQUIRE(end.code == 0, end.err);
  BOOST_TEST(end.out + end.err == "");
  BOOST_TEST(folder.count() == 1u);
  require_equal_to_the_bit(folder.file("a.h5"));

  const GoldenFile golden = GoldenFile::open(folder.file("a.h5"));
  const std::vector<std::string> cases = {"chunked", "decode", "one", "prefill", "varlen"};
  BOOST_TEST(golden.case_names() == cases, boost::test_tools::per_element());
  for (const std::string& name : cases) BOOST_TEST(golden.mtp_step_count(name) == 3);
  BOOST_TEST(golden.file().string_attribute("/", "seed") == "11");
  for (const char* const name : {"version", "commit", "host", "compiler"})
    BOOST_TEST(golden.file().has_attribute("/", name), name);
  // Hugging Face rounds every tap; vLLM keeps the routing weights in float32.
  if (recipe.rounding == "hf")
    for (const std::string& tap : golden.tap_names("one"))
      if (!GoldenFile::holds_ids(tap))
        BOOST_TEST(to_string(golden.tap("one", tap).dtype) == recipe.dtype, tap);
}

BOOST_DATA_TEST_CASE(a_recording_of_a_golden_is_reproduced_to_the_bit,
                     data::make({"qwen3_next_tiny", "qwen3_5_moe_tiny", "qwen3_next_bf16",
                                 "qwen3_5_moe_bf16"}),
                     name) {
  const TemporaryFolder folder;
  const Ended end = run({"record", "--from", shipped(name), "--out", folder.file("a.h5")});
  BOOST_TEST_REQUIRE(end.code == 0, end.err);
  require_equal_to_the_bit(folder.file("a.h5"));

  const GoldenFile from = GoldenFile::open(shipped(name)),
                   ours = GoldenFile::open(folder.file("a.h5"));
  BOOST_TEST(ours.config_json() == from.config_json());
  BOOST_TEST((ours.weight_shapes() == from.weight_shapes()));
  BOOST_TEST(ours.case_names() == from.case_names(), boost::test_tools::per_element());
  BOOST_TEST(ours.inputs("decode", 160).input_ids == from.inputs("decode", 160).input_ids,
             boost::test_tools::per_element());
  BOOST_TEST(ours.tap_names("decode") == from.tap_names("decode"),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_golden_can_be_recorded_in_the_other_type) {
  const TemporaryFolder folder;
  for (const auto& [from, dtype] : {std::pair(shipped("qwen3_next_tiny"), "bfloat16"),
                                    {shipped("qwen3_5_moe_bf16"), "float32"}}) {
    const Ended end =
        run({"record", "--from", from, "--dtype", dtype, "--out", folder.file("a.h5")});
    BOOST_TEST_REQUIRE(end.code == 0, end.err);
    BOOST_TEST(to_string(GoldenFile::open(folder.file("a.h5")).dtype()) == std::string(dtype));
    require_equal_to_the_bit(folder.file("a.h5"));
  }
}

BOOST_AUTO_TEST_CASE(the_same_seed_gives_the_same_bytes_and_another_one_does_not) {
  const TemporaryFolder folder;
  const auto recorded = [&](const std::string& seed) {
    run({"record", "--config", "qwen3.5-moe", "--cases", "one", "--seed", seed, "--out",
         folder.file(seed)});
    return read_bytes(folder.file(seed));
  };
  const std::string bytes = recorded("3");
  BOOST_TEST((bytes == recorded("3")));
  BOOST_TEST((bytes != recorded("4")));
}

BOOST_AUTO_TEST_CASE(cases_in_words_become_sequences_with_context) {
  const GoldenInputs inputs = GoldenFile::open(goldens().small).inputs("b", 160);
  BOOST_TEST(inputs.query_start_loc == (std::vector<std::int32_t>{0, 1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(inputs.context_start_loc == (std::vector<std::int32_t>{0, 2, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(inputs.positions == (std::vector<std::int64_t>{2, 1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_configuration_file_and_a_folder_are_models) {
  const TemporaryFolder folder;
  write_bytes(folder.file("config.json"), GoldenFile::open(goldens().small).config_json());
  for (const std::string& model : {folder.file("config.json"), folder.file(""), goldens().small}) {
    const Ended end =
        run({"record", "--config", model, "--cases", "one", "--out", folder.file("a.h5")});
    BOOST_TEST(end.code == 0, end.err);
  }
}

BOOST_AUTO_TEST_CASE(unknown_configuration_keys_are_noted_once) {
  const TemporaryFolder folder;
  std::string json = GoldenFile::open(goldens().small).config_json();
  json.insert(json.find('{') + 1, "\"mystery\": 1, ");
  write_bytes(folder.file("config.json"), json);
  const Ended end = run({"record", "--config", folder.file("config.json"), "--cases", "one",
                         "--out", folder.file("a.h5")});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.err, "tokenview: note: "));
  BOOST_TEST(contains(end.err, "ignored configuration keys: mystery"));
  BOOST_TEST(end.error_lines() == 1);
}

/// Waits until the folder has an entry beside the old file: the new one, half written.
bool wait_for_half_written(const TemporaryFolder& folder) {
  for (int i = 0; i < 1000; ++i) {
    if (folder.count() > 1) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

BOOST_DATA_TEST_CASE(an_interrupted_recording_leaves_the_old_file_alone,
                     data::make({SIGINT, SIGTERM, SIGKILL}), signal) {
  const TemporaryFolder folder;
  write_bytes(folder.file("a.h5"), "old");
  Process recording(program_line({"record", "--config", "qwen3-next", "--cases", "long=8000",
                                  "--threads", "1", "--out", folder.file("a.h5")}));
  BOOST_TEST_REQUIRE(wait_for_half_written(folder));
  recording.send(signal);
  const Ended end = recording.end();
  BOOST_TEST(end.code == (signal == SIGKILL ? 1000 + SIGKILL : 128 + signal));
  BOOST_TEST(read_bytes(folder.file("a.h5")) == "old");
  if (signal != SIGKILL) {
    BOOST_TEST(folder.count() == 1u);
    BOOST_TEST(end.err == "tokenview: error: interrupted\n");
  }
}

// ---- info

BOOST_AUTO_TEST_CASE(info_shows_configuration_legal_tp_cases_and_provenance) {
  const Ended end = run({"info", goldens().small});
  BOOST_TEST(end.code == 0);
  for (const std::string part :
       {"golden file, qwen3_next, float32", "1, 2, 4, 8 (up to 16)", "seed: 5",
        "case a: T = 3 in 1 sequence (3), 2 draft steps", "case b: T = 2 in 2 sequences (2:1+1:1)"})
    BOOST_TEST(contains(end.out, part), part);
  BOOST_TEST(!contains(end.out, "mtp.fc"));
  BOOST_TEST(contains(run({"info", "-v", goldens().small}).out, "step1/mtp.fc: float32 [1, 64]"));
  BOOST_TEST(contains(run({"info", "-vv", goldens().small}).out, "weight mtp.fc.weight: float32"));
}

BOOST_AUTO_TEST_CASE(a_run_in_records_says_first_that_it_starts) {
  const std::vector<std::string> command = {"run", "--tp", "1", "--tokens", "2"};
  BOOST_TEST(!contains(run(command).out, "\"start\""));
  std::vector<std::string> in_records = command;
  in_records.insert(in_records.end(), {"--format", "jsonl"});
  const Json start = records(run(in_records).out).front();
  BOOST_TEST(start["kind"] == "start");
  BOOST_TEST(start["command"] == "run");
  BOOST_TEST(start["program"].get<std::string>().starts_with("tokenview "));
  // So does one that is refused: what follows in the same file is not taken for the whole.
  in_records.insert(in_records.end(), {"--protocol", "C"});
  const Ended refused = run(in_records);
  BOOST_TEST(refused.code == 2);
  BOOST_TEST(behind_start(refused.out).empty());
  // Of several processes the first speaks.
  const Surroundings second = {
      .variables = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}};
  BOOST_TEST(!contains(run({"devices", "--format", "jsonl"}, second).out, "\"start\""));
}

BOOST_AUTO_TEST_CASE(info_in_records_has_the_same) {
  const std::vector<Json> all =
      behind_start(run({"info", "--format", "jsonl", goldens().small}).out);
  BOOST_TEST_REQUIRE(all.size() == 4u);
  BOOST_TEST(all[0]["kind"] == "file");
  BOOST_TEST(all[0]["legal_tp"] == Json({1, 2, 4, 8}));
  BOOST_TEST(all[2]["kind"] == "step");
  BOOST_TEST(all[2]["case"] == "b");
  BOOST_TEST(all[2]["context"] == Json({2, 1}));
  BOOST_TEST(all[3]["verb"] == "info");
  BOOST_TEST(all[3]["verdict"] == "match");
}

BOOST_AUTO_TEST_CASE(info_in_records_names_a_file_that_cannot_be_read) {
  const Ended end = run({"info", "--format", "jsonl", "nowhere.h5", goldens().small});
  BOOST_TEST(end.code == 2);
  const std::vector<Json> all = behind_start(end.out);
  BOOST_TEST_REQUIRE(all.size() == 5u);
  BOOST_TEST(all[0]["verdict"] == "error");
  BOOST_TEST(all[0]["file"] == "nowhere.h5");
  BOOST_TEST(all[1]["file"] == goldens().small);
  BOOST_TEST(all[4]["verdict"] == "error");
  BOOST_TEST(all[4]["errors"] == 1);
}

BOOST_AUTO_TEST_CASE(info_lists_the_ranks_and_steps_of_a_dump) {
  const TemporaryFolder folder;
  const std::string step = "/ranks/1/steps/0";
  {
    Hdf5Writer dump(folder.file("dump.h5"));
    dump.attribute("/", "schema", std::string("tokenview.dump"));
    dump.attribute("/", "schema_version", 1);
    dump.attribute("/", "producer", std::string("a test"));
    dump.tensor(step + "/taps/model.norm", {{2, 3}, std::vector<float>(6), DType::float32});
    dump.tensor(step + "/mtp/step0/mtp.fc", {{1, 3}, std::vector<float>(3), DType::float32});
    for (const auto& [name, value] : {std::pair("rank", 1), {"tp_rank", 1}, {"tp_size", 2}})
      dump.attribute("/ranks/1", name, value);
    dump.attribute(step, "num_tokens", 2);
    dump.close();
  }
  const Ended end = run({"info", "-v", folder.file("dump.h5")});
  BOOST_TEST(end.code == 0);
  for (const std::string part :
       {"dump of 1 rank", "rank 1: tp=1/2", "step 0: T = 2, 1 draft step, 2 taps",
        "target/model.norm: float32 [2, 3]", "step0/mtp.fc: float32 [1, 3]"})
    BOOST_TEST(contains(end.out, part), part);
}

BOOST_AUTO_TEST_CASE(info_takes_a_folder_as_check_does) {
  const Ended end = run({"info", "--format", "jsonl", goldens().folder.file("")});
  BOOST_TEST(end.code == 0, end.err);
  const std::vector<Json> all = records(end.out);
  BOOST_TEST(count_kind(all, "file") == 2);
  BOOST_TEST(all.back()["files"] == 2);
  const TemporaryFolder empty;
  const Ended none = run({"info", empty.file("")});
  BOOST_TEST(none.code == 2);
  BOOST_TEST(none.error_lines() == 1);
  BOOST_TEST(contains(none.err, "has no file *.h5"), none.err);
}

// ---- no token at all

BOOST_AUTO_TEST_CASE(a_run_without_a_token_row_compares_nothing) {
  for (const std::string numbers : {"", "--numeric"}) {
    std::vector<std::string> words = {"run", "--tp", "2", "--tokens", "0"};
    if (!numbers.empty()) words.push_back(numbers);
    const Ended end = run(words);
    BOOST_TEST(end.code == 3, numbers);
    BOOST_TEST(end.error_lines() == 1);
    BOOST_TEST(contains(end.err, "nothing compared"), end.err);
  }
  BOOST_TEST(run({"run", "--tp", "2", "--dp", "2", "--tokens", "0,1"}).code == 0);
  const Ended end = run({"run", "--tp", "2", "--tokens", "0", "--format", "jsonl"});
  BOOST_TEST(records(end.out).back()["verdict"] == "nothing compared");
}

BOOST_AUTO_TEST_CASE(no_token_row_needs_no_sequence_parallelism) {
  const Ended end = run({"cost", "--tokens", "0"});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(contains(end.out, "no: there is no token row"), end.out);
  BOOST_TEST(!contains(end.out, "sends less"), end.out);
  const Ended in_records = run({"cost", "--tokens", "0", "--format", "jsonl"});
  BOOST_TEST(records(in_records.out).back()["verdict"] == "does not pay");
}

// ---- what tells configurations apart

std::string configuration_of(const std::vector<std::string>& more, const std::string& folder = "") {
  std::vector<std::string> words = {"run", "--tp", "2", "--format", "jsonl"};
  words.insert(words.end(), more.begin(), more.end());
  const Ended end = run(words, {.folder = folder});
  BOOST_TEST_REQUIRE(end.code < 2, end.err);
  return records(end.out).back()["case"];
}

BOOST_AUTO_TEST_CASE(every_option_that_changes_a_run_is_in_the_name_of_its_configuration) {
  const std::string& golden = goldens().small;
  const std::vector<std::vector<std::string>> options = {
      {"--model", golden, "--case", "a"},
      {"--model", golden, "--case", "b"},
      {"--model", golden, "--case", "a", "--numeric"},
      {"--model", golden, "--case", "a", "--dp", "2"},
      {"--model", golden, "--case", "a,b", "--dp", "2"},
      {"--tokens", "4"},
      {"--tokens", "5"},
      {"--runner", "V2"},
      {"--graph-sizes", "16"},
      {"--graph-sizes", "16,32"},
      {"--aux-layers", "0,2"},
      {"--dispatch", "naive"},
      {"--ep"},
      {"--draft-steps", "1"},
      {"--draft-steps", "1", "--correct-target"},
      {"--draft-steps", "1", "--disable-padded-drafter-batch"},
      {"--engine", "vllm-0.27.1"},
  };
  std::set<std::string> names;
  for (const std::vector<std::string>& more : options)
    BOOST_TEST(names.insert(configuration_of(more)).second, *names.begin());
}

BOOST_AUTO_TEST_CASE(no_folder_is_in_the_name_of_a_configuration) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.file("model"));
  write_bytes(folder.file("model/config.json"), write_config_json(*preset("qwen3-next")));
  const std::string here = configuration_of({"--model", "small.h5", "--case", "a"},
                                            std::filesystem::path(goldens().small).parent_path());
  BOOST_TEST(here == configuration_of({"--model", goldens().small, "--case", "a"}));
  BOOST_TEST(here.starts_with("small.h5 S tp=2 dp=1 case a"));
  for (const std::string& name :
       {folder.file("model"), folder.file("model/"), folder.file("model/config.json")})
    BOOST_TEST(configuration_of({"--model", name}).starts_with("model S "), name);
  BOOST_TEST(
      configuration_of({"--model", "config.json"}, folder.file("model")).starts_with("model S "));
}

BOOST_AUTO_TEST_CASE(a_baseline_of_one_case_knows_nothing_of_another) {
  const TemporaryFolder folder;
  const auto lines_of = [&](const std::string& name) {
    const std::string file = folder.file(name + ".jsonl");
    write_bytes(file, run({"run", "--model", goldens().small, "--case", name, "--protocol", "B",
                           "--tp", "2", "--ep", "--draft-steps", "1", "--format", "jsonl"})
                          .out);
    return file;
  };
  const std::string known = folder.file("known.json"), a = lines_of("a"), b = lines_of("b");
  run({"report", a, "--write-baseline", known, "--reason", "x", "--expires", "2100-01-01"});
  BOOST_TEST(run({"report", a, "--baseline", known}).code == 0);
  BOOST_TEST(run({"report", b, "--baseline", known}).code == 1);
}

// ---- shrink

BOOST_AUTO_TEST_CASE(a_shrunk_scenario_is_one_case_of_a_report) {
  const TemporaryFolder folder;
  const std::string file = folder.file("shrunk.jsonl");
  std::ofstream(file) << run({"shrink", "vllm-48429", "--format", "jsonl"}).out;
  const Results results = read_results({file});
  BOOST_TEST_REQUIRE(results.cases.size() == 1u);
  const ResultCase& shrunk = results.cases.front();
  BOOST_TEST(shrunk.name == "vllm-48429-shrunk");
  BOOST_TEST((shrunk.outcome == Outcome::failed));
  BOOST_TEST_REQUIRE(shrunk.problems.size() == 1u);
  BOOST_TEST(shrunk.problems.front().operation == "exit");
  BOOST_TEST(!shrunk.repairs.empty());
}

}  // namespace
}  // namespace tokenview
