// SPDX-License-Identifier: Apache-2.0
// The release table as it was published, its gates, and what each release refuses.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "reference/program/engine_release.hpp"
#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

constexpr ParallelConfig sharded{.tp = 2, .dp = 2, .enable_expert_parallel = true};

ModelConfig qwen3_next() { return *preset("qwen3-next"); }
ModelConfig qwen3_5() { return *preset("qwen3.5-moe"); }
ModelConfig deepseek_v3() {
  ModelConfig config = *preset("deepseek-v2");
  config.model_type = ModelType::deepseek_v3;
  config.num_mtp_layers = 1;
  return config;
}
ModelConfig deepseek_v3_2() { return *preset("deepseek-v3.2"); }

std::string protocol_of(const ModelConfig& config, const char* release,
                        const ParallelConfig& parallel = sharded) {
  return to_string(plan_for(config, parallel, engine_release(release)).protocol);
}

/// The message of the ConfigError or UsageError that `body` throws; empty: it throws none.
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    BOOST_TEST((error.fault() == Fault::config || error.fault() == Fault::usage));
    return error.what();
  }
  return "";
}

bool contains(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

std::string refused(const ModelConfig& config, const ParallelConfig& parallel, const char* release,
                    std::int64_t draft_steps) {
  return refusal([&] { require_accepted(config, parallel, engine_release(release), draft_steps); });
}

struct Published {
  const char* first;
  const char* last;
  const char* qwen;
  const char* deepseek_v2;
  const char* deepseek_v32;
};
/// Release ranges, both ends read, and their protocols where the gate is open.
const Published published[] = {
    {"vllm-0.11.0", "vllm-0.24.0", "A", "A", "A"},
    {"vllm-0.25.0", "vllm-0.25.1", "A", "B", "B"},
    {"vllm-main-2026-07", "vllm-main-2026-07", "B", "C", "C"},
    {"vllm-0.26.0", "vllm-0.26.0", "C", "C", "C"},
    {"vllm-0.27.0", "vllm-0.27.1", "C", "vllm-48763", "vllm-48763"},
    {"vllm-0.28.0", "vllm-0.33.0", "D", "vllm-48763", "E"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(every_release_has_the_protocols_that_were_published) {
  std::size_t seen = 0;
  for (const Published& range : published) {
    bool inside = false;
    for (const EngineRelease& release : engine_releases()) {
      inside = inside || release.name == range.first;
      if (!inside) continue;
      ++seen;
      const char* const name = release.name.c_str();
      BOOST_TEST(protocol_of(qwen3_next(), name) == range.qwen, name);
      if (release.protocols[std::size_t(ReleaseFamily::qwen3_5)])
        BOOST_TEST(protocol_of(qwen3_5(), name) == range.qwen, name);
      BOOST_TEST(protocol_of(deepseek_v3(), name) == range.deepseek_v2, name);
      BOOST_TEST(protocol_of(deepseek_v3_2(), name) == range.deepseek_v32, name);
      if (release.name == range.last) break;
    }
  }
  BOOST_TEST(seen == engine_releases().size());
}

BOOST_AUTO_TEST_CASE(releases_stand_in_the_order_they_were_built) {
  const auto releases = engine_releases();
  BOOST_TEST(releases.front().name == "vllm-0.11.0");
  BOOST_TEST(releases.back().name == "vllm-0.33.0");
  for (std::size_t i = 1; i < releases.size(); ++i) {
    BOOST_TEST((releases[i - 1].version < releases[i].version ||
                (releases[i - 1].version == releases[i].version && !releases[i].is_release)));
    BOOST_TEST(int(releases[i - 1].gate) <= int(releases[i].gate));
  }
}

BOOST_DATA_TEST_CASE(one_data_parallel_rank_never_opens_the_gate_of_a_release,
                     data::make({2, 4, 8}), tp) {
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = true};
  for (const EngineRelease& release : engine_releases())
    BOOST_TEST(gate_of(release, parallel).open == !release.is_release, release.name);
}

BOOST_AUTO_TEST_CASE(each_condition_of_the_gate_keeps_it_shut_alone) {
  const EngineRelease release = engine_release("vllm-0.33.0");
  BOOST_TEST(gate_of(release, sharded).open);
  const auto reason = [&](std::int64_t tp, std::int64_t dp, bool ep, const char* backend) {
    return gate_of(release, {.tp = tp, .dp = dp, .enable_expert_parallel = ep}, backend).reason;
  };
  BOOST_TEST(reason(1, 2, true, default_backend) == "tp is 1");
  BOOST_TEST(reason(2, 1, true, default_backend) == "dp is 1");
  BOOST_TEST(reason(2, 2, false, default_backend) == "expert parallelism is off");
  BOOST_TEST(reason(2, 2, true, "moonep") == "backend moonep is not in its set");
}

struct Member {
  const char* backend;
  const char* first;  // the first read release that has it, and the first that has it no more
  const char* until;
};
const Member members[] = {
    {"allgather_reducescatter", "vllm-0.11.0", ""},
    {"naive", "vllm-0.11.0", ""},  // from 0.19.0 by falling back
    {"pplx", "vllm-0.17.1", ""},   // by falling back
    {"deepep_high_throughput", "vllm-0.11.0", ""},
    {"deepep_low_latency", "vllm-0.11.0", ""},
    {"mori", "vllm-0.15.1", "vllm-0.23.0"},
    {"mori_high_throughput", "vllm-0.23.0", ""},
    {"mori_low_latency", "vllm-0.23.0", ""},
    {"nixl_ep", "vllm-0.18.0", ""},
    {"flashinfer_nvlink_one_sided", "vllm-0.29.0", ""},
    {"deepep_v2", "vllm-0.31.0", ""},
    {"passthrough", "vllm-0.32.0", ""},
    {"flashinfer_nvlink_two_sided", "", ""},
    {"flashinfer_all2allv", "", ""},
    {"moonep", "", ""},
};

BOOST_AUTO_TEST_CASE(a_backend_opens_the_gate_in_the_releases_of_its_era) {
  for (const Member& member : members) {
    bool inside = false;
    for (const EngineRelease& release : engine_releases()) {
      if (release.name == member.first) inside = true;
      if (release.name == member.until) inside = false;
      BOOST_TEST(gate_of(release, sharded, member.backend).open == inside,
                 member.backend << " in " << release.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_removed_backend_falls_back_with_a_warning) {
  const Gate before = gate_of(engine_release("vllm-0.18.0"), sharded, "naive");
  BOOST_TEST(before.backend == "naive");
  BOOST_TEST(before.warning.empty());
  BOOST_TEST((plan_for(qwen3_5(), sharded, engine_release("vllm-0.18.0"), "naive").dispatch ==
              Dispatch::naive));
  const Gate after = gate_of(engine_release("vllm-0.19.0"), sharded, "naive");
  BOOST_TEST(after.backend == "allgather_reducescatter");
  BOOST_TEST(after.warning ==
             "the 'naive' all2all backend has been removed: falling back to "
             "'allgather_reducescatter'");
  BOOST_TEST((plan_for(qwen3_5(), sharded, engine_release("vllm-0.19.0"), "naive").dispatch ==
              Dispatch::allgather_reducescatter));
}

BOOST_AUTO_TEST_CASE(an_unknown_backend_gets_the_nearest_name) {
  const std::string message =
      refusal([] { gate_of(engine_release("vllm-0.33.0"), sharded, "deepep_low_latencyy"); });
  BOOST_TEST(contains(message, "did you mean deepep_low_latency?"), message);
}

BOOST_AUTO_TEST_CASE(the_shared_expert_of_qwen_is_split_until_0_19_1) {
  for (const EngineRelease& release : engine_releases()) {
    const bool split = release.version < EngineRelease::Version{0, 20, 0};
    BOOST_TEST(plan_for(qwen3_next(), sharded, release).shared_expert_whole == !split);
    BOOST_TEST(plan_for(deepseek_v3(), sharded, release).shared_expert_whole, release.name);
  }
}

BOOST_AUTO_TEST_CASE(runner_and_pad_mask_follow_the_release) {
  struct Row {
    const char* release;
    RunnerVersion runner;
    bool masks_pads;
  };
  for (const Row& row : {Row{"vllm-0.26.0", RunnerVersion::V1, false},
                         {"vllm-0.27.0", RunnerVersion::V1, false},  // the mask is V2's alone
                         {"vllm-0.28.0", RunnerVersion::V1, false},
                         {"vllm-0.29.0", RunnerVersion::V2, true},
                         {"vllm-0.33.0", RunnerVersion::V2, true}}) {
    const ParallelPlan plan = plan_for(qwen3_5(), sharded, engine_release(row.release));
    BOOST_TEST((plan.runner == row.runner), row.release);
    BOOST_TEST(plan.masks_pads == row.masks_pads, row.release);
  }
  BOOST_TEST(!plan_for(deepseek_v3(), sharded, engine_release("vllm-0.30.0")).masks_pads);
  BOOST_TEST(plan_for(deepseek_v3(), sharded, engine_release("vllm-0.31.0")).masks_pads);
}

BOOST_AUTO_TEST_CASE(an_idle_rank_runs_the_rows_of_one_verify_request) {
  BOOST_TEST(idle_rank_rows(engine_release("vllm-0.22.1"), 2).value() == 3);
  BOOST_TEST(idle_rank_rows(engine_release("vllm-0.33.0"), 0).value() == 1);
  BOOST_TEST(!idle_rank_rows(engine_release("vllm-0.21.0"), 2).has_value());
}

BOOST_AUTO_TEST_CASE(pipelines_fall_back) {
  const ParallelConfig pipelines{.tp = 2, .dp = 2, .pp = 2, .enable_expert_parallel = true};
  BOOST_TEST(protocol_of(qwen3_next(), "vllm-0.26.0", pipelines) == "A");
  BOOST_TEST(protocol_of(qwen3_5(), "vllm-0.33.0", pipelines) == "A");
  BOOST_TEST(protocol_of(deepseek_v3(), "vllm-0.33.0", pipelines) == "A");
  BOOST_TEST(protocol_of(deepseek_v3_2(), "vllm-0.33.0", pipelines) == "deferred");
  BOOST_TEST(protocol_of(deepseek_v3_2(), "vllm-0.24.0", pipelines) == "A");
}

BOOST_AUTO_TEST_CASE(a_shut_gate_leaves_the_sums_of_the_v3_2_class_to_the_next_norm) {
  const ParallelConfig one{.tp = 2, .enable_expert_parallel = true};
  BOOST_TEST(protocol_of(deepseek_v3_2(), "vllm-0.33.0", one) == "deferred");
  BOOST_TEST(protocol_of(deepseek_v3_2(), "vllm-0.24.0", one) == "S");
  BOOST_TEST(protocol_of(deepseek_v3(), "vllm-0.33.0", one) == "S");
  BOOST_TEST(protocol_of(deepseek_v3_2(), "vllm-0.33.0", {.tp = 1, .dp = 2}) == "S");
}

BOOST_AUTO_TEST_CASE(a_mixed_stack_falls_back_to_a_under_d_only) {
  ModelConfig mixed = qwen3_next();
  mixed.mlp_only_layers = {2};
  BOOST_TEST(protocol_of(mixed, "vllm-0.27.1") == "C");
  BOOST_TEST(protocol_of(mixed, "vllm-0.28.0") == "A");
}

BOOST_AUTO_TEST_CASE(a_release_between_two_read_ones_is_interpolated_and_says_so) {
  const EngineRelease release = engine_release("vllm-0.12.0");
  BOOST_TEST(release.name == "vllm-0.12.0");
  BOOST_TEST(release.interpolated ==
             "vllm-0.12.0 was not read: it lies between vllm-0.11.0 and vllm-0.13.0 and is taken "
             "as vllm-0.11.0");
  // The first of a minor version has more in common with its own patch release.
  BOOST_TEST(contains(engine_release("vllm-0.17.0").interpolated, "taken as vllm-0.17.1"));
  BOOST_TEST(contains(engine_release("vllm-0.19.2").interpolated, "taken as vllm-0.19.1"));
  BOOST_TEST(contains(engine_release("0.25.2").interpolated, "taken as vllm-0.25.1"));
  BOOST_TEST(engine_release("0.26.0").interpolated.empty());
  BOOST_TEST(engine_release("vllm-0.25.1").is_release);
}

BOOST_AUTO_TEST_CASE(a_release_outside_the_table_is_refused) {
  const std::string newer = refusal([] { engine_release("vllm-0.33.1"); });
  BOOST_TEST(contains(newer, "vllm-0.11.0 to vllm-0.33.0"), newer);
  BOOST_TEST(contains(newer, "newer"), newer);
  const std::string older = refusal([] { engine_release("vllm-0.10.2"); });
  BOOST_TEST(contains(older, "older"), older);
}

BOOST_DATA_TEST_CASE(a_name_that_is_no_release_is_refused,
                     data::make({"", "vllm", "vllm-", "0.26", "vllm-0.26", "vllm-0.26.0rc1",
                                 "vllm-0.-1.0", "vllm-0.99999999999.0", "vllm-0.26.0.1", "latest",
                                 "sglang-0.5.0"}),
                     name) {
  const std::string message = refusal([&] { engine_release(name); });
  BOOST_TEST(contains(message, "expected a release such as vllm-0.33.0"), message);
}

BOOST_AUTO_TEST_CASE(a_misspelt_release_gets_the_nearest_name) {
  const std::string message = refusal([] { engine_release("vllm-main-2026-7"); });
  BOOST_TEST(contains(message, "did you mean vllm-main-2026-07?"), message);
}

// What a release refuses before anything runs.

BOOST_AUTO_TEST_CASE(a_family_is_refused_before_its_first_release) {
  BOOST_TEST(refused(qwen3_5(), sharded, "vllm-0.16.0", 0) ==
             "vllm-0.16.0 has no Qwen3.5: expected vllm-0.17.1 or later");
  BOOST_TEST(refused(qwen3_5(), sharded, "vllm-0.17.0", 0) == "");
}

BOOST_AUTO_TEST_CASE(a_family_whose_releases_are_not_known_is_refused) {
  ModelConfig config = deepseek_v3_2();
  config.model_type = ModelType::glm4_moe;
  BOOST_TEST(contains(refused(config, sharded, "vllm-0.33.0", 0), "model_type: is glm4_moe"));
}

BOOST_AUTO_TEST_CASE(draft_steps_over_n_predict_are_a_multiple_of_it) {
  ModelConfig config = qwen3_5();
  config.num_mtp_layers = 2;
  BOOST_TEST(contains(refused(config, sharded, "vllm-0.33.0", 3),
                      "num_speculative_tokens:3 must be divisible by n_predict=2"));
  for (const std::int64_t accepted : {0, 1, 2, 4})
    BOOST_TEST(refused(config, sharded, "vllm-0.33.0", accepted) == "");
}

BOOST_AUTO_TEST_CASE(draft_steps_without_mtp_layers_are_refused) {
  BOOST_TEST(contains(refused(*preset("deepseek-v2"), sharded, "vllm-0.33.0", 1), "no MTP layer"));
}

BOOST_AUTO_TEST_CASE(expert_parallelism_without_experts_is_refused) {
  ModelConfig config = qwen3_next();
  config.num_experts = config.num_experts_per_tok = 0;
  BOOST_TEST(contains(refused(config, sharded, "vllm-0.33.0", 0),
                      "must be greater than 0 when expert parallelism is enabled"));
}

BOOST_AUTO_TEST_CASE(a_qwen3_next_without_a_moe_layer_is_refused) {
  ModelConfig config = qwen3_next();
  config.num_experts = config.num_experts_per_tok = 0;
  const ParallelConfig parallel{.tp = 2};
  BOOST_TEST(contains(refused(config, parallel, "vllm-0.33.0", 0), "No Qwen3Next layer found"));
  config = qwen3_next();
  config.mlp_only_layers = {0};  // and with it the MTP layer
  BOOST_TEST(refused(config, sharded, "vllm-0.33.0", 0) == "");
  BOOST_TEST(contains(refused(config, sharded, "vllm-0.33.0", 1),
                      "No Qwen3Next layer found in the model.layers of the MTP"));
}

BOOST_AUTO_TEST_CASE(more_ranks_than_experts_or_heads_are_refused) {
  BOOST_TEST(contains(refused(qwen3_5(), {.tp = 16}, "vllm-0.33.0", 0),
                      "Total number of attention heads (8) must be divisible by tensor parallel "
                      "size (16)"));
  ModelConfig config = qwen3_5();
  config.num_experts = 4;
  BOOST_TEST(contains(refused(config, {.tp = 8}, "vllm-0.33.0", 0),
                      "Tensor parallel size 8 is greater than the number of experts 4"));
  config = qwen3_5();
  config.num_attention_heads = 12;
  config.num_key_value_heads = 3;
  BOOST_TEST(contains(refused(config, {.tp = 2}, "vllm-0.33.0", 0), "key/value heads (3)"));
}

BOOST_AUTO_TEST_CASE(mtp_with_pipelines_runs_for_qwen3_5_from_0_30_0_only) {
  const ParallelConfig pipelines{.tp = 2, .dp = 2, .pp = 2, .enable_expert_parallel = true};
  BOOST_TEST(contains(refused(qwen3_5(), pipelines, "vllm-0.29.0", 1),
                      "Pipeline parallelism is not supported for the MTP of Qwen3.5"));
  BOOST_TEST(refused(qwen3_5(), pipelines, "vllm-0.30.0", 1) == "");
  BOOST_TEST(refused(qwen3_5(), pipelines, "vllm-0.29.0", 0) == "");
  BOOST_TEST(contains(refused(qwen3_next(), pipelines, "vllm-0.33.0", 1), "not supported"));
  BOOST_TEST(contains(refused(deepseek_v3_2(), pipelines, "vllm-0.33.0", 1), "not supported"));
}

}  // namespace tokenview
