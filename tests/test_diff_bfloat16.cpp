// SPDX-License-Identifier: Apache-2.0
// Dumps of bfloat16 models, whose errors are a matter of the model: see judge_case().
#include <bit>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <cmath>

#include "tests/boost_test.hpp"
#include "tests/dumps_of_run.hpp"
#include "tests/edited_dump.hpp"
#include "tests/temporary_folder.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

const std::vector<std::string> goldens = {"qwen3_next_bf16", "qwen3_5_moe_bf16"};

std::string path_of(const std::string& golden) {
  return TOKENVIEW_SOURCE_DIR "/data/golden/" + golden + ".h5";
}

struct DumpOf {
  std::string golden = {};
  std::string of_case = "prefill";
  ProtocolId protocol = ProtocolId::D;
  std::int64_t tp = 2;
  Rounding rounding = Rounding::hf;
  std::vector<std::string> faults = {};
  std::function<void(ParallelPlan&)> change = {};
  bool has_engine_names = false;  // besides
  std::function<void(EditedDump&)> edit = {};
};

/// Runs the case in bfloat16 and diffs what every rank had.
DumpDiffResult diff(const DumpOf& what, bool by_error_model = true) {
  const LoadedGolden golden(path_of(what.golden));
  ParallelRun run = run_of_case(golden, what.of_case, what.protocol, what.tp);
  if (what.change) what.change(run.plan);
  const TemporaryFolder folder;
  DumpDiffOptions options;
  options.by_error_model = by_error_model;
  EditedDump dump(dumps_of({.rounding = what.rounding}, std::move(run), golden, what.faults,
                           folder.file("dump")));
  for (std::int64_t layer = 0; what.has_engine_names && layer < golden.config().num_hidden_layers;
       ++layer)
    for (std::size_t rank = 0; rank < dump.paths().size(); ++rank) {
      const std::string name = text("steps/0/taps/model.layers.", layer);
      dump.link(rank, name + ".mlp", name + ".mlp.experts_and_shared");
      dump.link(rank, name + ".input_layernorm", name + ".input_layernorm.hidden");
    }
  if (what.edit) what.edit(dump);
  return diff_with_golden(dump.paths(), GoldenFile::open(path_of(what.golden)), options);
}

}  // namespace

BOOST_DATA_TEST_CASE(right_runs_match,
                     data::make(goldens) * data::make({"hf", "vllm"}) * data::make({1, 2, 4}),
                     golden, rounding, tp) {
  for (const ProtocolId protocol : {ProtocolId::S, ProtocolId::D, ProtocolId::E})
    for (const char* of_case : {"prefill", "decode"}) {
      if (tp == 1 && protocol != ProtocolId::S) continue;
      const DumpDiffResult result =
          diff({.golden = golden,
                .of_case = of_case,
                .protocol = protocol,
                .tp = tp,
                .rounding = rounding == std::string("hf") ? Rounding::hf : Rounding::vllm});
      BOOST_TEST(result.failed == 0,
                 of_case << ", " << to_string(protocol) << ": " << in_words(result));
      BOOST_TEST(result.compared > 100);
    }
}

BOOST_AUTO_TEST_CASE(what_an_engine_calls_otherwise_follows_the_same_choices) {
  std::int64_t with_ties = 0;
  for (const std::string& golden : goldens)
    for (const char* of_case : {"prefill", "varlen", "decode"}) {
      const DumpDiffResult result = diff({.golden = golden,
                                          .of_case = of_case,
                                          .rounding = Rounding::vllm,
                                          .has_engine_names = true});
      BOOST_TEST(result.failed == 0, of_case << ": " << in_words(result));
      with_ties += !result.notes.empty();
    }
  BOOST_TEST(with_ties > 0);
}

BOOST_AUTO_TEST_CASE(fixed_limits_would_alarm) {
  std::int64_t alarms = 0;
  for (const std::string& golden : goldens)
    for (const Rounding rounding : {Rounding::hf, Rounding::vllm})
      alarms += diff({.golden = golden, .rounding = rounding}, false).failed > 0;
  BOOST_TEST(alarms > 0);
}

namespace {

struct Named {
  const char* name;
  DumpOf of;
  std::string tap;     // that differs first
  std::string called;  // a part; empty: not named
};
std::ostream& operator<<(std::ostream& out, const Named& named) { return out << named.name; }

const Named named[] = {
    {"rank order reversed",
     {.tp = 2, .faults = {"order:all_gather@model.layers.1*,with=reverse"}},
     "target/model.layers.1.linear_attn.in_proj_",
     "reversed rank order"},
    {"rank order reversed, blocks of two columns",
     {.tp = 4, .faults = {"order:all_gather@model.layers.1*,with=reverse"}},
     "target/model.layers.1.linear_attn.in_proj_",
     "reversed rank order"},
    {"ranks rotated in a late layer",
     {.tp = 4, .faults = {"order:all_gather@model.layers.2*,with=rotate"}},
     "target/model.layers.2.linear_attn.in_proj_",
     "ranks rotated by one"},
    {"every rank takes the first rows",
     {.tp = 4, .faults = {"rows:chunk@model,with=prefix"}},
     "target/model.layers.0.input_layernorm",
     "tp=1, 2, 3 hold the rows of tp=0: rows 3-9 are missing"},
    {"every rank has the same rows of a feed-forward",
     {.tp = 4, .faults = {"rows:output@model.layers.1.mlp,with=round_robin"}},
     "target/model.layers.1.mlp",
     "rows 1-3, 5-7, 9 are missing"},
    {"the mixer never reduced, seen behind the norm",
     {.protocol = ProtocolId::S,
      .tp = 2,
      .faults = {"drop:all_reduce@model.layers.1,occurrence=1"}},
     "target/model.layers.1.post_attention_layernorm",
     "model.layers.1.linear_attn was never reduced"},
    {"the feed-forward reduced twice",
     {.protocol = ProtocolId::S,
      .tp = 2,
      .faults = {"repeat:all_reduce@model.layers.1,occurrence=2"}},
     "target/model.layers.1",
     "model.layers.1.mlp summed twice"},
    {"the shared expert split over ranks with other rows",
     {.protocol = ProtocolId::A,
      .tp = 2,
      .change = [](ParallelPlan& plan) { plan.shared_expert_whole = false; }},
     "target/model.layers.0.mlp.shared_expert.",
     "columns"},
    {"the MTP returns its shard",
     {.protocol = ProtocolId::B, .tp = 2},
     "step0/mtp.norm",
     "shard where full is required"},
    // The bounds of these are wider than the values.
    {"the heads of one rank left out",
     {.of_case = "decode", .faults = {"scale:norm@model.layers.2.linear_attn,factor=0,tp=1"}},
     "target/model.layers.2.linear_attn.norm",
     "zeros where tokens are due"},
    {"the experts' rows of one rank never written",
     {.faults = {"scale:experts@model.layers.2.mlp,factor=0,tp=0"}},
     "target/model.layers.2.mlp.experts",
     "zeros where tokens are due"},
};

}  // namespace

