// SPDX-License-Identifier: Apache-2.0
// Tensors of the reference as bytes, for a communicator in host memory.
#pragma once
#include "reference/eigen_ops.hpp"
#include "reference/program/bytes.hpp"

namespace tokenview {

/// A matrix behind its shape.
template <class T>
void write_matrix(ByteWriter& to, const Matrix<T>& x) {
  to.reserve(std::size_t(x.size()) * sizeof(T) + 2 * sizeof(std::int64_t));
  to.add(std::int64_t(x.rows())).add(std::int64_t(x.cols()));
  to.add(std::span<const T>(x.data(), std::size_t(x.size())));
}
template <class T>
void read_matrix(ByteReader& from, Matrix<T>& x) {
  const auto rows = from.read<std::int64_t>(), cols = from.read<std::int64_t>();
  x.resize(rows, cols);
  from.read_into(std::span<T>(x.data(), std::size_t(x.size())));
}

template <class S>
Bytes to_bytes(const EigenOps<S>&, const Matrix<S>& x) {
  ByteWriter to;
  write_matrix(to, x);
  return to.take();
}
template <class S>
void from_bytes(const EigenOps<S>&, const Bytes& bytes, Matrix<S>& x) {
  ByteReader from(bytes);
  read_matrix(from, x);
}

template <class S>
Bytes to_bytes(const EigenOps<S>&, const typename EigenOps<S>::Routing& x) {
  ByteWriter to;
  write_matrix(to, x.weights);
  write_matrix(to, x.ids);
  return to.take();
}
template <class S>
void from_bytes(const EigenOps<S>&, const Bytes& bytes, typename EigenOps<S>::Routing& x) {
  ByteReader from(bytes);
  read_matrix(from, x.weights);
  read_matrix(from, x.ids);
}

}  // namespace tokenview
