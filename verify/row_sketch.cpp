// SPDX-License-Identifier: Apache-2.0
#include "verify/row_sketch.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace tokenview {

SketchPlan::SketchPlan(std::int64_t width)
    : width_(width), signs_(std::size_t(width), RowSketch{}) {
  const bool is_narrow = width <= sketch_size;
  reach_ = is_narrow ? 1 : std::min(double(width), 6 * std::sqrt(double(width)));
  std::mt19937_64 random(1);
  for (std::size_t c = 0; c < signs_.size(); ++c) {
    const std::uint64_t bits = random();
    for (std::size_t j = 0; j < signs_[c].size(); ++j)
      signs_[c][j] = is_narrow ? float(c == j) : (bits >> j & 1) != 0 ? 1.0f : -1.0f;
  }
}

std::vector<RowSketch> SketchPlan::sketches(const float* rows, std::int64_t count,
                                            std::int64_t stride) const {
  // Some rows at once: what is loaded of the signs serves them all. Not a matrix product of Eigen,
  // which would start threads of its own.
  constexpr std::int64_t at_once = 4;
  std::vector<RowSketch> sketches(std::size_t((count + at_once - 1) / at_once * at_once),
                                  RowSketch{});
  for (std::int64_t i = 0; i < count; i += at_once) {
    const float* row[at_once];
    for (std::int64_t k = 0; k < at_once; ++k) row[k] = rows + std::min(i + k, count - 1) * stride;
    RowSketch sum[at_once] = {};
    for (std::size_t c = 0; c < signs_.size(); ++c)
      for (std::size_t k = 0; k < std::size_t(at_once); ++k)
        for (std::size_t j = 0; j < sum[k].size(); ++j) sum[k][j] += row[k][c] * signs_[c][j];
    std::copy_n(sum, at_once, sketches.begin() + i);
  }
  sketches.resize(std::size_t(count));
  return sketches;
}

}  // namespace tokenview
