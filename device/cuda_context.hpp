// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/check.hpp"
#include "device/cublas.hpp"
#include "device/device_matrix.hpp"

namespace tokenview {

/// One GPU with what the operations share: a stream on which all work is queued in order, a pool
/// that memory is taken from and returned to in that order, and cuBLAS. Memory keeps its context.
/// Not for several threads at once.
class CudaContext : public std::enable_shared_from_this<CudaContext> {
 public:
  /// Throws DeviceError where there is no such GPU, or it is too old for the kernels of this build.
  static std::shared_ptr<CudaContext> create(int device);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }

  /// Uninitialised memory for `count` elements; null for none. Throws DeviceError when the GPU has
  /// no more.
  template <class T>
  std::shared_ptr<T> allocate(std::int64_t count) {
    return std::static_pointer_cast<T>(allocate_bytes(count * std::int64_t(sizeof(T))));
  }

  /// Uninitialised, and zero.
  template <class T>
  DeviceMatrix<T> matrix(std::int64_t rows, std::int64_t cols) {
    return {allocate<T>(rows * cols), rows, cols};
  }
  template <class T>
  DeviceMatrix<T> zeros(std::int64_t rows, std::int64_t cols) {
    const auto out = matrix<T>(rows, cols);
    set_zero(out.data(), out.size() * std::int64_t(sizeof(T)));
    return out;
  }

  /// A copy of host values. They may be freed at once.
  template <class T>
  std::shared_ptr<T> upload(std::span<const T> values) {
    auto data = allocate<T>(std::int64_t(values.size()));
    if (!values.empty())
      check(cudaMemcpyAsync(data.get(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice,
                            stream_),
            "copy to the GPU");
    return data;
  }
  template <class T>
  std::shared_ptr<T> upload(const std::vector<T>& values) {
    return upload(std::span<const T>(values));
  }

  /// Waits for all work before it: errors of kernels show here.
  template <class T>
  std::vector<T> download(const T* data, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0)
      check(cudaMemcpyAsync(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost,
                            stream_),
            "copy from the GPU");
    check(cudaStreamSynchronize(stream_), "waiting for the GPU");
    return values;
  }

  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDeviceToDevice, stream_),
            "copy on the GPU");
  }
  void set_zero(void* data, std::int64_t bytes) const {
    if (bytes > 0) check(cudaMemsetAsync(data, 0, std::size_t(bytes), stream_), "cudaMemsetAsync");
  }

  /// y [rows, out] = x [rows, in] w^T, w [out, in]; all row-major. Sums are in fp32, of float
  /// products in fp32 too (no TF32); bfloat16 results are rounded once. T: float, __nv_bfloat16.
  template <class T>
  void gemm(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t out,
            std::int64_t in) const;

 private:
  CudaContext() = default;
  std::shared_ptr<void> allocate_bytes(std::int64_t bytes);

  std::string name_;  // "GPU 0 (NVIDIA H200)"
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  cublasHandle_t blas_ = nullptr;
};

}  // namespace tokenview
