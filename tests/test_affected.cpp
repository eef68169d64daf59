// SPDX-License-Identifier: Apache-2.0
// Which faults a release has, decided by runs on token views, against what was published of it.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"
#include "verify/affected.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

constexpr ParallelConfig sharded{.tp = 2, .dp = 2, .enable_expert_parallel = true};

ModelConfig deepseek_v3() {
  ModelConfig config = *preset("deepseek-v3.2");
  config.model_type = ModelType::deepseek_v3;
  return config;
}

Affected affected_by(const ModelConfig& config, const EngineRelease& release,
                     const ParallelConfig& parallel = sharded, std::int64_t draft_steps = 2) {
  return affected({config, parallel, default_backend, draft_steps}, release);
}

/// "F1 F3"
std::string faults_of(const Affected& result) {
  std::string all;
  for (const MetFault& met : result.faults)
    all += (all.empty() ? "" : " ") + std::string(met.fault->id);
  return all;
}

const MetFault& fault_in(const Affected& result, const std::string& id) {
  const auto found =
      std::ranges::find_if(result.faults, [&](const MetFault& met) { return met.fault->id == id; });
  BOOST_REQUIRE(found != result.faults.end());
  return *found;
}

using Version = EngineRelease::Version;

}  // namespace

BOOST_DATA_TEST_CASE(qwen_has_the_published_faults_in_every_release,
                     data::make({"qwen3-next", "qwen3.5-moe"}), name) {
  for (const EngineRelease& release : engine_releases()) {
    if (!release.is_release) continue;
    if (std::string(name) == "qwen3.5-moe" && release.version < Version{0, 17, 0}) continue;
    const Affected result = affected_by(*preset(name), release);
    const bool splits = release.version <= Version{0, 19, 1};
    const bool infers =
        release.version >= Version{0, 26, 0} && release.version <= Version{0, 27, 1};
    BOOST_TEST(faults_of(result) == (splits ? "F5" : infers ? "F3" : ""), release.name);
    if (infers) {
      BOOST_TEST((fault_in(result, "F3").tokens == std::set<std::int64_t>{1}), release.name);
      BOOST_TEST(!fault_in(result, "F3").fault->is_loud);
      BOOST_TEST(fault_in(result, "F3").gone_from == "vllm-0.28.0");
    }
    if (splits) BOOST_TEST(fault_in(result, "F5").gone_from == "vllm-0.20.0");
  }
}

BOOST_AUTO_TEST_CASE(the_main_build_of_july_returns_shards_from_the_mtp) {
  const Affected result = affected_by(*preset("qwen3.5-moe"), engine_release("vllm-main-2026-07"),
                                      {.tp = 2, .enable_expert_parallel = true});
  BOOST_TEST(faults_of(result) == "F1 F2 F3");
  BOOST_TEST(fault_in(result, "F1").fault->is_loud);
  BOOST_TEST(*fault_in(result, "F1").tokens.begin() == 2);
  BOOST_TEST(fault_in(result, "F1").gone_from == "vllm-0.26.0");
  BOOST_TEST(!fault_in(result, "F2").fault->is_loud);
  // One token; or a verify request all of whose drafts, or all but one, are rejected.
  BOOST_TEST((fault_in(result, "F2").tokens == std::set<std::int64_t>{1, 3}));
}

/// Of one verify request of K drafts, the sampled row is in the shard exactly if
/// K - rejected < ceil((K + 1) / tp).
BOOST_DATA_TEST_CASE(a_verify_request_is_silent_where_the_sampled_row_is_in_the_shard,
                     data::make({1, 3, 5}) * data::make({2, 4}), draft_steps, tp) {
  const Affected result = affected_by(*preset("qwen3.5-moe"), engine_release("vllm-main-2026-07"),
                                      {.tp = tp, .enable_expert_parallel = true}, draft_steps);
  std::int64_t silent = 1;  // the prefill of one token
  for (std::int64_t rejected = 0; rejected <= draft_steps; ++rejected)
    silent += draft_steps - rejected < (draft_steps + tp) / tp;
  BOOST_TEST(fault_in(result, "F2").batches == silent);
}

BOOST_AUTO_TEST_CASE(the_deepseek_family_has_b_from_0_25_0_on) {
  for (const EngineRelease& release : engine_releases()) {
    if (!release.is_release) continue;
    const Affected result = affected_by(deepseek_v3(), release);
    const bool no_gather =
        release.version >= Version{0, 25, 0} && release.version <= Version{0, 25, 1};
    const bool infers = release.version >= Version{0, 25, 0};
    BOOST_TEST(faults_of(result) == (no_gather ? "F1 F2 F3" : infers ? "F3" : ""), release.name);
    if (infers) BOOST_TEST(fault_in(result, "F3").gone_from == "", release.name);
  }
}

