// SPDX-License-Identifier: Apache-2.0
#include "verify/summand_faults.hpp"

#include <algorithm>
#include <cmath>

#include "verify/host_matrix.hpp"
#include "verify/token_rows.hpp"

namespace tokenview {
namespace {

/// The ranks' rows, and by how much their sums fall short of what is trusted.
struct Sums {
  std::vector<Matrix<double>> ranks;
  std::vector<std::int64_t> tokens;  // of each row; -1: of none
  Matrix<double> lacking;            // trusted - sum, of the rows that are tokens
  std::vector<std::int64_t> off;     // rows where that is no rounding
};

std::optional<Sums> sums_of(const TapTensors& tensors, const std::vector<Rows>& rows) {
  if (tensors.tp_size < 2 || std::ssize(tensors.ranks) != tensors.tp_size ||
      rows.size() != tensors.ranks.size())
    return std::nullopt;
  const auto trusted = as_matrix(*tensors.trusted);
  Sums sums;
  for (const RowRun& run : rows.front().runs())
    for (std::int32_t i = 0; i < run.count; ++i)
      sums.tokens.push_back(run.kind == RowKind::token && run.dp == tensors.dp &&
                                    run.first + i < trusted.rows()
                                ? run.first + i
                                : -1);
  const std::int64_t count = std::ssize(sums.tokens);
  sums.lacking = Matrix<double>::Zero(count, trusted.cols());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto mine = as_matrix(tensors.ranks[r].values);
    if (!same_rows(rows[r], rows.front()) || mine.rows() != count ||
        mine.cols() != trusted.cols() || !mine.allFinite())
      return std::nullopt;
    sums.ranks.push_back(mine.cast<double>());
    sums.lacking -= sums.ranks.back();
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = sums.tokens[std::size_t(i)];
    if (token < 0) {
      sums.lacking.row(i).setZero();
      continue;
    }
    sums.lacking.row(i) += trusted.row(token).cast<double>();
    double size = trusted.row(token).cast<double>().norm();
    for (const Matrix<double>& rank : sums.ranks) size = std::max(size, rank.row(i).norm());
    if (sums.lacking.row(i).norm() > close_enough * size) sums.off.push_back(i);
  }
  return sums;
}

/// The tokens whose summands rank `mine` has in its rows, if those that are off are its own in
/// other places.
std::optional<std::vector<std::int64_t>> places(const Sums& sums, const Matrix<double>& mine) {
  std::vector<std::int64_t> tokens = sums.tokens;
  for (const std::int64_t i : sums.off) tokens[std::size_t(i)] = -1;
  for (const std::int64_t i : sums.off) {
    const Eigen::RowVectorXd due = mine.row(i) + sums.lacking.row(i);
    std::optional<std::int64_t> found;
    for (std::int64_t k = 0; k < mine.rows(); ++k)
      if ((mine.row(k) - due).norm() <= close_enough * due.norm() && mine.row(k).norm() > 0) {
        if (found) return std::nullopt;  // rows that are equal say nothing
        found = k;
      }
    if (!found) return std::nullopt;
    tokens[std::size_t(*found)] = sums.tokens[std::size_t(i)];
  }
  return tokens;
}

/// The number of times that rank `mine` has its summands, if one explains all rows.
std::optional<double> times(const Sums& sums, const Matrix<double>& mine) {
  const double squares = mine.squaredNorm();
  if (!(squares > 0)) return std::nullopt;
  const double more = sums.lacking.cwiseProduct(mine).sum() / squares;
  for (std::int64_t i = 0; i < mine.rows(); ++i)
    if ((sums.lacking.row(i) - more * mine.row(i)).norm() >
        close_enough * std::abs(more) * mine.row(i).norm())
      return std::nullopt;
  const double times = 1 / (1 + more);
  // Whole numbers and fractions, as ranks make them.
  for (int divisor = 1; divisor <= 64; ++divisor)
    if (std::abs(times * divisor - std::round(times * divisor)) <= close_enough)
      return std::round(times * divisor) / divisor;
  return std::isfinite(times) ? std::optional(times) : std::nullopt;
}

}  // namespace

std::optional<SummandFault> summand_fault(const TapTensors& tensors,
                                          const std::vector<Rows>& rows) {
  const std::optional<Sums> sums = sums_of(tensors, rows);
  if (!sums || sums->off.empty()) return std::nullopt;
  std::optional<SummandFault> fault;
  for (std::size_t r = 0; r < sums->ranks.size(); ++r) {
    std::optional<SummandFault> found;
    if (auto tokens = places(*sums, sums->ranks[r]))
      found = SummandFault{r, 1, std::move(*tokens)};
    else if (const std::optional<double> factor = times(*sums, sums->ranks[r]))
      found = SummandFault{r, *factor, sums->tokens};
    if (!found) continue;
    if (fault) return std::nullopt;
    fault = std::move(found);
  }
  return fault;
}

}  // namespace tokenview
