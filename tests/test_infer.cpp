// SPDX-License-Identifier: Apache-2.0
// What single rows and tensors are taken for, and what is said of them.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <limits>

#include "reference/program/bfloat16.hpp"
#include "tests/support.hpp"
#include "verify/infer.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Values = Matrix<float>;

/// Trusted tensors and what ranks hold of them.
struct Dump {
  std::vector<Values> trusted = {};  // of dp rank 0, 1, ...
  std::vector<Values> earlier = {};  // of dp rank 0 in steps 0, 1, ...
  std::vector<Values> ranks = {};
  std::vector<RankCoordinates> at = {};  // empty: unknown
  InferOptions options = {};

  InferredTap infer() const {
    std::vector<TrustedRows> of_dp;
    for (std::size_t dp = 0; dp < trusted.size(); ++dp)
      of_dp.push_back({std::int16_t(dp), options.step, span_of(trusted[dp]), trusted[dp].rows(),
                       trusted[dp].cols()});
    for (std::size_t step = 0; step < earlier.size(); ++step)
      of_dp.push_back({0, std::int32_t(step), span_of(earlier[step]), earlier[step].rows(),
                       earlier[step].cols()});
    std::vector<RankRows> held;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      held.push_back({at.empty() ? std::nullopt : std::optional(at[r]), span_of(ranks[r]),
                      ranks[r].rows(), ranks[r].cols()});
    return infer_placement(held, of_dp, options);
  }
  static std::span<const float> span_of(const Values& values) {
    return {values.data(), std::size_t(values.size())};
  }
};

Values some_rows(std::int64_t rows, std::int64_t columns, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  return random_matrix<float>(random, rows, columns);
}

/// Shards of ceil(T / p) rows, zeros after the last token.
std::vector<Values> shards_of(const Values& full, std::int64_t p) {
  const std::int64_t size = (full.rows() + p - 1) / p;
  Values padded = Values::Zero(size * p, full.cols());
  padded.topRows(full.rows()) = full;
  std::vector<Values> shards;
  for (std::int64_t r = 0; r < p; ++r) shards.emplace_back(padded.middleRows(r * size, size));
  return shards;
}

/// Random summands of `full`, one a rank.
std::vector<Values> summands_of(const Values& full, std::int64_t p) {
  std::vector<Values> summands;
  Values rest = full;
  for (std::int64_t r = 0; r + 1 < p; ++r) {
    summands.push_back(some_rows(full.rows(), full.cols(), 100 + std::uint64_t(r)));
    rest -= summands.back();
  }
  summands.push_back(rest);
  return summands;
}

std::vector<RankCoordinates> tp_ranks(std::int64_t p) {
  std::vector<RankCoordinates> ranks;
  for (std::int64_t r = 0; r < p; ++r) ranks.push_back(coordinates_of(r, {.tp = p}));
  return ranks;
}

std::vector<std::string> views_of(const InferredTap& tap) {
  std::vector<std::string> views;
  for (const InferredRank& rank : tap.ranks) views.push_back(to_string(rank.view, tap.step));
  return views;
}

std::int64_t num_ambiguous(const InferredTap& tap) {
  std::int64_t count = 0;
  for (const InferredRank& rank : tap.ranks)
    for (const InferredRow& row : rank.rows) count += row.is_ambiguous();
  return count;
}

/// Whether all rows are sure, and none ambiguous.
bool is_sure(const InferredTap& tap) {
  for (const InferredRank& rank : tap.ranks)
    for (const InferredRow& row : rank.rows)
      if (!row.is_sure() || row.is_ambiguous()) return false;
  return true;
}

constexpr std::int64_t width = 48;
using Views = std::vector<std::string>;

}  // namespace

// Shards -----------------------------------------------------------------------------------------

struct Shards {
  std::int64_t tokens;
  Views views;
};
std::ostream& operator<<(std::ostream& out, const Shards& s) { return out << s.tokens; }

