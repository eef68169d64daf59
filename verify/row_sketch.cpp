// SPDX-License-Identifier: Apache-2.0
#include "verify/row_sketch.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace tokenview {

SketchPlan::SketchPlan(std::int64_t width)
    : width_(width), signs_(Matrix<float>::Zero(width, sketch_size)) {
  const bool is_narrow = width <= sketch_size;
  reach_ = is_narrow ? 1 : std::min(double(width), 6 * std::sqrt(double(width)));
  std::mt19937_64 random(1);
  for (std::int64_t c = 0; c < width; ++c) {
    const std::uint64_t bits = random();
    for (std::int64_t j = 0; j < sketch_size; ++j)
      signs_(c, j) = is_narrow ? float(c == j) : (bits >> j & 1) != 0 ? 1.0f : -1.0f;
  }
}

std::vector<RowSketch> SketchPlan::sketches(const float* rows, std::int64_t count,
                                            std::int64_t stride) const {
  std::vector<RowSketch> sketches(std::size_t(count), RowSketch{});
  if (count == 0 || width_ == 0) return sketches;
  using Strided = Eigen::Map<const Matrix<float>, 0, Eigen::OuterStride<>>;
  Eigen::Map<Matrix<float>>(sketches.front().data(), count, sketch_size).noalias() =
      Strided(rows, count, width_, Eigen::OuterStride<>(stride)) * signs_;
  return sketches;
}

}  // namespace tokenview
