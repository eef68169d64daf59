// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/error.hpp"

namespace tokenview {

/// Eigen only asserts on shapes, and an assert ends the process: check first, throw ShapeError.
template <class X, class Y>
void require_same_shape(const char* operation, const X& x, const Y& y) {
  if (x.rows() != y.rows() || x.cols() != y.cols())
    throw ShapeError(text(operation, ": operands are [", x.rows(), ", ", x.cols(), "] and [",
                          y.rows(), ", ", y.cols(), "]"));
}

template <class X>
void require_shape(const char* operation, const X& x, std::int64_t rows, std::int64_t cols) {
  if (x.rows() != rows || x.cols() != cols)
    throw ShapeError(text(operation, ": operand is [", x.rows(), ", ", x.cols(), "], expected [",
                          rows, ", ", cols, "]"));
}

}  // namespace tokenview
