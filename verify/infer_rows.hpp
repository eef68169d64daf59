// SPDX-License-Identifier: Apache-2.0
// What a row is by itself: a token, a multiple of one, zeros.
#pragma once
#include <span>
#include <vector>

#include "verify/infer.hpp"
#include "verify/trusted_pool.hpp"

namespace tokenview {

/// One rank's tensor made ready: sketches and magnitudes of its rows.
class RankAtHand {
 public:
  RankAtHand(const RankRows& given, TrustedPool& pool, int threads);

  const RankRows& given() const { return *given_; }
  TrustedPool& pool() const { return *pool_; }
  std::int64_t num_rows() const { return given_->rows; }

  SketchedRow row(std::int64_t i) const {
    return {given_->values.data() + i * given_->columns, sketches_[std::size_t(i)],
            largest_[std::size_t(i)]};
  }
  /// Infinite where a value is not finite.
  double largest(std::int64_t i) const { return largest_[std::size_t(i)]; }
  bool is_zero(std::int64_t i) const { return largest_[std::size_t(i)] == 0; }

 private:
  const RankRows* given_;
  TrustedPool* pool_;
  std::vector<RowSketch> sketches_;
  std::vector<double> largest_;
};

RowExplanation explanation_of(const TrustedPool& pool, const PoolMatch& match, RowReading reading);

/// An explanation a match, most likely first; the confidence is that of noise which was held to
/// `hypotheses` times the pool's blocks. Leaves `row` as it is where there is no match, or where
/// noise would fit as well.
void explain(InferredRow& row, const TrustedPool& pool, std::span<const PoolMatch> matches,
             RowReading reading, double hypotheses);

/// Fills in the rows that are tokens, or zeros.
void explain_equal_rows(const RankAtHand& rank, std::span<InferredRow> rows, int threads);

/// Fills in unknown rows that are multiples of a token.
void explain_multiples(const RankAtHand& rank, std::span<InferredRow> rows, int threads);

/// Fills in unknown rows that are nearer to one token than to any other by the factor `nearest`.
void explain_nearest(const RankAtHand& rank, std::span<InferredRow> rows, double nearest,
                     int threads);

/// Fills in unknown rows, too narrow for explain_nearest(), that are nearest to the token which the
/// rows beside them, or the same row of another rank, suggest.
void explain_suggested(std::span<const RankAtHand* const> ranks, double nearest,
                       std::vector<std::vector<InferredRow>>& rows);

}  // namespace tokenview
