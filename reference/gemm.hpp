// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <Eigen/Core>
#include <cstdint>

namespace tokenview {

/// `count` matrices [out, in] laid out for gemm(): panels of `panel_width` output rows, inside a
/// panel all values of one input together: [count][out / panel_width][in][panel_width], the last
/// panel of each matrix filled up with zeros.
template <class S>
class PackedMatrix {
 public:
  static constexpr std::int64_t lanes = 64 / sizeof(S);
  static constexpr std::int64_t panel_width = 2 * lanes;

  PackedMatrix() = default;
  PackedMatrix(std::int64_t count, std::int64_t out, std::int64_t in);

  /// Fills matrix `index` from values at base[o * out_stride + i * in_stride].
  template <class Value>
  void pack(std::int64_t index, const Value* base, std::int64_t out_stride,
            std::int64_t in_stride = 1) {
    for (std::int64_t p = 0; p < panels(); ++p)
      for (std::int64_t i = 0; i < in_; ++i) {
        S* to = panel(index, p) + i * panel_width;
        for (std::int64_t o = p * panel_width; o < std::min(out_, (p + 1) * panel_width); ++o)
          *to++ = S(base[o * out_stride + i * in_stride]);
      }
  }

  std::int64_t count() const { return count_; }
  std::int64_t out() const { return out_; }
  std::int64_t in() const { return in_; }
  std::int64_t panels() const { return (out_ + panel_width - 1) / panel_width; }

  S at(std::int64_t index, std::int64_t o, std::int64_t i) const {
    return panel(index, o / panel_width)[i * panel_width + o % panel_width];
  }
  const S* panel(std::int64_t index, std::int64_t p) const {
    return values_.data() + (index * panels() + p) * in_ * panel_width;
  }

 private:
  S* panel(std::int64_t index, std::int64_t p) {
    return values_.data() + (index * panels() + p) * in_ * panel_width;
  }

  std::int64_t count_ = 0, out_ = 0, in_ = 0;
  Eigen::Matrix<S, Eigen::Dynamic, 1> values_;  // aligned for the widest vector
};

/// y[r, o] = sum over i of x[r, i] * w[index][o, i], for `rows` rows; x and y row-major with the
/// given row strides. Each sum runs over i in order in one accumulator. So a row's result depends
/// on nothing but that row: not on its place, the number of rows, the number of threads, or how the
/// output columns are split over ranks. Views can then be compared bit for bit.
template <class S>
void gemm(const S* x, std::int64_t x_stride, std::int64_t rows, const PackedMatrix<S>& w,
          std::int64_t index, S* y, std::int64_t y_stride, int num_threads);

}  // namespace tokenview