BOOST_DATA_TEST_CASE(shards_of_any_length_are_read,
                     data::make(std::vector<Shards>{{0, {"", "", "", ""}},
                                                    {2, {"0", "1", "PAD", "PAD"}},
                                                    {3, {"0", "1", "2", "PAD"}},
                                                    {4, {"0", "1", "2", "3"}},
                                                    {5, {"0-1", "2-3", "4,PAD", "PAD*2"}},
                                                    {10, {"0-2", "3-5", "6-8", "9,PAD*2"}}}),
                     sample) {
  for (const bool known : {true, false}) {
    Dump dump{{some_rows(sample.tokens, width)}};
    dump.ranks = shards_of(dump.trusted[0], 4);
    if (known) dump.at = tp_ranks(4);
    const InferredTap tap = dump.infer();
    BOOST_TEST(views_of(tap) == sample.views);
    BOOST_TEST(is_sure(tap));
  }
}

BOOST_AUTO_TEST_CASE(one_token_and_zeros_are_a_shard_or_summands) {
  Dump dump{{some_rows(1, width)}};
  dump.ranks = shards_of(dump.trusted[0], 4);
  dump.at = tp_ranks(4);
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0", "PAD", "PAD", "PAD"}));
  BOOST_TEST(num_ambiguous(tap) == 4);
  BOOST_TEST(in_words(tap, 1, 0) ==
             "PAD of zeros; or summand of token 0, which adds up over 4 ranks: tp=0 dp=0, "
             "tp=1 dp=0, tp=2 dp=0, tp=3 dp=0");
  // Neither reading is contradicted.
  const auto claim = [](const char* rows, bool partial) {
    return TokenView{parse_rows(rows), partial ? Completeness::summand(1, 4) : Completeness(), {}};
  };
  BOOST_TEST(!contradiction(tap, 1, claim("PAD", false)));
  BOOST_TEST(!contradiction(tap, 1, claim("0", true)));
  BOOST_TEST(contradiction(tap, 1, claim("0", false)).has_value());
}

BOOST_AUTO_TEST_CASE(ranks_without_names_may_sum_with_any_rank_of_zeros) {
  // tp=2 dp=2, a token each: both ranks of zeros fit both tokens.
  Dump dump{{some_rows(1, width, 1), some_rows(1, width, 2)}};
  dump.ranks = {dump.trusted[0], Values::Zero(1, width), dump.trusted[1], Values::Zero(1, width)};
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0", "PAD", "d1:0", "PAD"}));
  BOOST_TEST(num_ambiguous(tap) == 4);
  BOOST_TEST(in_words(tap, 1, 0).find("summand of token 0,") != std::string::npos);
  BOOST_TEST(in_words(tap, 1, 0).find("summand of token 0 of dp=1,") != std::string::npos);
}

// Sums -------------------------------------------------------------------------------------------

BOOST_DATA_TEST_CASE(summands_find_their_partners, data::make({2, 3, 4, 8, 16}), p) {
  Dump dump{{some_rows(p + 1, width)}};
  dump.ranks = summands_of(dump.trusted[0], p);
  for (const bool known : {true, false}) {
    dump.at = known ? tp_ranks(p) : std::vector<RankCoordinates>();
    const InferredTap tap = dump.infer();
    for (std::int64_t r = 0; r < p; ++r)
      BOOST_TEST(to_string(tap.ranks[std::size_t(r)].view) ==
                 text("0-", p, " partial ", r, '/', p));
    BOOST_TEST(is_sure(tap));
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_brings_zeros_to_some_rows_is_a_summand_there_too) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks = summands_of(dump.trusted[0], 3);
  // Row 1 comes from rank 0 alone, and rank 2 brings nothing to row 3.
  dump.ranks[0].row(1) = dump.trusted[0].row(1);
  dump.ranks[1].row(1).setZero();
  dump.ranks[2].row(1).setZero();
  dump.ranks[1].row(3) += dump.ranks[2].row(3);
  dump.ranks[2].row(3).setZero();
  for (const bool known : {true, false}) {
    dump.at = known ? tp_ranks(3) : std::vector<RankCoordinates>();
    const InferredTap tap = dump.infer();
    BOOST_TEST(views_of(tap) == (Views{"0-4 partial 0/3", "0-4 partial 1/3", "0-4 partial 2/3"}));
    BOOST_TEST(is_sure(tap));
  }
}

