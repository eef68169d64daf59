// SPDX-License-Identifier: Apache-2.0
// The shipped golden files on a GPU.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "device/device_info.hpp"
#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "tests/few.hpp"
#include "tests/skip.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/check.hpp"
#include "verify/record.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
  }
};

/// Says each tap that fails.
struct Failures : CheckListener {
  std::vector<std::string> all;
  void ignored_keys(const std::vector<std::string>&) override {}
  void tap(const TapResult& tap) override {
    if (tap.verdict != Verdict::match && tap.verdict != Verdict::tie)
      all.push_back(text(tap.place(), ": ", to_string(tap.verdict), ", ", tap.metric, ' ',
                         tap.observed, " of ", tap.allowed, ", ", tap.detail));
  }
  void case_done(const std::string&, const CheckTotals&) override {}
};

std::string golden(const std::string& name) {
  return text(TOKENVIEW_SOURCE_DIR "/data/golden/", name, ".h5");
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_DATA_TEST_CASE(a_golden_file_is_reproduced_on_the_gpu,
                     some<std::string>(2, {"qwen3_next_mixed", "qwen3_next_bf16", "qwen3_next_tiny",
                                           "qwen3_next_tp8", "qwen3_5_moe_tiny", "qwen3_5_moe_tp3",
                                           "qwen3_5_moe_bf16"}),
                     name) {
  CheckOptions options;
  options.device = Device::cuda;
  Failures failures;
  const CheckTotals totals = check_golden(golden(name), options, failures);
  BOOST_TEST(failures.all == std::vector<std::string>(), boost::test_tools::per_element());
  BOOST_TEST(totals.failed == 0);
  BOOST_TEST(totals.taps > 400);
}

BOOST_AUTO_TEST_CASE(arithmetic_that_the_gpu_lacks_is_refused) {
  CheckOptions options;
  options.device = Device::cuda;
  Failures failures;
  options.dtype = DType::float64;
  BOOST_CHECK_THROW(check_golden(golden("qwen3_next_tiny"), options, failures), UsageError);
}

BOOST_DATA_TEST_CASE(a_float32_file_is_reproduced_with_the_delta_rule_in_chunks,
                     some<std::string>(2,
                                       {"qwen3_next_tiny", "qwen3_next_mixed", "qwen3_5_moe_tiny"}),
                     name) {
  CheckOptions options;
  options.device = Device::cuda;
  options.gdn_form = GdnForm::chunked;
  Failures failures;
  const CheckTotals totals = check_golden(golden(name), options, failures);
  BOOST_TEST(failures.all == std::vector<std::string>(), boost::test_tools::per_element());
  BOOST_TEST(totals.taps > 400);
}

/// Two chunks, several sequences, decode and drafts, recorded by the reference.
BOOST_DATA_TEST_CASE(a_file_with_the_roundings_of_vllm_is_reproduced_on_the_gpu,
                     some<std::string>(2, {"qwen3-next", "qwen3.5-moe"}), family) {
  const TemporaryFolder folder;
  const ModelConfig config = *preset(family);
  const SeededWeights weights(config, 5, DType::bfloat16);
  Recording recording;
  recording.config = config;
  recording.config_json = write_config_json(config);
  recording.weights = &weights;
  recording.cases = cases_in_words("varlen,chunked,decode", config.vocab_size, 0);
  recording.dtype = DType::bfloat16;
  recording.rounding = Rounding::vllm;
  record_golden(recording, folder.file("vllm.h5"));

  CheckOptions options;
  options.device = Device::cuda;
  options.rounding = Rounding::vllm;
  Failures failures;
  const CheckTotals totals = check_golden(folder.file("vllm.h5"), options, failures);
  BOOST_TEST(failures.all == std::vector<std::string>(), boost::test_tools::per_element());
  BOOST_TEST(totals.taps > 100);
}

}  // namespace tokenview
