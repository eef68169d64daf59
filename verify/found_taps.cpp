// SPDX-License-Identifier: Apache-2.0
#include "verify/found_taps.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/golden_row.hpp"
#include "verify/host_matrix.hpp"
#include "verify/placed_tap.hpp"

namespace tokenview {

bool FoundTaps::is_absent(const std::string& place, std::int64_t row) const {
  const auto absent = absent_rows.find(place);
  return absent != absent_rows.end() && std::ranges::binary_search(absent->second, row);
}

const std::int64_t* FoundTaps::ids_of(const std::string& place, std::int64_t row,
                                      std::int64_t columns) const {
  const auto of_place = ids.find(place);
  if (of_place == ids.end() || row >= of_place->second.rows() ||
      of_place->second.cols() != columns || is_absent(place, row))
    return nullptr;
  return of_place->second.data() + row * columns;
}

std::optional<Eigen::RowVectorXd> FoundTaps::values_of(const std::string& place, std::int64_t row,
                                                       std::int64_t columns) const {
  const auto of_place = values.find(place);
  if (of_place == values.end() || row >= of_place->second.rows() ||
      of_place->second.cols() != columns || is_absent(place, row))
    return {};
  return of_place->second.row(row);
}

RunTaps taps_of_run(const GoldenCase& golden, const ViewRunResult& views,
                    const NumberRunResult& numbers, const ParallelConfig& parallel,
                    std::int64_t dp) {
  RunTaps taps;
  if (!numbers.error.empty()) taps.problems.push_back(numbers.error);
  const IdsByPlace trusted_choices = trusted_ids(golden);
  const std::vector<std::int32_t> rejected = rejected_of(golden.trusted);
  const auto put = [&]<class S>(const NamedView& view, const Matrix<S>& trusted,
                                std::map<std::string, Matrix<S>>& to) {
    const std::int64_t step = draft_step_of(view.name);
    PlacedTap<S> tap = placed<S>(
        view, numbers.taps, dp, parallel, golden.config, trusted,
        [&](const RowRun& row) { return golden_row(row, golden.trusted.inputs, step, rejected); });
    for (const std::string& problem : tap.problems())
      taps.problems.push_back(view.name + ": " + problem);
    to[view.name] = whole<S>(tap, trusted);
    if (!tap.absent_rows.empty()) taps.found.absent_rows[view.name] = std::move(tap.absent_rows);
  };
  for (const NamedView& view : views.views) {
    if (const auto choice = trusted_choices.find(view.name); choice != trusted_choices.end()) {
      put(view, choice->second, taps.found.ids);
      continue;
    }
    const auto tap = golden.trusted.taps.find(view.name);
    if (tap == golden.trusted.taps.end()) continue;
    put(view, Matrix<double>(as_matrix(tap->second).cast<double>()), taps.found.values);
  }
  std::int64_t first = 0;  // of the ranks of this dp rank
  while (coordinates_of(first, parallel).dp != dp) ++first;
  for (const auto& [place, ids] : numbers.taps[std::size_t(first)].ids)
    if (place.ends_with("/input_ids")) taps.found.ids[place] = ids;
  return taps;
}

}  // namespace tokenview
