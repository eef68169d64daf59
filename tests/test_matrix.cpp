// SPDX-License-Identifier: Apache-2.0
// Views and numbers of the same sharded program must agree, configuration by configuration.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "tests/boost_test.hpp"
#include "verify/golden_row.hpp"
#include "verify/golden_run.hpp"
#include "verify/matrix_taps.hpp"
#include "verify/unsharded.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

std::string golden(const std::string& name) {
  return TOKENVIEW_SOURCE_DIR "/data/golden/" + name + ".h5";
}

/// A run of the case `prefill` that a test may break before it is judged.
struct Run {
  const LoadedGolden& golden;
  MatrixEntry entry;
  ViewRunResult views;
  NumberRunResult numbers;

  Run(const LoadedGolden& file, ProtocolId protocol, std::int64_t tp)
      : golden(file),
        entry{file.name(), {"prefill"}, {.tp = tp, .enable_expert_parallel = true}, protocol} {
    ParallelRun run = run_of(GoldenCase(file, "prefill"), 1);
    run.plan = plan_for(file.config(), entry.parallel, protocol);
    views = run_views(run, true);
    const bool is_narrow = file.dtype() == DType::bfloat16;
    numbers = run_numbers<float>(run, file, ReductionOrder::rank,
                                 is_narrow ? Rounding::hf : Rounding::none);
  }

  MatrixResult judged(CaseErrorModels& models) const {
    MatrixResult result;
    result.entry = entry;
    const std::vector<const LoadedGolden::Case*> cases = {&golden.cases().at("prefill")};
    if (golden.dtype() == DType::float32)
      judge_by_fixed_bound(golden.config(), cases, views, numbers, result);
    else
      judge_by_errors(models, golden, cases, views, numbers, result);
    return result;
  }

  /// Takes the rows of token `token` out of a tap on all ranks, and of what their views say.
  void trim(std::size_t tap, std::int64_t token) {
    NamedView& view = views.views[tap];
    for (std::size_t rank = 0; rank < view.by_rank.size(); ++rank) {
      const Rows rows = view.by_rank[rank].rows;
      std::vector<Eigen::Index> kept;
      Rows kept_rows;
      for (std::int64_t r = 0; r < rows.size(); ++r) {
        if (rows.at(r).kind == RowKind::token && rows.at(r).first == token) continue;
        kept.push_back(r);
        kept_rows.append(rows.at(r));
      }
      view.by_rank[rank].rows = kept_rows;
      const auto take = [&](auto& of_rank) {
        const auto found = of_rank.find(view.name);
        if (found != of_rank.end()) found->second = found->second(kept, Eigen::all).eval();
      };
      take(numbers.taps[rank].values);
      take(numbers.taps[rank].ids);
    }
  }
};

}  // namespace

BOOST_DATA_TEST_CASE(views_and_numbers_agree,
                     data::make({"qwen3_next_mixed", "qwen3_5_moe_tp3", "qwen3_next_tp8",
                                 "qwen3_next_bf16", "qwen3_5_moe_bf16"}),
                     name) {
  const LoadedGolden file(golden(name));
  const bool is_qwen3_5 = std::string(name).starts_with("qwen3_5");
  int clean = 0, broken = 0;
  const auto done = [&](const MatrixResult& r) {
    BOOST_TEST(r.views_clean() == r.numbers_match(), r.entry.name());
    BOOST_TEST(r.as_expected(), r.entry.name());
    BOOST_TEST((r.taps > 100 || !r.views_clean()), r.entry.name());  // no token rows, no tap
    (r.views_clean() ? clean : broken) += 1;
  };
  run_matrix(file, matrix_of(file, true).entries, is_qwen3_5 ? Rounding::vllm : Rounding::hf, 2,
             done);
  BOOST_TEST(clean > 10);
  BOOST_TEST(broken > 0);
}