BOOST_AUTO_TEST_CASE(dp_ranks_sum_each_by_themselves_and_experts_over_all) {
  // tp=2 dp=2, ranks in another order and without names.
  Dump dense{{some_rows(3, width, 1), some_rows(4, width, 2)}};
  const auto first = summands_of(dense.trusted[0], 2), second = summands_of(dense.trusted[1], 2);
  dense.ranks = {second[1], first[0], second[0], first[1]};
  const InferredTap tap = dense.infer();
  BOOST_TEST(views_of(tap) == (Views{"d1:0-3 partial 0/2", "0-2 partial 0/2", "d1:0-3 partial 1/2",
                                     "0-2 partial 1/2"}));
  BOOST_TEST((tap.ranks[0].rows[0].best.partners == std::vector<std::int32_t>{0, 2}));
  BOOST_TEST(is_sure(tap));

  Dump experts{dense.trusted};
  Values both(7, width);
  both << dense.trusted[0], dense.trusted[1];
  experts.ranks = summands_of(both, 4);
  BOOST_TEST(to_string(experts.infer().ranks[2].view) == "0-2,d1:0-3 partial 2/4");
}

BOOST_AUTO_TEST_CASE(sums_over_a_part_of_the_ranks_hold_the_summands_of_that_part) {
  Dump dump{{some_rows(6, width)}};
  const auto summands = summands_of(dump.trusted[0], 4);
  const Values left = summands[0] + summands[1], right = summands[2] + summands[3];
  dump.ranks = {left, left, right, right};
  for (std::int64_t r = 0; r < 4; ++r) dump.at.push_back(coordinates_of(r, {.tp = 2, .dp = 2}));
  BOOST_TEST(views_of(dump.infer()) == (Views{"0-5 partial 0,1/4", "0-5 partial 0,1/4",
                                              "0-5 partial 2,3/4", "0-5 partial 2,3/4"}));
}

struct Multiple {
  float factor;
  const char* view;
};
std::ostream& operator<<(std::ostream& out, const Multiple& m) { return out << m.factor; }

BOOST_DATA_TEST_CASE(multiples_are_named,
                     data::make(std::vector<Multiple>{{2, "0-4 x2"},
                                                      {8, "0-4 x8"},
                                                      {0.5f, "0-4 x1/2"},
                                                      {0.125f, "0-4 x1/8"},
                                                      {1.5f, "0-4 x3/2"}}),
                     sample) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks.assign(2, dump.trusted[0] * sample.factor);
  dump.at = tp_ranks(2);
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views(2, sample.view)));
  BOOST_TEST(is_sure(tap));
}

BOOST_AUTO_TEST_CASE(a_view_says_what_most_rows_are_and_mix_of_the_others) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks = {dump.trusted[0] * 2, dump.trusted[0] * 0.7312f};
  dump.ranks[0].row(3) *= 0.5f;
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0-2,MIX,4 x2", "MIX*5"}));
  BOOST_TEST(in_words(tap, 0, 3) == "token 3");
  BOOST_TEST(in_words(tap, 1, 3) == "0.7312 x token 3");
}

BOOST_AUTO_TEST_CASE(halves_of_the_value_on_both_ranks_are_halves_rather_than_summands) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks.assign(2, dump.trusted[0] * 0.5f);
  dump.at = tp_ranks(2);
  BOOST_TEST(in_words(dump.infer(), 0, 3) == "1/2 x token 3");
}

BOOST_AUTO_TEST_CASE(doubled_summands_are_summands_twice) {
  Dump dump{{some_rows(5, width)}};
  for (const Values& summand : summands_of(dump.trusted[0], 2)) dump.ranks.push_back(summand * 2);
  dump.at = tp_ranks(2);
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0-4 partial 0*2/2", "0-4 partial 1*2/2"}));
}

// Columns ----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(column_blocks_are_found_whatever_the_order_of_ranks) {
  Dump dump{{some_rows(5, width)}};
  for (const int block : {2, 0, 3, 1})
    dump.ranks.push_back(dump.trusted[0].middleCols(block * 12, 12));
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) ==
             (Views{"0-4 columns 2/4", "0-4 columns 0/4", "0-4 columns 3/4", "0-4 columns 1/4"}));
  BOOST_TEST(is_sure(tap));
}

