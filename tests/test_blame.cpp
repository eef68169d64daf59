// SPDX-License-Identifier: Apache-2.0
// What is to blame, and the smallest repair: of runs, and from the taps of a dump alone.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "tests/consumer/late_norm.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/blame.hpp"
#include "verify/fault_text.hpp"
#include "verify/own_protocol.hpp"
#include "verify/requests.hpp"
#include "verify/scenario_repair.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

const ModelConfig& model() {
  static const ModelConfig config = *preset("qwen3.5-moe");
  return config;
}

ParallelRun run_of(ProtocolId protocol, const std::string& requests, std::int64_t tp,
                   std::size_t draft_steps = 1) {
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = true};
  return {.config = model(),
          .plan = plan_for(model(), parallel, protocol),
          .inputs = inputs_of(parse_requests(requests, 1)),
          .draft_steps = draft_steps};
}

/// What a dump of `run` holds, every view told.
std::vector<HeldTap> taps_of(const ParallelRun& run) {
  std::vector<HeldTap> taps;
  for (const NamedView& view : run_views(run, true).views) {
    HeldTap& tap = taps.emplace_back(HeldTap{view.name, {}});
    tap.by_rank.assign(view.by_rank.begin(), view.by_rank.end());
  }
  return taps;
}

GroupViews group(const std::vector<std::string>& rows) {
  GroupViews views;
  for (const std::string& each : rows) views.push_back({parse_rows(each), {}, {}});
  return views;
}

struct Placed {
  std::vector<std::string> rows;
  std::string words;
};
std::ostream& operator<<(std::ostream& out, const Placed& placed) { return out << placed.words; }
const Placed placements[] = {
    {{"0-3", "0-3"}, "full"},
    {{"0-3,PAD", "0-3,PAD"}, "full with pads"},
    {{"0,1", "2,PAD"}, "shard"},
    {{"0-2", "3,4"}, "shard"},
    {{"0", "PAD", "PAD"}, "shard"},
    {{"2,3", "0,1"}, "shard in another order"},
    {{"0,2", "1,3"}, "shard in another order"},
    {{"2,3,0,1", "2,3,0,1"}, "full in another order"},
    {{"0,1", "0,1,2"}, "other rows"},
    {{"0,MIX", "0,MIX"}, "mixed rows"},
    {{"1-3", "1-3"}, "other rows"},
};

BOOST_DATA_TEST_CASE(a_placement_has_a_word, data::make(placements), placed) {
  BOOST_TEST(placement_in_words(group(placed.rows)) == placed.words);
}

BOOST_AUTO_TEST_CASE(sums_and_columns_have_words) {
  GroupViews views = group({"0-3", "0-3"});
  views[0].sum = Completeness::summand(0, 2);
  views[1].sum = Completeness::summand(1, 2);
  BOOST_TEST(placement_in_words(views) == "partial");
  views[0].sum = views[1].sum = Completeness::complete(2);
  BOOST_TEST(placement_in_words(views) == "x2");
  views = group({"0-3", "0-3"});
  views[0].columns = {0, 1, 2};
  views[1].columns = {1, 2, 2};
  BOOST_TEST(placement_in_words(views) == "columns");
}

BOOST_AUTO_TEST_CASE(a_dump_of_the_missing_gather_is_blamed_at_the_exit_of_the_mtp_layer) {
  const auto taps = taps_of(run_of(ProtocolId::B, "10", 4));
  const AllowedViews allowed = allowed_views(run_of(ProtocolId::C, "10", 4));
  const auto blame = blame_taps(taps, allowed);
  BOOST_REQUIRE(!!blame);
  BOOST_TEST(to_string(*blame, taps[blame->tap]) ==
             "step0/mtp.norm: shard [0,1,2][3,4,5][6,7,8][9,PAD,PAD] where full "
             "[0,1,2,3,4,5,6,7,8,9][0,1,2,3,4,5,6,7,8,9][0,1,2,3,4,5,6,7,8,9][0,1,2,3,4,5,6,7,8,9] "
             "is required; right until step0/mtp.layers.0. Missing: gather over tp and trim to T");
}

