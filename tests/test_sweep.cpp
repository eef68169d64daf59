// SPDX-License-Identifier: Apache-2.0
// The matrix of layouts: its size, what is folded away, and a part of its verdicts.
#include <algorithm>
#include <set>

#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "verify/expected_verdict.hpp"
#include "verify/requests.hpp"
#include "verify/sweep.hpp"

namespace tokenview {

BOOST_AUTO_TEST_CASE(over_a_million_configurations_are_covered_by_distinct_ones) {
  const SweepMatrix matrix = sweep_matrix();
  BOOST_TEST(matrix.covered >= 1'000'000);
  BOOST_TEST(matrix.distinct.size() >= 100'000u);
  BOOST_TEST(matrix.covered > 10 * std::int64_t(matrix.distinct.size()));
  BOOST_TEST(matrix.refused > 0);  // tp = 5 divides no model here
  BOOST_TEST((std::ranges::adjacent_find(matrix.distinct) == matrix.distinct.end()));
  std::set<ProtocolId> protocols;
  for (const SweepKey& key : matrix.distinct) protocols.insert(ProtocolId(key.protocol));
  BOOST_TEST(protocols.size() == all_protocols().size());
}

BOOST_AUTO_TEST_CASE(every_thousandth_configuration_is_as_expected) {
  const SweepMatrix matrix = sweep_matrix();
  Sweeper sweeper;
  int with_finding = 0, clean = 0;
  for (std::size_t i = 0; i < matrix.distinct.size(); i += 997) {
    const SweepResult result = sweeper.run(matrix.distinct[i]);
    BOOST_TEST(result.is_as_expected(), in_words(result.key) << ": " << result.first);
    ++(result.has_finding ? with_finding : clean);
  }
  BOOST_TEST(with_finding > 50);
  BOOST_TEST(clean > 300);
}

BOOST_AUTO_TEST_CASE(known_faults_are_those_of_the_protocols) {
  const ModelConfig config = *preset("qwen3.5-moe");
  const auto fault = [&](ProtocolId protocol, const std::string& requests,
                         std::size_t draft_steps = 0,
                         ParallelConfig parallel = {.tp = 4, .enable_expert_parallel = true}) {
    return known_fault({.config = config,
                        .plan = plan_for(config, parallel, protocol),
                        .inputs = inputs_of(parse_requests(requests, parallel.dp)),
                        .draft_steps = draft_steps});
  };
  BOOST_TEST(fault(ProtocolId::C, "1") == "T = 1");
  BOOST_TEST(fault(ProtocolId::C, "2") == "");
  BOOST_TEST(fault(ProtocolId::B, "2", 1) == "MTP shard");
  BOOST_TEST(fault(ProtocolId::D, "1", 2) == "");
  BOOST_TEST(fault(ProtocolId::vllm_53191_shape, "3") == "");
  BOOST_TEST(fault(ProtocolId::vllm_53191_shape, "4") == "S < p");
  BOOST_TEST(fault(ProtocolId::vllm_53191_shape, "12") == "S < p");
  BOOST_TEST(fault(ProtocolId::vllm_53191_shape, "13") == "");
  BOOST_TEST(fault(ProtocolId::deferred, "4") == "");
  BOOST_TEST(fault(ProtocolId::deferred, "4", 0,
                   {.tp = 2, .dp = 2, .enable_expert_parallel = true}) == "summed twice");
  BOOST_TEST(fault(ProtocolId::deferred, "4", 0, {.tp = 2, .pp = 2}) == "partial handed over");
}

}  // namespace tokenview