BOOST_AUTO_TEST_CASE(packed_projections_are_cut_as_the_caller_says) {
  // q of 24 columns, k and v of 12, each cut by itself.
  Dump dump{{some_rows(5, width)}};
  dump.options.columns_of = [](const ColumnBlock& block) {
    std::vector<std::int64_t> columns;
    for (const auto& [begin, extent] : {std::pair{0, 24}, {24, 12}, {36, 12}})
      for (int c = 0; c < extent / block.of; ++c)
        columns.push_back(begin + block.begin * (extent / block.of) + c);
    return columns;
  };
  for (std::int16_t r = 0; r < 4; ++r) {
    const auto columns = dump.options.columns_of({r, std::int16_t(r + 1), 4});
    Values held(5, std::ssize(columns));
    for (std::size_t c = 0; c < columns.size(); ++c)
      held.col(Eigen::Index(c)) = dump.trusted[0].col(columns[c]);
    dump.ranks.push_back(held);
  }
  BOOST_TEST(views_of(dump.infer()) ==
             (Views{"0-4 columns 0/4", "0-4 columns 1/4", "0-4 columns 2/4", "0-4 columns 3/4"}));
}

BOOST_AUTO_TEST_CASE(neighbours_with_copies_of_a_head_hold_the_same_block) {
  Dump dump{{some_rows(5, 32)}};  // two key/value heads on four ranks
  for (const int head : {0, 0, 1, 1})
    dump.ranks.push_back(dump.trusted[0].middleCols(head * 16, 16));
  BOOST_TEST(views_of(dump.infer()) ==
             (Views{"0-4 columns 0/2", "0-4 columns 0/2", "0-4 columns 1/2", "0-4 columns 1/2"}));
}

BOOST_AUTO_TEST_CASE(a_width_that_is_no_block_leaves_all_unknown) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks = {some_rows(5, 13), some_rows(5, 2 * width)};
  const InferredTap tap = dump.infer();
  BOOST_TEST(tap.count(RowReading::unknown) == 10);
  BOOST_TEST(in_words(tap, 0, 0) == "unknown");
}

// Rows of several tokens -------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(columns_of_several_tokens_are_a_mix) {
  Dump dump{{some_rows(6, width)}};
  const Values& x = dump.trusted[0];
  Values row(3, width);
  row.row(0) << x.row(1).head(24), x.row(4).tail(24);
  row.row(1) << x.row(0).head(12), Values::Zero(1, 36);
  row.row(2) << x.row(2).tail(24), x.row(2).head(24);
  dump.ranks = {row, x};
  const InferredTap tap = dump.infer();
  BOOST_TEST(to_string(tap.ranks[0].view) == "MIX*3");
  BOOST_TEST(in_words(tap, 0, 0) == "MIX: columns 0/2 token 1, columns 1/2 token 4");
  BOOST_TEST(in_words(tap, 0, 1) ==
             "MIX: columns 0/4 token 0, columns 1/4 zeros, columns 2/4 zeros, columns 3/4 zeros");
  BOOST_TEST(in_words(tap, 0, 2) ==
             "MIX: columns 0/2 token 2 (its columns 1/2), columns 1/2 "
             "token 2 (its columns 0/2)");
}

BOOST_AUTO_TEST_CASE(shards_that_were_all_reduced_are_sums_of_different_tokens) {
  Dump dump{{some_rows(6, width)}};
  const auto shards = shards_of(dump.trusted[0], 2);
  dump.ranks.assign(2, shards[0] + shards[1]);
  dump.at = tp_ranks(2);
  const InferredTap tap = dump.infer();
  BOOST_TEST(in_words(tap, 1, 2) == "sum of token 2 + token 5");
  BOOST_TEST(to_string(tap.ranks[0].view) == "MIX*3");
}

BOOST_AUTO_TEST_CASE(a_sum_over_many_tokens_is_found_among_more_tokens_than_columns) {
  Dump dump{{some_rows(300, 256)}};
  dump.ranks = {dump.trusted[0].row(17) + 2 * dump.trusted[0].row(250) + dump.trusted[0].row(99)};
  BOOST_TEST(in_words(dump.infer(), 0, 0).starts_with("sum of "));
}

