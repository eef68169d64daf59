// SPDX-License-Identifier: Apache-2.0
// --checkpoint of the program's verbs, and --ids of record.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <nlohmann/json.hpp>

#include "reference/program/config_json.hpp"
#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "tests/checkpoint_draft.hpp"
#include "tests/cli_run.hpp"
#include "verify/golden_file.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

/// Folders with one model: `plain` as transformers 5 saves it, `other` with one bit of it changed,
/// and a golden file that was recorded from the first.
struct Folders {
  TemporaryFolder folder;
  std::string plain = folder.file("plain"), other = folder.file("other"),
              vision = folder.file("vision"), no_mtp = folder.file("no_mtp"),
              golden = folder.file("golden.h5"), bfloat16 = folder.file("bfloat16.h5");

  Folders() {
    const ModelConfig config = *preset("qwen3-next");
    CheckpointDraft draft(config, write_config_json(config), SeededWeights(config, 3));
    draft.split_experts();
    draft.write(plain, 3);
    CheckpointDraft without = draft;
    std::erase_if(without.tensors,
                  [](const auto& entry) { return entry.first.starts_with("mtp."); });
    without.write(no_mtp);
    draft.tensors["model.layers.0.mlp.experts.7.up_proj.weight"].bytes[0] ^= 1;
    draft.write(other);
    const ModelConfig text_config = *preset("qwen3.5-moe");
    CheckpointDraft nested(text_config, write_config_json(text_config),
                           SeededWeights(text_config, 3));
    nested.nest();
    nested.write(vision);
    record(golden, {});
    record(bfloat16, {"--dtype", "bfloat16"});
  }

  void record(const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"record",  "--checkpoint", plain, "--ids",
                                      "5:7,9+3", "--out",        out};
    words.insert(words.end(), more.begin(), more.end());
    const Ended end = run(words);
    if (end.code != 0 || !end.err.empty()) throw std::runtime_error(end.err);
  }
};
const Folders& folders() {
  static const Folders made;
  return made;
}

/// One line that holds `part`, and exit code 2.
void require_refused(const Ended& end, const std::string& part) {
  BOOST_TEST(end.code == 2);
  BOOST_TEST(end.error_lines() == 1);
  BOOST_TEST(contains(end.err, part), "'" << end.err << "' lacks '" << part << "'");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_checkpoint)

BOOST_AUTO_TEST_CASE(a_recording_refers_to_the_weights_and_is_checked_with_them) {
  const GoldenFile golden = GoldenFile::open(folders().golden);
  BOOST_TEST(golden.weight_shapes().empty());
  BOOST_TEST(golden.file().string_attribute("/", "checkpoint") == folders().plain);
  BOOST_TEST(golden.file().string_attribute("/", "weights_fingerprint").size() == 16u);
  BOOST_TEST(golden.mtp_step_count("ids") == 3);
  const Ended checked = run({"check", "--checkpoint", folders().plain, folders().golden});
  BOOST_TEST(checked.code == 0);
  BOOST_TEST(contains(checked.out, "no value differs"), checked.out);
  BOOST_TEST(checked.err == "");
  BOOST_TEST(contains(run({"info", folders().golden}).out, "weights      not in the file"));
}

BOOST_AUTO_TEST_CASE(ids_are_the_tokens_of_the_case) {
  const GoldenFile golden = GoldenFile::open(folders().golden);
  BOOST_TEST(golden.case_names() == std::vector<std::string>{"ids"},
             boost::test_tools::per_element());
  const GoldenInputs inputs = golden.inputs("ids", 160);
  BOOST_TEST((inputs.input_ids == std::vector<std::int64_t>{7, 9, 3}));
  BOOST_TEST((inputs.positions == std::vector<std::int64_t>{1, 2, 0}));
  BOOST_TEST((inputs.query_start_loc == std::vector<std::int32_t>{0, 2, 3}));
  BOOST_TEST((inputs.context_ids == std::vector<std::int64_t>{5}));
  BOOST_TEST((inputs.context_start_loc == std::vector<std::int32_t>{0, 1, 1}));
}

