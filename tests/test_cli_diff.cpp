// SPDX-License-Identifier: Apache-2.0
// `tokenview diff` and `tokenview run --dump` as a user meets them.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"
#include "tests/raw_hdf5.hpp"
#include "verify/result_reader.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Json = nlohmann::json;

const std::string source = TOKENVIEW_SOURCE_DIR;
const std::string golden = source + "/data/golden/qwen3_next_tp8.h5";
const std::string engine = source + "/data/engine/";
const std::string scenario = source + "/data/scenarios/vllm-50154.json";

std::string replaced(std::string all, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = all.find(from, at)) != std::string::npos; at += to.size())
    all.replace(at, from.size(), to);
  return all;
}

std::vector<Json> records(const std::string& lines) {
  std::vector<Json> parsed;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) parsed.push_back(Json::parse(line));
  return parsed;
}

/// The commands of the README below the line that begins with `heading`.
std::vector<std::string> readme_commands(const std::string& heading) {
  std::istringstream in(read_bytes(source + "/README.md"));
  std::vector<std::string> commands;
  bool is_here = false, is_code = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("**")) is_here = line.starts_with(heading);
    if (line.starts_with("```")) is_code = !is_code;
    if (is_here && is_code && line.starts_with("build/")) commands.push_back(line);
  }
  return commands;
}

/// What a shell makes of a command line, in the source folder.
Ended in_shell(const std::string& command) {
  return Process({"sh", "-c", command}, {.folder = source}).end();
}

/// The pattern of the dump's files. The run ends with 0 or 1, or with `code`.
std::string dumped(const TemporaryFolder& folder, const std::vector<std::string>& more,
                   int code = 1) {
  std::vector<std::string> words = {"run",    "--model",          golden, "--numeric", "--ep",
                                    "--dump", folder.file("dump")};
  words.insert(words.end(), more.begin(), more.end());
  const Ended end = run(words);
  BOOST_TEST((end.code == 0 || end.code == code), end.err);
  return folder.file("dump") + "/*.h5";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_diff)

/// Right runs whose errors, or annotated views, are at the edge: in float32 a tap over the fixed
/// limit, small values behind large ones; in bfloat16 one value a rank that is small beside its
/// error, so that a sum of all ranks fits as well as what each holds.
struct RightRun {
  const char* options;
  const char* file;
};
std::ostream& operator<<(std::ostream& out, const RightRun& run) { return out << run.options; }
const RightRun right_runs[] = {
    {"--case one --protocol S --tp 1", "qwen3_5_moe_tiny.h5"},
    {"--case one --protocol D --tp 2 --ep", "qwen3_5_moe_tiny.h5"},
    {"--case chunked --protocol E --tp 2 --ep", "qwen3_next_mixed.h5"},
    {"--case prefill_t12 --protocol S --tp 3", "qwen3_5_moe_tp3.h5"},
    {"--case prefill --protocol S --tp 2 --ep --draft-steps 2", "qwen3_5_moe_bf16.h5"},
};
BOOST_DATA_TEST_CASE(right_runs_of_shipped_goldens_match, data::make(right_runs), right) {
  const TemporaryFolder folder;
  const std::string path = source + "/data/golden/" + right.file;
  const std::string program = TOKENVIEW_PROGRAM, dump = folder.file("dump");
  const Ended ran = in_shell(
      text(program, " run --model ", path, ' ', right.options, " --numeric --dump ", dump));
  BOOST_TEST(ran.code == 0, ran.out << ran.err);
  const Ended end = in_shell(text(program, " diff ", path, ' ', dump, "/*.h5"));
  BOOST_TEST(end.code == 0, end.out << end.err);
}

BOOST_AUTO_TEST_CASE(what_errors_cannot_explain_differs_in_float32) {
  const TemporaryFolder folder;
  const std::string path = source + "/data/golden/qwen3_5_moe_tiny.h5";
  const std::string program = TOKENVIEW_PROGRAM, dump = folder.file("dump");
  in_shell(text(program, " run --model ", path,
                " --case one --protocol S --tp 1 --numeric --fault "
                "scale:output@model.layers.2.linear_attn,factor=1.001 --dump ",
                dump));
  const Ended end = in_shell(text(program, " diff ", path, ' ', dump, "/*.h5"));
  BOOST_TEST(end.code == 1, end.out << end.err);
  BOOST_TEST(end.out.find("first difference  step 0 target/model.layers.2.linear_attn:") !=
                 std::string::npos,
             end.out);
}

