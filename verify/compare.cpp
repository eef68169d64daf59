// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tokenview {

double Comparison::relative_l2() const {
  if (error_l2 == 0) return 0;
  return golden_l2 == 0 ? std::numeric_limits<double>::infinity() : error_l2 / golden_l2;
}

namespace {

template <class S, class G>
Comparison compared(std::span<const S> values, std::span<const G> golden) {
  Comparison c;
  c.count = std::int64_t(values.size());
  double error_squares = 0, golden_squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = double(values[i]), trusted = double(golden[i]);
    if (!std::isfinite(value) || !std::isfinite(trusted)) {
      if (c.not_finite++ == 0) c.first_not_finite = std::int64_t(i);
      continue;
    }
    const double error = std::abs(value - trusted);
    // Eight significant bits: neighbours of 2^e <= |x| < 2^(e+1) are 2^(e-7) apart.
    if (error > 0 &&
        error > std::ldexp(1.0, std::ilogb(std::max(std::abs(value), std::abs(trusted))) - 7))
      ++c.outside_one_step;
    error_squares += error * error;
    golden_squares += trusted * trusted;
    c.max_golden = std::max(c.max_golden, std::abs(trusted));
    if (error > c.max_abs_error) {
      c.max_abs_error = error;
      c.worst_index = std::int64_t(i);
    }
  }
  c.error_l2 = std::sqrt(error_squares);
  c.golden_l2 = std::sqrt(golden_squares);
  return c;
}

}  // namespace

template <class S>
Comparison compare(std::span<const S> values, std::span<const float> golden) {
  return compared(values, golden);
}
Comparison compare(std::span<const double> values, std::span<const double> trusted) {
  return compared(values, trusted);
}

template Comparison compare(std::span<const float>, std::span<const float>);
template Comparison compare(std::span<const double>, std::span<const float>);

}  // namespace tokenview