BOOST_AUTO_TEST_CASE(ids_stand_beside_cases_under_names) {
  const std::string out = folders().folder.file("named.h5");
  const Ended end = run({"record", "--config", "qwen3-next", "--ids", "1,2", "--ids", "late=1,2:3",
                         "--cases", "one,mine=2", "--draft-steps", "0", "--out", out});
  BOOST_TEST_REQUIRE(end.code == 0, end.err);
  const std::vector<std::string> expected = {"ids", "late", "mine", "one"};
  BOOST_TEST(GoldenFile::open(out).case_names() == expected, boost::test_tools::per_element());
  BOOST_TEST(GoldenFile::open(out).mtp_step_count("late") == 0);
}

BOOST_AUTO_TEST_CASE(bad_ids_are_refused) {
  const std::string out = folders().folder.file("none.h5");
  const auto record = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"record", "--checkpoint", folders().plain, "--out", out});
    return run(more);
  };
  for (const auto& [ids, part] : std::vector<std::pair<std::string, std::string>>{
           {"1,160,2", "'160' in '1,160,2' is no token id from 0 to 159 (vocabulary of 160)"},
           {"1,-1", "'-1' in '1,-1'"},
           {"x", "'x' in 'x'"},
           {"1,,2", "'' in '1,,2'"},
           {"1,2+", "'' in '1,2+'"},
           {":1", "'' in ':1'"},
           {"1:", "'' in '1:'"},
           {"1 2", "'1 2' in '1 2'"},
           {"1e1", "'1e1' in '1e1'"},
           {"99999999999999999999", "is no token id"},
           {"=1", "'' is no name of a case"},
           {"a/b=1", "'a/b' is no name of a case"},
           {"a=", "'' in ''"}})
    require_refused(record({"--ids=" + ids}), part);
  require_refused(record({"--ids", "1", "--ids", "2"}), "there is a case 'ids' already");
  require_refused(record({"--ids", "one=1", "--cases", "one"}), "there is a case 'one' already");
  require_refused(run({"record", "--from", folders().golden, "--ids", "1", "--out", out}),
                  "--from has its cases");
  BOOST_TEST(!std::filesystem::exists(out));
}

BOOST_AUTO_TEST_CASE(a_file_without_weights_says_what_it_needs) {
  const std::string part =
      "/weights: is empty, expected --checkpoint with the folder that has the "
      "weights: the file was recorded from " +
      folders().plain;
  const std::string out = folders().folder.file("again.h5");
  require_refused(run({"check", folders().golden}), part);
  const Ended matrix = run({"check", "--matrix=full", folders().golden});
  BOOST_TEST(matrix.code == 2);
  BOOST_TEST(contains(matrix.err, part), matrix.err);
  require_refused(run({"record", "--from", folders().golden, "--out", out}), part);
  require_refused(run({"run", "--model", folders().golden, "--case", "ids", "--numeric"}), part);
  BOOST_TEST(!std::filesystem::exists(out));
}

BOOST_AUTO_TEST_CASE(weights_that_are_not_those_of_the_file_are_refused) {
  require_refused(run({"check", "--checkpoint", folders().other, folders().golden}),
                  "/weights: the weights of " + folders().other + " have the fingerprint ");
  const Ended other_model = run({"check", "--checkpoint", folders().vision, folders().golden});
  BOOST_TEST(other_model.code == 2);
  BOOST_TEST(contains(other_model.err, "/config: is not the configuration of " + folders().vision));
  require_refused(run({"check", "--checkpoint", folders().plain,
                       TOKENVIEW_SOURCE_DIR "/data/golden/qwen3_next_bf16.h5"}),
                  "/weights: the file has weights of its own");
  require_refused(
      run({"check", "--checkpoint", folders().folder.file("nowhere"), folders().golden}),
      "nowhere: is no folder, expected that of a checkpoint");
}

