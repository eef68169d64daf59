// SPDX-License-Identifier: Apache-2.0
// Internal to verify/compare*.cpp: the arithmetic of a comparison, over one part of a tensor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "verify/compare.hpp"

namespace tokenview {

/// A row, or the piece of one that lies in a part. Squares of doubles neither overflow nor vanish
/// in a long double.
struct RowMetrics {
  std::int64_t row = -1;
  double max_abs_error = 0;
  double max_golden = 0;
  long double error_squares = 0;
  long double golden_squares = 0;
  std::int64_t mismatched = 0;
};

/// What is known of consecutive elements.
struct PartMetrics {
  Comparison counts;  // maxima, counts and indices; the norms are not set
  long double error_squares = 0;
  long double golden_squares = 0;
  long double value_squares = 0;
  long double products = 0;
  std::vector<RowMetrics> rows;  // where options.columns > 0

  /// Appends what follows.
  void append(const PartMetrics& next);
};

/// `count` elements that begin with element `begin` of the tensor. Indices are of the tensor.
/// `known` are maxima of earlier elements: where no element is beyond them, the result's may be
/// theirs.
PartMetrics compare_part(const CompareOptions& options, const std::byte* values,
                         const std::byte* golden, std::int64_t begin, std::int64_t count,
                         const Comparison& known);

}  // namespace tokenview
