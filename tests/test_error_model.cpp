// SPDX-License-Identifier: Apache-2.0
// What error is allowed, on runs that are right and on values that are not; router ties; origins.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <cmath>
#include <optional>
#include <string_view>

#include "reference/program/float16.hpp"
#include "tests/support.hpp"
#include "verify/accuracy.hpp"
#include "verify/case_judgement.hpp"
#include "verify/fault_text.hpp"
#include "verify/found_taps.hpp"
#include "verify/given_run.hpp"
#include "verify/record.hpp"
#include "verify/weights_of_type.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::string golden_path(const std::string& name) {
  return TOKENVIEW_SOURCE_DIR "/data/" + name + ".h5";
}

/// The taps of a run of `golden` under `plan`, in float32 or rounded to bfloat16.
RunTaps simulated(const GoldenCase& golden, const ParallelPlan& plan,
                  Rounding rounding = Rounding::none,
                  const std::vector<InjectedFault>* faults = nullptr) {
  ParallelRun run = run_of(golden, 1);
  run.plan = plan;
  const ViewRunResult views = run_views(run, true);
  run.faults = faults;
  return taps_of_run(golden, views,
                     run_numbers<float>(run, golden.weights, ReductionOrder::rank, rounding),
                     plan.parallel);
}
RunTaps simulated(const GoldenCase& golden, std::int64_t tp = 1,
                  Rounding rounding = Rounding::none) {
  return simulated(golden, plan_for(golden.config, {.tp = tp}, ProtocolId::S), rounding);
}

/// A case made by the float64 reference from seeded weights that a test may change.
struct Made {
  ModelConfig config = *preset("qwen3-next");
  EditableWeights weights{config, 3};
  std::vector<SequenceLength> lengths = {{0, 6}};
  std::int64_t draft_steps = 1;
  std::optional<LoadedGolden::Case> trusted = {};

  GoldenCase golden() {
    if (!trusted) {
      RecordedCase asked = seeded_case("made", lengths, config.vocab_size, 5);
      trusted = LoadedGolden::Case{asked.inputs, draft_steps, {}, {}};
      const ParallelRun run = run_of(GoldenCase(config, weights, *trusted, DType::float32), 1);
      LoadedWeights<EigenOps<double>> loaded(run, weights);
      const RankTaps taps = run_given(run, loaded, EigenOps<double>(), Given{}).front();
      for (const auto& [place, values] : taps.values) {
        const Matrix<float> narrow = values.cast<float>();
        trusted->taps[place] = {{narrow.rows(), narrow.cols()},
                                {narrow.data(), narrow.data() + narrow.size()}};
      }
      for (const auto& [place, ids] : taps.ids)
        trusted->ids[place] = {{ids.rows(), ids.cols()}, {ids.data(), ids.data() + ids.size()}};
    }
    return GoldenCase(config, weights, *trusted, DType::float32);
  }
};

const TapJudgement& tap_of(const CaseJudgement& judgement, std::string_view place) {
  for (const TapJudgement& tap : judgement.taps)
    if (tap.place == place) return tap;
  BOOST_FAIL("no tap " << place);
  throw;
}

/// One tap's values against its bound alone.
TapBound::Judgement held(const TapErrorModel& model, const std::string& place,
                         const Matrix<double>& values, const Matrix<double>& trusted) {
  CompareOptions options{.value_type = StorageType::float64, .golden_type = StorageType::float64};
  options.columns = values.cols();
  options.keep_rows = true;
  const auto bytes = [](const Matrix<double>& x) {
    return std::as_bytes(std::span<const double>(x.data(), std::size_t(x.size())));
  };
  return model.bound_for(place)->judge(compare(bytes(values), bytes(trusted), options).rows);
}

}  // namespace

// Random rounding.

