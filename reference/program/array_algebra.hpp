// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#ifdef __AVX__
#include <immintrin.h>
#endif

#include "reference/program/error.hpp"
#include "reference/program/operations.hpp"

/// The algebra of collectives on row-major arrays: what has data(), rows(), cols() and
/// resize(rows, cols). Every input is read once and every result is written once, however many
/// results there are.
namespace tokenview::array_algebra {

/// Adds as processors do: integers wrap around.
struct Plus {
  template <class T>
  T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      using Wrapping = std::make_unsigned_t<T>;
      return T(Wrapping(x) + Wrapping(y));
    } else {
      return x + y;
    }
  }
};

/// A cache line of numbers in a vector register, or in several.
template <class T>
struct LineOf {
  static_assert(std::is_floating_point_v<T>);
  using type [[gnu::vector_size(64)]] = T;
};
template <std::integral T>
struct LineOf<T> {
  using type [[gnu::vector_size(64)]] = std::make_unsigned_t<T>;
};
template <class T>
using Line = typename LineOf<T>::type;

/// Calls that read and write more than this find little of it in the cache. Their results go around
/// it, which saves reading the lines before they are written.
constexpr std::int64_t streamed_bytes = 12 << 20;

template <class A>
bool is_streamed(std::int64_t elements) {
  return elements * std::int64_t(sizeof(*std::declval<A&>().data())) > streamed_bytes;
}

/// Blocks that stay in the cache from the first part to the last result.
constexpr std::int64_t block_bytes = 32 << 10;

/// Writes 64 bytes around the cache to `to`, which is aligned to them.
template <class T>
void stream_line(T* to, const Line<T>& line) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), __m512i(line));
#elif defined(__AVX__)
  __m256i halves[2];
  std::memcpy(halves, &line, sizeof(line));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), halves[0]);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + 1, halves[1]);
#else
  std::memcpy(to, &line, sizeof(line));
#endif
}

/// The sum of n elements of `parts` from element `from` on, in the order given, by add(a, b), into
/// every one of `results` from element `at` on. `streamed`: results go around the cache where they
/// are aligned.
template <class A, class Add>
void add_to_all(std::span<const A* const> parts, std::int64_t from, std::int64_t n,
                std::span<A* const> results, std::int64_t at, Add add,
                [[maybe_unused]] bool streamed) {
  using T = std::remove_cvref_t<decltype(*parts[0]->data())>;
  std::int64_t done = 0;
  if constexpr (std::is_same_v<Add, Plus> && std::is_arithmetic_v<T>) {
    const auto aligned = [&](const A* result) {
      return reinterpret_cast<std::uintptr_t>(result->data() + at) % sizeof(Line<T>) == 0;
    };
    if (streamed && std::ranges::all_of(results, aligned)) {
      constexpr auto per_line = std::int64_t(sizeof(Line<T>) / sizeof(T));
      for (; done + per_line <= n; done += per_line) {
        Line<T> total, part;
        std::memcpy(&total, parts.front()->data() + from + done, sizeof(total));
        for (const A* const array : parts.subspan(1)) {
          std::memcpy(&part, array->data() + from + done, sizeof(part));
          total += part;
        }
        for (A* const result : results) stream_line<T>(result->data() + at + done, total);
      }
#ifdef __AVX__
      _mm_sfence();
#endif
    }
  }
  constexpr std::int64_t block = block_bytes / std::int64_t(sizeof(T));
  for (; done < n; done += block) {
    const std::int64_t count = std::min(block, n - done);
    T* const total = results.front()->data() + at + done;
    const T* const first = parts.front()->data() + from + done;
    if (parts.size() == 1) {
      std::copy_n(first, count, total);
    } else {
      const T* const second = parts[1]->data() + from + done;
      for (std::int64_t i = 0; i < count; ++i) total[i] = add(first[i], second[i]);
      for (const A* const array : parts.subspan(2)) {
        const T* const part = array->data() + from + done;
        for (std::int64_t i = 0; i < count; ++i) total[i] = add(total[i], part[i]);
      }
    }
    for (A* const result : results.subspan(1))
      std::copy_n(total, count, result->data() + at + done);
  }
}

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
  for (A* result : results) result->resize(rows, cols);
  const bool streamed = is_streamed<A>(rows * cols * std::int64_t(1 + results.size()));
  std::int64_t at = 0;
  const auto copy = [&](const A* part, std::int64_t from, std::int64_t n) {
    add_to_all(std::span<const A* const>(&part, 1), from, n, results, at, Plus{}, streamed);
    at += n;
  };
  if (axis == Axis::rows)
    for (const A* part : parts) copy(part, 0, part->rows() * cols);
  else
    for (std::int64_t row = 0; row < rows; ++row)
      for (const A* part : parts) copy(part, row * part->cols(), part->cols());
}

/// The slice [begin, end) along `axis` of the sum of `parts`, added in the order given by
/// add(a, b), into every one of `results`. Throws ShapeError where the parts differ or have no such
/// slice.
template <class A, class Add>
void sum(std::span<const A* const> parts, Axis axis, std::int64_t begin, std::int64_t end,
         std::span<A* const> results, Add add) {
  const std::int64_t rows = parts.front()->rows(), cols = parts.front()->cols();
  const std::int64_t extent = axis == Axis::rows ? rows : cols;
  if (begin < 0 || begin > end || end > extent)
    throw ShapeError(text("sum: [", begin, ", ", end, ") of ", extent));
  for (const A* part : parts)
    if (part->rows() != rows || part->cols() != cols)
      throw ShapeError(text("sum: operands are [", rows, ", ", cols, "] and [", part->rows(), ", ",
                            part->cols(), "]"));
  const std::int64_t width = end - begin;
  for (A* result : results)
    result->resize(axis == Axis::rows ? width : rows, axis == Axis::cols ? width : cols);
  const bool streamed = is_streamed<A>(width * (axis == Axis::rows ? cols : rows) *
                                       std::int64_t(parts.size() + results.size()));
  if (axis == Axis::rows)
    add_to_all(parts, begin * cols, width * cols, results, 0, add, streamed);
  else
    for (std::int64_t row = 0; row < rows; ++row)
      add_to_all(parts, row * cols + begin, width, results, row * width, add, streamed);
}

}  // namespace tokenview::array_algebra
