// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "verify/requests.hpp"
#include "verify/token_view.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

std::string usage_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

}  // namespace

BOOST_DATA_TEST_CASE(shards_join_to_the_rows, data::make({1, 2, 3, 4, 8}) * data::xrange(0, 14), p,
                     tokens) {
  Rows padded = Rows::tokens(tokens);
  const std::int64_t shard = (tokens + p - 1) / p;
  padded.append_pads(shard * p - tokens);
  Rows joined;
  for (std::int64_t r = 0; r < p; ++r) joined.append(padded.slice(r * shard, (r + 1) * shard));
  BOOST_TEST((joined == padded));
  BOOST_TEST((joined.slice(0, tokens) == Rows::tokens(tokens)));
}

/// Outlives the memory that rows are kept in: the program must still end well.
const Rows static_rows = Rows::tokens(3);

BOOST_AUTO_TEST_CASE(rows_of_static_storage_are_rows) { BOOST_TEST(static_rows.size() == 3); }

BOOST_AUTO_TEST_CASE(pads_may_cover_several_ranks) {
  Rows padded = Rows::tokens(5);
  padded.append_pads(3);
  std::string map;
  for (std::int64_t r = 0; r < 4; ++r) map += to_map(padded.slice(2 * r, 2 * r + 2));
  BOOST_TEST(map == "[0,1][2,3][4,PAD][PAD,PAD]");
}

BOOST_AUTO_TEST_CASE(equal_rows_have_equal_encodings_however_they_were_made) {
  Rows one = Rows::tokens(6), two;
  two.append(one.slice(0, 2));
  two.append(one.slice(2, 6));
  BOOST_TEST((one == two));
  BOOST_TEST(two.runs().size() == 1u);
}

BOOST_AUTO_TEST_CASE(rows_of_different_tokens_mix) {
  const Rows whole = Rows::tokens(6);
  const Rows rows = mixed(whole.slice(0, 3), parse_rows("0,4,2"));
  BOOST_TEST(to_map(rows) == "[0,MIX,2]");
  BOOST_TEST(first_difference(whole.slice(0, 3), parse_rows("0,4,2")) == 1);
}

BOOST_DATA_TEST_CASE(what_is_printed_is_read_back,
                     data::make({"0-2", "9,PAD*2", "d1:0-3,MIX", "step2:4,5", "PAD", ""}), text) {
  BOOST_TEST(to_string(parse_rows(text)) == text);
  BOOST_TEST((parse_rows(to_map(parse_rows(text))) == parse_rows(text)));
}

BOOST_DATA_TEST_CASE(nonsense_rows_are_refused,
                     data::make({"x", "3-1", "0,,1", "[0", "0]", "PAD*", "d:0", "-1",
                                 "99999999999"}),
                     text) {
  BOOST_TEST(usage_error_of([&] { parse_rows(text); }).find(text) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(all_summands_once_are_the_complete_value) {
  Completeness sum = Completeness::summand(0, 3);
  BOOST_TEST(to_string(sum) == "partial 0/3");
  BOOST_TEST(sum.add(Completeness::summand(2, 3)));
  BOOST_TEST(to_string(sum) == "partial 0,2/3");
  BOOST_TEST(sum.add(Completeness::summand(1, 3)));
  BOOST_TEST(sum.is_complete());
}

BOOST_AUTO_TEST_CASE(a_complete_value_reduced_again_is_counted) {
  Completeness sum = Completeness::complete();
  for (int rank = 1; rank < 4; ++rank) BOOST_TEST(sum.add(Completeness::complete()));
  BOOST_TEST(to_string(sum) == "x4");
  BOOST_TEST(!sum.is_complete());
}

BOOST_AUTO_TEST_CASE(a_complete_and_a_partial_value_do_not_add_up) {
  Completeness sum = Completeness::complete();
  BOOST_TEST(!sum.add(Completeness::summand(0, 2)));
}

BOOST_AUTO_TEST_CASE(summands_of_every_dp_rank_leave_a_partial_over_tp) {
  // Experts over dp = 2, tp = 2: after the sum over dp, rank tp = 1 holds the summands 1 and 3
  // of 4.
  Completeness sum = Completeness::summand(1, 4);
  BOOST_TEST(sum.add(Completeness::summand(3, 4)));
  BOOST_TEST((sum == Completeness::summand(1, 2)));
}

BOOST_AUTO_TEST_CASE(requests_are_read_in_all_their_forms) {
  const auto everywhere = parse_requests("10", 2);
  BOOST_TEST(everywhere.size() == 2u);
  BOOST_TEST(everywhere[1][0].tokens == 10);
  BOOST_TEST(parse_requests("3,5", 2)[1][0].tokens == 5);
  const auto full = parse_requests("4+6/2+3c8v2r1", 2);
  BOOST_TEST(full[0].size() == 2u);
  BOOST_TEST(full[1][1].context == 8);
  BOOST_TEST(full[1][1].verified == 2);
  BOOST_TEST(full[1][1].rejected == 1);
  const auto inputs = inputs_of(full);
  BOOST_TEST(inputs[1].step.num_tokens() == 5);
  BOOST_TEST(inputs[1].context.num_tokens() == 8);
  BOOST_TEST(inputs[1].step.positions.back() == 10);
  BOOST_TEST(sample_rows(inputs[1].step, inputs[1].rejected).rows.back() == 3);
}

BOOST_DATA_TEST_CASE(nonsense_requests_are_refused,
                     data::make({"", "x", "3,5,7", "3/4,5", "2v2", "3v1r2", "4+", "-1", "1e9",
                                 "3;4"}),
                     text) {
  BOOST_TEST(usage_error_of([&] { parse_requests(text, 2); }).starts_with("requests"));
}

}  // namespace tokenview
