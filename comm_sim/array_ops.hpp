// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "reference/program/bfloat16.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// A row-major [rows, cols] array. New elements are not initialised: a
/// result is written once.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Array() = default;
  Array(std::int64_t rows, std::int64_t cols) { resize(rows, cols); }
  Array(const Array& other) : Array(other.rows_, other.cols_) {
    std::copy_n(other.data(), size(), data());
  }
  Array(Array&& other) noexcept { swap(other); }
  Array& operator=(Array other) noexcept {
    swap(other);
    return *this;
  }

  /// Another shape; the elements are lost.
  void resize(std::int64_t rows, std::int64_t cols) {
    if (rows * cols != size()) data_.reset(allocate(std::size_t(rows * cols) * sizeof(T)));
    rows_ = rows;
    cols_ = cols;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t size() const { return rows_ * cols_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator()(std::int64_t row, std::int64_t col) {
    return data_[std::size_t(row * cols_ + col)];
  }
  const T& operator()(std::int64_t row, std::int64_t col) const {
    return data_[std::size_t(row * cols_ + col)];
  }
  bool operator==(const Array& other) const {
    return rows_ == other.rows_ && cols_ == other.cols_ &&
           std::equal(data(), data() + size(), other.data());
  }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  /// Aligned to cache lines where that matters: it costs more than a small array does.
  static T* allocate(std::size_t bytes) {
    constexpr std::size_t line = 64;
    void* data = bytes < 1024 * line ? std::malloc(std::max<std::size_t>(bytes, 1))
                                     : std::aligned_alloc(line, (bytes + line - 1) / line * line);
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<T*>(data);
  }
  void swap(Array& other) noexcept {
    std::swap(rows_, other.rows_);
    std::swap(cols_, other.cols_);
    std::swap(data_, other.data_);
  }

  std::int64_t rows_ = 0, cols_ = 0;
  std::unique_ptr<T[], Free> data_;
};

/// The algebra of collectives, and nothing else, on arrays of float, double, std::int32_t,
/// std::int64_t or Bfloat16. Integers wrap around; a bfloat16 sum is rounded after every addition,
/// which is done in float: both as NCCL does it.
template <class T>
class ArrayOps {
 public:
  using Tensor = Array<T>;

  std::int64_t extent(const Tensor& x, Axis axis) const {
    return axis == Axis::rows ? x.rows() : x.cols();
  }
  ElementType element_type(const Tensor&) const;
  Tensor slice(const Tensor& x, Axis axis, std::int64_t begin, std::int64_t end) const;
  Tensor concat(std::span<const Tensor* const> parts, Axis axis) const;
  void concat(std::span<const Tensor* const> parts, Axis axis,
              std::span<Tensor* const> results) const;
  Tensor sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
             std::int64_t end) const;
  void sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin, std::int64_t end,
           std::span<Tensor* const> results) const;
};

extern template class ArrayOps<float>;
extern template class ArrayOps<double>;
extern template class ArrayOps<std::int32_t>;
extern template class ArrayOps<std::int64_t>;
extern template class ArrayOps<Bfloat16>;

}  // namespace tokenview