// Hints ------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_summand_without_partners_is_unknown_and_like_its_token) {
  // A shared expert that is cut over ranks which hold different tokens: nobody has the rest.
  Dump dump{{some_rows(4, 256)}};
  const Values left = some_rows(4, 256, 2), right = dump.trusted[0];
  dump.trusted[0] = left + right;
  dump.ranks = {left.topRows(2), right.bottomRows(2)};
  dump.at = tp_ranks(2);
  const InferredTap tap = dump.infer();
  BOOST_TEST(in_words(tap, 0, 1).starts_with("unknown, most like a part of token 1 (cosine 0.7"));
  BOOST_TEST(in_words(tap, 1, 1).starts_with("unknown, most like a part of token 3 (cosine 0."));
  BOOST_TEST(!contradiction(tap, 0, {parse_rows("0-1"), Completeness::summand(0, 2), {}}));
}

BOOST_AUTO_TEST_CASE(a_token_that_something_was_added_to_is_unknown_and_like_it) {
  Dump dump{{some_rows(4, 256)}};
  dump.ranks = {dump.trusted[0] + 0.3f * some_rows(4, 256, 2)};
  BOOST_TEST(in_words(dump.infer(), 0, 2).starts_with("unknown, most like token 2 (cosine 0.9"));
}

// Stale and other pads ---------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(rows_of_an_earlier_step_are_stale) {
  Dump dump{{some_rows(4, width, 1)}, {some_rows(6, width, 2)}};
  dump.options.step = 1;
  Values held(5, width);
  held << dump.trusted[0], dump.earlier[0].row(4);
  dump.ranks = {held};
  const InferredTap tap = dump.infer();
  BOOST_TEST(to_string(tap.ranks[0].view, 1) == "0-3,step0:4");
  BOOST_TEST(in_words(tap, 0, 4) == "token 4 of step 0 (stale)");
  BOOST_TEST(kind_name(tap.ranks[0].rows[4].best, 1) == std::string("stale"));
}

BOOST_AUTO_TEST_CASE(what_is_left_when_every_token_is_there_is_a_pad) {
  Dump dump{{some_rows(4, width, 1)}};
  Values held(7, width);
  held << dump.trusted[0], some_rows(3, width, 2);
  held.row(5).setConstant(std::numeric_limits<float>::quiet_NaN());
  held.row(6).setConstant(std::numeric_limits<float>::infinity());
  dump.ranks = {held};
  const InferredTap tap = dump.infer();
  BOOST_TEST(to_string(tap.ranks[0].view) == "0-3,PAD*3");
  for (const std::size_t i : {4u, 5u, 6u}) {
    BOOST_TEST(!tap.ranks[0].rows[i].is_sure());
    BOOST_TEST((tap.ranks[0].rows[i].best.row.content == PadContent::other));
  }
  BOOST_TEST(in_words(tap, 0, 5) == "PAD with other content, for no token is left, not finite");
  // Counting is no proof: it contradicts nobody.
  BOOST_TEST(!contradiction(tap, 0, {parse_rows("0-3,MIX*3"), {}, {}}));
  BOOST_TEST(contradiction(tap, 0, {parse_rows("0-2,MIX*4"), {}, {}}).has_value());
}

BOOST_AUTO_TEST_CASE(a_broken_row_in_a_token_s_place_is_unknown_and_no_pad) {
  Dump dump{{some_rows(4, width, 1)}};
  Values held = dump.trusted[0];
  held.row(3).setConstant(std::numeric_limits<float>::quiet_NaN());
  dump.ranks = {held, dump.trusted[0]};  // the other rank has all tokens
  const InferredTap tap = dump.infer();
  BOOST_TEST(in_words(tap, 0, 3) == "unknown, not finite");
  BOOST_TEST(to_string(tap.ranks[0].view) == "0-2,MIX");
}

BOOST_AUTO_TEST_CASE(a_strange_row_between_tokens_is_no_pad) {
  Dump dump{{some_rows(4, width, 1)}};
  Values held(5, width);
  held << dump.trusted[0].topRows(2), some_rows(1, width, 2), dump.trusted[0].bottomRows(2);
  dump.ranks = {held};
  BOOST_TEST(views_of(dump.infer()) == (Views{"0-1,MIX,2-3"}));
}