BOOST_AUTO_TEST_CASE(stored_weights_need_no_folder) {
  const std::string out = folders().folder.file("stored.h5");
  folders().record(out, {"--with-weights"});
  BOOST_TEST(run({"check", out}).code == 0);
  require_refused(run({"record", "--config", "qwen3-next", "--with-weights", "--out", out}),
                  "expected --checkpoint");
}

BOOST_AUTO_TEST_CASE(a_recording_can_be_made_again_from_the_folder) {
  const std::string out = folders().folder.file("again.h5");
  const Ended end = run({"record", "--from", folders().golden, "--checkpoint", folders().plain,
                         "--dtype", "bfloat16", "--gdn", "chunked", "--out", out});
  BOOST_TEST_REQUIRE(end.code == 0, end.err);
  const Ended checked = run({"check", "--checkpoint", folders().plain, "--gdn", "chunked", out});
  BOOST_TEST(checked.code == 0, checked.out + checked.err);
  BOOST_TEST(contains(checked.out, "no value differs"), checked.out);
}

BOOST_AUTO_TEST_CASE(a_recording_in_the_other_type_has_its_own_fingerprint) {
  for (const auto& [from, dtype] :
       {std::pair(folders().bfloat16, "float32"), std::pair(folders().golden, "bfloat16")}) {
    const std::string out = folders().folder.file("other_type.h5");
    const Ended end = run({"record", "--from", from, "--checkpoint", folders().plain, "--dtype",
                           dtype, "--out", out});
    BOOST_TEST_REQUIRE(end.code == 0, end.err);
    const Ended checked = run({"check", "--checkpoint", folders().plain, out});
    BOOST_TEST(checked.code == 0, checked.out + checked.err);
  }
}

BOOST_AUTO_TEST_CASE(a_recording_has_the_form_of_the_delta_rule_that_was_asked_for) {
  const std::string out = folders().folder.file("chunked.h5");
  const Ended end = run({"record", "--config", "qwen3-next", "--cases", "chunked", "--draft-steps",
                         "0", "--gdn", "chunked", "--out", out});
  BOOST_TEST_REQUIRE(end.code == 0, end.err);
  BOOST_TEST(contains(run({"check", "--gdn", "chunked", out}).out, "no value differs"));
  BOOST_TEST(!contains(run({"check", out}).out, "no value differs"));
}

BOOST_AUTO_TEST_CASE(tensors_beside_the_text_model_are_said_once) {
  const std::string out = folders().folder.file("vision.h5");
  const std::string note = "tokenview: note: " + folders().vision +
                           ": not of the text model, and not used: 2 tensors of model.visual\n";
  const Ended end = run({"record", "--checkpoint", folders().vision, "--ids", "1,2", "--out", out});
  BOOST_TEST(end.code == 0);
  BOOST_TEST(end.err == note);
  const Ended checked = run({"check", "--checkpoint", folders().vision, out});
  BOOST_TEST(checked.code == 0);
  BOOST_TEST(checked.err == note);
}

BOOST_AUTO_TEST_CASE(a_folder_without_mtp_weights_drafts_nothing_unless_asked) {
  const std::string out = folders().folder.file("no_mtp.h5");
  const Ended end = run({"record", "--checkpoint", folders().no_mtp, "--ids", "1", "--out", out});
  BOOST_TEST(end.code == 0, end.err);
  BOOST_TEST(GoldenFile::open(out).mtp_step_count("ids") == 0);
  require_refused(run({"record", "--checkpoint", folders().no_mtp, "--ids", "1", "--draft-steps",
                       "1", "--out", out}),
                  "has 1 draft steps, and the model has no weights mtp.*");
}

