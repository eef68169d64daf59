// SPDX-License-Identifier: Apache-2.0
// Injected faults, one by one: what each act does to views and to numbers, where it acts, and what
// is refused.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <nlohmann/json.hpp>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "verify/fault_text.hpp"
#include "verify/number_run.hpp"
#include "verify/requests.hpp"
#include "verify/scenario.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

/// Two layers, one of each mixer, and an MTP layer.
const ModelConfig& small_model() {
  static const ModelConfig config = [] {
    ModelConfig c = *preset("qwen3.5-moe");
    c.num_hidden_layers = 2;
    c.layer_types = {LayerType::linear_attention, LayerType::full_attention};
    return c;
  }();
  return config;
}

/// A place to act in: protocol D on two ranks, an odd number of rows.
struct Place {
  ProtocolId protocol = ProtocolId::D;
  ParallelConfig parallel{.tp = 2, .dp = 1, .pp = 1, .enable_expert_parallel = true};
  std::vector<std::string> requests = {"5"};
  std::size_t draft_steps = 2;
  std::vector<std::int64_t> graph_sizes = {};
};

struct Outcome {
  ViewRunResult views;
  NumberRunResult numbers;
  std::vector<Finding> numeric;  // where the numbers leave those without the fault
  std::vector<std::int64_t> hits;
};

Outcome run_with(const std::string& fault, const Place& place = {}) {
  const ModelConfig& config = small_model();
  ParallelRun run{.config = config, .plan = plan_for(config, place.parallel, place.protocol)};
  run.draft_steps = place.draft_steps;
  run.runner.graph_sizes = place.graph_sizes;
  run.inputs = inputs_of(parse_requests(place.requests.front(), place.parallel.dp));
  for (std::size_t step = 1; step < place.requests.size(); ++step)
    run.later_steps.push_back(inputs_of(parse_requests(place.requests[step], place.parallel.dp)));
  const SeededWeights weights(config, 1);
  const ViewRunResult right_views = run_views(run, true);
  const NumberRunResult right = run_numbers<double>(run, weights);

  const std::vector<InjectedFault> faults{parse_fault(fault)};
  Outcome outcome;
  outcome.hits.assign(1, 0);
  run.faults = &faults;
  run.fault_hits = &outcome.hits;
  outcome.views = run_views(run, true);
  outcome.hits.assign(1, 0);
  outcome.numbers = run_numbers<double>(run, weights);
  outcome.numeric = number_findings(right_views, place.parallel, right, outcome.numbers, 1e-9);
  return outcome;
}

std::string first_of(const ViewRunResult& views) {
  return views.findings.empty() ? views.error
                                : text(to_string(views.findings.front().kind), ": ",
                                       to_string(views.findings.front()));
}

/// What a fault is seen as: a word of the first finding, or of what stopped the run.
struct Act {
  std::string fault, seen_as;
  bool changes_numbers = true;
  Place place = {};
};
std::ostream& operator<<(std::ostream& out, const Act& act) { return out << act.fault; }