// Ambiguity --------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(equal_tokens_are_ambiguous_and_read_in_order) {
  Dump dump{{some_rows(6, width)}};
  dump.trusted[0].row(4) = dump.trusted[0].row(1);
  dump.ranks = shards_of(dump.trusted[0], 2);
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0-2", "3-5"}));
  BOOST_TEST(num_ambiguous(tap) == 2);
  BOOST_TEST(in_words(tap, 1, 1) == "token 4; or token 1");
}

BOOST_AUTO_TEST_CASE(a_constant_tensor_says_nothing) {
  Dump dump{{Values::Constant(40, width, 0.5f)}};
  dump.ranks = {dump.trusted[0]};
  const InferredTap tap = dump.infer();
  BOOST_TEST(num_ambiguous(tap) == 40);
  for (const InferredRow& row : tap.ranks[0].rows) BOOST_TEST(!row.is_sure());
}

BOOST_AUTO_TEST_CASE(zeros_among_zeros_are_tokens_or_pads) {
  Dump dump{{Values::Zero(4, width)}};
  dump.ranks.assign(2, Values::Zero(4, width));
  dump.at = tp_ranks(2);
  const InferredTap tap = dump.infer();
  BOOST_TEST(num_ambiguous(tap) == 8);
  for (const InferredRow& row : tap.ranks[1].rows) BOOST_TEST(!row.is_sure());
  BOOST_TEST(!contradiction(tap, 0, {parse_rows("0-3"), {}, {}}));
}

// Numbers ----------------------------------------------------------------------------------------

BOOST_DATA_TEST_CASE(noise_is_never_explained, data::make({0, 4}), nearest) {
  for (const std::int64_t columns : {1, 2, 3, 16, 48, 200}) {
    Dump dump{{some_rows(9, columns, 1)}};
    dump.options.nearest = nearest;
    for (std::uint64_t r = 0; r < 3; ++r) dump.ranks.push_back(some_rows(50, columns, 10 + r));
    const InferredTap tap = dump.infer();
    for (const InferredRank& rank : tap.ranks)
      for (const InferredRow& row : rank.rows)
        BOOST_TEST((row.best.reading == RowReading::unknown || !row.is_sure()));
  }
}

BOOST_DATA_TEST_CASE(any_magnitude_will_do, data::make({1e-42f, 1e-37f, 1e-30f, 1e-3f, 1e30f}),
                     magnitude) {
  Dump dump{{some_rows(5, width) * magnitude}};
  dump.ranks = shards_of(dump.trusted[0], 2);
  // Below 1e-38 floats are whole multiples of 1e-45: 1e-42 has three digits.
  dump.options.tolerance = magnitude < 1e-38f ? 1e-2 : 1e-4;
  BOOST_TEST(views_of(dump.infer()) == (Views{"0-2", "3-4,PAD"}));
}

BOOST_AUTO_TEST_CASE(one_column_is_enough_for_tokens_and_too_little_for_multiples) {
  Dump dump{{some_rows(5, 1)}};
  dump.ranks = {dump.trusted[0], dump.trusted[0] * 2};
  const InferredTap tap = dump.infer();
  BOOST_TEST(to_string(tap.ranks[0].view) == "0-4");
  BOOST_TEST(is_sure(InferredTap{{tap.ranks[0]}, 0}));
  for (const InferredRow& row : tap.ranks[1].rows) BOOST_TEST(!row.is_sure());
}

BOOST_AUTO_TEST_CASE(float_noise_and_a_row_of_massive_activations_do_no_harm) {
  std::mt19937_64 random(3);
  Dump dump{{some_rows(20, width)}};
  dump.trusted[0].row(0) *= 3000;
  dump.ranks = shards_of(dump.trusted[0], 4);
  for (Values& values : dump.ranks)
    for (Eigen::Index k = 0; k < values.size(); ++k)
      values.data()[k] *= 1 + 1e-6f * (float(random() >> 40) * 0x1p-23f - 1);
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0-4", "5-9", "10-14", "15-19"}));
  BOOST_TEST(is_sure(tap));
}

