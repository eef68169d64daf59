// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "reference/matrix.hpp"
#include "reference/program/host_tensor.hpp"
#include "verify/hdf5_file.hpp"

namespace tokenview {

/// A tensor in host memory as a matrix, trailing axes flattened. The tensor outlives it.
inline Eigen::Map<const Matrix<float>> as_matrix(const HostTensor& tensor) {
  return {tensor.values.data(), tensor.rows(), tensor.cols()};
}

/// Ids [rows] are one column.
inline Eigen::Map<const Matrix<std::int64_t>> as_matrix(const IntegerTensor& ids) {
  if (ids.shape.empty()) return {ids.values.data(), 0, 1};
  std::int64_t columns = 1;
  for (std::size_t axis = 1; axis < ids.shape.size(); ++axis) columns *= ids.shape[axis];
  return {ids.values.data(), ids.shape[0], columns};
}

}  // namespace tokenview
