// SPDX-License-Identifier: Apache-2.0
// Views and numbers of the same sharded program must agree, configuration by configuration.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "tests/boost_test.hpp"
#include "verify/matrix.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

std::string golden(const std::string& name) {
  return TOKENVIEW_SOURCE_DIR "/data/golden/" + name + ".h5";
}

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
