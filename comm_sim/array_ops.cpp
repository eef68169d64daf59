// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/array_ops.hpp"

#include <type_traits>

#include "reference/program/array_algebra.hpp"

namespace tokenview {

template <class T>
ElementType ArrayOps<T>::element_type(const Tensor&) const {
  if constexpr (std::is_same_v<T, float>) return {"float32", 4};
  if constexpr (std::is_same_v<T, double>) return {"float64", 8};
  if constexpr (std::is_same_v<T, std::int32_t>) return {"int32", 4};
  if constexpr (std::is_same_v<T, std::int64_t>) return {"int64", 8};
  if constexpr (std::is_same_v<T, Bfloat16>) return {"bfloat16", 2};
}

template <class T>
Array<T> ArrayOps<T>::slice(const Tensor& x, Axis axis, std::int64_t begin,
                            std::int64_t end) const {
  const Tensor* const part[] = {&x};
  return sum(part, axis, begin, end);
}

template <class T>
void ArrayOps<T>::concat(std::span<const Tensor* const> parts, Axis axis,
                         std::span<Tensor* const> results) const {
  array_algebra::join(parts, axis, results);
}

template <class T>
Array<T> ArrayOps<T>::concat(std::span<const Tensor* const> parts, Axis axis) const {
  Tensor whole;
  Tensor* const results[] = {&whole};
  concat(parts, axis, results);
  return whole;
}

template <class T>
void ArrayOps<T>::sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
                      std::int64_t end, std::span<Tensor* const> results) const {
  array_algebra::sum(parts, axis, begin, end, results, array_algebra::Plus{});
}

template <class T>
Array<T> ArrayOps<T>::sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
                          std::int64_t end) const {
  Tensor total;
  Tensor* const results[] = {&total};
  sum(parts, axis, begin, end, results);
  return total;
}

template class ArrayOps<float>;
template class ArrayOps<double>;
template class ArrayOps<std::int32_t>;
template class ArrayOps<std::int64_t>;
template class ArrayOps<Bfloat16>;

}  // namespace tokenview
