// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/program/error.hpp"
#include "reference/program/operations.hpp"

/// The algebra of collectives on row-major arrays: what has data(), rows(), cols() and
/// resize(rows, cols). Every input is read once and every result is written once, however many
/// results there are: work goes in blocks that stay in the first-level cache.
namespace tokenview::array_algebra {

/// Bytes of a block. Small enough that it is still in the cache for the last result.
constexpr std::int64_t block_bytes = 8192;

/// Copies n elements to every one of `results`, from element `at` on.
template <class T>
void copy_to_all(const T* from, std::int64_t n, std::span<T* const> results, std::int64_t at) {
  constexpr std::int64_t block = block_bytes / std::int64_t(sizeof(T));
  for (std::int64_t begin = 0; begin < n; begin += block)
    for (T* const result : results)
      std::copy_n(from + begin, std::min(block, n - begin), result + at + begin);
}

/// Adds `parts` in the order given, elements [from, from + n) of each, into every one of `results`,
/// from element `at` on.
template <class T, class Add>
void add_to_all(std::span<const T* const> parts, std::int64_t from, std::int64_t n,
                std::span<T* const> results, std::int64_t at, Add add) {
  constexpr std::int64_t block = block_bytes / std::int64_t(sizeof(T));
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t count = std::min(block, n - begin);
    T* const total = results.front() + at + begin;
    std::copy_n(parts.front() + from + begin, count, total);
    for (const T* const part : parts.subspan(1))
      for (std::int64_t i = 0; i < count; ++i) total[i] = add(total[i], part[from + begin + i]);
    for (T* const result : results.subspan(1)) std::copy_n(total, count, result + at + begin);
  }
}

template <class A>
using Element = std::remove_cvref_t<decltype(*std::declval<A&>().data())>;

/// `parts` joined along `axis` in the order given, into every one of `results`. Throws ShapeError
/// where they differ along the other axis.
template <class A>
void join(std::span<const A* const> parts, Axis axis, std::span<A* const> results) {
  std::int64_t rows = axis == Axis::rows ? 0 : parts.front()->rows();
  std::int64_t cols = axis == Axis::cols ? 0 : parts.front()->cols();
  for (const A* part : parts) {
    if (axis == Axis::rows ? part->cols() != cols : part->rows() != rows)
      throw ShapeError(text("concat: operand is [", part->rows(), ", ", part->cols(),
                            "], expected ", axis == Axis::rows ? cols : rows,
                            axis == Axis::rows ? " columns" : " rows"));
    (axis == Axis::rows ? rows : cols) += axis == Axis::rows ? part->rows() : part->cols();
  }
  std::vector<Element<A>*> to;
  for (A* result : results) {
    result->resize(rows, cols);
    to.push_back(result->data());
  }
  std::int64_t at = 0;
  if (axis == Axis::rows)
    for (const A* part : parts) {
      copy_to_all<Element<A>>(part->data(), part->rows() * cols, to, at);
      at += part->rows() * cols;
    }
  else
    for (std::int64_t row = 0; row < rows; ++row)
      for (const A* part : parts) {
        copy_to_all<Element<A>>(part->data() + row * part->cols(), part->cols(), to, at);
        at += part->cols();
      }
}

/// The sum of [begin, end) along `axis` of `parts`, added in the order given by add(a, b), into
/// every one of `results`. Throws ShapeError where the parts differ or have no such slice.
template <class A, class Add>
void sum(std::span<const A* const> parts, Axis axis, std::int64_t begin, std::int64_t end,
         std::span<A* const> results, Add add) {
  const std::int64_t rows = parts.front()->rows(), cols = parts.front()->cols();
  const std::int64_t extent = axis == Axis::rows ? rows : cols;
  if (begin < 0 || begin > end || end > extent)
    throw ShapeError(text("sum: [", begin, ", ", end, ") of ", extent));
  std::vector<const Element<A>*> from;
  for (const A* part : parts) {
    if (part->rows() != rows || part->cols() != cols)
      throw ShapeError(text("sum: operands are [", rows, ", ", cols, "] and [", part->rows(), ", ",
                            part->cols(), "]"));
    from.push_back(part->data());
  }
  std::vector<Element<A>*> to;
  for (A* result : results) {
    result->resize(axis == Axis::rows ? end - begin : rows,
                   axis == Axis::cols ? end - begin : cols);
    to.push_back(result->data());
  }
  if (axis == Axis::rows)
    add_to_all<Element<A>>(from, begin * cols, (end - begin) * cols, to, 0, add);
  else
    for (std::int64_t row = 0; row < rows; ++row)
      add_to_all<Element<A>>(from, row * cols + begin, end - begin, to, row * (end - begin), add);
}

}  // namespace tokenview::array_algebra
