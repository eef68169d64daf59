// SPDX-License-Identifier: Apache-2.0
// Ranks' tensors beside the trusted one, and put together.
#include <cmath>
#include <limits>

#include "tests/support.hpp"
#include "verify/placed_tap.hpp"

namespace tokenview {
namespace {

using Absent = std::vector<std::int64_t>;

/// [rows, columns]: 1, 2, 3, ...
template <class S>
Matrix<S> counting(std::int64_t rows, std::int64_t columns) {
  Matrix<S> x(rows, columns);
  for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = S(i + 1);
  return x;
}

/// What the ranks 0, 1, ... of a data-parallel rank hold of a tensor [rows, columns].
template <class S>
struct Held {
  Matrix<S> trusted;
  std::vector<Matrix<S>> values = {};
  std::vector<Rows> rows_held = {};
  std::vector<HeldTensor<S>> ranks = {};

  explicit Held(std::int64_t rows, std::int64_t columns) : trusted(counting<S>(rows, columns)) {
    values.reserve(16);  // `ranks` refer to them
    rows_held.reserve(16);
  }

  /// Rank `ranks.size()`: rows as in "0-2,PAD*2"; columns [begin, end). Pads are -1.
  Held& add(const std::string& rows, std::int64_t begin, std::int64_t end) {
    const Rows& held = rows_held.emplace_back(parse_rows(rows));
    Matrix<S>& mine = values.emplace_back(Matrix<S>::Constant(held.size(), end - begin, S(-1)));
    for (std::int64_t r = 0; r < held.size(); ++r)
      if (held.at(r).kind == RowKind::token && held.at(r).first < trusted.rows())
        mine.row(r) = trusted.row(held.at(r).first).segment(begin, end - begin);
    std::vector<std::int64_t> columns;
    for (std::int64_t c = begin; c < end; ++c) columns.push_back(c);
    ranks.push_back({{.world = std::int64_t(ranks.size())}, mine, held, false, columns});
    return *this;
  }
  Held& add(const std::string& rows) { return add(rows, 0, trusted.cols()); }