const std::vector<Act>& acts() {
  static const std::vector<Act> all = {
      {"drop:reduce_scatter@model.layers.0",
       "rows: tp=0 dp=0 model.layers.0 add: y: expected [0,1,2], actual [0,1,2,3,4,PAD]"},
      {"drop:all_gather@model", "trim: 5 rows of 3"},
      {"drop:all_reduce@model", "rms_norm: x: expected complete, actual partial 0/2"},
      {"repeat:all_reduce@model", "sum: result: expected complete, actual x2"},
      {"replace:reduce_scatter@model.layers.0,with=all_reduce",
       "add: y: expected [0,1,2], actual [0,1,2,3,4,PAD]"},
      {"replace:reduce_scatter@model.layers.0,tp=1,with=all_reduce",
       "ranks differ in the operation"},
      {"before:reduce_scatter@model.layers.1,with=all_reduce",
       "model.layers.1 sum: result: expected complete, actual x2"},
      {"after:trim@mtp,with=all_reduce", "mtp sum: result: expected complete, actual x2"},
      {"after:output@model.layers.1.mlp,with=prefix", "add: y: expected [0,1,2], actual [0,1]"},
      {"group:reduce_scatter@model.layers.0,with=dp",
       "add: y: expected [0,1,2], actual [0,1,2,3,4,PAD]"},
      {"axis:all_gather@model.layers.1", "concat: parts: expected [0,1,2], actual [3,4,PAD]"},
      {"order:all_gather@model.layers.1,with=reverse",
       "trim: x: expected pads after the rows kept, actual [2]"},
      {"order:all_gather@model.layers.1,with=rotate",
       "trim: x: expected pads after the rows kept, actual [2]"},
      {"order:all_gather@model.layers.1,with=round_robin",
       "rope: x: expected [0,1,2,3,4], actual [0,2,4,1,3]"},
      {"order:all_gather_v@model.layers.0.mlp,with=tp_major",
       "add: y: expected [d1:0,d1:1,3], actual [3,4,PAD]",
       true,
       {.parallel = {.tp = 2, .dp = 2, .pp = 1, .enable_expert_parallel = true},
        .requests = {"5/3"}}},
      {"count:trim@model,number=-1", "trim: x: expected pads after the rows kept, actual [4,PAD]"},
      {"count:pad_rows@model.layers.0,number=2", "add: y: expected [0,1,2], actual [0,1,2,3]"},
      {"sizes:all_gather_v@model.layers.0.mlp,numbers=2+4",
       "rank 0 brought 3 rows, its size says 2"},
      {"stale:chunk@mtp", "trim: x: expected pads after the rows kept, actual [1,2,3,4,PAD]"},
      {"stale:output@mtp.norm",
       "mtp trim: x: expected pads after the rows kept, actual [1,2,3,4,PAD]"},
      {"poison:pad_rows@model.layers.0,with=nan", "pads: tp=1 dp=0 model.layers.0 sum: parts",
       false},
      {"poison:chunk@mtp,with=large", "pads: tp=1 dp=0 mtp.layers.0.mlp.gate route: logits", false},
      {"leave:all_gather@mtp,tp=1", "tp=1 (rank 1) has ended"},
      {"rows:chunk@mtp,with=prefix", "trim: x: expected pads after the rows kept, actual [2]"},
      {"rows:chunk@mtp,with=floor", "trim: x: expected pads after the rows kept, actual [4]"},
      {"rows:chunk@mtp,with=round_robin", "ranks differ in the element count"},
      {"rows:output@model.layers.1.self_attn.v_proj,with=reverse",
       "attention: v: expected [0,1,2,3,4], actual [4,3,2,1,0]"},
      {"rows:output@model.layers.0.mlp,with=repeat_last",
       "add: y: expected [0,1,2], actual [0,1,1]"},
      {"rows:draft_ids,with=shift_in_shards",
       "MTP ids: expected [0,1,2,3,4], actual [0,1,MIX,3,4]"},
      {"scale:output@model.layers.0.mlp,factor=2", "add: y: expected complete, actual x2"},
      {"scale:output@model.layers.1.self_attn,factor=0.5",
       "sum: result: expected complete, actual x1/2"},
      {"scale:output@model.layers.1.self_attn,factor=-1",
       "add: y: expected [0,1,2], actual [MIX,MIX,MIX]"},
      {"scale:output@model.layers.1.self_attn,factor=1.5,tp=1",
       "sum: parts: expected partial 0/2, actual partial 1*3/2/2"},
      {"set:skips_rejected,number=0",
       "index_rows: x: expected [1], actual [2]",
       true,
       {.requests = {"3c4v2r1"}}},
      {"set:feeds_normed_hidden,number=0",
       "stage: tp=0 dp=0 mtp exit: MTP input: expected after the norm"},
      {"set:commits_accepted,number=0",
       "state: expected 6 tokens, actual 7 tokens",
       true,
       {.requests = {"3c4v2r1", "2c6"}}},
      {"set:accepted_rows,number=1",
       "state: expected 6 tokens, actual 5 tokens",
       true,
       {.requests = {"3c4v2r1", "2c6"}}},
      {"set:masks_vocabulary@mtp,number=0",
       "bounds: tp=0 dp=0 mtp embed: ids: expected id < 96 rows"},
      {"side:batch@*.self_attn,with=positions shard",
       "side: tp=0 dp=0 model.layers.1.self_attn attention: positions"},
      {"side:batch@*.linear_attn,with=boundaries merged",
       "gated_delta_net: boundaries: expected [0,3,5], actual [0,5]",
       true,
       {.requests = {"3+2"}}},
      {"side:batch@*.linear_attn,with=boundaries padded",
       "gated_delta_net: positions: expected [0,1,2,3,4,PAD,PAD,PAD,PAD]",
       false,
       {.requests = {"5"}, .graph_sizes = {8}}},
      {"side:batch@*.self_attn,with=slots first",
       "attention: slots: expected [0], actual [0,0,0,0,0]",
       true,
       {.requests = {"5"}, .graph_sizes = {8}}},
      {"side:batch@*.self_attn,with=slots unguarded",
       "bounds: tp=0 dp=0 model.layers.1.self_attn attention: slots",
       true,
       {.requests = {"5"}, .graph_sizes = {8}}},
      {"side:batch@*.mlp,with=local row counts",
       "experts: row counts: expected [5,2], actual [5,5]",
       true,
       {.parallel = {.tp = 2, .dp = 2, .pp = 1, .enable_expert_parallel = true},
        .requests = {"5/2"}}},
      {"side:batch@*.mlp,with=row counts,numbers=4+4",
       "experts: row counts: expected [5,2], actual [4,4]",
       true,
       {.parallel = {.tp = 2, .dp = 2, .pp = 1, .enable_expert_parallel = true},
        .requests = {"5/2"}}},
      {"side:batch@*.self_attn,with=tokens,number=1",
       "attention: positions: expected [0,1,2,3,4], actual [0,1,2,3,4,PAD]"},
  };
  return all;
}

}  // namespace

