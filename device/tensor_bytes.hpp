// SPDX-License-Identifier: Apache-2.0
// Tensors of a GPU as bytes, for a communicator in host memory: the host waits for each.
#pragma once
#include "device/cuda_context.hpp"
#include "device/cuda_ops.hpp"
#include "reference/program/bytes.hpp"

namespace tokenview {

/// A matrix behind its shape.
template <class T>
void write_matrix(ByteWriter& to, const CudaContext& gpu, const DeviceMatrix<T>& x) {
  const std::vector<T> values = gpu.download(x.data(), x.size());
  to.add(x.rows()).add(x.cols()).add(std::span<const T>(values));
}
template <class T>
void read_matrix(ByteReader& from, CudaContext& gpu, DeviceMatrix<T>& x) {
  const auto rows = from.read<std::int64_t>(), cols = from.read<std::int64_t>();
  std::vector<T> values(static_cast<std::size_t>(rows * cols));
  from.read_into(std::span<T>(values));
  x = {gpu.upload(values), rows, cols};
}

template <class T>
Bytes to_bytes(const CudaOps<T>& ops, const DeviceMatrix<T>& x) {
  ByteWriter to;
  write_matrix(to, ops.context(), x);
  return to.take();
}
template <class T>
void from_bytes(const CudaOps<T>& ops, const Bytes& bytes, DeviceMatrix<T>& x) {
  ByteReader from(bytes);
  read_matrix(from, ops.context(), x);
}

template <class T>
Bytes to_bytes(const CudaOps<T>& ops, const typename CudaOps<T>::Routing& x) {
  ByteWriter to;
  write_matrix(to, ops.context(), x.weights);
  write_matrix(to, ops.context(), x.ids);
  return to.take();
}
template <class T>
void from_bytes(const CudaOps<T>& ops, const Bytes& bytes, typename CudaOps<T>::Routing& x) {
  ByteReader from(bytes);
  read_matrix(from, ops.context(), x.weights);
  read_matrix(from, ops.context(), x.ids);
}

}  // namespace tokenview
