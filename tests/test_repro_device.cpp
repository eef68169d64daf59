// SPDX-License-Identifier: Apache-2.0
// repro --device cuda: the real assert on a GPU beside the predicted one. $TOKENVIEW_PROGRAM is the
// program where the one that was built with the test is not there.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "device/device_info.hpp"
#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"
#include "tests/skip.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Json = nlohmann::json;

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
  }
};

Ended repro(std::vector<std::string> arguments, bool records = true) {
  const char* const other = std::getenv("TOKENVIEW_PROGRAM");
  arguments.insert(arguments.begin(), {other == nullptr ? TOKENVIEW_PROGRAM : other, "repro",
                                       "vllm-48429", "--device", "cuda"});
  if (records) arguments.insert(arguments.end(), {"--format", "jsonl"});
  const char* const data_folder = std::getenv("TOKENVIEW_DATA");
  return Process(arguments, {.variables = {{"TOKENVIEW_DATA", data_folder != nullptr
                                                                  ? data_folder
                                                                  : TOKENVIEW_SOURCE_DIR "/data"}}})
      .end();
}

std::vector<Json> records_of(const Ended& end, const std::string& kind) {
  std::vector<Json> records;
  std::istringstream lines(end.out);
  for (std::string line; std::getline(lines, line);)
    if (Json record = Json::parse(line); record["kind"] == kind) records.push_back(record);
  return records;
}
Json record_of(const Ended& end, const std::string& kind) {
  const std::vector<Json> records = records_of(end, kind);
  if (records.size() != 1)
    throw std::runtime_error("not one record " + kind + " in " + end.out + end.err);
  return records.front();
}

boost::test_tools::assertion_result has_two_gpus(boost::unit_test::test_unit_id) {
  std::string reason;
  boost::test_tools::assertion_result result(devices(reason).size() >= 2);
  result.message() << "one GPU, and NCCL takes one a rank";
  return result;
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_DATA_TEST_CASE(the_gpu_asserts_what_the_views_predict,
                     data::make({2, 4}) * data::make({4, 10}), tp, tokens) {
  const Ended end = repro({"--tp", std::to_string(tp), "--tokens", std::to_string(tokens)});
  BOOST_TEST(end.code == 5);
  const Json run = record_of(end, "device_run");
  BOOST_TEST(run["verdict"] == "device assert");
  BOOST_TEST(run["agrees"] == true);
  BOOST_TEST(run["kernel"] == "row_gather_kernel");
  BOOST_TEST(run["index"] == tokens - 1);
  BOOST_TEST(run["bound"] == (tokens + tp - 1) / tp);
  BOOST_TEST(run["row"] == 0);
  BOOST_TEST(run["block"] == Json({0, 0, 0}));
  BOOST_TEST(run["predicted"] == tp);
  BOOST_TEST((0 <= run["rank"] && run["rank"] < tp));
  BOOST_TEST(run["cuda_error"] == "cudaErrorAssert");
  BOOST_TEST(contains(run["noticed"], "cudaErrorAssert"));
  BOOST_TEST(contains(run["reached"], "step0/"));
  BOOST_TEST(contains(run["printed"], "\"index out of bounds\"` failed"));
  BOOST_TEST(record_of(end, "summary")["verdict"] == "device assert");
}

BOOST_DATA_TEST_CASE(a_silent_or_repaired_run_gives_the_numbers_of_the_cpu,
                     data::make({"--tp 4 --tokens 1", "--tp 4 --tokens 10 --repaired",
                                 "--repaired"}) ^
                         data::make({1, 0, 0}),
                     words, code) {
  std::istringstream in(words);
  const Ended end = repro({std::istream_iterator<std::string>(in), {}});
  BOOST_TEST(end.code == code);  // the views say that the silent one is wrong
  const Json run = record_of(end, "device_run");
  BOOST_TEST(run["verdict"] == "match");
  BOOST_TEST(run["agrees"] == true);
  BOOST_TEST(run["predicted"] == 0);
  BOOST_TEST(run["taps"] > 100);
  BOOST_TEST(run["observed"] <= run["allowed"]);
}

BOOST_AUTO_TEST_CASE(the_lines_for_people_name_assert_and_prediction) {
  const Ended end = repro({"--tp", "4", "--tokens", "10"}, false);
  BOOST_TEST(end.code == 5);
  for (const std::string part :
       {"device-side assert in row_gather_kernel\n", "found   index 9 out of bounds for 3 rows",
        "noticed tp=", "cudaErrorAssert", "views   index 9 out of bounds for 3 rows",
        "verdict device assert: the predicted one\n"})
    BOOST_TEST(contains(end.out, part), part);
}

BOOST_AUTO_TEST_CASE(over_nccl_every_rank_asserts_and_none_hangs,
                     *boost::unit_test::precondition(has_two_gpus)) {
  const auto start = std::chrono::steady_clock::now();
  const Ended end = repro({"--tp", "2", "--tokens", "10", "--comm", "nccl"});
  BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(30)));
  BOOST_TEST(end.code == 5, end.err);
  const std::vector<Json> runs = records_of(end, "device_run");
  BOOST_REQUIRE(runs.size() == 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    BOOST_TEST(runs[rank]["verdict"] == "device assert");
    BOOST_TEST(runs[rank]["agrees"] == true);
    BOOST_TEST(runs[rank]["rank"] == rank);
    BOOST_TEST(runs[rank]["index"] == 9);
    BOOST_TEST(runs[rank]["bound"] == 5);
  }
}

BOOST_AUTO_TEST_CASE(over_nccl_the_repaired_run_gives_the_numbers_of_the_cpu,
                     *boost::unit_test::precondition(has_two_gpus)) {
  const Ended end = repro({"--tp", "2", "--tokens", "10", "--repaired", "--comm", "nccl"});
  BOOST_TEST(end.code == 0, end.err);
  for (const Json& run : records_of(end, "device_run")) BOOST_TEST(run["verdict"] == "match");
}

}  // namespace tokenview