BOOST_DATA_TEST_CASE(random_rounding_is_unbiased_and_goes_to_a_neighbour,
                     data::make({"bfloat16", "float16"}), name) {
  const DType type = name == std::string("float16") ? DType::float16 : DType::bfloat16;
  const int fraction_bits = number_grid(storage_type(type)).fraction_bits;
  for (const float value : {1.3f, -0.0371f, 977.1f}) {
    const double step = std::ldexp(1.0, std::ilogb(value) - fraction_bits);
    double mean = 0, variance = 0;
    constexpr int draws = 20000;
    for (int seed = 0; seed < draws; ++seed) {
      const float rounded = RandomRounding{type, std::uint64_t(seed)}(value);
      BOOST_TEST(std::abs(double(rounded) - double(value)) < step);
      BOOST_TEST(std::fmod(double(rounded), step) == 0);
      mean += (double(rounded) - double(value)) / draws / step;
      variance += std::pow((double(rounded) - double(value)) / step, 2) / draws;
    }
    BOOST_TEST(std::abs(mean) < 5 * 0.5 / std::sqrt(draws), value << ": " << mean);
    const double below =
        std::abs(double(value)) / step - std::floor(std::abs(double(value)) / step);
    BOOST_TEST(std::abs(variance - below * (1 - below)) < 0.02);
  }
}

BOOST_AUTO_TEST_CASE(random_rounding_keeps_what_the_type_holds) {
  for (const float value : {0.0f, -0.0f, 1.0f, -1.5f, 0x1p-20f, 0x1.8p-24f * 2, 65504.0f})
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      if (std::abs(value) != 65504.0f)
        BOOST_TEST((RandomRounding{DType::bfloat16, seed}(value)) == value);
      BOOST_TEST((RandomRounding{DType::float16, seed}(value)) == value);
    }
  BOOST_TEST(std::isinf(RandomRounding{DType::float16, 1}(1e6f)));
  BOOST_TEST(std::isnan(RandomRounding{DType::float16, 1}(std::nanf(""))));
  BOOST_TEST((RandomRounding{DType::float32, 1}(1.0f)) != 1.0f);
  BOOST_TEST(std::abs(RandomRounding{DType::float32, 1}(1.0f) - 1.0f) < 1e-6f);
}

BOOST_AUTO_TEST_CASE(float16_rounds_to_the_nearest_even) {
  BOOST_TEST(round_to_float16(1.0f + 0x1p-11f) == 1.0f);  // in the middle: even
  BOOST_TEST(round_to_float16(1.0f + 3 * 0x1p-11f) == 1.0f + 0x1p-9f);
  BOOST_TEST(round_to_float16(1.0f + 0x1.1p-11f) == 1.0f + 0x1p-10f);
  BOOST_TEST(round_to_float16(0x1.8p-25f) == 0x1p-24f);  // subnormal
  BOOST_TEST(round_to_float16(0x1p-25f) == 0.0f);
  BOOST_TEST(round_to_float16(65519.0f) == 65504.0f);
  BOOST_TEST(std::isinf(round_to_float16(65520.0f)));
}

// The bound of one tap.

BOOST_AUTO_TEST_CASE(rows_are_held_to_their_own_limits) {
  const TapBound bound{
      .row_l2 = {1, 10}, .row_max = {0.5, 5}, .expected = {0.25, 2.5}, .all_rows = 3};
  const auto row = [](std::int64_t index, double l2, double max) {
    RowComparison of;
    of.row = index;
    of.error_l2 = l2;
    of.max_abs_error = max;
    return of;
  };
  using Over = std::vector<std::int64_t>;
  BOOST_TEST(bound.judge(std::vector{row(0, 0.5, 0.25), row(1, 5, 2)}).holds());
  const auto swapped = bound.judge(std::vector{row(0, 5, 0.25), row(1, 0.5, 0.1)});
  BOOST_TEST(!swapped.holds());
  BOOST_TEST((swapped.over == Over{0}));
  BOOST_TEST(swapped.bound.metric == std::string("row_l2"));
  BOOST_TEST(swapped.bound.observed == 5);
  BOOST_TEST(swapped.bound.allowed == 1);
  const auto spike = bound.judge(std::vector{row(0, 0.9, 0.9)});
  BOOST_TEST(spike.bound.metric == std::string("row_max"));
  // Every row within its limit, all of them together too far off: 0.9 / 0.25 is over 3.
  const auto all = bound.judge(std::vector{row(0, 0.9, 0.1), row(1, 9, 1)});
  BOOST_TEST(!all.holds());
  BOOST_TEST(all.over.empty());
  BOOST_TEST(all.bound.metric == std::string("all_rows"));
  // A rank's first row is the tap's second.
  BOOST_TEST(bound.judge(std::vector{row(0, 5, 2)}, std::vector<std::int64_t>{1}).holds());
  BOOST_TEST(bound.judge(std::vector{row(0, 1.5, 0.2)}, {}, std::vector<double>{2, 1}).holds());
  BOOST_CHECK_THROW(bound.judge(std::vector{row(2, 0, 0)}), ShapeError);
  BOOST_TEST(bound.judge({}).bound.metric == std::string("empty"));

  RowComparison nan = row(1, 0, 0);
  nan.mismatched = 1;
  BOOST_TEST(bound.judge(std::vector{nan}).bound.observed == infinity);
  const TapBound exact{.row_l2 = {0}, .row_max = {0}, .expected = {0}, .all_rows = 2};
  BOOST_TEST(exact.judge(std::vector{row(0, 0, 0)}).holds());
  BOOST_TEST(!exact.judge(std::vector{row(0, 1e-30, 1e-30)}).holds());
}

