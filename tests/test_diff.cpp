// SPDX-License-Identifier: Apache-2.0
// Dumps of a real engine and of runs with every published fault, held against a golden file and
// against each other, without annotations unless a test says otherwise.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <filesystem>
#include <set>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "tests/dumps_of_run.hpp"
#include "tests/edited_dump.hpp"
#include "tests/raw_hdf5.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/expected_verdict.hpp"
#include "verify/golden_case.hpp"
#include "verify/record.hpp"
#include "verify/trusted_dump.hpp"
#include "verify/view_run.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Paths = std::vector<std::string>;

const std::string engine = TOKENVIEW_SOURCE_DIR "/data/engine/";

/// A golden file of the tiny Qwen3-Next with cases of two steps in turn, and of two dp ranks.
class World {
 public:
  World() : config(*preset("qwen3-next")), weights(config, 1) {
    Recording recording;
    recording.config = config;
    recording.config_json = write_config_json(config);
    recording.weights = &weights;
    for (const auto& [name, length] :
         {std::pair("ten", 10), std::pair("other", 10), std::pair("three", 3), std::pair("one", 1)})
      recording.cases.push_back(
          with_drafts(seeded_case(name, {{0, length}}, config.vocab_size, 1)));
    RecordedCase next = seeded_case("next", {{10, 10}}, config.vocab_size, 1);
    next.inputs.context_ids = recording.cases.front().inputs.input_ids;
    recording.cases.push_back(with_drafts(next));
    record_golden(recording, path);
    golden.emplace(GoldenFile::open(path));
  }

  GoldenInputs inputs(const std::string& name) const {
    return golden->inputs(name, config.vocab_size);
  }

  ModelConfig config;
  SeededWeights weights;
  TemporaryFolder folder;
  std::string path = folder.file("golden.h5");
  std::optional<GoldenFile> golden;

 private:
  static RecordedCase with_drafts(RecordedCase recorded) {
    recorded.draft_steps = 2;
    return recorded;
  }
};

const World& world() {
  static const World world;
  return world;
}

struct DumpOf {
  ProtocolId protocol = ProtocolId::D;
  std::int64_t tp = 4, dp = 1;
  std::vector<Paths> cases = {{"ten"}};  // [step][dp]
  std::int64_t draft_steps = 0;
  std::vector<std::string> faults = {};
  std::function<void(ParallelPlan&)> change = {};
  bool annotate = false;
};

ParallelRun run_of(const DumpOf& what) {
  const ParallelConfig parallel{
      .tp = what.tp, .dp = what.dp, .enable_expert_parallel = what.tp > 1};
  ParallelRun run{.config = world().config,
                  .plan = plan_for(world().config, parallel, what.protocol),
                  .draft_steps = std::size_t(what.draft_steps)};
  if (what.change) what.change(run.plan);
  for (const Paths& names : what.cases) {
    std::vector<StepInputs> step;
    for (const std::string& name : names) {
      CaseBatches batches = case_batches(world().inputs(name));
      step.push_back({std::move(batches.context), std::move(batches.step)});
    }
    if (run.inputs.empty()) {
      run.inputs = std::move(step);
    } else {
      for (StepInputs& of_dp : step) of_dp.context = {};
      run.later_steps.push_back(std::move(step));
    }
  }
  return run;
}

/// Runs it and writes its dumps into `folder`; their paths.
Paths dump_into(const std::string& folder, const DumpOf& what) {
  return dumps_of({.wide = true}, run_of(what), world().weights, what.faults, folder,
                  what.annotate);
}

DumpDiffResult diff(const Paths& paths, const GoldenFile& golden = *world().golden) {
  return diff_with_golden(paths, golden);
}

DumpDiffResult diff(const DumpOf& what) {
  const TemporaryFolder folder;
  return diff(dump_into(folder.file("dump"), what));
}

bool matches(const DumpDiffResult& result) { return result.failed == 0 && result.compared > 0; }

