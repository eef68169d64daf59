// SPDX-License-Identifier: Apache-2.0
#include "verify/column_factors.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "verify/host_matrix.hpp"
#include "verify/token_rows.hpp"

namespace tokenview {
namespace {

using Row = Eigen::RowVectorXd;

bool are_near(const Row& a, const Row& b) { return (a - b).norm() <= close_enough * b.norm(); }

}  // namespace

std::optional<Eigen::RowVectorXd> factors_by_column(const TapTensors& tensors,
                                                    const std::vector<Rows>& rows) {
  const auto trusted = as_matrix(*tensors.trusted);
  const auto due = [&](std::int64_t token) { return Row(trusted.row(token).cast<double>()); };
  Row products = Row::Zero(trusted.cols()), squares = products;
  std::set<std::int64_t> tokens;
  if (!for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, std::size_t) {
        if (found.size() != trusted.cols() || !found.allFinite()) return false;
        products += found.cwiseProduct(due(token));
        squares += due(token).cwiseAbs2();
        tokens.insert(token);
        return true;
      }))
    return std::nullopt;
  if (tokens.size() < 3 || !(squares.minCoeff() > 0)) return std::nullopt;
  const Row factors = products.cwiseQuotient(squares);
  if (are_near(factors, Row::Constant(factors.size(), factors.mean()))) return std::nullopt;
  std::int64_t others = 0;  // tokens that are no multiple of the first
  const Row first = due(*tokens.begin()).normalized();
  for (const std::int64_t token : tokens)
    others += std::abs(due(token).normalized().dot(first)) < 0.9;
  const bool explains =
      for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, std::size_t) {
        return are_near(found, due(token).cwiseProduct(factors));
      });
  return explains && others >= 2 ? std::optional(factors) : std::nullopt;
}

const char* norm_weight_in_words(const Eigen::RowVectorXd& factors, const HostTensor& weight) {
  const Row own =
      Eigen::Map<const Eigen::RowVectorXf>(weight.values.data(), std::ssize(weight.values))
          .cast<double>();
  const Row found = factors.array() * (own.array() + 1);  // what was multiplied by
  if (are_near(found, own)) return "multiplied by the weight where 1 + weight is due";
  if (are_near(found, Row::Ones(found.size()))) return "not multiplied by 1 + weight";
  return "every row times the same factors by column: another norm weight";
}

}  // namespace tokenview