BOOST_AUTO_TEST_CASE(the_v3_2_class_is_static_from_0_28_0_on) {
  for (const char* release : {"vllm-0.27.1", "vllm-0.28.0", "vllm-0.33.0"}) {
    const Affected result = affected_by(*preset("deepseek-v3.2"), engine_release(release));
    BOOST_TEST(faults_of(result) == (std::string(release) == "vllm-0.27.1" ? "F3" : ""), release);
  }
}

BOOST_AUTO_TEST_CASE(one_data_parallel_rank_is_never_affected_by_a_release) {
  for (const EngineRelease& release : engine_releases()) {
    if (!release.is_release) continue;
    for (const char* name : {"qwen3-next", "deepseek-v3.2"})
      BOOST_TEST(faults_of(affected_by(*preset(name), release,
                                       {.tp = 4, .enable_expert_parallel = true})) == "",
                 name << " in " << release.name);
  }
}

BOOST_AUTO_TEST_CASE(a_sum_deferred_past_a_complete_moe_output_is_derived) {
  const Affected result =
      affected({*preset("deepseek-v3.2"), sharded, "moonep", 0}, engine_release("vllm-0.33.0"));
  BOOST_TEST(faults_of(result) == "F17");
  BOOST_TEST(fault_in(result, "F17").fault->is_derived);
}

BOOST_AUTO_TEST_CASE(a_sum_deferred_past_a_pipeline_boundary_is_derived) {
  const ParallelConfig pipelines{.tp = 2, .dp = 2, .pp = 2, .enable_expert_parallel = true};
  for (const EngineRelease& release : engine_releases()) {
    const Affected result = affected_by(*preset("deepseek-v3.2"), release, pipelines, 0);
    const bool defers = release.version >= Version{0, 25, 1};
    BOOST_TEST(faults_of(result) == (defers ? "F13" : ""), release.name);
    if (defers) BOOST_TEST(fault_in(result, "F13").fault->is_derived);
  }
}

BOOST_DATA_TEST_CASE(pipelines_of_other_models_are_clean, data::make({2, 4}), pp) {
  const ParallelConfig pipelines{.tp = 2, .dp = 2, .pp = pp, .enable_expert_parallel = true};
  for (const char* name : {"vllm-0.26.0", "vllm-0.33.0"}) {
    const EngineRelease release = engine_release(name);
    BOOST_TEST(faults_of(affected_by(*preset("qwen3-next"), release, pipelines, 0)) == "", name);
    BOOST_TEST(faults_of(affected_by(deepseek_v3(), release, pipelines, 0)) == "", name);
  }
  BOOST_TEST(faults_of(affected_by(*preset("qwen3.5-moe"), engine_release("vllm-0.33.0"),
                                   pipelines)) == "");
}

BOOST_AUTO_TEST_CASE(the_published_sizes_have_the_faults_of_the_small_ones) {
  for (const char* release : {"vllm-0.19.1", "vllm-main-2026-07", "vllm-0.27.1", "vllm-0.33.0"})
    BOOST_TEST(faults_of(affected_by(*preset("qwen3.5-397b"), engine_release(release))) ==
               faults_of(affected_by(*preset("qwen3.5-moe"), engine_release(release))));
}

/// The MTP layer of these families comes after the last layer of the model, not first.
BOOST_AUTO_TEST_CASE(the_mtp_layer_of_a_layout_family_is_sparse) {
  const ModelConfig config = deepseek_v3();
  const ViewRunResult result =
      run_views({.config = config,
                 .plan = plan_for(config, sharded, engine_release("vllm-0.26.0")),
                 .inputs = inputs_of(parse_requests("5", 2)),
                 .draft_steps = 1},
                true);
  BOOST_TEST(result.clean());
  const auto has = [&](const char* name) {
    return std::ranges::find(result.views, name, &NamedView::name) != result.views.end();
  };
  BOOST_TEST(has("step0/mtp.layers.0.mlp.experts"));
  BOOST_TEST(!has("target/model.layers.2.mlp.experts"));
  BOOST_TEST(has("target/model.layers.3.mlp.experts"));
}

BOOST_AUTO_TEST_CASE(a_configuration_that_the_release_refuses_is_not_run) {
  BOOST_CHECK_THROW(affected_by(*preset("qwen3.5-moe"), engine_release("vllm-0.16.0")),
                    ConfigError);
  BOOST_CHECK_THROW(affected_by(*preset("deepseek-v2"), engine_release("vllm-0.26.0")),
                    ConfigError);  // has no MTP layer
}