BOOST_AUTO_TEST_CASE(a_run_takes_its_weights_from_the_folder) {
  const auto numbers = [](const std::vector<std::string>& model) {
    std::vector<std::string> words = {"run",       "--tokens", "3",          "--tp",
                                      "2",         "--ep",     "--protocol", "D",
                                      "--numeric", "--format", "jsonl"};
    words.insert(words.end(), model.begin(), model.end());
    const Ended end = run(words);
    BOOST_TEST(end.code == 0, end.err);
    return end.out.substr(0, end.out.rfind("\n{"));  // without the summary, which names the model
  };
  const std::string with_weights = numbers({"--checkpoint", folders().plain});
  BOOST_TEST(contains(with_weights, "\"metric\":\"max_abs\""));
  BOOST_TEST(with_weights == numbers({"--model", folders().plain}));
  BOOST_TEST(with_weights == numbers({"--model", "qwen3-next", "--checkpoint", folders().plain}));
  BOOST_TEST(with_weights != numbers({"--model", "qwen3-next"}));
  require_refused(run({"run", "--checkpoint", folders().plain}), "expected --numeric");
  require_refused(run({"run", "--model", "qwen3.5-moe", "--checkpoint", folders().plain,
                       "--numeric", "--tokens", "3", "--tp", "2"}),
                  "have different configurations");
}

BOOST_AUTO_TEST_CASE(the_matrix_takes_the_weights_of_the_folder) {
  const Ended end = run({"check", "--matrix=full", "--checkpoint", folders().plain, "--tp", "2",
                         "--dp", "1", folders().golden});
  BOOST_TEST(end.code == 0, end.out + end.err);
}

BOOST_AUTO_TEST_CASE(a_dump_is_held_to_the_error_model_of_the_folder_s_weights) {
  const std::string dump = folders().folder.file("dump");
  const Ended made = run({"run", "--model", folders().bfloat16, "--case", "ids", "--checkpoint",
                          folders().plain, "--tp", "2", "--numeric", "--dump", dump});
  BOOST_TEST_REQUIRE(made.code == 0, made.out + made.err);
  const std::vector<std::string> files = {folders().bfloat16, dump + "/dump.rank0.h5",
                                          dump + "/dump.rank1.h5"};
  const auto diff = [&](std::vector<std::string> words) {
    words.insert(words.end(), files.begin(), files.end());
    return run(words);
  };
  require_refused(diff({"diff"}), "expected --checkpoint with the folder that has the weights");
  const Ended compared = diff({"diff", "--checkpoint", folders().plain});
  BOOST_TEST(compared.code == 0, compared.out + compared.err);
  require_refused(
      run({"diff", "--checkpoint", folders().plain, folders().golden, folders().bfloat16}),
      "expected a golden and a dump");
}

BOOST_AUTO_TEST_CASE(a_fault_behind_a_norm_is_named_by_the_norm_s_weight) {
  const std::string golden = folders().folder.file("prefill.h5"),
                    dump = folders().folder.file("twice");
  run({"record", "--checkpoint", folders().plain, "--ids", "1,2,3,4,5", "--out", golden});
  run({"run", "--model", golden, "--case", "ids", "--checkpoint", folders().plain, "--tp", "2",
       "--numeric", "--fault", "repeat:all_reduce@model.layers.1,occurrence=1", "--dump", dump});
  const std::vector<std::string> files = {golden, dump + "/dump.rank0.h5", dump + "/dump.rank1.h5"};
  const auto diff = [&](std::vector<std::string> words) {
    words.insert(words.end(), files.begin(), files.end());
    const Ended end = run(words);
    BOOST_TEST(end.code == 1, end.out + end.err);
    return end.out;
  };
  const std::string name = "model.layers.1.linear_attn summed twice";
  const std::string with = diff({"diff", "--checkpoint", folders().plain});
  BOOST_TEST(contains(with, name), with);
  BOOST_TEST(!contains(diff({"diff"}), name));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