BOOST_DATA_TEST_CASE(faults_are_seen_and_named, data::make(goldens) * data::make(named), golden,
                     fault) {
  DumpOf of = fault.of;
  of.golden = golden;
  const DumpDiffResult result = diff(of);
  const TapDiff* const first = result.first_difference();
  BOOST_REQUIRE(first != nullptr);
  BOOST_TEST(first->tap.starts_with(fault.tap), in_words(result));
  BOOST_TEST(first->called.find(fault.called) != std::string::npos, in_words(result));
}

// One rank takes the golden's experts where the others take those that their errors turned.
BOOST_AUTO_TEST_CASE(ranks_must_choose_alike) {
  std::int64_t with_ties = 0;
  for (const std::string& golden : goldens) {
    const GoldenFile file = GoldenFile::open(path_of(golden));
    for (const char* of_case : {"prefill", "varlen", "decode"})
      for (const std::int64_t layer : {0, 1, 2, 3}) {
        const std::string name = text("model.layers.", layer, ".mlp.gate.ids");
        const IntegerTensor ids = file.tap_ids(of_case, name);
        const std::vector<std::int64_t>& trusted = ids.values;
        const auto in_order = [&](std::vector<std::int64_t> of_rows) {  // near-ties change it
          for (auto row = of_rows.begin(); row != of_rows.end(); row += ids.shape[1])
            std::sort(row, row + ids.shape[1]);
          return of_rows;
        };
        bool is_edited = false;
        DumpOf of{.golden = golden,
                  .of_case = of_case,
                  .protocol = ProtocolId::S,
                  .rounding = Rounding::vllm};
        of.edit = [&](EditedDump& dump) {
          is_edited =
              in_order(dump.values<std::int64_t>(0, "steps/0/taps/" + name)) != in_order(trusted);
          if (is_edited) dump.set(1, "steps/0/taps/" + name, trusted);
        };
        const DumpDiffResult result = diff(of);
        if (!is_edited) continue;
        ++with_ties;
        BOOST_TEST_CONTEXT(golden << ", " << of_case << ", " << name << ": " << in_words(result)) {
          const TapDiff* const first = result.first_difference();
          BOOST_REQUIRE(first != nullptr);
          BOOST_TEST(first->tap == "target/" + name);
        }
      }
  }
  BOOST_TEST(with_ties > 0);
}

BOOST_AUTO_TEST_CASE(sums_that_are_only_near_tell_the_order_of_summands) {
  const DumpDiffResult result =
      diff({.golden = "qwen3_next_bf16",
            .tp = 4,
            .faults = {"rows:output@model.layers.1.linear_attn,with=reverse"}});
  BOOST_REQUIRE(result.first_difference() != nullptr);
  BOOST_TEST(result.first_difference()->called == "rows in another order", in_words(result));
}

BOOST_DATA_TEST_CASE(a_wrong_value_is_no_layout, data::make(goldens), golden) {
  const std::string path = path_of(golden);
  const LoadedGolden loaded(path);
  const TemporaryFolder folder;
  EditedDump dump(dumps_of({.rounding = Rounding::hf},
                           run_of_case(loaded, "prefill", ProtocolId::D, 2), loaded, {},
                           folder.file("dump")));
  dump.change("steps/0/taps/model.layers.1", [](std::vector<float>& values, std::size_t rank) {
    if (rank == 0) return;
    for (std::size_t i = 0; i < values.size() / 2; ++i) {  // the file has the upper halves
      const auto value = std::bit_cast<float>(std::uint32_t(values[i]) << 16);
      const float wrong = value + 0.5F * std::sin(float(i * i));
      values[i] = float(std::bit_cast<std::uint32_t>(wrong) >> 16);
    }
  });
  const DumpDiffResult result = diff_with_golden(dump.paths(), GoldenFile::open(path));
  const TapDiff* const first = result.first_difference();
  BOOST_REQUIRE_MESSAGE(first != nullptr, in_words(result));
  BOOST_TEST(first->tap == "target/model.layers.1", in_words(result));
  BOOST_TEST(first->called == "other values on tp=1 alone", in_words(result));
}

}  // namespace tokenview