BOOST_AUTO_TEST_CASE(a_bound_as_a_rule_allows_what_it_allows_and_little_more) {
  const TapBound bound{
      .row_l2 = {1, 2}, .row_max = {0.5, 1}, .expected = {0.25, 0.5}, .all_rows = 3};
  const ToleranceRule rule = as_rule(bound, {{2, 2}, {3, 4, 0, 10}});
  BOOST_TEST(*rule.row_l2 == 0.2);  // 1 of 5, 2 of 10
  BOOST_TEST(*rule.of_max == 0.1);
  BOOST_TEST(std::abs(*rule.l2 - std::sqrt(5.0 / 125.0)) < 1e-12);
  BOOST_TEST(*as_rule(bound, {{2, 2}, {0, 0, 0, 0}}).of_max == 0);
  BOOST_CHECK_THROW(as_rule(bound, {{3, 1}, {1, 2, 3}}), ShapeError);
}

// Recordings of another implementation (Hugging Face), and our runs beside them.

BOOST_DATA_TEST_CASE(right_runs_hold_against_recordings,
                     data::make({"qwen3_next_bf16", "qwen3_5_moe_bf16", "qwen3_next_tp8"}), name) {
  const LoadedGolden file(golden_path(text("golden/", name)));
  for (const char* case_name : {"decode", "varlen"}) {
    const GoldenCase golden(file, case_name);
    const bool narrow = file.dtype() == DType::bfloat16;
    for (const std::int64_t tp : {1, 2}) {
      const TapErrorModel model(golden, {file.dtype(), tp}, {.samples = 8, .threads = 2});
      for (const Rounding rounding : {Rounding::hf, Rounding::vllm}) {
        const RunTaps taps = simulated(golden, tp, narrow ? rounding : Rounding::none);
        BOOST_TEST(taps.problems.empty());
        const CaseJudgement judgement = judge_case(golden, model, taps.found);
        BOOST_TEST(judgement.holds(), name << ' ' << case_name << " tp=" << tp << '\n'
                                           << judgement_table(judgement));
        BOOST_TEST(judgement.taps.size() > 60u);
        if (!narrow) break;
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_bfloat16_run_holds_beside_a_float32_recording) {
  const LoadedGolden file(golden_path("golden/qwen3_next_tiny"));
  const GoldenCase golden(file, "prefill");
  // The run's weights are rounded as well; what the model allows says so.
  const WeightsOfType narrow(file, DType::bfloat16);
  const GoldenCase with_narrow(golden.config, narrow, golden.trusted, DType::float32);
  const TapErrorModel model(golden, {DType::bfloat16, 2}, {.threads = 2});
  const RunTaps taps = simulated(with_narrow, 2, Rounding::vllm);
  BOOST_TEST(judge_case(golden, model, taps.found).holds(),
             judgement_table(judge_case(golden, model, taps.found)));
  // It is no float32 run.
  const TapErrorModel strict(golden, {DType::float32, 2});
  BOOST_TEST(!judge_case(golden, strict, taps.found).holds());
}

BOOST_AUTO_TEST_CASE(a_tap_that_cancels_is_allowed_what_cancelling_costs_and_no_more) {
  const LoadedGolden file(golden_path("tests/cancelling_tap"));
  for (const auto& [case_name, unused] : file.cases()) {
    const GoldenCase golden(file, case_name);
    const TapErrorModel model(golden, {DType::float32, 1}, {.threads = 2});
    RunTaps taps = simulated(golden);
    const CaseJudgement clean = judge_case(golden, model, taps.found);
    BOOST_TEST(clean.holds(), judgement_table(clean));
    for (auto& [place, values] : taps.found.values) {
      if (!place.ends_with("linear_attn.norm")) continue;
      values *= 1.001;
      const CaseJudgement judgement = judge_case(golden, model, taps.found);
      BOOST_TEST(tap_of(judgement, place).is_origin, place);
      values /= 1.001;
    }
  }
}

// Values that are wrong in the ways in which comparators fail.

BOOST_AUTO_TEST_CASE(no_tap_passes_scaled_shifted_or_with_rows_swapped) {
  const LoadedGolden file(golden_path("golden/qwen3_next_bf16"));
  const GoldenCase golden(file, "varlen");
  const TapErrorModel model(golden, {DType::bfloat16, 4}, {.threads = 2});
  const FoundTaps found = simulated(golden, 4, Rounding::hf).found;
  int taps = 0;
  for (const auto& [place, clean] : found.values) {
    const HostTensor& tensor = golden.trusted.taps.at(place);
    const Matrix<double> trusted =
        Eigen::Map<const Matrix<float>>(tensor.values.data(), tensor.rows(), tensor.cols())
            .cast<double>();
    if (clean.cols() == 1) continue;  // one column may be near any value by chance
    ++taps;
    const auto passes = [&](const Matrix<double>& values) {
      return held(model, place, values, trusted).holds();
    };
    BOOST_TEST(!passes(clean * 2), place << " doubled");
    BOOST_TEST(!passes(clean / 4), place << " at 1/p");
    BOOST_TEST(!passes(-clean), place << " negated");
    BOOST_TEST(!passes((clean.array() + 1).matrix()), place << " shifted by one");
    BOOST_TEST(!passes(Matrix<double>::Zero(clean.rows(), clean.cols())), place << " zero");
    Matrix<double> changed = clean;
    changed.row(0).swap(changed.row(1));
    if (clean.cols() > 4)  // the weights of four experts may be alike
      BOOST_TEST(!passes(changed), place << " with rows swapped");
    changed = clean;
    changed(1, 0) = std::nan("");
    BOOST_TEST(!passes(changed), place << " with a NaN");
    changed(1, 0) = infinity;
    BOOST_TEST(!passes(changed), place << " with an infinity");
  }
  BOOST_TEST(taps > 80);
}

BOOST_AUTO_TEST_CASE(a_module_that_gives_zeros_is_held_to_zeros) {
  Made made;
  made.weights["model.layers.0.mlp.shared_expert.down_proj.weight"].setZero();
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::bfloat16, 2});
  const std::string place = "target/model.layers.0.mlp.shared_expert";
  const Matrix<double> zeros = model.exact().values.at(place);
  BOOST_TEST(zeros.norm() == 0);
  BOOST_TEST(held(model, place, zeros, zeros).holds());
  Matrix<double> touched = zeros;
  touched(0, 0) = 1e-20;
  BOOST_TEST(!held(model, place, touched, zeros).holds());
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_a_row_that_the_run_did_not_keep_is_not_judged) {
  Made made;
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::float32, 1});
  FoundTaps found = simulated(golden).found;
  const std::string place = "target/model.layers.1.mlp";
  found.values.at(place).row(2).setConstant(7);
  BOOST_TEST(!judge_case(golden, model, found).holds());
  found.absent_rows[place] = {2};
  const CaseJudgement judgement = judge_case(golden, model, found);
  BOOST_TEST(judgement.holds(), judgement_table(judgement));
  BOOST_TEST(tap_of(judgement, place).rows == 5);
}