  PlacedTap<S> placed(std::int64_t summands = 1) const {
    return tokenview::placed<S>(ranks, 0, summands, trusted,
                                [](const RowRun& row) { return std::int64_t(row.first); });
  }
  Matrix<S> whole(std::int64_t summands = 1) const {
    return tokenview::whole<S>(placed(summands), trusted);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(shards_are_put_where_their_view_says) {
  Held<double> held(5, 3);
  held.add("3-4,PAD").add("0-2");
  const PlacedTap<double> tap = held.placed();
  BOOST_TEST(tap.problems().empty());
  BOOST_TEST(tap.values.size() == 2u);
  BOOST_TEST((tap.values[0].rows == std::vector<std::int64_t>{0, 1}));
  BOOST_TEST((tap.values[0].trusted_rows == std::vector<std::int64_t>{3, 4}));
  BOOST_TEST(same_bits(held.whole(), held.trusted));

  held.values[0](1, 2) = 77;  // token 4
  Matrix<double> expected = held.trusted;
  expected(4, 2) = 77;
  BOOST_TEST(same_bits(held.whole(), expected));
}

BOOST_AUTO_TEST_CASE(column_blocks_are_put_side_by_side) {
  Held<float> held(2, 4);
  held.add("0-1", 2, 4).add("0-1", 0, 2);
  held.values[0](0, 0) = 50;
  Matrix<float> expected = held.trusted;
  expected(0, 2) = 50;
  BOOST_TEST(same_bits(held.whole(), expected));
  BOOST_TEST(held.placed().absent_rows.empty());

  held.ranks.pop_back();
  BOOST_TEST((held.placed().absent_rows == Absent{0, 1}));  // columns 0 and 1 are on no rank
}

BOOST_AUTO_TEST_CASE(rows_that_no_rank_holds_are_absent) {
  Held<double> held(6, 2);
  held.add("0-1").add("PAD,4");
  BOOST_TEST((held.placed().absent_rows == Absent{2, 3, 5}));
  BOOST_TEST((held.placed().problems() == std::vector<std::string>{"rows 2-3,5 are on no rank"}));
  held.add("2-3");
  BOOST_TEST((held.placed().problems() == std::vector<std::string>{"row 5 is on no rank"}));
  held.add("d1:5");  // of another data-parallel rank
  BOOST_TEST((held.placed().absent_rows == Absent{5}));
  held.ranks.clear();
  BOOST_TEST(held.placed().absent_rows.size() == 6u);
}

BOOST_AUTO_TEST_CASE(summands_are_added_up_where_all_are_there) {
  Held<double> held(3, 2);
  held.add("0-2").add("0-2");
  for (HeldTensor<double>& rank : held.ranks) rank.is_partial = true;
  held.values[0] *= 0.25;
  held.values[1] *= 0.75;
  BOOST_TEST(same_bits(held.whole(2), held.trusted));
  BOOST_TEST(held.placed(2).values.front().is_sum);
  BOOST_TEST(held.placed(2).problems().empty());

  BOOST_TEST((held.placed(3).absent_rows == Absent{0, 1, 2}));  // a third rank has none
  BOOST_TEST(held.placed(3).values.empty());

  held.rows_held[1] = parse_rows("0-1,PAD");
  BOOST_TEST((held.placed(2).absent_rows == Absent{2}));
}

BOOST_AUTO_TEST_CASE(no_wrong_copy_is_hidden_by_a_right_one) {
  for (const double wrong : {9.0, std::nan(""), std::numeric_limits<double>::infinity(), 0.0})
    for (const std::size_t rank : {0u, 1u, 2u}) {
      Held<double> held(2, 2);
      held.add("0-1").add("0-1").add("0-1");
      held.values[rank](1, 0) = wrong;
      Matrix<double> expected = held.trusted;
      expected(1, 0) = wrong;
      BOOST_TEST(same_bits(held.whole(), expected), wrong << " on rank " << rank);
    }
  Held<double> held(1, 2);
  held.trusted << std::nan(""), std::numeric_limits<double>::infinity();
  held.add("0").add("0");
  BOOST_TEST(same_bits(held.whole(), held.trusted));
  held.values[0] << 1, 2;
  BOOST_TEST(same_bits(held.whole(), held.values[0]));
}

BOOST_AUTO_TEST_CASE(other_shapes_and_unknown_rows_are_told) {
  Held<double> held(3, 2);
  held.add("0-2").add("0-2").add("2-3");
  held.rows_held[1] = parse_rows("0-3");
  const PlacedTap<double> tap = held.placed();
  BOOST_TEST(
      (tap.problems() == std::vector<std::string>{"rank 1 has [3, 2], its view says [4, 2]",
                                                  "rank 2 row 1 is no row of the trusted tensor"}));
  BOOST_TEST(tap.values.size() == 2u);
}

BOOST_AUTO_TEST_CASE(mixed_rows_are_told_where_another_rank_has_right_ones) {
  Held<double> held(3, 2);
  held.add("0-2").add("0,MIX*2");
  const PlacedTap<double> tap = held.placed();
  BOOST_TEST(tap.absent_rows.empty());
  BOOST_TEST((tap.problems() ==
              std::vector<std::string>{"rank 1 rows 1-2 are no rows of the trusted tensor"}));
}

BOOST_AUTO_TEST_CASE(ids_are_placed_as_values_are) {
  Held<std::int64_t> held(3, 2);
  held.add("0-1").add("2,PAD").add("1");
  held.values[2](0, 1) = 40;
  Matrix<std::int64_t> expected = held.trusted;
  expected(1, 1) = 40;
  BOOST_TEST(same_bits(held.whole(), expected));
  BOOST_TEST(held.placed().problems().empty());
}

}  // namespace tokenview
