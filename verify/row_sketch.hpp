// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace tokenview {

/// What a row looks like from a few random directions: rows that are nearly equal have nearly equal
/// sketches, and the sketch of a sum is the sum of the sketches.
constexpr std::int64_t sketch_size = 16;
using RowSketch = std::array<float, sketch_size>;

/// Sketches of rows of `width` columns: sums with random signs, or, of narrow rows, the columns
/// themselves. The same signs for every plan of a width.
class SketchPlan {
 public:
  explicit SketchPlan(std::int64_t width);

  std::int64_t width() const { return width_; }

  /// Of `count` rows, each `stride` floats after the one before.
  std::vector<RowSketch> sketches(const float* rows, std::int64_t count, std::int64_t stride) const;

  /// How far the sketches of two rows lie apart at most, no column of which differs by more than
  /// `difference`. A sum with random signs of that many differences exceeds 6 sigma once in 5e8
  /// times (Hoeffding's bound: 3e-8).
  double reach(double difference) const { return difference * reach_; }

 private:
  std::int64_t width_;
  double reach_;
  std::vector<RowSketch> signs_;  // [width]; of narrow rows the unit matrix
};

}  // namespace tokenview
