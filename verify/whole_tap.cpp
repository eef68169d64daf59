// SPDX-License-Identifier: Apache-2.0
#include "verify/whole_tap.hpp"

#include "reference/program/error.hpp"
#include "verify/placed_compare.hpp"

namespace tokenview {

std::int64_t golden_row(const RowRun& row, const GoldenInputs& inputs, std::int64_t draft_step,
                        const std::vector<std::int32_t>& rejected) {
  if (draft_step <= 0) return row.first;
  for (std::int64_t s = 0; s < inputs.num_sequences(); ++s)
    if (inputs.query_start_loc[std::size_t(s) + 1] - 1 -
            (rejected.empty() ? 0 : rejected[std::size_t(s)]) ==
        row.first)
      return s;
  return -1;
}

std::int64_t draft_step_of(const std::string& place) {
  return place.starts_with("step") ? std::stoll(place.substr(4)) : -1;
}

template <class S>
WholeTap<S> whole_tap(const NamedView& view, const std::vector<const Matrix<S>*>& ranks,
                      std::int64_t dp, const ParallelConfig& parallel, const ModelConfig& config,
                      const Matrix<S>& trusted,
                      const std::function<std::int64_t(const RowRun&)>& row_of) {
  const std::string tap = view.name.substr(view.name.find('/') + 1);
  WholeTap<S> whole{trusted};
  Matrix<bool> is_held = Matrix<bool>::Constant(trusted.rows(), trusted.cols(), false);
  Matrix<S> sum = Matrix<S>::Zero(trusted.rows(), trusted.cols());
  std::vector<std::int64_t> summands(std::size_t(trusted.rows()), 0);
  for_each_holder(view, parallel, [&](const RankCoordinates& at, const ViewOps::Tensor& held) {
    if (at.dp != dp || ranks[std::size_t(at.world)] == nullptr) return;
    const Matrix<S>& mine = *ranks[std::size_t(at.world)];
    const auto columns = columns_of(tap, held.columns, trusted.cols(), config);
    if (mine.rows() != held.rows.size() || mine.cols() != std::int64_t(columns.size())) {
      whole.problem = text("rank ", at.world, " has [", mine.rows(), ", ", mine.cols(),
                           "], expected [", held.rows.size(), ", ", columns.size(), ']');
      return;
    }
    for (std::int64_t r = 0; r < held.rows.size(); ++r) {
      const RowRun row = held.rows.at(r);
      if (row.kind != RowKind::token || row.dp != dp) continue;
      const std::int64_t place = row_of(row);
      if (place < 0 || place >= trusted.rows()) {
        whole.problem = text("rank ", at.world, " row ", r, " has no row in the golden");
        continue;
      }
      if (held.sum.is_partial()) ++summands[std::size_t(place)];
      for (std::size_t c = 0; c < columns.size(); ++c) {
        const std::int64_t column = columns[c];
        const S value = mine(r, std::int64_t(c));
        if (held.sum.is_partial()) {
          sum(place, column) += value;
          continue;
        }
        S& known = whole.values(place, column);
        const auto away = [&](S x) { return std::abs(double(x) - double(trusted(place, column))); };
        if (!is_held(place, column) || !(away(value) <= away(known))) known = value;
        is_held(place, column) = true;
      }
    }
  });
  for (std::int64_t r = 0; r < trusted.rows(); ++r) {
    if (summands[std::size_t(r)] == parallel.tp) {
      whole.values.row(r) = sum.row(r);
    } else if (!is_held.row(r).all()) {
      whole.absent_rows.push_back(r);
    }
  }
  return whole;
}

template WholeTap<double> whole_tap(const NamedView&, const std::vector<const Matrix<double>*>&,
                                    std::int64_t, const ParallelConfig&, const ModelConfig&,
                                    const Matrix<double>&,
                                    const std::function<std::int64_t(const RowRun&)>&);
template WholeTap<std::int64_t> whole_tap(const NamedView&,
                                          const std::vector<const Matrix<std::int64_t>*>&,
                                          std::int64_t, const ParallelConfig&, const ModelConfig&,
                                          const Matrix<std::int64_t>&,
                                          const std::function<std::int64_t(const RowRun&)>&);

}  // namespace tokenview
