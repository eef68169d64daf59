// SPDX-License-Identifier: Apache-2.0
// Calls and bytes counted from a symbolic run, against ring volumes worked out by hand:
// f = (p-1)/p, u = f T' H b for one gather or scatter, a = 2 f T H b for one all-reduce.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "verify/cost.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

Cost cost(const ModelConfig& config, ProtocolId protocol, std::int64_t tp, std::int64_t tokens) {
  return cost_of({.config = config,
                  .plan = plan_for(config, {.tp = tp, .enable_expert_parallel = true}, protocol),
                  .inputs = inputs_of(parse_requests(std::to_string(tokens), 1)),
                  .draft_steps = 1},
                 2);
}

/// Published per-layer volumes in bytes, bfloat16.
struct Published {
  const char* model;
  std::int64_t tokens, tp;
  double s, a, d;
};
const Published table[] = {
    {"qwen3-next-80b", 8192, 4, 100663296, 75497472, 50331648},
    {"qwen3-next-80b", 8192, 8, 117440512, 88080384, 58720256},
    {"qwen3.5-122b", 8192, 4, 150994944, 113246208, 75497472},
    {"qwen3.5-122b", 65536, 4, 1207959552, 905969664, 603979776},
    {"qwen3.5-122b", 8, 8, 172032, 129024, 86016},
    {"qwen3.5-122b", 1, 8, 21504, 53760, 86016},
    {"qwen3.5-122b", 1, 4, 18432, 27648, 36864},
};

}  // namespace

BOOST_AUTO_TEST_CASE(layers_send_what_the_published_table_says) {
  for (const Published& row : table) {
    const ModelConfig config = *preset(row.model);
    const double layers = double(config.num_hidden_layers);
    const auto per_layer = [&](ProtocolId protocol) {
      return cost(config, protocol, row.tp, row.tokens).line("target layers").bytes / layers;
    };
    BOOST_TEST(per_layer(ProtocolId::S) == row.s, row.model << " T=" << row.tokens);
    BOOST_TEST(per_layer(ProtocolId::A) == row.a, row.model << " T=" << row.tokens);
    BOOST_TEST(per_layer(ProtocolId::D) == row.d, row.model << " T=" << row.tokens);
  }
}

BOOST_DATA_TEST_CASE(b_and_d_send_the_same_bytes_with_one_call_between_them,
                     data::make({2, 4, 8}) * data::make({2, 10, 17, 512}), tp, tokens) {
  const ModelConfig config = *preset("qwen3.5-moe");
  const auto target = [&](ProtocolId protocol) {
    const Cost counted = cost(config, protocol, tp, tokens);
    CostLine sum = counted.line("target layers");
    sum.calls += counted.line("target exit").calls;
    sum.bytes += counted.line("target exit").bytes;
    return sum;
  };
  const double u = double(tp - 1) / double(tp) * double((tokens + tp - 1) / tp * tp) *
                   double(config.hidden_size) * 2;
  const auto layers = config.num_hidden_layers;
  BOOST_TEST(target(ProtocolId::C).bytes == double(2 * layers + 1) * u);
  BOOST_TEST(target(ProtocolId::D).bytes == double(2 * layers + 1) * u);
  BOOST_TEST(target(ProtocolId::C).calls == 2 * layers);
  BOOST_TEST(target(ProtocolId::D).calls == 2 * layers + 1);
}

BOOST_DATA_TEST_CASE(the_mtp_layer_costs_three_volumes_under_c_and_d, data::make({2, 4}), tp) {
  const ModelConfig config = *preset("qwen3.5-moe");
  const double u = double(tp - 1) / double(tp) * 12 * double(config.hidden_size) * 2;
  for (const ProtocolId protocol : {ProtocolId::C, ProtocolId::D}) {
    const Cost counted = cost(config, protocol, tp, 12);
    BOOST_TEST(counted.line("MTP layer").bytes + counted.line("MTP exit").bytes == 3 * u);
    BOOST_TEST(counted.line("MTP layer").calls + counted.line("MTP exit").calls ==
               (protocol == ProtocolId::C ? 2 : 3));
  }
}

}  // namespace tokenview