BOOST_AUTO_TEST_CASE(other_shapes_and_positions_are_differences) {
  Made made;
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::float32, 1});
  FoundTaps found = simulated(golden).found;
  found.values["target/model.layers.1.mlp"] = Matrix<double>::Zero(5, 64);
  found.ids["step0/positions"] = Matrix<std::int64_t>::Zero(6, 1);
  const CaseJudgement judgement = judge_case(golden, model, found);
  BOOST_TEST(tap_of(judgement, "target/model.layers.1.mlp").detail ==
             "shape is [5, 64], expected [6, 64]");
  BOOST_TEST(
      (tap_of(judgement, "step0/positions").over == std::vector<std::int64_t>{1, 2, 3, 4, 5}));
}

// One token, and experts without any.

BOOST_DATA_TEST_CASE(one_token_is_judged, data::make({false, true}), is_narrow) {
  const DType type = is_narrow ? DType::bfloat16 : DType::float32;
  Made made;
  made.lengths = {{0, 1}};
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {type, 4});
  const WeightsOfType typed(made.weights, type);
  const GoldenCase of_type(made.config, typed, golden.trusted, DType::float32);
  const Rounding rounding = is_narrow ? Rounding::hf : Rounding::none;
  for (const ProtocolId protocol : {ProtocolId::S, ProtocolId::A, ProtocolId::D}) {
    const ParallelPlan plan =
        plan_for(made.config, {.tp = 4, .enable_expert_parallel = true}, protocol);
    const RunTaps taps = simulated(of_type, plan, rounding);
    const CaseJudgement clean = judge_case(golden, model, taps.found);
    BOOST_TEST(clean.holds(), to_string(protocol) << '\n' << judgement_table(clean));
    // Shared experts at 1/p: vllm issue 37856.
    if (protocol == ProtocolId::S) continue;
    ParallelPlan split = plan;
    split.shared_expert_whole = false;
    const CaseJudgement broken =
        judge_case(golden, model, simulated(of_type, split, rounding).found);
    BOOST_TEST(!broken.holds());
  }
}