BOOST_AUTO_TEST_CASE(views_of_every_fault_are_read_again) {
  for (const char* const fault :
       {"scale:output@model.layers.1.mlp.shared_expert,factor=0.25",
        "scale:output@model.layers.1.linear_attn,factor=0.3", "stale:output@mtp.layers.0.mlp"}) {
    const TemporaryFolder folder;
    const std::string dump = dumped(folder, {"--case", "decode", "--protocol", "D", "--tp", "4",
                                             "--draft-steps", "3", "--fault", fault});
    const Ended end = in_shell(text(TOKENVIEW_PROGRAM, " diff ", golden, ' ', dump));
    BOOST_TEST(end.code == 1, fault << end.err);
  }
}

namespace {

/// Writes the records of a diff of `dump` into `file`.
void write_diff(const std::string& file, const std::string& dump) {
  write_bytes(file, run({"diff", golden, dump, "--format", "jsonl"}).out);
}

}  // namespace

// One token, of which one rank has the row and the other a pad; its draft is another than the
// golden's, so that no way of holding what follows has the golden's values.
BOOST_AUTO_TEST_CASE(a_pad_beside_a_turned_draft_is_no_missing_row) {
  const TemporaryFolder folder;
  const std::string golden = folder.file("golden.h5"), dump = folder.file("dump");
  BOOST_REQUIRE(run({"record", "--config", "qwen3-next", "--seed", "56", "--dtype", "bfloat16",
                     "--out", golden})
                    .code == 0);
  BOOST_REQUIRE(run({"run", "--model", golden, "--case", "one", "--protocol", "E", "--tp", "2",
                     "--ep", "--draft-steps", "1", "--numeric", "--dump", dump, "--strip"})
                    .code == 0);
  const Ended end = run({"diff", golden, dump + "/dump.rank0.h5", dump + "/dump.rank1.h5"});
  BOOST_TEST(end.code == 0, end.out);
  BOOST_TEST(contains(end.out, "1 choice of experts or drafts"), end.out);
}

BOOST_AUTO_TEST_CASE(a_baseline_of_one_dump_knows_nothing_of_another) {
  const TemporaryFolder folder;
  const auto faulty = [&](const std::string& protocol) {
    const TemporaryFolder own;
    write_diff(folder.file(protocol),
               dumped(own, {"--case", "prefill_t4", "--protocol", protocol, "--tp", "2", "--fault",
                            "scale:norm@model.layers.1.linear_attn,factor=2,tp=1"}));
    return folder.file(protocol);
  };
  const std::string c = faulty("C"), d = faulty("D"), known = folder.file("known.json");
  run({"report", c, "--write-baseline", known, "--reason", "x", "--expires", "2100-01-01"});
  BOOST_TEST(run({"report", c, "--baseline", known}).code == 0);
  BOOST_TEST(run({"report", d, "--baseline", known}).code == 1);
  // It knows the same dump wherever it lies: the folders above were temporary ones.
  const std::string again = faulty("C");
  BOOST_TEST(run({"report", again, "--baseline", known}).code == 0);
}

