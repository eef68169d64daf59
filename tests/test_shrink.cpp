// SPDX-License-Identifier: Apache-2.0
// Configurations that fail, made small: what stays, what goes, and what is written.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"
#include "verify/requests.hpp"
#include "verify/scenario_text.hpp"
#include "verify/shrink.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

const std::string root = TOKENVIEW_SOURCE_DIR "/";

const std::vector<Scenario>& corpus() {
  static const std::vector<Scenario> all = read_scenarios(root + "data/scenarios");
  return all;
}

const Scenario& named(const std::string& name) { return find_scenario(corpus(), name); }

/// Two axes of two ranks each: docs/blame.md says why.
const std::set<std::string> larger = {
    "deferred-sum-twice", "gpt-neox-1281", "mutant-m07a", "mutant-m10b",     "mutant-m11",
    "mutant-m12a",        "sglang-28619",  "vllm-24021",  "vllm-32705",      "vllm-46635",
    "vllm-53191-stage",   "vllm-53191",    "vllm-55464",  "vllm-ascend-5416"};

BOOST_AUTO_TEST_CASE(the_corpus_shrinks_to_two_ranks_and_four_tokens) {
  for (const Scenario& scenario : corpus()) {
    BOOST_TEST_CONTEXT(scenario.name) {
      if (scenario.expect.check == "cost") {
        BOOST_CHECK_THROW(shrink(scenario), UsageError);  // nothing is wrong
        continue;
      }
      const Shrunk shrunk = shrink(scenario);
      const ConfigurationSize before = size_of(scenario), after = size_of(shrunk.scenario);
      BOOST_TEST((after.ranks <= 2 && after.tokens <= 4) != larger.contains(scenario.name));
      BOOST_TEST(after.ranks <= before.ranks);
      BOOST_TEST(after.tokens <= before.tokens);
      BOOST_TEST(after.layers <= before.layers);
      BOOST_TEST(after.experts <= before.experts);
      BOOST_TEST(after.draft_steps <= before.draft_steps);
      // It fails as before, and as the scenario that is written says; its repair does not.
      BOOST_TEST((*failure_of(shrunk.scenario) == *failure_of(scenario)));
      const Scenario read = parse_scenario(scenario_json(shrunk.scenario), "shrunk");
      std::string problem;
      BOOST_TEST(behaves_as_told(read, run_scenario(read, read.broken), problem), problem);
      BOOST_TEST(run_scenario(read, read.repaired).clean());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_large_configuration_shrinks_to_the_known_one) {
  Scenario large = named("vllm-48429");
  large.parallel.tp = 8;
  large.parallel.dp = 2;
  large.requests = {"300+17/5"};
  large.draft_steps = 3;
  large.target_runs = true;
  const Shrunk shrunk = shrink(large);
  BOOST_TEST(to_string(size_of(shrunk.scenario)) ==
             "2 ranks, 2 tokens, 1 layer, 2 experts, 1 draft step");
  BOOST_TEST(!shrunk.scenario.target_runs);
  BOOST_TEST(shrunk.scenario.expect.actual == "[0]");
  // Loud stays loud: one token would be silent.
  BOOST_TEST(failure_of(large)->loud);
  // Once more gives no more, and the same again.
  Scenario again = shrunk.scenario;
  BOOST_TEST(shrink(again).steps.empty());
  BOOST_TEST(scenario_json(shrink(large).scenario) == scenario_json(shrunk.scenario));
}

BOOST_AUTO_TEST_CASE(faults_that_do_not_matter_go_and_layers_move_down) {
  Scenario s = named("megatron-7452");
  s.broken.faults.front().at = "model.layers.3";
  InjectedFault other;
  other.act = FaultAct::repeat;
  other.op = "trim";
  other.at = "nowhere";
  s.draft_steps = 2;
  const Shrunk shrunk = shrink(s);
  BOOST_TEST(size_of(shrunk.scenario).layers == 1);
  BOOST_TEST(shrunk.scenario.broken.faults.front().at == "model.layers.0");
  BOOST_TEST(shrunk.scenario.draft_steps == 0);
  // A fault that never meets its place makes no scenario.
  s.broken.faults.push_back(other);
  BOOST_CHECK_THROW(shrink(s), ConfigError);
}

BOOST_AUTO_TEST_CASE(a_clean_configuration_has_nothing_to_shrink) {
  Scenario s = named("vllm-48429");
  s.broken = s.repaired;
  BOOST_CHECK_EXCEPTION(shrink(s), UsageError, [](const UsageError& error) {
    return contains(error.what(), "vllm-48429 is clean");
  });
}

BOOST_AUTO_TEST_CASE(every_scenario_is_written_as_it_was_read) {
  for (const Scenario& s : corpus()) {
    BOOST_TEST_CONTEXT(s.name) {
      const std::string text = scenario_json(s);
      const Scenario read = parse_scenario(text, s.name);
      BOOST_TEST(scenario_json(read) == text);
      BOOST_TEST(read.blind.size() == s.blind.size());
      std::string problem;
      BOOST_TEST(behaves_as_told(read, run_scenario(read, read.broken), problem), problem);
      if (s.expect.check != "cost") BOOST_TEST(run_scenario(read, read.repaired).clean());
    }
  }
}

BOOST_DATA_TEST_CASE(requests_are_written_as_they_are_read,
                     data::make({"10", "0/4", "4+6/2+3c8v2r1", "1c4+1c4/0"}), text) {
  const std::string requests = text;
  const std::int64_t dp = contains(requests, "/") ? 2 : 1;
  BOOST_TEST(to_string(parse_requests(requests, dp)) == requests);
}

BOOST_AUTO_TEST_CASE(the_program_writes_a_scenario_and_a_test) {
  const TemporaryFolder folder;
  const std::string scenario = folder.file("small.json"), test = folder.file("small.cpp");
  const Ended ended =
      run({"shrink", "--protocol", "B", "--tp", "4", "--dp", "2", "--ep", "--tokens", "40",
           "--draft-steps", "2", "--out", scenario, "--boost-test", test});
  BOOST_TEST(ended.code == 1);
  BOOST_TEST(ended.err == "");
  BOOST_TEST(contains(ended.out, "to      2 ranks, 2 tokens, 1 layer, 2 experts, 1 draft step"));
  BOOST_TEST(contains(ended.out, "suggest gather hidden and residual"));
  BOOST_TEST(contains(read_bytes(test), "parse_scenario(R\"json({"));

  const Ended repro = run({"repro", scenario});
  BOOST_TEST(repro.code == 1);
  BOOST_TEST(contains(repro.out, "mtp exit: MTP hidden: expected [0,1], actual [0]"));
  BOOST_TEST(run({"repro", scenario, "--repaired"}).code == 0);
  BOOST_TEST(run({"shrink", scenario}).code == 1);

  const Ended records = run({"shrink", scenario, "--format", "jsonl"});
  BOOST_TEST(records.code == 1);
  std::istringstream lines(records.out);
  std::vector<std::string> kinds;
  for (std::string line; std::getline(lines, line);)
    kinds.push_back(nlohmann::json::parse(line).at("kind"));
  BOOST_TEST_REQUIRE(kinds.size() >= 2u);
  BOOST_TEST(kinds[0] == "start");
  BOOST_TEST(kinds[1] == "finding");  // of the case that follows
  BOOST_TEST((std::ranges::count(kinds, "case") == 1));
  BOOST_TEST((std::ranges::count(kinds, "repair") >= 1));
  BOOST_TEST(kinds.back() == "summary");
}

struct Refused {
  std::vector<std::string> arguments;
  std::string says;
};
std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.says; }
const Refused refusals[] = {
    {{"shrink", "nothing.json"}, "nothing.json"},
    {{"shrink", "vllm-4842"}, "did you mean vllm-48429?"},
    {{"shrink", "vllm-48429", "--tp", "4"}, "--tp"},
    {{"shrink", "--protocol", "D", "--tp", "2", "--ep"}, "is clean"},
    {{"shrink", "--protocol", "B", "--ep", "--numeric"}, "on token views"},
    {{"shrink", "vllm-48429", "--out", "/nowhere/x.json"}, "/nowhere/x.json: cannot be written"},
};

BOOST_DATA_TEST_CASE(what_cannot_be_shrunk_is_refused_in_a_line, data::make(refusals), refused) {
  const Ended ended = run(refused.arguments);
  BOOST_TEST(ended.code == 2);
  BOOST_TEST(ended.error_lines() == 1);
  BOOST_TEST(contains(ended.err, refused.says), ended.err);
}

}  // namespace
}  // namespace tokenview