BOOST_AUTO_TEST_CASE(a_tiny_row_is_measured_against_the_usual_ones) {
  Dump dump{{some_rows(20, width)}};
  dump.trusted[0].row(7) *= 1e-5f;
  dump.ranks = {dump.trusted[0]};
  dump.ranks[0].row(7) += 3e-7f * some_rows(1, width, 9);  // 3 % of the row, 3e-7 of the tensor
  BOOST_TEST(views_of(dump.infer()) == (Views{"0-19"}));
  dump.ranks[0].row(7) += 1e-4f * some_rows(1, width, 9);
  BOOST_TEST(in_words(dump.infer(), 0, 7) == "unknown");
}

BOOST_AUTO_TEST_CASE(bfloat16_is_read_with_its_tolerance) {
  Dump dump{{some_rows(20, width)}};
  dump.ranks = shards_of(dump.trusted[0], 4);
  for (Values& values : dump.ranks)
    for (Eigen::Index k = 0; k < values.size(); ++k)
      values.data()[k] = round_to_bf16(values.data()[k]);
  dump.options.tolerance = 2e-2;
  BOOST_TEST(views_of(dump.infer()) == (Views{"0-4", "5-9", "10-14", "15-19"}));
  dump.options.tolerance = 1e-5;
  BOOST_TEST(dump.infer().count(RowReading::unknown) == 20);
}

BOOST_AUTO_TEST_CASE(a_row_with_errors_is_the_token_that_is_clearly_nearest) {
  Dump dump{{some_rows(20, width)}};
  dump.ranks = shards_of(dump.trusted[0], 4);
  for (std::size_t r = 0; r < 4; ++r) dump.ranks[r] += 0.1f * some_rows(5, width, 50 + r);
  BOOST_TEST(dump.infer().count(RowReading::unknown) == 20);
  dump.options.nearest = 4;
  const InferredTap tap = dump.infer();
  BOOST_TEST(views_of(tap) == (Views{"0-4", "5-9", "10-14", "15-19"}));
  BOOST_TEST(is_sure(tap));
  BOOST_TEST(in_words(tap, 0, 0) == "nearest to token 0");
  // Half of one and half of another with errors of its own, a quarter of one: neither.
  dump.ranks = {(dump.trusted[0].topRows(5) + dump.trusted[0].bottomRows(5)) / 2,
                dump.trusted[0].topRows(5) / 4};
  for (std::size_t r = 0; r < 2; ++r) dump.ranks[r] += 0.03f * some_rows(5, width, 50 + r);
  BOOST_TEST(dump.infer().count(RowReading::unknown) == 10);
}

BOOST_AUTO_TEST_CASE(a_row_too_narrow_to_tell_is_what_those_beside_it_suggest) {
  Dump dump{{some_rows(12, 8)}};
  for (std::int64_t r = 0; r < 4; ++r)
    dump.ranks.emplace_back(dump.trusted[0].middleCols(2 * r, 2).bottomRows(6));
  dump.options.tolerance = 1e-3;
  dump.options.nearest = 4;
  Values error(1, 2);
  error << 0.05f, -0.04f;
  dump.ranks[1].row(2) += error;
  const InferredTap near = dump.infer();
  BOOST_TEST(near.ranks[1].rows[2].best.is_near, in_words(near, 1, 2));
  BOOST_TEST(near.ranks[1].rows[2].best.row.first == 8);
  BOOST_TEST(!near.ranks[1].rows[2].is_sure());
  dump.ranks[1].row(2) = dump.trusted[0].row(2).middleCols(2, 2) + error;  // of another token
  BOOST_TEST(in_words(dump.infer(), 1, 2) == "unknown");
}

BOOST_AUTO_TEST_CASE(factors_of_any_size_have_words) {
  for (const auto& [factor, words] :
       {std::pair(3.0, "3"), std::pair(0.25, "1/4"), std::pair(-2.0, "-2"),
        std::pair(2.0 / 3, "2/3"), std::pair(3.7123, "3.7123"), std::pair(1e20, "1e+20"),
        std::pair(1e-20, "1e-20"), std::pair(-1e300, "-1e+300")})
    BOOST_TEST(factor_as_number(factor) == words);
}

