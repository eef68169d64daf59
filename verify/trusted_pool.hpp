// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "verify/infer.hpp"
#include "verify/row_sketch.hpp"

namespace tokenview {

/// A row with what the search for its like needs.
struct SketchedRow {
  const float* values;
  RowSketch sketch;
  double largest;  // magnitude; not finite where a value is not
};

/// A block of a trusted row that a row equals, `factor` times.
struct PoolMatch {
  std::int32_t token = 0;  // of the pool's tokens
  std::int16_t block = 0;
  double factor = 1;
  double difference = 0;  // max|row - factor * token|
  double error = 0;       // of the scale
  bool is_near = false;   // nearest, and not equal
};

/// The nearest of 1..64, 1/2..1/64 and k/m up to 8/8, of either sign.
double usual_factor(double factor);
inline constexpr double usual_factors = 256;  // so many, of both signs

/// The trusted rows by column block, to be found by their values.
class TrustedPool {
 public:
  /// More equal ones than this are not told apart.
  static constexpr std::size_t most_matches = 16;
  /// Column blocks of a row at most.
  static constexpr std::size_t most_blocks = 64;

  /// Blocks of `width` columns. `trusted` and what it points to outlive the pool.
  TrustedPool(std::span<const TrustedRows> trusted, std::int64_t width,
              const InferOptions& options);

  bool is_empty() const { return order_.empty(); }
  std::int64_t width() const { return plan_.width(); }
  const SketchPlan& plan() const { return plan_; }
  const std::vector<ColumnBlock>& blocks() const { return blocks_; }
  RowRun run_of(std::int32_t token) const { return tokens_[std::size_t(token)].run; }
  std::int32_t num_tokens() const { return std::int32_t(tokens_.size()); }
  std::int64_t num_tokens(std::int16_t dp, std::int32_t step) const;

  /// What a difference is measured against: see InferOptions::tolerance.
  double scale(double largest) const { return largest > floor_ ? largest : floor_; }

  /// The blocks that the row equals, as well as rounding of values as large as `largest` (those of
  /// its summands) lets one know.
  std::vector<PoolMatch> equals(const SketchedRow& row, double largest) const;
  std::vector<PoolMatch> equals(const SketchedRow& row) const { return equals(row, row.largest); }

  /// The blocks that the row is a multiple of; k, 1/k or k/m exactly where it is as near. Needs
  /// index_directions().
  std::vector<PoolMatch> multiples(const SketchedRow& row, double largest) const;

  /// The block that is nearer (L2) to the row than any other by `factor`, and than zeros, with
  /// those that are no further from it than the row; nothing where there is none.
  std::vector<PoolMatch> nearest(const SketchedRow& row, double factor) const;

  /// Of all tokens' blocks `block`, of blocks(), that which is nearest to the row, where zeros are
  /// further by `factor`.
  std::optional<PoolMatch> nearest_of(std::int16_t block, const SketchedRow& row,
                                      double factor) const;

  /// Whether some block may be as the sketch says: false where none is.
  bool may_equal(const RowSketch& sketch, double largest) const;

  /// The factor by which the block comes closest to the row; 0 for a block of zeros.
  double factor_of(const SketchedRow& row, std::int32_t token, std::int16_t block) const;

  /// Whether match.factor times its block is the row; notes the error.
  bool is_near(const SketchedRow& row, double largest, PoolMatch& match) const;

  void index_directions();

  /// The block that the row resembles most; nothing where noise would be as like it.
  std::optional<RowLikeness> likeness(const SketchedRow& row) const;
  /// How many rows may be held to all blocks in about a second.
  std::int64_t affordable_rows() const;

  /// Copies a block's values.
  void copy(std::int32_t token, std::int16_t block, float* out) const;

  /// The chance that a row which has nothing to do with the tokens comes as close to one of the
  /// blocks, `hypotheses` times over: in each column by 2 * difference / spread of the tokens.
  double chance(const PoolMatch& match, double hypotheses) const;

 private:
  struct Token {
    RowRun run;
    const float* values;
  };
  /// Held columns: contiguous from `begin`, or listed.
  struct Columns {
    std::int64_t begin = 0;
    std::vector<std::int64_t> list;
  };
  struct Candidate {
    RowSketch sketch;
    std::int32_t token;
    std::int16_t block;
  };
  /// The candidate as the nearest to the row: difference and error.
  PoolMatch measured(const Candidate& candidate, const SketchedRow& row) const;
  /// L2, of the row and a candidate's block.
  double distance(const SketchedRow& row, const Candidate& candidate) const;

  void find_blocks(std::int64_t total, const InferOptions& options);
  void sketch_all();
  void find_spreads();
  /// A block's values: where they are, or copied to `buffer`.
  const float* values_of(std::int32_t token, std::int16_t block, std::vector<float>& buffer) const;

  double tolerance_;
  std::span<const TrustedRows> trusted_;
  SketchPlan plan_;
  double floor_ = 0;
  std::vector<Token> tokens_;
  std::vector<ColumnBlock> blocks_;
  std::vector<Columns> columns_;
  std::vector<std::vector<double>> spreads_;  // of each block: of some of its columns
  std::vector<Candidate> order_;              // by the first number of the sketch
  std::vector<Candidate> directions_;         // likewise, of rows of length one
};

}  // namespace tokenview
