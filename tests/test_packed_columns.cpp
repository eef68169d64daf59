// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <random>

#include "tests/boost_test.hpp"
#include "verify/packed_columns.hpp"

namespace tokenview {
namespace {

/// A packed projection of `tokens` rows: segments of so many columns, each cut into so many blocks
/// over `tp` ranks, once for each of `groups` blocks of ranks that the trusted side has side by
/// side.
struct Packed {
  std::int64_t tokens, tp, groups = 1;
  std::vector<std::int64_t> widths, blocks;  // of the trusted segments of one group
  float noise = 1e-6F;

  HostTensor trusted = {};
  TapTensors tap = {};
  std::vector<std::vector<std::int64_t>> columns = {};  // of each rank

  void make(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::int64_t each = std::accumulate(widths.begin(), widths.end(), std::int64_t(0));
    trusted = {{tokens, groups * each}, {}};
    for (std::int64_t i = 0; i < tokens * groups * each; ++i)
      trusted.values.push_back(normal(random));
    tap.tp_size = tp;
    tap.trusted = &trusted;
    for (std::int64_t rank = 0; rank < tp; ++rank) {
      std::vector<std::int64_t>& mine = columns.emplace_back();
      const std::int64_t ranks = tp / groups;
      std::int64_t begin = rank / ranks * each;
      for (std::size_t s = 0; s < widths.size(); ++s) {
        const std::int64_t share = widths[s] / blocks[s];
        const std::int64_t block = rank % ranks / (ranks / blocks[s]);
        for (std::int64_t c = 0; c < share; ++c) mine.push_back(begin + block * share + c);
        begin += widths[s];
      }
      RankTensor held{{.world = rank, .tp = rank}, {{tokens, std::ssize(mine)}, {}}};
      for (std::int64_t row = 0; row < tokens; ++row)
        for (const std::int64_t c : mine)
          held.values.values.push_back(trusted.values[std::size_t(row * trusted.cols() + c)] +
                                       noise * normal(random));
      tap.ranks.push_back(std::move(held));
    }
  }

  /// Whether packed_columns() finds the columns that the ranks have.
  bool are_found() const {
    const std::optional<ColumnLayout> found = packed_columns(tap);
    return found && found->columns == columns;
  }
};

BOOST_AUTO_TEST_CASE(finds_the_segments_of_packed_projections) {
  const Packed all[] = {
      {.tokens = 5, .tp = 2, .widths = {64, 64}, .blocks = {2, 2}},          // gate and up
      {.tokens = 5, .tp = 4, .widths = {128, 32, 32}, .blocks = {4, 4, 4}},  // q, k and v
      {.tokens = 5, .tp = 4, .widths = {128, 32, 32}, .blocks = {4, 2, 2}},  // fewer heads
      {.tokens = 5, .tp = 4, .widths = {128, 16, 16}, .blocks = {4, 1, 1}},  // one head
      {.tokens = 5, .tp = 8, .widths = {64, 8, 8, 32}, .blocks = {8, 4, 4, 8}},
      {.tokens = 5, .tp = 4, .groups = 2, .widths = {64, 16, 16}, .blocks = {2, 2, 2}},
      {.tokens = 5, .tp = 4, .groups = 2, .widths = {64, 16, 16}, .blocks = {2, 1, 1}}};
  for (const Packed& one : all)
    for (const std::int64_t tokens : {1, 2, 40})
      for (const float noise : {0.0F, 1e-6F, 1e-2F}) {
        Packed packed = one;
        packed.tokens = tokens;
        packed.noise = noise;
        packed.make(std::uint32_t(tokens));
        BOOST_TEST(packed.are_found(), "tp " << packed.tp << ", " << packed.widths.size()
                                             << " segments, " << tokens << " tokens, noise "
                                             << noise);
      }
}

BOOST_AUTO_TEST_CASE(a_single_row_has_columns_that_are_nearly_equal) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    Packed packed{.tokens = 1, .tp = 2, .widths = {256, 64, 64}, .blocks = {2, 2, 2}};
    packed.make(seed);
    BOOST_TEST_CONTEXT("seed " << seed) BOOST_TEST(packed.are_found());
  }
}

BOOST_AUTO_TEST_CASE(wrong_rows_do_not_hide_the_columns) {
  Packed packed{.tokens = 6, .tp = 2, .widths = {64, 32}, .blocks = {2, 2}};
  packed.make(1);
  for (RankTensor& rank : packed.tap.ranks)  // all but the third row
    for (std::size_t i = 0; i < rank.values.values.size(); ++i)
      if (std::int64_t(i) / rank.values.cols() != 2) rank.values.values[i] += 1;
  BOOST_TEST(packed.are_found());
}

BOOST_AUTO_TEST_CASE(what_is_no_packed_projection_has_no_columns) {
  Packed packed{.tokens = 3, .tp = 2, .widths = {64, 32}, .blocks = {2, 2}};
  packed.make(1);
  Packed other = packed;
  std::ranges::swap(other.tap.ranks[0].values, other.tap.ranks[1].values);  // of each other
  other.tap.trusted = &other.trusted;
  BOOST_TEST(!packed_columns(other.tap).has_value());
  Packed twice = packed;
  twice.tap.trusted = &twice.trusted;
  twice.tap.ranks[1].values = twice.tap.ranks[0].values;  // the other block is on no rank
  BOOST_TEST(!packed_columns(twice.tap).has_value());
  Packed zeros = packed;
  zeros.tap.trusted = &zeros.trusted;
  for (RankTensor& rank : zeros.tap.ranks) std::ranges::fill(rank.values.values, 0.0F);
  BOOST_TEST(!packed_columns(zeros.tap).has_value());
}

}  // namespace
}  // namespace tokenview