BOOST_AUTO_TEST_CASE(threads_change_nothing) {
  Dump dump{{some_rows(500, width)}};
  dump.ranks = summands_of(dump.trusted[0], 4);
  dump.ranks[2].row(77).setZero();
  const InferredTap alone = dump.infer();
  dump.options.threads = 4;
  const InferredTap together = dump.infer();
  for (std::size_t r = 0; r < 4; ++r)
    for (std::size_t i = 0; i < 500; ++i)
      BOOST_REQUIRE((alone.ranks[r].rows[i].best == together.ranks[r].rows[i].best));
}

// Claims -----------------------------------------------------------------------------------------

struct Annotation {
  const char* rows;
  Completeness sum;
  ColumnBlock columns;
  std::string claimed, found;  // empty: no contradiction
};
std::ostream& operator<<(std::ostream& out, const Annotation& c) {
  return out << c.rows << ' ' << to_string(c.sum);
}

BOOST_DATA_TEST_CASE(a_wrong_annotation_is_contradicted,
                     data::make(std::vector<Annotation>{
                         {"3-4,PAD", {}, {}, "", ""},
                         {"0-2", {}, {}, "0", "token 3"},
                         {"3-5", {}, {}, "5", "PAD of zeros"},
                         {"3,PAD*2", {}, {}, "PAD", "token 4"},
                         {"3-4,MIX", {}, {}, "MIX", "PAD of zeros"},
                         {"3-4", {}, {}, "2 rows", "3 rows"},
                         {"3-4,PAD", Completeness::complete(2), {}, "3 x2", "token 3"},
                         {"3-4,PAD", Completeness::summand(1, 2), {}, "3 partial 1/2", "token 3"},
                         {"3-4,PAD", {}, {1, 2, 2}, "3 columns 1/2", "token 3"}}),
                     sample) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks = shards_of(dump.trusted[0], 2);
  const auto found =
      contradiction(dump.infer(), 1, {parse_rows(sample.rows), sample.sum, sample.columns});
  BOOST_TEST(found.has_value() == !sample.claimed.empty());
  if (!found) return;
  BOOST_TEST(found->claimed == sample.claimed);
  BOOST_TEST(found->found == sample.found);
}

BOOST_AUTO_TEST_CASE(a_rank_is_told_in_a_line) {
  Dump dump{{some_rows(5, width)}};
  dump.ranks = shards_of(dump.trusted[0], 2);
  dump.at = tp_ranks(2);
  BOOST_TEST(in_words(dump.infer(), 1) == "tp=1 dp=0 [3,4,PAD]");
  dump.ranks = summands_of(dump.trusted[0], 2);
  BOOST_TEST(in_words(dump.infer(), 1) == "tp=1 dp=0 [0,1,2,3,4] partial 1/2");
}

BOOST_AUTO_TEST_CASE(spans_that_are_no_tensor_are_refused) {
  const std::vector<float> values(12);
  const std::vector<TrustedRows> trusted = {{0, 0, values, 3, 4}};
  const std::vector<RankRows> ranks = {{std::nullopt, values, 3, 5}};
  BOOST_CHECK_EXCEPTION(infer_placement(ranks, trusted), UsageError, [](const auto& error) {
    return std::string(error.what()).find("rank 0: 12 values, expected [3, 5]") !=
           std::string::npos;
  });
  const std::vector<TrustedRows> uneven = {{0, 0, values, 3, 4}, {1, 0, values, 4, 3}};
  BOOST_CHECK_THROW(infer_placement({}, uneven), UsageError);
}

BOOST_AUTO_TEST_CASE(a_dp_rank_without_tokens_and_a_rank_without_rows_do_no_harm) {
  Dump dump{{some_rows(3, width), Values(0, 0)}};
  dump.ranks = {dump.trusted[0], Values(0, width), Values(0, 0), Values(4, 0)};
  const InferredTap tap = dump.infer();
  BOOST_TEST(to_string(tap.ranks[0].view) == "0-2");
  BOOST_TEST(tap.ranks[1].rows.empty());
  BOOST_TEST(tap.count(RowReading::unknown) == 4);
}

BOOST_AUTO_TEST_CASE(without_anything_trusted_all_is_unknown_but_zeros) {
  Dump dump;
  dump.ranks = {some_rows(3, width)};
  BOOST_TEST(dump.infer().count(RowReading::unknown) == 3);
  BOOST_TEST(dump.infer().ranks.size() == 1u);
}

}  // namespace tokenview