// Router ties.

namespace {

/// A router whose experts `a` and `b` have rows that differ by `apart` of their own.
void pair_experts(Made& made, std::int64_t a, std::int64_t b, float apart) {
  for (std::int64_t layer = 0; layer < made.config.num_hidden_layers; ++layer) {
    auto gate = made.weights[text("model.layers.", layer, ".mlp.gate.weight")];
    gate.row(b) = gate.row(a) + apart * gate.row(b);
  }
}

/// A run in which one layer sends each row's expert `a` to `b` and the reverse, and goes on from
/// it.
FoundTaps with_experts_exchanged(const GoldenCase& golden, std::int64_t a, std::int64_t b,
                                 std::int64_t& rows, std::int64_t layer = 0) {
  const ParallelRun run = run_of(golden, 1);
  LoadedWeights<EigenOps<float>> weights(run, golden.weights);
  rows = 0;
  const Given given{.choose = [&](const Choice& choice) {
    if (choice.place != text("target/model.layers.", layer, ".mlp.gate.ids")) return;
    for (Eigen::Index r = 0; r < choice.ids.rows(); ++r) {
      auto ids = choice.ids.row(r);
      const bool has_a = (ids.array() == a).any(), has_b = (ids.array() == b).any();
      if (has_a == has_b) continue;
      for (std::int64_t& id : ids) id = id == a ? b : id == b ? a : id;
      ++rows;
    }
  }};
  RankTaps taps = std::move(run_given(run, weights, EigenOps<float>(), given).front());
  return {std::move(taps.values), std::move(taps.ids)};
}

}  // namespace

