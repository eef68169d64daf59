// SPDX-License-Identifier: Apache-2.0
// The parent's side of a scenario's run on a GPU; the processes are scripts.
#include "tests/boost_test.hpp"
#include "verify/device_repro.hpp"

namespace tokenview {
namespace {

Launch script(const std::string& text, double timeout = 30) {
  return {.command = {"/bin/sh", "-c", text}, .timeout = timeout};
}

const std::string line =
    R"({"unusable":"","device":"GPU 0","rank":null,"error":"tp=1 dp=0 pp=0: argmax: cudaErrorAssert",)"
    R"("is_gpu_error":true,"cuda_error":"cudaErrorAssert","reached":"step0/logits","taps":0,)"
    R"("values":0,"worst":0.5,"worst_tap":"","cpu_error":"","record":{"kernel":1,"rank":1,"row":0,)"
    R"("index":9,"bound":3,"block":[4,5,6],"thread":[7,8,9]}})";

/// What the error says that reading the end of `launch` throws.
std::string refusal(const Launch& launch) {
  try {
    device_ends(launch);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

Scenario shipped(const std::string& name) {
  return read_scenario(TOKENVIEW_SOURCE_DIR "/data/scenarios/" + name + ".json");
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_a_process_tells_is_read_and_what_its_assert_prints) {
  const auto ends =
      device_ends(script("echo 'x.cu:1: block: [0,0,0] Assertion `i < n` failed.' >&2\n"
                         "echo '" +
                         line + "'; exit 1"));
  BOOST_REQUIRE(ends.size() == 1);
  const DeviceEnd& end = ends.front();
  BOOST_TEST(end.device == "GPU 0");
  BOOST_TEST(end.cuda_error == "cudaErrorAssert");
  BOOST_TEST(end.reached == "step0/logits");
  BOOST_TEST(end.printed == "x.cu:1: block: [0,0,0] Assertion `i < n` failed.");
  BOOST_REQUIRE(end.record.has_value());
  BOOST_TEST(end.record->rank == 1);
  BOOST_TEST(end.record->index == 9);
  BOOST_TEST(end.record->bound == 3);
  BOOST_TEST(end.record->block[2] == 6);
  BOOST_TEST(end.record->thread[0] == 7);
  BOOST_TEST(!end.ran_to_its_end());
  BOOST_TEST(!end.matches_cpu());
}

BOOST_AUTO_TEST_CASE(a_process_that_tells_nothing_is_an_error_that_says_how_it_ended) {
  BOOST_TEST(refusal(script("kill -SEGV $$")).find("signal 11") != std::string::npos);
  BOOST_TEST(refusal(script("kill -KILL $$")).find("out of memory, perhaps") != std::string::npos);
  BOOST_TEST(refusal(script("sleep 60", 0.2)).find("no end after 0.2 s") != std::string::npos);
  BOOST_TEST(refusal(script("exit 3")) == "the process that ran on the GPU: ended with code 3");
  BOOST_TEST(refusal(script("echo 'tokenview: error: GPU 0: out of memory' >&2; exit 2")) ==
             "the process that ran on the GPU: GPU 0: out of memory");
}

BOOST_AUTO_TEST_CASE(words_that_are_no_end_are_an_error_that_quotes_them) {
  for (const std::string word : {"hello", "{}", "[1]", "{\"unusable\":3}"}) {
    BOOST_TEST_INFO(word);
    BOOST_TEST(refusal(script("echo '" + word + "'")) ==
               "the process that ran on the GPU said \"" + word + "\"");
  }
}

BOOST_AUTO_TEST_CASE(an_assert_is_the_predicted_one_where_rank_index_and_bound_are_equal) {
  Scenario s = shipped("vllm-48429");
  s.parallel.tp = 4;
  s.requests = {"10"};
  const auto predicted = predicted_asserts(run_scenario(s, s.broken).views.findings);
  BOOST_REQUIRE(predicted.size() == 4);
  AssertRecord record;
  record.rank = 3;
  record.index = 9;
  record.bound = 3;
  BOOST_TEST(is_predicted(record, predicted));
  for (std::int64_t AssertRecord::*const member :
       {&AssertRecord::rank, &AssertRecord::index, &AssertRecord::bound}) {
    AssertRecord other = record;
    other.*member += 1;
    BOOST_TEST(!is_predicted(other, predicted));
  }
}

BOOST_AUTO_TEST_CASE(the_silent_case_predicts_no_assert) {
  const Scenario s = shipped("vllm-48429-silent");
  BOOST_TEST(predicted_asserts(run_scenario(s, s.broken).views.findings).empty());
}

BOOST_AUTO_TEST_CASE(an_end_is_judged_by_what_the_views_predict) {
  const std::vector<PredictedAssert> due = {{coordinates_of(1, {.tp = 2}), 9, 5}};
  AssertRecord record;
  record.rank = 1;
  record.index = 9;
  record.bound = 5;
  DeviceEnd end{.record = record};
  BOOST_TEST(judged(end, due, true).agrees);
  BOOST_TEST(!judged(end, {}, true).agrees);

  end = {.taps = 3, .values = 30, .worst = 1e-6};
  BOOST_TEST(judged(end, {}, false).word == std::string("match"));
  BOOST_TEST(judged(end, {}, false).agrees);
  BOOST_TEST(!judged(end, due, false).agrees);  // the predicted assert has not come
  end.worst = 1e-3;
  BOOST_TEST(judged(end, {}, false).word == std::string("difference"));
  BOOST_TEST(!judged(end, {}, false).agrees);
  end = {};  // nothing compared
  BOOST_TEST(!judged(end, {}, false).agrees);

  end = {.device = "GPU 0", .error = "out of memory", .is_gpu_error = true};
  BOOST_CHECK_THROW(judged(end, {}, false), DeviceError);
  end.rank = 0;  // stopped by rank 1, which asserts
  BOOST_TEST(judged(end, due, true).agrees);
  end.rank = 1;  // which had to assert itself
  BOOST_TEST(!judged(end, due, true).agrees);

  end = {.error = "shapes"};  // as on the CPU, or only here
  BOOST_TEST(!judged(end, {}, false).agrees);
  end.cpu_error = "shapes";
  BOOST_TEST(judged(end, {}, false).agrees);
}

BOOST_AUTO_TEST_CASE(models_without_arithmetic_and_faults_of_values_are_not_for_a_gpu) {
  for (const char* name : {"vllm-48763", "sglang-18685", "mutant-m04c"}) {
    const Scenario s = shipped(name);
    BOOST_CHECK_THROW(require_on_gpu(s, s.broken), ConfigError);
  }
  const Scenario s = shipped("vllm-48429");
  BOOST_CHECK_NO_THROW(require_on_gpu(s, s.broken));
}

}  // namespace tokenview