BOOST_DATA_TEST_CASE(a_row_or_a_rank_that_is_left_out_of_a_tap_is_seen,
                     data::make({"qwen3_5_moe_tiny", "qwen3_next_bf16"}) * data::make({2, 4}) *
                         data::make({"S", "D", "deferred"}),
                     name, tp, protocol) {
  const LoadedGolden file(golden(name));
  const std::int64_t last = file.cases().at("prefill").inputs.num_tokens() - 1;
  CaseErrorModels models(file);
  const Run right(file, parse_protocol(protocol), tp);
  BOOST_TEST(right.judged(models).numbers_match());
  const bool is_narrow = file.dtype() == DType::bfloat16;
  // Judging bfloat16 takes longer: a few taps of every kind.
  for (std::size_t tap = 0; tap < right.views.views.size(); tap += is_narrow ? 41 : 1) {
    const std::string& place = right.views.views[tap].name;
    for (const std::size_t rank : {std::size_t(0), std::size_t(tp) - 1}) {
      Run run = right;
      run.numbers.taps[rank].values.erase(place);
      run.numbers.taps[rank].ids.erase(place);
      const MatrixResult result = run.judged(models);
      BOOST_TEST(!result.numbers_match(), place << " is not on rank " << rank);
      BOOST_TEST(result.problem.starts_with(text(place, ": rank ", rank, " has none")),
                 result.problem);
    }
    Run run = right;
    const bool has_row_of_sequence = draft_step_of(place) > 0;
    run.trim(tap, last);
    const MatrixResult result = run.judged(models);
    BOOST_TEST(!result.numbers_match(), place << " without its last row");
    const std::string due = text(place, ": row ", has_row_of_sequence ? 0 : last, " is on no rank");
    BOOST_TEST(result.problem == due);
  }
}

BOOST_AUTO_TEST_CASE(a_row_that_no_rank_has_is_a_difference_from_the_unsharded_model) {
  // Protocol B takes the row of a single token for all there is: after the first layer no rank
  // has it, and there is nothing left to compare.
  const LoadedGolden file(golden("qwen3_next_tp8"));
  ParallelRun run = run_of(GoldenCase(file, "prefill_t1"), 1);
  run.plan = plan_for(file.config(), {.tp = 4, .enable_expert_parallel = true}, ProtocolId::B);
  const UnshardedComparison result = compare_with_unsharded({}, run, file);
  const auto tap = std::ranges::find(
      result.compared, "target/model.layers.1.post_attention_layernorm", &UnshardedTap::name);
  BOOST_REQUIRE((tap != result.compared.end()));
  BOOST_TEST(tap->failed);
  BOOST_TEST(tap->detail == "rank 0 row 0 is no row of the trusted tensor");
  BOOST_TEST(std::ranges::any_of(result.findings, [&](const Finding& finding) {
    return finding.module == tap->name && finding.actual == tap->detail;
  }));
}

BOOST_DATA_TEST_CASE(a_tap_that_the_program_does_not_name_is_seen,
                     data::make({"qwen3_5_moe_tiny", "qwen3_next_bf16"}), name) {
  const LoadedGolden file(golden(name));
  CaseErrorModels models(file);
  Run run(file, ProtocolId::D, 2);
  std::erase_if(run.views.views,
                [](const NamedView& view) { return view.name == "target/model.layers.0.mlp"; });
  const MatrixResult result = run.judged(models);
  BOOST_TEST(!result.numbers_match());
  BOOST_TEST(result.problem == "target/model.layers.0.mlp: the run has no such tap");
}

BOOST_AUTO_TEST_CASE(a_single_token_separates_the_protocols) {
  const LoadedGolden file(golden("qwen3_next_tp8"));
  for (const ProtocolId protocol : all_protocols()) {
    const MatrixResult r = run_entry(
        file, {file.name(), {"prefill_t1"}, {.tp = 4, .enable_expert_parallel = true}, protocol});
    const bool inferred = protocol == ProtocolId::B || protocol == ProtocolId::C ||
                          protocol == ProtocolId::vllm_48763;
    BOOST_TEST(r.numbers_match() == !inferred, r.entry.name());
    BOOST_TEST(r.views_clean() == !inferred, r.entry.name());
  }
}

BOOST_DATA_TEST_CASE(a_wrong_weight_is_seen_by_the_numbers_alone,
                     data::make({"qwen3_next_tiny", "qwen3_next_bf16"}), name) {
  // Views know nothing of formulas: they stay clean, the numbers differ, and that is not expected.
  class Doubled final : public WeightSource {
   public:
    explicit Doubled(const LoadedGolden& golden_file) : golden_(golden_file) {}
    bool contains(const std::string& name) const override { return golden_.contains(name); }
    HostTensor weight(const std::string& name,
                      const std::vector<std::int64_t>& shape) const override {
      HostTensor w = golden_.weight(name, shape);
      if (name == "model.layers.3.self_attn.o_proj.weight")
        for (float& value : w.values) value *= 2;
      return w;
    }

   private:
    const LoadedGolden& golden_;
  };
  const LoadedGolden file(golden(name));
  const MatrixResult r = run_entry(
      file, {file.name(), {"prefill"}, {.tp = 2, .enable_expert_parallel = true}, ProtocolId::D},
      Doubled(file));
  BOOST_TEST(r.views_clean());
  BOOST_TEST(!r.numbers_match());
  BOOST_TEST(!r.as_expected());
}

}  // namespace tokenview