/// Without an attribute of any data set.
void strip(const std::string& path, const char* attribute) {
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  struct Context {
    const char* attribute;
  } context{attribute};
  const auto visit = [](hid_t object, const char* name, const H5O_info_t*, void* given) -> herr_t {
    const char* const unwanted = static_cast<Context*>(given)->attribute;
    if (H5Aexists_by_name(object, name, unwanted, H5P_DEFAULT) > 0)
      H5Adelete_by_name(object, name, unwanted, H5P_DEFAULT);
    return 0;
  };
  H5Ovisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, &context);
}

Paths copy_of_engine_dump(const TemporaryFolder& folder) {
  Paths paths;
  for (const char* const name : {"dump.rank0.h5", "dump.rank1.h5"}) {
    paths.push_back(folder.file(name));
    std::filesystem::copy(engine + name, paths.back());
  }
  return paths;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(diff_of_an_engine)

BOOST_AUTO_TEST_CASE(every_golden_tap_of_a_real_engines_dump_is_compared_and_matches) {
  const DumpDiffResult result = diff({engine + "dump.rank0.h5", engine + "dump.rank1.h5"},
                                     GoldenFile::open(engine + "golden.h5"));
  BOOST_TEST(matches(result), in_words(result));
  BOOST_TEST(result.steps == 2);
  // 208 under the golden's names or as packed, summed or fused; further ones are layer inputs.
  BOOST_TEST(result.compared >= 208);
  std::set<std::string> kinds;
  for (const TapDiff& tap : result.taps) {
    kinds.insert(tap.kind);
    if (tap.bound.metric == std::string("max_abs"))
      BOOST_TEST(tap.bound.observed <= tap.bound.allowed, tap.tap);
    if (tap.tap.ends_with(".ids")) BOOST_TEST(tap.bound.observed == 0);
  }
  BOOST_TEST(kinds == std::set<std::string>({"full", "shard", "partial", "columns"}),
             boost::test_tools::per_element());
  // Each name once, and a count of taps.
  BOOST_TEST(result.not_compared_taps > std::ssize(result.not_compared));
  BOOST_TEST(std::set<std::string>(result.not_compared.begin(), result.not_compared.end()).size() ==
             result.not_compared.size());
}

BOOST_AUTO_TEST_CASE(sampled_rows_are_found_without_annotation) {
  const TemporaryFolder folder;
  const Paths paths = copy_of_engine_dump(folder);
  for (const std::string& path : paths) strip(path, "view");
  const DumpDiffResult result = diff(paths, GoldenFile::open(engine + "golden.h5"));
  BOOST_TEST(matches(result), in_words(result));
  BOOST_TEST(result.compared >= 208);
}

BOOST_AUTO_TEST_CASE(a_rank_without_a_file_is_missing) {
  const DumpDiffResult result =
      diff({engine + "dump.rank1.h5"}, GoldenFile::open(engine + "golden.h5"));
  BOOST_TEST(!matches(result));
  BOOST_TEST(result.first_difference()->tap == "rank 0");
}

BOOST_AUTO_TEST_CASE(another_model_is_seen) {
  const DumpDiffResult result =
      diff({engine + "dump.rank0.h5", engine + "dump.rank1.h5"});  // against the tiny one
  BOOST_TEST(result.nothing_compared());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(diff_of_runs)

BOOST_AUTO_TEST_CASE(right_runs_of_every_protocol_match) {
  std::int64_t runs = 0;
  for (const ProtocolId protocol : all_protocols())
    for (const std::int64_t tp : {2, 4})
      for (const std::int64_t dp : {1, 2})
        for (const char* const name : {"ten", "three", "one"}) {
          const DumpOf what{.protocol = protocol,
                            .tp = tp,
                            .dp = dp,
                            .cases = {dp == 1 ? Paths{name} : Paths{name, "other"}},
                            .draft_steps = 2,
                            .annotate = name == std::string("three")};
          const ParallelRun run = run_of(what);
          if (!run_views(run, false).clean()) continue;
          const DumpDiffResult result = diff(what);
          ++runs;
          BOOST_TEST(matches(result), to_string(protocol) << " tp=" << tp << " dp=" << dp << ' '
                                                          << name << ": " << in_words(result));
        }
  BOOST_TEST(runs > 80);
}

struct Named {
  const char* what;
  DumpOf dump;
  std::string tap;     // of the first difference
  std::string called;  // contained
  std::string held;    // by rank 0; empty: whatever

  friend std::ostream& operator<<(std::ostream& out, const Named& n) { return out << n.what; }
};

const Named named[] = {
    {"the MTP layer's exit of protocol B without the repair (vllm 48429)",
     {.protocol = ProtocolId::B, .draft_steps = 1},
     "step0/mtp.norm",
     "shard where full is required",
     "[0,1,2]"},
    {"the same on two ranks",
     {.protocol = ProtocolId::B, .tp = 2, .cases = {{"three"}}, .draft_steps = 1, .faults = {}},
     "step0/mtp.norm",
     "shard where full is required",
     "[0,1]"},
    {"the shared expert split over ranks with other rows (vllm 37856)",
     {.protocol = ProtocolId::A,
      .change = [](ParallelPlan& plan) { plan.shared_expert_whole = false; }},
     "target/model.layers.0.mlp.shared_expert.gate_proj",
     "a block of the columns where all are due",
     "[0,1,2] columns 0/4"},
    {"the feed-forward reduced twice (vllm 48763)",
     {.protocol = ProtocolId::S,
      .draft_steps = 1,
      .faults = {"repeat:all_reduce@mtp.layers.0,occurrence=2"}},
     "step0/mtp.layers.0",
     "mtp.layers.0.mlp summed twice",
     ""},
    {"the mixer reduced twice, seen behind the norm",
     {.protocol = ProtocolId::S, .faults = {"repeat:all_reduce@model.layers.1,occurrence=1"}},
     "target/model.layers.1.post_attention_layernorm",
     "model.layers.1.linear_attn summed twice",
     ""},
    {"the feed-forward never reduced",
     {.protocol = ProtocolId::S, .faults = {"drop:all_reduce@model.layers.1,occurrence=2"}},
     "target/model.layers.1",
     "partial sum where the complete value is required: model.layers.1.mlp",
     ""},
    {"the mixer never reduced, seen behind the norm",
     {.protocol = ProtocolId::S, .faults = {"drop:all_reduce@model.layers.3,occurrence=1"}},
     "target/model.layers.3.post_attention_layernorm",
     "partial sum where the complete value is required: model.layers.3.self_attn",
     ""},
    {"pads poisoned",
     {.faults = {"poison:pad_rows@model.layers.0*,with=large"}},
     "target/model.layers.0.post_attention_layernorm",
     "pads poisoned",
     "[0,1,2]"},
    {"pads with NaN",
     {.faults = {"poison:pad_rows@model.layers.0*,with=nan"}},
     "target/model.layers.0.post_attention_layernorm",
     "pads poisoned",
     "[0,1,2]"},
    {"a gather in reversed rank order",
     {.faults = {"order:all_gather@model.layers.1*,with=reverse"}},
     "target/model.layers.1.linear_attn.in_proj_qkvz",
     "reversed rank order",
     "[9,PAD,PAD,6,7,8,3,4,5,0] columns 0/4"},
    {"a gather over the wrong group",
     {.tp = 2,
      .dp = 2,
      .cases = {{"ten", "other"}},
      .faults = {"group:all_gather@model.layers.1*,with=dp"}},
     "target/model.layers.1.linear_attn.in_proj_qkvz",
     "wrong group: rows of dp=1",
     ""},
    {"a mixer's rows in another order",
     {.faults = {"order:reduce_scatter@model.layers.1,with=reverse,occurrence=1"}},
     "target/model.layers.1.post_attention_layernorm",
     "model.layers.1.linear_attn: rows in another order",
     ""},
    {"a mixer's reduce-scatter over the wrong group",
     {.tp = 2,
      .dp = 2,
      .cases = {{"ten", "other"}},
      .faults = {"group:reduce_scatter@model.layers.1,with=dp,occurrence=1"}},
     "target/model.layers.1.post_attention_layernorm",
     "wrong group: model.layers.1.linear_attn summed over dp where tp is due",
     ""},
    {"a mixer's all-reduce over the wrong group",
     {.protocol = ProtocolId::S,
      .tp = 2,
      .dp = 2,
      .cases = {{"ten", "other"}},
      .faults = {"group:all_reduce@model.layers.1,with=dp,occurrence=1"}},
     "target/model.layers.1.post_attention_layernorm",
     "wrong group: model.layers.1.linear_attn summed over dp where tp is due",
     ""},
    {"a row of the step before",
     {.tp = 2,
      .cases = {{"ten"}, {"next"}},
      .faults = {"stale:output@model.layers.1.input_layernorm"}},
     "target/model.layers.1.input_layernorm",
     "rows of another step",
     ""},
};

BOOST_DATA_TEST_CASE(faults_are_named_by_data_alone, data::make(named), fault) {
  const DumpDiffResult result = diff(fault.dump);
  const TapDiff* const first = result.first_difference();
  BOOST_REQUIRE_MESSAGE(first != nullptr, "nothing differs");
  BOOST_TEST(first->tap == fault.tap, in_words(result));
  BOOST_TEST(first->called.find(fault.called) != std::string::npos, in_words(result));
  if (!fault.held.empty()) BOOST_TEST(first->ranks.front().held == fault.held);
}

BOOST_AUTO_TEST_CASE(a_split_shared_expert_gives_one_summand) {
  const DumpDiffResult result = diff({.protocol = ProtocolId::A, .change = [](ParallelPlan& plan) {
                                        plan.shared_expert_whole = false;
                                      }});
  const auto found = std::ranges::find(
      result.taps, "target/model.layers.0.mlp.shared_expert.down_proj", &TapDiff::tap);
  BOOST_REQUIRE((found != result.taps.end()));
  BOOST_TEST(found->called.find("1/4 of the value") != std::string::npos, found->called);
}

BOOST_AUTO_TEST_CASE(an_annotation_that_is_not_so_is_contradicted) {
  const TemporaryFolder folder;
  const Paths paths = dump_into(folder.file("dump"), {.tp = 2, .cases = {{"three"}}});
  EditedDump dump(paths);
  dump.say_view(1, "steps/0/taps/model.layers.1", "0-1");
  const DumpDiffResult result = diff(dump.paths());
  BOOST_REQUIRE(result.failed == 1);
  BOOST_TEST(result.first_difference()->called == "annotated otherwise than held");
  BOOST_TEST(result.first_difference()->detail.find("is annotated 0-1 and holds 2,PAD") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_row_and_zeros_are_the_shard_that_was_there_before) {
  // One token: what the drafter returns is its norm's shard, and would be a sum as well.
  const TemporaryFolder folder;
  EditedDump dump(dump_into(folder.file("dump"), {.tp = 2, .cases = {{"one"}}, .draft_steps = 1}));
  for (const std::size_t rank : {0, 1})
    dump.link(rank, "steps/0/mtp/step0/mtp.norm", "steps/0/mtp/step0/mtp.out");
  dump.change("steps/0/mtp/step0/logits", [](std::vector<float>& logits, std::size_t) {
    std::fill(logits.begin() + std::ssize(logits) / 2, logits.end(), 0.0F);
  });
  const DumpDiffResult result = diff(dump.paths());
  BOOST_REQUIRE(result.failed == 2);
  const TapDiff& first = *result.first_difference();
  BOOST_TEST(first.tap == "step0/mtp.out");
  BOOST_TEST(first.called == "shard where full is required", in_words(result));
  BOOST_TEST(first.repair.starts_with("gather over tp"), first.repair);
}

BOOST_AUTO_TEST_CASE(tokens_of_a_dp_rank_may_be_annotated_from_zero) {
  const TemporaryFolder folder;
  const Paths paths =
      dump_into(folder.file("dump"), {.tp = 2, .dp = 2, .cases = {{"three", "three"}}});
  EditedDump dump(paths);
  const std::string tap = "steps/0/taps/model.layers.1";
  for (const char* const view : {"2,PAD", "d1:2,PAD"}) {
    dump.say_view(3, tap, view);
    const DumpDiffResult result = diff(dump.paths());
    BOOST_TEST(matches(result), view << ": " << in_words(result));
  }
  dump.say_view(3, tap, "1,PAD");
  BOOST_TEST(diff(dump.paths()).first_difference()->called == "annotated otherwise than held");
}

BOOST_AUTO_TEST_CASE(an_idle_dp_rank_holds_garbage_and_the_others_keep_their_protocol) {
  const TemporaryFolder folder;
  const Paths paths =
      dump_into(folder.file("dump"), {.tp = 2, .dp = 2, .cases = {{"ten", "three"}}});
  EditedDump dump(paths);
  for (const std::size_t rank : {2, 3}) {
    dump.say_dummy(rank, "steps/0");
    std::vector<float> garbage = dump.values(rank, "steps/0/taps/model.layers.2");
    std::ranges::fill(garbage, 1e36F);
    dump.set(rank, "steps/0/taps/model.layers.2", garbage);
  }
  const DumpDiffResult result = diff(dump.paths());
  BOOST_TEST(matches(result), in_words(result));
  BOOST_REQUIRE(result.protocols.size() == 1);
  BOOST_TEST(result.protocols.front().starts_with("step 0: D ("), result.protocols.front());
  BOOST_TEST(result.notes.empty());
}

BOOST_AUTO_TEST_CASE(a_sum_may_be_done_inside_the_module) {
  const TemporaryFolder folder;
  EditedDump dump(dump_into(folder.file("dump"), {.protocol = ProtocolId::S, .tp = 2}));
  const std::string tap = "steps/0/taps/model.layers.1.linear_attn.out_proj";
  std::vector<float> sum = dump.values(0, tap), other = dump.values(1, tap);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  for (const std::size_t rank : {0, 1}) dump.set(rank, tap, sum);
  const DumpDiffResult result = diff(dump.paths());
  BOOST_TEST(matches(result), in_words(result));
  BOOST_TEST(result.notes.empty());
}

BOOST_AUTO_TEST_CASE(what_float32_cannot_do_better_is_no_difference) {
  // A read of the state that cancels to a five-hundredth of its terms, and a norm behind it.
  const std::string path = TOKENVIEW_SOURCE_DIR "/data/tests/cancelling_tap.h5";
  const GoldenFile trusted = GoldenFile::open(path);
  const LoadedGolden golden(path);
  const LoadedGolden::Case& of_case = golden.cases().begin()->second;
  ParallelRun run{.config = golden.config(),
                  .plan = plan_for(golden.config(), {}, ProtocolId::S),
                  .draft_steps = std::size_t(of_case.draft_steps)};
  CaseBatches batches = case_batches(of_case.inputs);
  run.inputs.push_back({std::move(batches.context), std::move(batches.step)});
  const TemporaryFolder folder;
  EditedDump dump(dumps_of({}, run, golden, {}, folder.file("dump")));
  const DumpDiffResult result = diff(dump.paths(), trusted);
  BOOST_TEST(matches(result), in_words(result));
  BOOST_REQUIRE(result.notes.size() == 1);
  BOOST_TEST(result.notes.front().find("within what float32 can do") != std::string::npos);
  // As much in a tap that nothing amplifies is a difference.
  dump.change(
      "steps/0/taps/model.layers.0.input_layernorm", [](std::vector<float>& values, std::size_t) {
        const float largest = std::abs(
            *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); }));
        values.front() += 2e-5F * largest;
      });
  const DumpDiffResult wrong = diff(dump.paths(), trusted);
  BOOST_REQUIRE(wrong.failed > 0);
  BOOST_TEST(wrong.first_difference()->tap == "target/model.layers.0.input_layernorm");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(diff_of_what_is_missing)

BOOST_AUTO_TEST_CASE(without_any_one_data_set_a_dump_fails) {
  const TemporaryFolder folder;
  const Paths whole =
      dump_into(folder.file("dump"), {.tp = 2, .cases = {{"three"}}, .draft_steps = 1});
  BOOST_REQUIRE(matches(diff(whole)));
  const Hdf5File file = Hdf5File::open_read(whole[0]);
  const std::vector<std::string> sets = file.dataset_paths();
  BOOST_TEST(sets.size() > 100);
  std::size_t number = 0;
  for (const std::string& set : sets)
    for (const bool of_all : {false, true}) {
      if (of_all && ++number % 7 != 0) continue;  // the manifests decide, as of one rank
      Paths paths;
      for (std::size_t rank = 0; rank < whole.size(); ++rank) {
        paths.push_back(folder.file(text("rank", rank, ".h5")));
        std::filesystem::copy(whole[rank], paths.back(),
                              std::filesystem::copy_options::overwrite_existing);
        if (rank > 0 && !of_all) continue;
        const Hdf5Handle handle(H5Fopen(paths.back().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const std::string path = text("/ranks/", rank, set.substr(set.find('/', 7)));
        BOOST_REQUIRE(H5Ldelete(handle, path.c_str(), H5P_DEFAULT) >= 0);
      }
      const DumpDiffResult result = diff(paths);
      BOOST_TEST(result.failed > 0, set << (of_all ? " of all" : " of one"));
    }
}

BOOST_AUTO_TEST_CASE(without_a_manifest_all_ranks_must_have_the_same_names_and_inputs) {
  const TemporaryFolder folder;
  const Paths paths = dump_into(folder.file("dump"), {.tp = 2, .cases = {{"three"}}});
  for (const std::string& path : paths) {
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const std::string rank = text("/ranks/", path == paths[0] ? 0 : 1, "/steps/0");
    H5Adelete_by_name(file, rank.c_str(), "manifest", H5P_DEFAULT);
  }
  BOOST_TEST(matches(diff(paths)));
  const auto without = [&](const std::string& set) {
    const TemporaryFolder copies;
    Paths changed;
    for (const std::string& path : paths) {
      changed.push_back(copies.file(text("rank", changed.size(), ".h5")));
      std::filesystem::copy(path, changed.back());
    }
    {
      const Hdf5Handle file(H5Fopen(changed[1].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      BOOST_REQUIRE(H5Ldelete(file, ("/ranks/1/steps/0/" + set).c_str(), H5P_DEFAULT) >= 0);
    }
    return diff(changed);
  };
  BOOST_TEST(without("taps/model.layers.2.mlp").first_difference()->tap ==
             "target/model.layers.2.mlp");
  BOOST_TEST(without("inputs").failed > 0);
}

BOOST_AUTO_TEST_CASE(empty_and_truncated_taps_and_not_a_number_fail) {
  const TemporaryFolder folder;
  const Paths paths = dump_into(folder.file("dump"), {.tp = 2, .cases = {{"three"}}});
  const char* const tap = "/ranks/0/steps/0/taps/model.layers.1";
  const auto with_rows = [&](hsize_t rows, float first) {
    const TemporaryFolder copies;
    Paths changed = paths;
    changed[0] = copies.file("rank0.h5");
    std::filesystem::copy(paths[0], changed[0]);
    const HostTensor values = Hdf5File::open_read(paths[0]).tensor(tap);
    std::vector<float> data = values.values;
    data[0] = first == 0 ? data[0] : first;
    {
      const Hdf5Handle file(H5Fopen(changed[0].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      BOOST_REQUIRE(H5Ldelete(file, tap, H5P_DEFAULT) >= 0);
      const hsize_t shape[] = {rows, hsize_t(values.cols())};
      const Hdf5Handle space(H5Screate_simple(2, shape, nullptr), H5Sclose);
      const Hdf5Handle made(
          H5Dcreate2(file, tap, H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
          H5Dclose);
      if (rows > 0)
        BOOST_REQUIRE(
            H5Dwrite(made, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0);
    }
    return diff(changed);
  };
  BOOST_TEST(matches(with_rows(2, 0)));
  for (const auto& [rows, first] :
       {std::pair<hsize_t, float>(0, 0), std::pair<hsize_t, float>(1, 0),
        std::pair<hsize_t, float>(2, NAN), std::pair<hsize_t, float>(2, INFINITY)}) {
    const DumpDiffResult result = with_rows(rows, first);
    BOOST_TEST_CONTEXT(rows << " rows, first " << first) {
      BOOST_TEST(result.failed == 1);
      BOOST_TEST(result.first_difference()->tap == "target/model.layers.1");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_run_that_stopped_is_no_match) {
  const DumpDiffResult result =
      diff({.tp = 2, .cases = {{"three"}}, .faults = {"drop:all_gather@model.layers.2*,tp=1"}});
  BOOST_TEST(result.failed > 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(diff_of_two_dumps)

DumpDiffResult diff_dumps(const DumpOf& trusted, const DumpOf& other) {
  const TemporaryFolder folder;
  const DumpFile first = DumpFile::open(dump_into(folder.file("a"), trusted));
  const DumpFile second = DumpFile::open(dump_into(folder.file("b"), other));
  DumpSide side(first);
  return diff_dump(side, second, DumpDiffOptions());
}

BOOST_AUTO_TEST_CASE(layouts_differ_and_values_do_not) {
  const DumpOf one{.protocol = ProtocolId::S, .tp = 1, .draft_steps = 1};
  for (const DumpOf& other : {DumpOf{.protocol = ProtocolId::S, .tp = 2, .draft_steps = 1},
                              DumpOf{.protocol = ProtocolId::D, .tp = 4, .draft_steps = 1},
                              DumpOf{.protocol = ProtocolId::C, .tp = 4, .draft_steps = 1}}) {
    const DumpDiffResult result = diff_dumps(one, other);
    BOOST_TEST(matches(result), to_string(other.protocol) << ": " << in_words(result));
    BOOST_TEST(result.compared > 90);
    BOOST_TEST(result.not_compared.empty());
  }
}

BOOST_AUTO_TEST_CASE(two_ranks_against_four_and_sequence_parallelism_on_against_off) {
  for (const auto& [trusted, other] :
       {std::pair(DumpOf{.protocol = ProtocolId::S, .tp = 2}, DumpOf{.protocol = ProtocolId::S}),
        std::pair(DumpOf{.protocol = ProtocolId::D, .tp = 2}, DumpOf{.protocol = ProtocolId::D}),
        std::pair(DumpOf{.protocol = ProtocolId::S, .tp = 2},
                  DumpOf{.protocol = ProtocolId::D, .tp = 2})}) {
    const DumpDiffResult result = diff_dumps(trusted, other);
    BOOST_TEST(matches(result), in_words(result));
    BOOST_TEST(result.compared > 70);
  }
}

BOOST_AUTO_TEST_CASE(a_fault_is_named_without_knowing_the_model) {
  const DumpOf one{.protocol = ProtocolId::S, .tp = 1};
  const DumpDiffResult reversed =
      diff_dumps(one, {.faults = {"order:all_gather@model.layers.1*,with=reverse"}});
  BOOST_REQUIRE(reversed.failed > 0);
  BOOST_TEST(reversed.first_difference()->tap == "target/model.layers.1.linear_attn.in_proj_qkvz");
  BOOST_TEST(reversed.first_difference()->ranks.front().held ==
             "[9,PAD,PAD,6,7,8,3,4,5,0] columns 0/4");
  const DumpDiffResult twice = diff_dumps(
      one,
      {.protocol = ProtocolId::S, .faults = {"repeat:all_reduce@model.layers.1,occurrence=2"}});
  BOOST_TEST(twice.first_difference()->tap == "target/model.layers.1");
  BOOST_TEST(twice.first_difference()->called ==
             "model.layers.1.mlp summed twice: 4 times the value");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
