// SPDX-License-Identifier: Apache-2.0
// The protocols on token views: the verdicts that are known of them, and every shipped scenario.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "verify/requests.hpp"
#include "verify/scenario.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

ViewRunResult run(ProtocolId protocol, std::int64_t tp, std::int64_t dp,
                  const std::string& requests, std::size_t draft_steps, bool target_runs = true,
                  const ModelConfig& config = *preset("qwen3.5-moe")) {
  return run_views(
      {.config = config,
       .plan = plan_for(config, {.tp = tp, .dp = dp, .enable_expert_parallel = true}, protocol),
       .inputs = inputs_of(parse_requests(requests, dp)),
       .draft_steps = draft_steps,
       .target_runs = target_runs},
      true);
}

std::string map_of(const ViewRunResult& result, const std::string& name) {
  for (const NamedView& view : result.views)
    if (view.name == name) return row_map(view);
  return "no such view";
}

std::int64_t bounds_findings(const ViewRunResult& result) {
  return std::ranges::count(result.findings, FindingKind::bounds, &Finding::kind);
}

/// Two requests verifying drafts, one prefill and one decode: everything at once.
constexpr const char* busy = "3c8v2r1+5+1c4";

}  // namespace

BOOST_DATA_TEST_CASE(correct_protocols_have_no_finding,
                     data::make({2, 4, 8}) * data::make({1, 2}) *
                         data::make({"0", "1", "2", "3", "5", "8", "10", "13", busy}),
                     tp, dp, requests) {
  for (const ProtocolId protocol : {ProtocolId::S, ProtocolId::A, ProtocolId::D}) {
    const ViewRunResult result = run(protocol, tp, dp, requests, 3);
    BOOST_TEST(result.clean(), to_string(protocol) << ": "
                                                   << (result.findings.empty()
                                                           ? result.error
                                                           : to_string(result.findings.front())));
  }
}

BOOST_DATA_TEST_CASE(row_counts_tell_shards_from_two_tokens_on,
                     data::make({2, 3, 4, 5, 7, 8, 10, 12, 13}) * data::make({2, 4, 8}), tokens,
                     tp) {
  BOOST_TEST(run(ProtocolId::C, tp, 1, std::to_string(tokens), 2).clean());
}

BOOST_DATA_TEST_CASE(one_token_is_lost_where_the_layout_is_inferred, data::make({2, 4, 8}), tp) {
  for (const ProtocolId protocol : {ProtocolId::B, ProtocolId::C}) {
    const ViewRunResult result = run(protocol, tp, 1, "1", 0);
    BOOST_REQUIRE(!result.findings.empty());
    const Finding& first = result.findings.front();
    BOOST_TEST(first.module == "model.layers.1.linear_attn");  // layer 0 is still right
    BOOST_TEST(first.at.tp > 0);
    BOOST_TEST(first.expected == "[0]");
    BOOST_TEST(first.actual == "[PAD]");
  }
}

BOOST_AUTO_TEST_CASE(the_mtp_without_its_gather_hands_over_shards) {
  const ViewRunResult result = run(ProtocolId::B, 4, 1, "10", 1, false);
  BOOST_TEST(map_of(result, "step0/mtp.norm") == "[0,1,2][3,4,5][6,7,8][9,PAD,PAD]");
  const Finding& first = result.findings.front();
  BOOST_TEST(first.module == "mtp");
  BOOST_TEST(first.operation == "exit");
  BOOST_TEST(first.origin == "reduce_scatter over tp in mtp.layers.0");
  BOOST_TEST(bounds_findings(result) == 4);  // index 9 of 3 rows, on all four ranks
  for (const Finding& finding : result.findings)
    if (finding.kind == FindingKind::bounds) BOOST_TEST(finding.first_bad_row == 9);
  BOOST_TEST(run(ProtocolId::C, 4, 1, "10", 1, false).clean());
}

BOOST_AUTO_TEST_CASE(the_mtp_without_its_gather_is_silent_at_one_token) {
  const ViewRunResult result = run(ProtocolId::B, 4, 1, "1", 1, false);
  BOOST_TEST(bounds_findings(result) == 0);
  BOOST_TEST(map_of(result, "step0/mtp.norm") == "[0][PAD][PAD][PAD]");
  BOOST_TEST(map_of(result, "step0/logits") == "[MIX][MIX][MIX][MIX]");
  BOOST_TEST(run(ProtocolId::C, 4, 1, "1", 1, false).clean());
}

BOOST_AUTO_TEST_CASE(a_prefill_of_two_asserts_on_two_ranks) {
  BOOST_TEST(bounds_findings(run(ProtocolId::B, 2, 1, "2", 1, false)) == 2);
}

BOOST_DATA_TEST_CASE(mixed_stacks_gather_before_a_dense_layer, data::make({1, 2, 5, 10}), tokens) {
  ModelConfig config = *preset("qwen3-next");
  config.mlp_only_layers = {2};
  // A sharded stream reaches layer 2 at two tokens or more; D falls back to A.
  if (tokens > 1)
    BOOST_TEST(run(ProtocolId::C, 4, 1, std::to_string(tokens), 2, true, config).clean());
  const ViewRunResult d = run(ProtocolId::D, 4, 1, std::to_string(tokens), 2, true, config);
  BOOST_TEST(d.clean());
  BOOST_TEST(map_of(d, "target/model.layers.1").starts_with("[0"));
}

BOOST_AUTO_TEST_CASE(data_parallel_ranks_with_unequal_rows_stay_apart) {
  const ViewRunResult result = run(ProtocolId::D, 2, 2, "3,5", 2);
  BOOST_TEST(result.clean());
  BOOST_TEST(map_of(result, "target/model.layers.0") ==
             "[0,1][2,PAD][d1:0,d1:1,d1:2][d1:3,d1:4,PAD]");
}

BOOST_AUTO_TEST_CASE(every_shipped_scenario_behaves_as_it_says) {
  const auto scenarios = read_scenarios(TOKENVIEW_SOURCE_DIR "/data/scenarios");
  BOOST_TEST(scenarios.size() >= 2u);
  for (const Scenario& s : scenarios) {
    std::string problem;
    BOOST_TEST(behaves_as_told(s, run_scenario(s, s.broken), problem), s.name << ": " << problem);
    const ScenarioResult repaired = run_scenario(s, s.repaired);
    BOOST_TEST(repaired.clean(), s.name << " repaired: "
                                        << (repaired.views.findings.empty()
                                                ? repaired.views.error
                                                : to_string(repaired.views.findings.front())));
    for (const BlindSpot& spot : s.blind)
      BOOST_TEST(is_blind(s, spot, problem), s.name << " is not blind: " << problem);
  }
}

}  // namespace tokenview