BOOST_AUTO_TEST_CASE(without_the_protocol_any_right_one_is_allowed) {
  const ParallelRun broken = run_of(ProtocolId::B, "10", 4);
  const AllowedViews allowed = allowed_by_any_protocol(broken);
  for (const ProtocolId right : {ProtocolId::S, ProtocolId::A, ProtocolId::C, ProtocolId::D})
    BOOST_TEST(!blame_taps(taps_of(run_of(right, "10", 4)), allowed));
  // The norm may be on the shard (protocol D), so the first tap that leaves them all is the
  // logits'.
  const auto taps = taps_of(broken);
  const auto blame = blame_taps(taps, allowed);
  BOOST_REQUIRE(!!blame);
  BOOST_TEST(taps[blame->tap].name == "step0/logits");
}

BOOST_AUTO_TEST_CASE(values_that_differ_under_right_views_are_blamed) {
  auto taps = taps_of(run_of(ProtocolId::C, "4", 2));
  const AllowedViews allowed = allowed_views(run_of(ProtocolId::C, "4", 2));
  BOOST_TEST(!blame_taps(taps, allowed));
  taps[3].values_match = false;
  const auto blame = blame_taps(taps, allowed);
  BOOST_REQUIRE(!!blame);
  BOOST_TEST(blame->tap == 3u);
  BOOST_TEST(blame->rank == -1);
  BOOST_TEST(blame->after == taps[2].name);
}

BOOST_AUTO_TEST_CASE(what_is_not_known_says_nothing) {
  auto taps = taps_of(run_of(ProtocolId::B, "4", 2));
  const AllowedViews allowed = allowed_views(run_of(ProtocolId::C, "4", 2));
  for (HeldTap& tap : taps)
    if (tap.name.ends_with("mtp.norm")) tap.by_rank = {std::nullopt, tap.by_rank[1]};
  const auto blame = blame_taps(taps, allowed);
  BOOST_REQUIRE(!!blame);
  BOOST_TEST(blame->rank == 1);
  BOOST_TEST(blame->held == "");
  BOOST_TEST(blame->held_rows == "[?][2,3]");
  for (HeldTap& tap : taps)
    for (auto& view : tap.by_rank) view.reset();
  BOOST_TEST(!blame_taps(taps, allowed));
  BOOST_TEST(!blame_taps(taps_of(run_of(ProtocolId::B, "4", 2)), {}));
}

BOOST_AUTO_TEST_CASE(a_protocol_that_is_wrong_here_allows_nothing) {
  BOOST_TEST(allowed_views(run_of(ProtocolId::B, "4", 2)).empty());
}

/// The first suggestion for `run` with the faults of the command line, as edits.
std::string first_repair(ParallelRun run, const std::vector<std::string>& faults,
                         const RepairLimits& limits = {}) {
  std::vector<InjectedFault> injected;
  for (const std::string& fault : faults) injected.push_back(parse_fault(fault));
  run.faults = &injected;
  const RepairSearch found = find_repairs(run, limits);
  if (found.repairs.empty()) return "";
  std::string edits;
  for (const RepairEdit& edit : found.repairs.front().edits)
    edits += (edits.empty() ? "" : " ") + to_string(edit);
  return edits;
}

const std::string root = TOKENVIEW_SOURCE_DIR "/";

BOOST_AUTO_TEST_CASE(the_missing_gather_of_the_mtp_is_suggested_first) {
  for (const auto& [tokens, tp] : {std::pair{"10", 4}, {"4", 2}, {"1", 2}, {"5", 8}}) {
    ParallelRun run = run_of(ProtocolId::B, tokens, tp);
    run.target_runs = false;
    const RepairSearch found = find_repairs(run);
    BOOST_REQUIRE(!found.repairs.empty());
    const Repair& first = found.repairs.front();
    BOOST_TEST(first.words ==
               "gather hidden and residual (one all-gather of width 2H) and trim to T between "
               "mtp.layers.0 and mtp.norm");
    BOOST_TEST(first.holds);
    BOOST_TEST(found.complete);
    std::vector<InjectedFault> faults;
    BOOST_TEST(run_views(repaired(run, first.edits, faults), true).clean());
  }
  // Beside a target that is wrong at one token, which this repair leaves as it is.
  BOOST_TEST(first_repair(run_of(ProtocolId::B, "10", 4), {}) ==
             "after:layer_output@mtp.layers.0,with=gather");
}