BOOST_AUTO_TEST_CASE(dumps_without_a_label_are_told_apart_by_their_folder) {
  const TemporaryFolder folder;
  std::set<std::string> names;
  for (const char* const name : {"monday", "tuesday"}) {
    std::filesystem::create_directories(folder.file(name));
    for (const char* const file : {"dump.rank0.h5", "dump.rank1.h5"})
      std::filesystem::copy_file(engine + file, folder.file(text(name, '/', file)));
    write_bytes(folder.file("jsonl"),
                run({"diff", engine + "golden.h5", folder.file(name), "--format", "jsonl"}).out);
    const Results results = read_results({folder.file("jsonl")});
    BOOST_TEST_REQUIRE(!results.cases.empty());
    for (const ResultCase& result : results.cases) {
      BOOST_TEST(contains(result.name, text("tp=2 dp=1 ep in ", name, " against golden.h5")),
                 result.name);
      BOOST_TEST(names.insert(result.name).second, result.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(plain_files_are_named_without_the_folders_above_theirs) {
  const TemporaryFolder folder;
  write_bytes(folder.file("jsonl"), run({"diff", golden, golden, "--format", "jsonl"}).out);
  const Results results = read_results({folder.file("jsonl")});
  BOOST_TEST_REQUIRE(results.cases.size() == 1u);
  BOOST_TEST(results.cases.front().name == "golden/qwen3_next_tp8.h5 against qwen3_next_tp8.h5");
}

BOOST_AUTO_TEST_CASE(a_limit_that_limits_nothing_is_refused) {
  for (const char* const limit : {"nan", "inf", "-1", "1e400", "", "0.1x"})
    for (const char* const option : {"--rtol", "--atol"}) {
      const Ended end = run({"diff", option, limit, golden, golden});
      BOOST_TEST(end.code == 2, limit);
      BOOST_TEST(end.err.find(option) != std::string::npos, end.err);
    }
}

BOOST_AUTO_TEST_CASE(from_the_readme_to_a_diagnosed_dump) {
  const std::vector<std::string> commands = readme_commands("**You have dumps of a run");
  BOOST_TEST_REQUIRE(commands.size() == 3);
  const TemporaryFolder folder;
  std::vector<Ended> ends;
  for (const std::string& command : commands)
    ends.push_back(
        in_shell(replaced(replaced(command, "build/release/tokenview", TOKENVIEW_PROGRAM),
                          "/tmp/dump", folder.file("dump"))));
  BOOST_TEST(ends[0].code == 1);  // the run is that of a known bug
  BOOST_TEST(ends[1].code == 1);
  for (const std::string part :
       {"first difference  step 0 step0/mtp.norm: shard where full is required",
        "rank 0   tp=0  holds [0,1,2], required [0,1,2,3,4,5,6,7,8,9]",
        "rank 3   tp=3  holds [9,PAD,PAD], required [0,1,2,3,4,5,6,7,8,9]", "the run stopped",
        "suggest gather over tp and trim to T between step0/mtp.layers.0 and step0/mtp.norm"})
    BOOST_TEST(contains(ends[1].out, part), ends[1].out);
  BOOST_TEST(std::count(ends[1].out.begin(), ends[1].out.end(), '\n') <= 24);  // a screen
  BOOST_TEST(ends[2].code == 0, ends[2].out << ends[2].err);
  BOOST_TEST(contains(ends[2].out, "match: "));
  for (const Ended& end : ends) BOOST_TEST(end.err == "");
}

BOOST_AUTO_TEST_CASE(records_have_the_same) {
  const Ended end =
      run({"diff", "--format", "jsonl", engine + "golden.h5", engine + "dump.rank*.h5"});
  BOOST_TEST(end.code == 0, end.err);
  const std::vector<Json> all = records(end.out);
  const Json& summary = all.back();
  BOOST_TEST(summary["schema"] == "tokenview.report");
  BOOST_TEST(summary["kind"] == "summary");
  BOOST_TEST(summary["verdict"] == "match");
  BOOST_TEST(summary["taps"] == std::int64_t(all.size()) - 2);
  BOOST_TEST(summary["failed"] == 0);
  BOOST_TEST(summary["steps"] == 2);
  BOOST_TEST(summary["protocols"][0].get<std::string>().starts_with("step 0: D ("));
  const auto shard = std::ranges::find_if(
      all, [](const Json& r) { return r["tap"] == "model.layers.2.mlp" && r["engine_step"] == 0; });
  BOOST_TEST_REQUIRE((shard != all.end()));
  BOOST_TEST((*shard)["held"] == "[0,1,2,3,4,5,6,7,8] [9,10,11,12,13,14,15,16,PAD]");
  BOOST_TEST((*shard)["kind_of_view"] == "shard");
  BOOST_TEST((*shard)["case"] == "tp2_mtp2.step0");
  BOOST_TEST((*shard)["observed"] <= (*shard)["allowed"]);
}

BOOST_AUTO_TEST_CASE(the_case_can_be_said_and_then_the_inputs_must_be_its) {
  const TemporaryFolder folder;
  const std::string dump = dumped(folder, {"--case", "prefill_t4", "--tp", "2", "--protocol", "D"});
  BOOST_TEST(run({"diff", golden, dump, "--case", "prefill_t4"}).code == 0);
  const Ended other = run({"diff", golden, dump, "--case", "prefill_t5"});
  BOOST_TEST(other.code == 1);
  BOOST_TEST(contains(other.out, "inputs/input_ids"));
  const Ended unknown = run({"diff", golden, dump, "--case", "prefil_t4"});
  BOOST_TEST(unknown.code == 2);
  BOOST_TEST(contains(unknown.err, "did you mean prefill_t4?"));
  const Ended none = run({"diff", engine + "golden.h5", dump});
  BOOST_TEST(none.code == 3);
  BOOST_TEST(contains(none.out, "no case of the golden has its inputs"));
}

BOOST_AUTO_TEST_CASE(each_file_that_is_no_dump_is_named_with_its_reason) {
  const TemporaryFolder folder;
  write_bytes(folder.file("empty.h5"), "");
  const Ended end = run({"diff", golden, engine + "dump.rank0.h5", folder.file("nowhere.h5"),
                         folder.file("empty.h5"), source + "/README.md"});
  BOOST_TEST(end.code == 2);
  for (const std::string part : {"nowhere.h5: cannot be opened: No such file", "empty.h5: is empty",
                                 "README.md: is not an HDF5 file"})
    BOOST_TEST(contains(end.err, part), end.err);
  BOOST_TEST(end.error_lines() == 1);
}

/// The first lines say what everything else of the step follows from.
BOOST_AUTO_TEST_CASE(a_rank_without_a_step_and_one_of_another_run_come_first) {
  const TemporaryFolder folder;
  std::filesystem::copy(engine + "dump.rank0.h5", folder.file("dump.rank0.h5"));
  std::filesystem::copy(engine + "dump.rank1.h5", folder.file("dump.rank1.h5"));
  const hid_t file = H5Fopen(folder.file("dump.rank1.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  BOOST_TEST_REQUIRE(H5Ldelete(file, "ranks/1/steps/1", H5P_DEFAULT) >= 0);
  H5Fclose(file);
  const Ended lacking = run({"diff", engine + "golden.h5", folder.file("dump.rank*.h5")});
  BOOST_TEST(lacking.code == 1);
  BOOST_TEST(lacking.out.starts_with("first difference  step 1 rank 1: missing\n"
                                     "  rank 1 does not have this step, other ranks do\n"),
             lacking.out);

  const TemporaryFolder ten, twelve;
  dumped(ten, {"--case", "prefill_t10", "--tp", "2", "--protocol", "D"});
  dumped(twelve, {"--case", "prefill_t12", "--tp", "2", "--protocol", "D"});
  const std::vector<std::string> words = {"diff", golden, ten.file("dump/dump.rank0.h5"),
                                          twelve.file("dump/dump.rank1.h5")};
  const Ended mixed = run(words);
  BOOST_TEST(mixed.code == 1);
  BOOST_TEST(
      mixed.out.starts_with("first difference  step 0 inputs: other inputs than those of rank 0\n"
                            "  rank 1 has 12 tokens, rank 0 has 10 tokens\n"),
      mixed.out);
  BOOST_TEST(!contains(mixed.out, "worst  at"), mixed.out);
}

BOOST_AUTO_TEST_CASE(a_run_that_stopped_says_where_and_what_every_rank_did) {
  const TemporaryFolder folder;
  const std::string dump =
      dumped(folder,
             {"--case", "prefill_t10", "--tp", "4", "--protocol", "D", "--fault",
              "replace:reduce_scatter@model.layers.1,with=all_reduce,tp=1"},
             4);
  const Ended end = run({"diff", golden, dump});
  BOOST_TEST(end.code == 1);
  BOOST_TEST(contains(end.out,
                      "step 0 the rest of the step: missing: the run stopped after "
                      "target/model.layers.1.linear_attn, before "
                      "target/model.layers.1.post_attention_layernorm\n"),
             end.out);
  for (int rank = 0; rank < 4; ++rank)
    BOOST_TEST(contains(end.out, text("\n    tp=", rank, " (rank ", rank, ") call 5: ")), end.out);
  BOOST_TEST(!contains(end.out, "\\x0a"), end.out);
}

/// A shard of one rank alone: its values are right, and not all.
BOOST_AUTO_TEST_CASE(no_number_that_holds_is_the_reason_of_a_failure) {
  const TemporaryFolder folder;
  dumped(folder, {"--case", "prefill_t1", "--tp", "2", "--protocol", "C"});
  const std::string rank0 = folder.file("dump/dump.rank0.h5");
  const Ended end = run({"diff", golden, rank0, "-v"});
  BOOST_TEST(contains(end.out,
                      "target/model.layers.0.linear_attn.in_proj_ba: right as far as it "
                      "is there\n"),
             end.out);
  std::int64_t failed = 0;
  for (const Json& record : records(run({"diff", golden, rank0, "--format", "jsonl"}).out)) {
    if (record["kind"] != "tap" || !record["failed"].get<bool>()) continue;
    ++failed;
    if (!record["observed"].is_null())
      BOOST_TEST(record["observed"].get<double>() > record["allowed"].get<double>(), record.dump());
  }
  BOOST_TEST(failed > 10);
}

BOOST_AUTO_TEST_CASE(draft_steps_that_were_not_captured_are_named_as_such) {
  const TemporaryFolder folder;
  const std::string dump = dumped(
      folder, {"--case", "prefill_t4", "--tp", "2", "--protocol", "D", "--draft-steps", "1"});
  const Ended end = run({"diff", golden, dump});
  BOOST_TEST(end.code == 0, end.out);
  BOOST_TEST(contains(end.out,
                      "the dump does not have them: all of draft step 1, all of draft "
                      "step 2"),
             end.out);
  BOOST_TEST(!contains(end.out, "mtp.fc"), end.out);
}

BOOST_AUTO_TEST_CASE(two_dumps_of_other_layouts) {
  const TemporaryFolder one, four;
  const std::string whole = dumped(one, {"--case", "prefill_t5", "--tp", "1", "--protocol", "S"});
  const std::string parts = dumped(four, {"--case", "prefill_t5", "--tp", "4", "--protocol", "D"});
  for (const auto& files : {std::pair(whole, parts), std::pair(parts, whole)}) {
    const Ended end = run({"diff", files.first, files.second});
    BOOST_TEST(end.code == 0, end.out << end.err);
    BOOST_TEST(contains(end.out, "(tp=1 dp=1"));
  }
}

BOOST_AUTO_TEST_CASE(plain_files_by_name) {
  const TemporaryFolder folder;
  const float values[] = {1, 2, 3, 4}, other[] = {1, 2, 3, 4.5f};
  RawHdf5(folder.file("a.h5")).add("x/w", H5T_NATIVE_FLOAT, {2, 2}, values);
  RawHdf5(folder.file("b.h5")).add("y/w", H5T_NATIVE_FLOAT, {2, 2}, values);
  RawHdf5(folder.file("c.h5")).add("x/w", H5T_NATIVE_FLOAT, {2, 2}, other);
  const auto diff = [&](const std::string& second, std::vector<std::string> more) {
    more.insert(more.begin(), {"diff", folder.file("a.h5"), folder.file(second)});
    return run(more);
  };
  BOOST_TEST(diff("b.h5", {}).code == 1);
  BOOST_TEST(diff("b.h5", {"--map", "y/*=x/*"}).code == 0);
  BOOST_TEST(diff("c.h5", {}).code == 1);
  BOOST_TEST(diff("c.h5", {"--atol", "0.5"}).code == 0);
  BOOST_TEST(diff("c.h5", {"--rule", "x/*: of_max=0.2"}).code == 0);
  BOOST_TEST(run({"diff", "--rule", "x/*: of_max=0.2", "--rule", "y/*: of_max=0",
                  folder.file("a.h5"), folder.file("c.h5")})
                 .code == 0);
  BOOST_TEST(diff("c.h5", {"--like", "torch"}).code == 1);
  BOOST_TEST(diff("a.h5", {"--bitwise"}).code == 0);
  BOOST_TEST(contains(diff("c.h5", {}).out, "x/w: max_abs 0.5 of 4e-05"));
  BOOST_TEST(records(diff("c.h5", {"--format", "jsonl"}).out).back()["failed"] == 1);
}

BOOST_AUTO_TEST_CASE(goldens_tensor_by_tensor) {
  BOOST_TEST(run({"diff", golden, golden}).code == 0);
  const Ended end = run({"diff", golden, engine + "golden.h5"});
  BOOST_TEST(end.code == 1);
}

struct WrongLine {
  std::vector<std::string> arguments;
  std::string expected;
  friend std::ostream& operator<<(std::ostream& out, const WrongLine& line) {
    return out << line.expected;
  }
};
const WrongLine wrong_lines[] = {
    {{"diff"}, "FILE"},
    {{"diff", "/nowhere.h5", golden}, "/nowhere.h5"},
    {{"diff", golden, "/nowhere/*.h5"}, "no file has such a name"},
    {{"diff", golden}, "found 1 golden file, 0 dump files and 0 plain files"},
    {{"diff", engine + "dump.rank0.h5", engine + "dump.rank1.h5"}, "found 1 dump, expected"},
    {{"diff", golden, engine + "dump.rank0.h5", "--bitwise", "--rtol", "1"}, "one of the three"},
    {{"diff", golden, engine + "dump.rank0.h5", "--rule", "x"}, "'x' cannot be read"},
    {{"diff", golden, engine + "dump.rank0.h5", "--map", "a=b"}, "--map"},
    {{"diff", golden, golden, "--case", "a"}, "--case"},
    {{"diff", golden, engine + "dump.rank0.h5", "--rtol", "-1"}, "--rtol"},
    {{"run", "--case", "a"}, "expected --model with the golden file"},
    {{"run", "--model", golden, "--case", "a", "--tokens", "3"}, "excludes"},
    {{"run", "--model", golden, "--case", "prefill_t99"}, "prefill_t9?"},
    {{"run", "--model", golden, "--case", "decode,one", "--tp", "2"}, "found 2 cases"},
    {{"run", "--model", golden, "--case", "prefill_t3", "--case", "prefill_t4"},
     "its context is not what the steps before it have processed"},
    {{"run", "--dump", "x"}, "expected --numeric"},
    {{"run", "--numeric", "--strip"}, "expected --dump"},
    {{"run", "--numeric", "--dump", ""}, "empty, expected a path"},
    {{"run", "--fault", "before:output@model.layers.1.mlp,with=all_reduce"},
     "changes nothing: 'before' does nothing to output@model.layers.1.mlp"},
    {{"run", "--fault", "stale:output@model.layers.1.mlp"}, "there is no pass before"},
    {{"run", "--draft-steps", "2", "--fault", "stale:output@mtp.layers.0.mlp,draft=1"},
     "there is no pass before"},
    {{"run", "--draft-steps", "2", "--fault", "stale:output@mtp.layers.0.mlp,occurrence=2"},
     "there is no pass before"},
    {{"run", "--tokens", "3c8v2r1c9"}, "'c' is given twice"},
    {{"record", "--from", golden, "--out", golden}, "is read: expected another file"},
    {{"record", "--config", golden, "--out", golden}, "is read: expected another file"},
    {{"record", "--config", "", "--out", "x.h5"}, "empty, expected a path"},
    {{"run", "--numeric", "--checkpoint", ""}, "empty, expected a path"},
    {{"shrink", scenario, "--out", scenario}, "is read: expected another file"},
    {{"shrink", "vllm-50154", "--out", ""}, "empty, expected a path"},
    {{"shrink", "vllm-50154", "--out", "/nowhere/a", "--boost-test", "/nowhere/../nowhere/a"},
     "expected two files"},
};

BOOST_DATA_TEST_CASE(a_wrong_command_line_is_one_line_and_exit_code_2, data::make(wrong_lines),
                     line) {
  const Ended end = run(line.arguments);
  BOOST_TEST(end.code == 2, end.out << end.err);
  BOOST_TEST(end.out == "");
  BOOST_TEST(end.error_lines() == 1);
  BOOST_TEST(contains(end.err, line.expected), end.err);
}

BOOST_AUTO_TEST_CASE(dumps_of_a_larger_world_are_not_mixed_in) {
  const TemporaryFolder folder;
  dumped(folder, {"--case", "prefill_t4", "--tp", "4", "--protocol", "D"});
  const Ended end = run({"run", "--model", golden, "--case", "prefill_t4", "--tp", "2", "--ep",
                         "--numeric", "--dump", folder.file("dump")});
  BOOST_TEST(end.code == 2);
  BOOST_TEST(contains(end.err, "dump.rank2.h5 of another run"), end.err);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
