// SPDX-License-Identifier: Apache-2.0
#include "verify/choice_order.hpp"

#include <algorithm>
#include <string_view>

#include "verify/host_matrix.hpp"
#include "verify/token_rows.hpp"

namespace tokenview {
namespace {

/// For each place of the trusted choice the place of the same expert in the found one.
std::vector<Eigen::Index> order_of(
    const Eigen::Ref<const Eigen::RowVector<std::int64_t, -1>>& found,
    const Eigen::Ref<const Eigen::RowVector<std::int64_t, -1>>& due, bool& are_the_same) {
  std::vector<Eigen::Index> order(std::size_t(due.size()), -1);
  std::vector<bool> is_taken(std::size_t(found.size()), false);
  for (Eigen::Index place = 0; place < due.size(); ++place)
    for (Eigen::Index k = 0; k < found.size() && order[std::size_t(place)] < 0; ++k)
      if (!is_taken[std::size_t(k)] && found[k] == due[place]) {
        order[std::size_t(place)] = k;
        is_taken[std::size_t(k)] = true;
      }
  are_the_same = std::ranges::find(order, -1) == order.end();
  Eigen::Index next = 0;
  for (Eigen::Index& place : order) {
    if (place >= 0) continue;
    while (is_taken[std::size_t(next)]) ++next;
    place = next++;
  }
  return order;
}

}  // namespace

template <class S>
std::int64_t put_in_trusted_order(Eigen::Ref<Matrix<S>> values, const Matrix<std::int64_t>& found,
                                  const Matrix<std::int64_t>& trusted, const Rows& rows) {
  if (values.rows() != found.rows() || values.cols() != found.cols() ||
      values.rows() != rows.size() || trusted.cols() != found.cols())
    return 0;
  std::int64_t reordered = 0, row = 0;
  for (const RowRun& run : rows.runs())
    for (std::int32_t i = 0; i < run.count; ++i, ++row) {
      const std::int64_t token = run.first + i;
      if (run.kind != RowKind::token || token >= trusted.rows()) continue;
      bool are_the_same = false;
      const std::vector<Eigen::Index> order =
          order_of(found.row(row), trusted.row(token), are_the_same);
      if (std::ranges::is_sorted(order)) continue;
      reordered += are_the_same;
      const Eigen::RowVector<S, -1> before = values.row(row);
      for (Eigen::Index k = 0; k < before.size(); ++k)
        values(row, k) = before[order[std::size_t(k)]];
    }
  return reordered;
}

template std::int64_t put_in_trusted_order(Eigen::Ref<Matrix<float>>, const Matrix<std::int64_t>&,
                                           const Matrix<std::int64_t>&, const Rows&);
template std::int64_t put_in_trusted_order(Eigen::Ref<Matrix<std::int64_t>>,
                                           const Matrix<std::int64_t>&, const Matrix<std::int64_t>&,
                                           const Rows&);

std::string ids_of_weights(const std::string& tap) {
  constexpr std::string_view weights = ".gate.weights";
  return tap.ends_with(weights) ? tap.substr(0, tap.size() - weights.size()) + ".gate.ids" : "";
}

TapTensors WeighedChoice::in_trusted_order(TapTensors weights,
                                           const std::vector<Rows>& rows) const {
  for (std::size_t i = 0; i < std::min(found.size(), weights.ranks.size()); ++i) {
    HostTensor& mine = weights.ranks[i].values;
    Eigen::Map<Matrix<float>> values(mine.values.data(), mine.rows(), mine.cols());
    put_in_trusted_order<float>(values, found[i], trusted, rows[i]);
  }
  return weights;
}

bool are_weights_of_other_experts(const TapTensors& weights, const std::vector<Rows>& rows) {
  const auto trusted = as_matrix(*weights.trusted);
  bool any = false;
  const bool are_equal =
      for_all_rows(weights, rows, [&](Eigen::RowVectorXd found, std::int64_t token, std::size_t) {
        Eigen::RowVectorXd due = trusted.row(token).cast<double>();
        if (found.size() != due.size()) return false;
        const double allowed = close_enough * due.norm();
        any |= (found - due).norm() > allowed;
        std::ranges::sort(found);
        std::ranges::sort(due);
        return (found - due).norm() <= allowed;
      });
  return are_equal && any;
}

}  // namespace tokenview