BOOST_AUTO_TEST_CASE(a_run_hangs_on_what_it_hangs_on) {
  const auto hangs_on = [](ParallelRun run, const std::string& fault) {
    std::vector<InjectedFault> faults;
    if (!fault.empty()) faults.push_back(parse_fault(fault));
    run.faults = faults.empty() ? nullptr : &faults;
    const auto blame = blame_of(run);
    return blame ? blame->hangs_on : "";
  };
  const ParallelRun s = run_of(ProtocolId::S, "5", 2, 0), d = run_of(ProtocolId::D, "5", 2, 0);
  BOOST_TEST(hangs_on(s, "") == "");
  BOOST_TEST(hangs_on(run_of(ProtocolId::B, "5", 2), "") ==
             "reduce_scatter over tp in mtp.layers.0, after which nothing brings the other rows "
             "back");
  BOOST_TEST(hangs_on(s, "drop:all_reduce@model.layers.1,nth=1") ==
             "all_reduce over tp in model.layers.1, which is left out");
  BOOST_TEST(hangs_on(s, "repeat:all_reduce@model.layers.1,nth=2") ==
             "all_reduce over tp in model.layers.1");
  BOOST_TEST(hangs_on(d, "order:all_gather@model,with=reverse") == "trim in model");
  BOOST_TEST(hangs_on(d, "drop:trim@model.layers.1") == "trim in model.layers.1");
  BOOST_TEST(hangs_on(run_of(ProtocolId::D, "5", 2), "drop:trim@mtp") == "trim in mtp");
  BOOST_TEST(hangs_on(run_of(ProtocolId::D, "17", 4), "drop:trim@mtp") == "trim in mtp");
  BOOST_TEST(hangs_on(d, "replace:reduce_scatter@model.layers.0,tp=1,with=all_reduce")
                 .starts_with("reduce_scatter over tp in model.layers.0"));
  BOOST_TEST(hangs_on(d, "side:batch@*.self_attn,with=positions shard")
                 .find("that model.layers.3.self_attn is given") != std::string::npos);
}

struct Broken {
  ProtocolId protocol;
  std::vector<std::string> faults;
  std::string repair;
};
std::ostream& operator<<(std::ostream& out, const Broken& broken) {
  return out << to_string(broken.protocol) << (broken.faults.empty() ? "" : broken.faults.front());
}
const Broken breaks[] = {
    {ProtocolId::S,  // a sum left out, and one done twice
     {"drop:all_reduce@model.layers.1,nth=1"},
     "replace:all_reduce@model.layers.1,group=tp,nth=1,with=all_reduce"},
    {ProtocolId::S,
     {"repeat:all_reduce@model.layers.1,nth=2"},
     "drop:all_reduce@model.layers.1,group=tp,nth=2"},
    {ProtocolId::D,  // the wrong collective, in every layer
     {"replace:reduce_scatter@model.layers.*,with=all_reduce"},
     "replace:reduce_scatter@model.layers.*,group=tp,with=reduce_scatter"},
    {ProtocolId::D,  // no cut at the entry
     {"drop:chunk@model"},
     "after:chunk@model,with=chunk"},
    {ProtocolId::D,  // a gather whose pads stay
     {"drop:trim@model"},
     "after:all_gather@model,group=tp,with=trim"},
    {ProtocolId::D,  // along the wrong axis
     {"axis:all_gather@model"},
     "axis:all_gather@model,group=tp"},
    {ProtocolId::S,  // two faults: two changes
     {"drop:all_reduce@model.layers.0,nth=2", "repeat:all_reduce@model.layers.1,nth=2"},
     "after:output@model.layers.0.mlp,with=all_reduce "
     "drop:all_reduce@model.layers.1,group=tp,nth=2"},
};

