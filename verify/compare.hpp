// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>

namespace tokenview {

/// How far values are from the trusted ones, all metrics in one pass. Sums are kept in double.
struct Comparison {
  std::int64_t count = 0;
  double max_abs_error = 0;  // NaN and infinities apart
  double max_golden = 0;     // largest magnitude of the trusted values
  double error_l2 = 0;       // root of the sum of squared errors
  double golden_l2 = 0;
  std::int64_t worst_index = -1;  // of max_abs_error; -1 where nothing differs
  std::int64_t not_finite = 0;    // elements that are NaN or infinite on either side
  std::int64_t first_not_finite = -1;
  std::int64_t outside_one_step = 0;  // further off than one bfloat16 step of the larger value

  /// error_l2 / golden_l2; 0 where both are zero, infinite where only the trusted side is.
  double relative_l2() const;
};

/// The spans have the same length. S is float or double.
template <class S>
Comparison compare(std::span<const S> values, std::span<const float> golden);
Comparison compare(std::span<const double> values, std::span<const double> trusted);

}  // namespace tokenview