BOOST_DATA_TEST_CASE(a_near_tie_is_followed_and_a_wrong_choice_is_not, data::make({1e-7f, 1e-2f}),
                     apart) {
  Made made;
  made.lengths = {{0, 12}};
  pair_experts(made, 4, 9, apart);
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::float32, 1}, {.threads = 2});
  std::int64_t rows = 0;
  FoundTaps found = with_experts_exchanged(golden, 4, 9, rows);
  BOOST_REQUIRE(rows > 0);
  const CaseJudgement judgement = judge_case(golden, model, found);
  BOOST_TEST(std::int64_t(judgement.choices.size()) >= rows);
  if (apart < 1e-6f) {
    BOOST_TEST(judgement.holds(), judgement_table(judgement));
    BOOST_TEST(judgement.ties() >= rows);
    // The tie explains the experts that it chose, and nothing beside.
    found.values.at("target/model.layers.0.mlp") *= 1.01;
    BOOST_TEST(!judge_case(golden, model, found).holds());
  } else {
    BOOST_TEST(!judgement.holds());
    BOOST_TEST(judgement.choices.front().margin > judgement.choices.front().allowed);
    BOOST_TEST(judgement.origins().front() == "target/model.layers.0.mlp.gate.ids");
    // Nothing but the choice is wrong there: the experts did what they were told.
    BOOST_TEST(judgement.origins().size() == 1u, judgement_table(judgement));
  }
}

BOOST_AUTO_TEST_CASE(equal_logits_may_be_chosen_in_any_way) {
  Made made;
  for (std::int64_t layer = 0; layer < made.config.num_hidden_layers; ++layer)
    made.weights[text("model.layers.", layer, ".mlp.gate.weight")].setZero();
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::float32, 1});
  BOOST_TEST(judge_case(golden, model, simulated(golden).found).holds());
  std::int64_t rows = 0;
  const FoundTaps other = with_experts_exchanged(golden, 0, 15, rows);
  BOOST_TEST(rows == 6);
  const CaseJudgement judgement = judge_case(golden, model, other);
  BOOST_TEST(judgement.holds(), judgement_table(judgement));
  BOOST_TEST(judgement.ties() == rows);

  FoundTaps impossible = other;
  impossible.ids.at("target/model.layers.1.mlp.gate.ids")(3, 0) = 99;
  BOOST_TEST(!judge_case(golden, model, impossible).holds());
}

BOOST_AUTO_TEST_CASE(a_tie_that_the_runs_own_scores_do_not_bear_out_is_none) {
  Made made;
  made.lengths = {{0, 12}};
  pair_experts(made, 4, 9, 1e-7f);
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::float32, 1});
  std::int64_t rows = 0;
  FoundTaps found = with_experts_exchanged(golden, 4, 9, rows);
  BOOST_REQUIRE(rows > 0);
  const CaseJudgement tie = judge_case(golden, model, found);
  const ChoiceDifference& choice = tie.choices.front();
  // The run says that it saw a clear difference, and chose the lesser.
  found.values.at("target/model.layers.0.mlp.gate.logits")(choice.row, choice.found.front()) -= 0.1;
  const CaseJudgement judgement = judge_case(golden, model, found);
  BOOST_TEST(!judgement.holds());
  BOOST_TEST(!judgement.choices.front().is_tie());
}

BOOST_AUTO_TEST_CASE(a_choice_that_nobody_recorded_explains_what_it_changes) {
  Made made;
  made.lengths = {{0, 12}};
  made.draft_steps = 0;
  pair_experts(made, 4, 9, 1e-7f);
  const GoldenCase golden = made.golden();
  const TapErrorModel model(golden, {DType::float32, 1});
  std::int64_t rows = 0;
  FoundTaps found = with_experts_exchanged(golden, 4, 9, rows, 3);
  for (const char* leaf : {"ids", "weights"}) {
    found.ids.erase(text("target/model.layers.3.mlp.gate.", leaf));
    found.values.erase(text("target/model.layers.3.mlp.gate.", leaf));
  }
  const CaseJudgement judgement = judge_case(golden, model, found);
  BOOST_TEST(judgement.holds(), judgement_table(judgement));
  BOOST_TEST(int(tap_of(judgement, "target/model.layers.3.mlp.experts").verdict) ==
             int(Verdict::tie));
  found.values.at("target/model.layers.3.mlp.experts") *= 1.01;
  BOOST_TEST(!judge_case(golden, model, found).holds());
}

// Own and inherited error.

