// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

namespace tokenview {

/// A row-major [rows, cols] matrix in device memory, not owned.
template <class T>
struct MatrixRef {
  T* data;
  std::int64_t rows, cols;
};

/// A row-major [rows, cols] matrix in device memory. Copies, slices of rows and reshaped matrices
/// share the memory, so an operation never writes to what another one made.
template <class T>
class DeviceMatrix {
 public:
  using Element = T;

  DeviceMatrix() = default;
  DeviceMatrix(std::shared_ptr<T> data, std::int64_t rows, std::int64_t cols)
      : data_(std::move(data)), rows_(rows), cols_(cols) {}

  T* data() const { return data_.get(); }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t size() const { return rows_ * cols_; }

  /// `rows * cols` elements from element `offset` on, as [rows, cols].
  DeviceMatrix reshaped(std::int64_t offset, std::int64_t rows, std::int64_t cols) const {
    return {std::shared_ptr<T>(data_, data_.get() + offset), rows, cols};
  }
  DeviceMatrix middle_rows(std::int64_t begin, std::int64_t count) const {
    return reshaped(begin * cols_, count, cols_);
  }

  operator MatrixRef<T>() const { return {data(), rows_, cols_}; }
  operator MatrixRef<const T>() const { return {data(), rows_, cols_}; }

 private:
  std::shared_ptr<T> data_;
  std::int64_t rows_ = 0, cols_ = 0;
};

}  // namespace tokenview