BOOST_DATA_TEST_CASE(an_act_is_seen_for_what_it_is, data::make(acts()), act) {
  const Outcome outcome = run_with(act.fault, act.place);
  BOOST_TEST(outcome.hits[0] > 0);
  BOOST_TEST(first_of(outcome.views).find(act.seen_as) != std::string::npos,
             "found " << first_of(outcome.views) << ", expected " << act.seen_as);
  BOOST_TEST(outcome.numeric.empty() == !act.changes_numbers);
}

namespace {

/// A fault that does nothing counts how often its place is met.
std::int64_t times_met(const std::string& where) {
  const Place place{.parallel = {.tp = 2, .dp = 2, .pp = 1, .enable_expert_parallel = true},
                    .requests = {"5/3", "1c5/1c3"}};
  return run_with("scale:output@" + where, place).hits[0];
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_fault_acts_where_and_when_it_is_told_to) {
  // Four ranks, two engine steps, two draft passes in each.
  BOOST_TEST(times_met("model.norm") == 4 * 2);
  BOOST_TEST(times_met("mtp.norm") == 4 * 2 * 2);
  BOOST_TEST(times_met("mtp.norm,tp=1") == 2 * 2 * 2);
  BOOST_TEST(times_met("mtp.norm,dp=0,tp=1") == 2 * 2);
  BOOST_TEST(times_met("mtp.norm,step=1") == 4 * 2);
  BOOST_TEST(times_met("mtp.norm,draft=1") == 4 * 2);
  BOOST_TEST(times_met("*norm,draft=-1,tp=0,dp=0,step=0") ==
             times_met("model*norm,tp=0,dp=0,step=0"));
  BOOST_TEST(times_met("mtp.norm,occurrence=3") == 4);
  BOOST_TEST(times_met("mtp.norm,occurrence=5") == 0);
  BOOST_TEST(times_met("mtp.norm,step=2") == 0);
  BOOST_TEST(times_met("model.layers.?.input_layernorm") == 4 * 2 * 2);
}

BOOST_AUTO_TEST_CASE(a_fault_that_never_meets_its_place_is_an_error) {
  const std::vector<InjectedFault> faults{parse_fault("drop:all_gather@mtp.layers.7")};
  BOOST_CHECK_EXCEPTION(require_met(faults, {0}, {}, "run"), ConfigError, [](const auto& error) {
    const std::string message = error.what();
    return message.find("drop:all_gather@mtp.layers.7") != std::string::npos &&
           message.find("never met its place") != std::string::npos;
  });
  BOOST_CHECK_NO_THROW(require_met(faults, {1}, {}, "run"));
  ViewRunResult stopped;  // the place may have been further on
  stopped.error = "shapes";
  BOOST_CHECK_NO_THROW(require_met(faults, {0}, stopped, "run"));
}

namespace {

struct Nonsense {
  std::string fault;
  std::vector<std::string> named;  // in the message
};
std::ostream& operator<<(std::ostream& out, const Nonsense& n) { return out << n.fault; }

const std::vector<Nonsense> nonsense = {
    {"", {"act", "one of"}},
    {"drop", {"op"}},
    {"explode:all_reduce", {"act", "explode", "one of"}},
    {"dorp:all_reduce", {"act", "dorp", "drop"}},
    {"drop:all_reduce,with", {"with", "no value"}},
    {"drop:all_reduce,tp=left", {"tp", "left"}},
    {"drop:all_reduce,tp=1.5", {"tp", "1.5"}},
    {"drop:all_reduce,tp=-2", {"tp", "-2"}},
    {"drop:all_reduce,dp=-2", {"dp", "-2"}},
    {"drop:all_reduce,pp=-2", {"pp", "-2"}},
    {"drop:all_reduce,occurrence=-1", {"occurrence", "-1"}},
    {"drop:all_reduce,step=-2", {"step", "-2"}},
    {"drop:all_reduce,draft=-3", {"draft", "-3"}},
    {"drop:all_reduce,group=tq", {"group", "tq", "tp"}},
    {"drop:all_reduce,colour=1", {"colour", "no such key"}},
    {"replace:all_gather,with=all_redcue", {"with", "all_redcue", "all_reduce"}},
    {"order:all_gather", {"with", "one of"}},
    {"poison:pad_rows,with=zeros", {"with", "zeros", "one of"}},
    {"side:batch,with=slots", {"with", "slots", "one of"}},
    {"sizes:all_gather_v", {"numbers"}},
    {"sizes:all_gather_v,numbers=2+x", {"2+x"}},
};

}  // namespace

BOOST_DATA_TEST_CASE(nonsense_is_refused_with_its_key, data::make(nonsense), sample) {
  BOOST_CHECK_EXCEPTION(parse_fault(sample.fault), UsageError, [&](const auto& error) {
    for (const std::string& word : sample.named)
      if (std::string(error.what()).find(word) == std::string::npos) {
        BOOST_TEST_MESSAGE(error.what());
        return false;
      }
    return true;
  });
}

BOOST_AUTO_TEST_CASE(a_fault_of_a_scenario_is_refused_with_its_key) {
  const auto read = [](const char* json) {
    return read_fault(JsonSection(nlohmann::json::parse(json), "faults[0]", "file.json"));
  };
  BOOST_TEST(to_string(read(R"({"act": "drop", "op": "trim"})")) == "drop:trim");
  for (const auto& [json, key] : std::vector<std::pair<const char*, const char*>>{
           {R"({"op": "trim"})", "act"},
           {R"({"act": "drop"})", "op"},
           {R"({"act": 3, "op": "trim"})", "act"},
           {R"({"act": "drop", "op": "trim", "tp": "1"})", "tp"},
           {R"({"act": "scale", "op": "output", "factor": "2"})", "factor"},
           {R"({"act": "sizes", "op": "all_gather_v", "numbers": [1, "2"]})", "numbers"},
           {R"({"act": "drop", "op": "trim", "where": "mtp"})", "where"}})
    BOOST_CHECK_EXCEPTION(read(json), ConfigError, [key = key](const auto& error) {
      return std::string(error.what()).find(key) != std::string::npos;
    });
}

BOOST_AUTO_TEST_CASE(a_fault_is_written_as_it_is_read) {
  for (const Act& act : acts()) {
    const std::string written = to_string(parse_fault(act.fault));
    BOOST_TEST(to_string(parse_fault(written)) == written);
  }
  const std::string all =
      "count:all_gather_v@mtp.*,group=ep,tp=1,dp=0,pp=2,occurrence=3,step=4,draft=-1,number=-2";
  BOOST_TEST(to_string(parse_fault(all)) == all);
  const std::string set = "set:tokens,number=0";
  BOOST_TEST(to_string(parse_fault(set)) == set);
}

}  // namespace tokenview