BOOST_AUTO_TEST_CASE(the_first_wrong_module_is_the_origin_and_the_others_inherit) {
  const LoadedGolden file(golden_path("golden/qwen3_next_bf16"));
  const GoldenCase golden(file, "prefill");
  const TapErrorModel model(golden, {DType::bfloat16, 2}, {.threads = 2});
  const ParallelPlan plan =
      plan_for(golden.config, {.tp = 2, .enable_expert_parallel = true}, ProtocolId::S);
  const std::vector<InjectedFault> faults = {
      parse_fault("scale:output@model.layers.1.mlp.shared_expert,factor=0.5")};
  const RunTaps taps = simulated(golden, plan, Rounding::hf, &faults);
  const CaseJudgement judgement = judge_case(golden, model, taps.found);
  BOOST_TEST(
      (judgement.origins() == std::vector<std::string>{"target/model.layers.1.mlp.shared_expert"}),
      judgement_table(judgement));
  const TapJudgement& origin = tap_of(judgement, "target/model.layers.1.mlp.shared_expert");
  BOOST_TEST(origin.own->ratio() > 10);
  const TapJudgement& heir = tap_of(judgement, "target/model.layers.1.mlp");
  BOOST_TEST(int(heir.verdict) == int(Verdict::difference));
  BOOST_TEST(!heir.is_origin);
  BOOST_TEST(heir.own->holds());
  const std::string table = judgement_table(judgement);
  BOOST_TEST(table.find("origin   target/model.layers.1.mlp.shared_expert  total ") !=
             std::string::npos);
  BOOST_TEST(table.find("inherits target/model.layers.1.mlp  total ") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_small_fault_far_down_is_seen_by_its_own_error) {
  // 5 % of a late module's output is less than a bfloat16 run may have inherited by then.
  const LoadedGolden file(golden_path("golden/qwen3_next_bf16"));
  const GoldenCase golden(file, "prefill");
  const TapErrorModel model(golden, {DType::bfloat16, 1}, {.threads = 2});
  FoundTaps found = simulated(golden, 1, Rounding::hf).found;
  const std::string place = "target/model.layers.3.mlp.experts";
  found.values.at(place) *= 1.05;
  const CaseJudgement judgement = judge_case(golden, model, found);
  const TapJudgement& tap = tap_of(judgement, place);
  BOOST_TEST(tap.total.holds());
  BOOST_TEST(!tap.own->holds());
  BOOST_TEST(tap.is_origin);
}

// What cannot be modelled.

BOOST_AUTO_TEST_CASE(a_model_that_cannot_be_sampled_is_refused) {
  Made made;
  GoldenCase golden = made.golden();
  BOOST_CHECK_THROW(TapErrorModel(golden, {DType::int32, 1}), UsageError);
  BOOST_CHECK_THROW(TapErrorModel(golden, {DType::float32, 5}), ConfigError);
  BOOST_CHECK_THROW(TapErrorModel(golden, {DType::float32, 1}, {.samples = 1}), UsageError);
  const TapErrorModel model(golden, {DType::float32, 1}, {.samples = 2});
  BOOST_TEST(model.bound_for("target/model.layers.9") == nullptr);

  LoadedGolden::Case wrong = golden.trusted;
  wrong.ids.at("target/model.layers.0.mlp.gate.ids").values[0] = 16;
  BOOST_CHECK_THROW(TapErrorModel(GoldenCase(made.config, made.weights, wrong, DType::float32),
                                  {DType::float32, 1}),
                    FileError);
  wrong = golden.trusted;
  wrong.taps.at("target/model.layers.0.mlp").shape[0] = 5;
  wrong.taps.at("target/model.layers.0.mlp").values.resize(5 * 64);
  BOOST_CHECK_THROW(TapErrorModel(GoldenCase(made.config, made.weights, wrong, DType::float32),
                                  {DType::float32, 1}),
                    FileError);
}

// A part of bench/accuracy.cpp.

BOOST_AUTO_TEST_CASE(clean_runs_give_no_alarm_and_mutants_are_seen) {
  std::int64_t clean = 0, mutants = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const AccuracyResult result = measure_accuracy(seed);
    for (const std::string& alarm : result.alarms) BOOST_ERROR("alarm: " << alarm);
    for (const std::string& missed : result.plain.missed) BOOST_ERROR("missed: " << missed);
    clean += result.clean;
    mutants += result.plain.mutants;
  }
  BOOST_TEST(clean >= 60);
  BOOST_TEST(mutants >= 30);
}

}  // namespace tokenview
