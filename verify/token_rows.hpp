// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "verify/host_matrix.hpp"
#include "verify/tap_fit.hpp"

namespace tokenview {

/// Of what is explained, how much may be left: far above rounding, far below chance.
inline constexpr double close_enough = 1e-3;

/// The errors of narrow types add up, to a fifth of a row in the last layers: there a row is the
/// token that is nearer by this factor than any other.
inline constexpr double clearly = 4;

/// Calls `visit(found row, token, place of the rank)` for every row that is a token of this dp
/// rank, on every rank, until it returns false; true where it never did and there was one. False
/// where a rank has another number of rows than `rows` says.
template <class Visit>
bool for_all_rows(const TapTensors& tensors, const std::vector<Rows>& rows, Visit visit) {
  bool any = false;
  for (std::size_t i = 0; i < tensors.ranks.size(); ++i) {
    const auto mine = as_matrix(tensors.ranks[i].values);
    if (mine.rows() != rows[i].size()) return false;
    std::int64_t row = 0;
    for (const RowRun& run : rows[i].runs())
      for (std::int32_t k = 0; k < run.count; ++k, ++row) {
        if (run.kind != RowKind::token || run.dp != tensors.dp || run.first + k >= tensors.tokens())
          continue;
        any = true;
        if (!visit(Eigen::RowVectorXd(mine.row(row).cast<double>()), std::int64_t(run.first + k),
                   i))
          return false;
      }
  }
  return any;
}

}  // namespace tokenview
