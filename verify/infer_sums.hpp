// SPDX-License-Identifier: Apache-2.0
// Rows that are summands: over which ranks they add up to a token.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "verify/infer_groups.hpp"

namespace tokenview {

/// Ranks that may hold the summands of the same rows, and what their sums turned out to be.
struct SumGroup {
  enum class Sum : std::uint8_t {
    nothing,
    token,    // of rows none of which is the token by itself
    lone,     // one row is a token, and the others are zeros
    against,  // the rows are tokens by themselves, and their sum is none
  };
  RankSet members = {};
  std::vector<Sum> sums = {};  // [row]
  std::vector<std::vector<PoolMatch>> matches =
      {};  // [row] of sums that are a token, lone ones too
  std::int64_t num_tokens = 0, num_lone = 0, num_against = 0;
  bool has_all_tokens = false;  // of a dp rank
};

/// Looks for sums over ranks that are tokens, over groups by coordinates where those of all ranks
/// are known, else over those that the values suggest.
class SumSearch {
 public:
  using RowsOfRanks = std::vector<std::vector<InferredRow>>;

  /// `ranks`: those without a pool are null.
  SumSearch(std::span<const RankAtHand* const> ranks, int threads)
      : ranks_(ranks), threads_(threads) {}

  /// Sums that are a token, or that could be one.
  void find(const RowsOfRanks& rows);
  /// Multiples of a token, of rows that are still unknown.
  void find_multiples(const RowsOfRanks& rows);
  /// Sums that are nearer to one token than to any other by the factor `nearest`, likewise.
  void find_nearest(const RowsOfRanks& rows, double nearest);
  /// Explains the rows that are summands.
  void explain_rows(RowsOfRanks& rows) const;

  /// What a rank's rows contain, where they are summands: of its group, or, where the other ranks
  /// hold sums over several of it, of all of them.
  Completeness completeness(std::int32_t rank, const SumGroup& group) const;
  /// The group that explains most of a rank's rows; null: none.
  const SumGroup* group_of(std::int32_t rank) const;
  std::span<const SumGroup> groups() const { return groups_; }

  /// Adds up the members' rows i into `values`; the largest magnitude is that of the summands.
  SketchedRow sum(const SumGroup& group, std::int64_t i, std::vector<float>& values) const;

 private:
  void list_groups(const RowsOfRanks& rows);
  /// Takes what `matches_of(pool, sum)` finds for sums over rows that are still unknown;
  /// `hypotheses`: how many were tried of each block.
  template <class MatchesOf>
  void find_further(const RowsOfRanks& rows, double hypotheses, const MatchesOf& matches_of);
  /// Row i as a summand of a group's sum; unknown where it is none.
  InferredRow as_summand(const SumGroup& group, std::int64_t i) const;
  /// Whether a rank brings nothing to any of the group's sums.
  bool is_all_zero(std::int32_t rank, const SumGroup& group) const;
  void look_at(SumGroup& group, std::int64_t i, const RowsOfRanks& rows) const;
  void count(SumGroup& group) const;
  std::int64_t num_rows(const SumGroup& group) const;
  const RankAtHand& at(std::int32_t rank) const { return *ranks_[std::size_t(rank)]; }

  std::span<const RankAtHand* const> ranks_;
  int threads_;
  std::vector<SumGroup> groups_;
};

}  // namespace tokenview