BOOST_AUTO_TEST_CASE(the_shipped_table_is_the_one_that_the_program_writes) {
  BOOST_TEST(read_bytes(TOKENVIEW_SOURCE_DIR "/docs/releases.md") == release_matrix(),
             "docs/releases.md is stale: tokenview affected --matrix > docs/releases.md");
}

// The verb.

BOOST_AUTO_TEST_CASE(the_verb_ends_with_one_if_affected) {
  const std::vector<std::string> with = {"--tp", "2", "--dp", "2", "--ep", "--draft-steps", "2"};
  const auto end = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "affected");
    words.insert(words.end(), with.begin(), with.end());
    return run(words);
  };
  const Ended fault = end({"--engine", "vllm-0.27.1"});
  BOOST_TEST(fault.code == 1);
  BOOST_TEST(contains(fault.out, "gate G2 open"), fault.out);
  BOOST_TEST(contains(fault.out, "F3  silent, at T = 1:"), fault.out);
  BOOST_TEST(contains(fault.out, "gone from vllm-0.28.0 on"), fault.out);
  BOOST_TEST(end({"--engine", "vllm-0.28.0"}).code == 0);
  BOOST_TEST(end({"--engine", "vllm-0.99.0"}).code == 2);
  BOOST_TEST(end({}).code == 2);
}

BOOST_AUTO_TEST_CASE(derived_faults_count_only_when_asked_for) {
  std::vector<std::string> words = {
      "affected", "--engine", "vllm-0.33.0", "--model", "deepseek-v3.2",     "--tp",
      "2",        "--dp",     "2",           "--ep",    "--all2all-backend", "moonep"};
  const Ended quiet = run(words);
  BOOST_TEST(quiet.code == 0);
  BOOST_TEST(contains(quiet.out, "derived from the text of the release"), quiet.out);
  BOOST_TEST(contains(quiet.out, "F17  silent"), quiet.out);
  words.push_back("--derived");
  BOOST_TEST(run(words).code == 1);
}

BOOST_AUTO_TEST_CASE(a_release_that_was_not_read_is_noted) {
  const Ended ended = run({"affected", "--engine", "vllm-0.12.0", "--model", "qwen3-next"});
  BOOST_TEST(ended.code == 0);
  BOOST_TEST(contains(ended.err, "note: vllm-0.12.0 was not read"), ended.err);
}

BOOST_AUTO_TEST_CASE(records_carry_the_fault) {
  const Ended ended = run({"affected", "--engine", "vllm-0.26.0", "--tp", "2", "--dp", "2", "--ep",
                           "--format", "jsonl"});
  std::istringstream lines(ended.out);
  std::string start, line;
  std::getline(lines, start);
  std::getline(lines, line);
  const nlohmann::json record = nlohmann::json::parse(line);
  BOOST_TEST(record.at("kind") == "fault");
  BOOST_TEST(record.at("fault") == "F3");
  BOOST_TEST(record.at("tokens") == nlohmann::json({1}));
  BOOST_TEST(record.at("gone_from") == "vllm-0.28.0");
}

BOOST_AUTO_TEST_CASE(run_takes_its_layout_from_a_release) {
  const std::vector<std::string> words = {"run", "--tp", "2", "--dp", "2", "--ep", "--tokens", "3"};
  const auto end = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const Ended d = end({"--engine", "vllm-0.30.0"});
  BOOST_TEST(d.code == 0);
  BOOST_TEST(contains(d.out, "gate G2 open, allgather_reducescatter; protocol D"), d.out);
  BOOST_TEST(contains(d.out, "runner V2"), d.out);
  BOOST_TEST(contains(end({"--engine", "vllm-0.30.0", "--all2all-backend", "moonep"}).out,
                      "gate G2 shut (backend moonep is not in its set)"));
  BOOST_TEST(end({"--engine", "vllm-0.30.0", "--protocol", "D"}).code == 0);
  const Ended naive = end({"--engine", "vllm-0.30.0", "--all2all-backend", "naive"});
  BOOST_TEST(contains(naive.err, "'naive' all2all backend has been removed"), naive.err);
}

BOOST_AUTO_TEST_CASE(contradicting_options_of_run_are_one_line_and_code_two) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--engine", "vllm-0.30.0", "--protocol", "B"},
           {"--engine", "vllm-0.30.0", "--all2all-backend", "nvlink"},
           {"--all2all-backend", "naive"},
           {"--engine", "vllm-1.0.0"}}) {
    std::vector<std::string> all = {"run", "--tp", "2", "--dp", "2", "--ep"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run(all);
    BOOST_TEST(ended.code == 2, words.back());
    BOOST_TEST(ended.error_lines() == 1, ended.err);
  }
}

}  // namespace tokenview
