// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tokenview {

/// The largest |found - trusted| / allowed of `count` elements; infinite where one is NaN or
/// infinite on either side.
template <class S, class G>
double row_ratio(const S* found, const G* trusted, std::int64_t count, double allowed) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double error = std::abs(double(found[i]) - double(trusted[i]));
    if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, error);
  }
  return largest == 0 ? 0 : largest / allowed;
}

/// row_ratio() of each row of `columns` elements.
template <class S, class G>
std::vector<double> row_ratios(std::span<const S> found, std::span<const G> trusted,
                               std::int64_t columns, double allowed) {
  std::vector<double> ratios;
  for (std::size_t at = 0; columns > 0 && at + std::size_t(columns) <= found.size();
       at += std::size_t(columns))
    ratios.push_back(row_ratio(&found[at], &trusted[at], columns, allowed));
  return ratios;
}

}  // namespace tokenview
