// SPDX-License-Identifier: Apache-2.0
// What is to blame: from the taps of a dump alone.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "reference/program/presets.hpp"
#include "tests/boost_test.hpp"
#include "verify/blame.hpp"
#include "verify/requests.hpp"

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

}  // namespace
}  // namespace tokenview
