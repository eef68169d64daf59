// SPDX-License-Identifier: Apache-2.0
// Rows of several tokens: column blocks side by side, or sums.
#pragma once
#include <span>
#include <vector>

#include "reference/matrix.hpp"
#include "verify/infer_rows.hpp"

namespace tokenview {

/// Fills in unknown rows whose column blocks, as many as there are ranks or some usual number up to
/// 32, are those of tokens, or zeros.
void explain_mixes(std::span<const RankAtHand* const> ranks, std::span<const TrustedRows> trusted,
                   const InferOptions& options, std::vector<std::vector<InferredRow>>& rows);

/// Sums over different tokens with usual factors, found by least squares: over all tokens where
/// they are fewer than half of the columns, else greedily, one token after the other (orthogonal
/// matching pursuit).
class TokenSums {
 public:
  /// `pool` is of whole rows: of one block. At most `most_tokens` are added up.
  TokenSums(const TrustedPool& pool, std::int64_t most_tokens, double tolerance);

  /// False where such sums would fit anything: too few columns.
  bool is_able() const { return is_able_; }
  /// How many rows take about a second on one core.
  std::int64_t affordable_rows() const;

  /// The sum that the row is; unknown where it is none.
  InferredRow explain(const SketchedRow& row) const;

 private:
  std::vector<std::int32_t> chosen(const Eigen::VectorXd& row, double allowed) const;

  const TrustedPool& pool_;
  std::int64_t most_tokens_;
  double tolerance_;
  bool is_able_ = false;
  Matrix<float> tokens_;  // [tokens, width], where they are few
};

}  // namespace tokenview
