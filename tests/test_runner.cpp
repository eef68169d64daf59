// SPDX-License-Identifier: Apache-2.0
// What a model runner does to batches: graph and data-parallel padding, idle ranks, draft passes.
#include "reference/program/runner.hpp"
#include "tests/boost_test.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

/// The batches of "3/5" and so on, prepared.
std::vector<Batch> prepared(const std::string& requests, std::int64_t dp,
                            const RunnerOptions& options) {
  std::vector<StepInputs> inputs = inputs_of(parse_requests(requests, dp));
  std::vector<Batch*> batches;
  std::vector<std::vector<std::int32_t>> rejected;
  for (StepInputs& of_rank : inputs) {
    batches.push_back(&of_rank.step);
    rejected.push_back(of_rank.rejected);
  }
  prepare_step(batches, rejected, options);
  std::vector<Batch> steps;
  for (const StepInputs& of_rank : inputs) steps.push_back(of_rank.step);
  return steps;
}

using Counts = std::vector<std::int64_t>;

}  // namespace

BOOST_AUTO_TEST_CASE(eager_ranks_keep_their_own_row_counts) {
  const auto steps = prepared("3/5", 2, {});
  BOOST_TEST(steps[0].tokens_across_dp == (Counts{3, 5}), boost::test_tools::per_element());
  BOOST_TEST(steps[0].num_tokens() == 3);
  BOOST_TEST(steps[1].num_tokens() == 5);
}

BOOST_AUTO_TEST_CASE(graph_ranks_take_the_largest_capture_size) {
  const auto steps = prepared("3/5", 2, {.graph_sizes = {1, 2, 4, 8}});
  for (const Batch& step : steps) {
    BOOST_TEST(step.num_tokens() == 8);
    BOOST_TEST(step.tokens_across_dp == (Counts{8, 8}), boost::test_tools::per_element());
  }
  BOOST_TEST(steps[0].num_real_tokens() == 3);
}

BOOST_AUTO_TEST_CASE(one_rank_beyond_the_largest_graph_makes_all_eager) {
  const auto steps = prepared("3/9", 2, {.graph_sizes = {1, 2, 4, 8}});
  BOOST_TEST(steps[0].num_tokens() == 3);
  BOOST_TEST(steps[1].num_tokens() == 9);
}

BOOST_AUTO_TEST_CASE(capture_sizes_are_multiples_of_a_verify_step_in_the_first_runner_alone) {
  RunnerOptions options{.graph_sizes = {1, 2, 4, 8}, .draft_steps = 2};
  BOOST_TEST(effective_graph_sizes(options) == (Counts{3, 6, 9}), boost::test_tools::per_element());
  options.version = RunnerVersion::V2;
  BOOST_TEST(effective_graph_sizes(options) == (Counts{1, 2, 4, 8}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_idle_rank_runs_a_dummy_of_one_verify_step) {
  const auto steps = prepared("0/4", 2, {.draft_steps = 3});
  BOOST_TEST(steps[0].num_tokens() == 4);  // K + 1
  BOOST_TEST(steps[0].num_real_tokens() == 0);
  BOOST_TEST(prepared("0/4", 2, {})[0].num_tokens() == 1);
  BOOST_TEST(prepared("0/0", 2, {})[0].num_tokens() == 0);  // nobody runs
  BOOST_TEST(prepared("0/4", 2, {.idle_rows = 0})[0].num_tokens() == 0);
}

BOOST_AUTO_TEST_CASE(later_draft_passes_have_a_row_a_request) {
  const RunnerOptions v1{.draft_steps = 2};
  BOOST_TEST(prepared("1+1+1/4", 2, v1)[0].requests_across_dp == (Counts{3, 1}),
             boost::test_tools::per_element());
  // An idle rank loops over its dummy, in the second runner over as many as the busiest rank has.
  BOOST_TEST(prepared("0/1+1", 2, v1)[0].requests_across_dp == (Counts{3, 2}),
             boost::test_tools::per_element());
  RunnerOptions v2 = v1;
  v2.version = RunnerVersion::V2;
  BOOST_TEST(prepared("0/1+1", 2, v2)[0].requests_across_dp == (Counts{2, 2}),
             boost::test_tools::per_element());
  v2.loop_of_most = true;
  BOOST_TEST(prepared("1+1+1/4", 2, v2)[0].requests_across_dp == (Counts{3, 3}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_drafter_that_is_not_padded_leaves_rejected_rows_out) {
  const auto steps = prepared("3c4v2r1+3c8v2r2/5", 2, {.draft_steps = 2, .padded_drafter = false});
  BOOST_TEST(steps[0].accepted_across_dp == (Counts{3, 5}), boost::test_tools::per_element());
  std::vector<std::int64_t> kept;
  const Batch accepted = accepted_rows(steps[0], {1, 2}, kept);
  BOOST_TEST(kept == (Counts{0, 1, 3}), boost::test_tools::per_element());
  BOOST_TEST(accepted.query_start_loc == (std::vector<std::int32_t>{0, 2, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(accepted.row_tokens == (Counts{0, 1, 3}), boost::test_tools::per_element());
}

}  // namespace tokenview