BOOST_DATA_TEST_CASE(what_was_done_to_a_collective_is_undone_by_moves, data::make(breaks), broken) {
  RepairLimits limits;
  limits.as_written = false;
  BOOST_TEST(first_repair(run_of(broken.protocol, "5", 2, 0), broken.faults, limits) ==
             broken.repair);
}

BOOST_AUTO_TEST_CASE(a_protocol_of_ones_own_is_repaired_too) {
  const OwnProtocol own = own_protocol<FirstLateNorm>();
  ParallelRun run = run_of(ProtocolId::D, "1", 2, 0);
  run.own_protocol = &own;
  BOOST_TEST(first_repair(run, {}) == "after:layer_output@model.layers.3,with=gather");
  const OwnProtocol right = own_protocol<LateNorm>();
  run.own_protocol = &right;
  const RepairSearch none = find_repairs(run);
  BOOST_TEST(none.repairs.empty());
  BOOST_TEST(none.tried == 1);
}

BOOST_AUTO_TEST_CASE(a_repair_that_breaks_another_row_count_is_not_preferred) {
  // Of one row a sum can be scattered over one rank alone.
  ParallelRun run = run_of(ProtocolId::D, "4", 2, 0);
  const std::vector<InjectedFault> faults = {parse_fault("drop:chunk@model")};
  run.faults = &faults;
  for (const Repair& repair : find_repairs(run).repairs) {
    BOOST_TEST(repair.holds);
    BOOST_TEST(repair.words.find("reduce_scatter instead of all_reduce") == std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_search_that_runs_out_of_time_says_so) {
  RepairLimits limits;
  limits.seconds = 0;
  const RepairSearch found = find_repairs(run_of(ProtocolId::B, "10", 4), limits);
  BOOST_TEST(!found.complete);
  BOOST_TEST(found.repairs.empty());
}

BOOST_AUTO_TEST_CASE(suggestions_are_held_to_the_merged_repairs_of_all_scenarios) {
  std::vector<ScenarioRepair> repairs;
  for (const Scenario& scenario : read_scenarios(root + "data/scenarios")) {
    repairs.push_back(repair_of(scenario));
    BOOST_TEST(repairs.back().search.complete);
    // What is suggested is clean.
    const ModelConfig config = config_of(scenario);
    const ParallelRun broken = tokenview::run_of(scenario, scenario.broken, config);
    for (const Repair& repair : repairs.back().search.repairs) {
      std::vector<InjectedFault> faults;
      BOOST_TEST(run_views(repaired(broken, repair.edits, faults), true).clean());
    }
  }
  const RepairScore score = score_of(repairs);
  const std::int64_t right = score.verdicts[std::size_t(RepairVerdict::agree)] +
                             score.verdicts[std::size_t(RepairVerdict::equivalent)];
  BOOST_TEST(right * 100 >= 80 * std::int64_t(repairs.size()));
  BOOST_TEST((read_bytes(root + "docs/repairs.md") == repairs_page(repairs)),
             "docs/repairs.md is stale: tokenview repro --repairs > docs/repairs.md");
}

BOOST_AUTO_TEST_CASE(a_suggestion_that_sends_more_or_is_not_clean_elsewhere_differs) {
  const auto scenarios = read_scenarios(root + "data/scenarios");
  const Scenario& s = find_scenario(scenarios, "vllm-48429");
  const auto verdict = [&](const std::string& edit) {
    Repair repair;
    repair.edits = {parse_fault(edit)};
    return std::string(to_string(compare_with_merged(s, &repair).verdict));
  };
  BOOST_TEST(verdict("after:layer_output@mtp.layers.0,with=gather") == "agree");
  BOOST_TEST(verdict("after:output@mtp.norm,with=gather") == "equivalent");
  BOOST_TEST(verdict("after:output@mtp.norm,with=all_gather") == "differs");  // no trim at T = 5
  BOOST_TEST(to_string(compare_with_merged(s, nullptr).verdict) == std::string("none"));
}

}  // namespace
}  // namespace tokenview
