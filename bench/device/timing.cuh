// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of the kernels share: times by events, and the two limits of the GPU measured
// in the same run: the bandwidth of a copy and cuBLAS's rate of a bfloat16 product.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/check.hpp"
#include "device/cublas.hpp"

namespace tokenview::bench {

template <class T>
std::shared_ptr<T> device_memory(std::int64_t count) {
  void* data = nullptr;
  check(cudaMalloc(&data, std::size_t(count) * sizeof(T)), "cudaMalloc");
  return {static_cast<T*>(data), cudaFree};
}

template <class T>
std::shared_ptr<T> to_device(const std::vector<T>& values) {
  const auto data = device_memory<T>(std::int64_t(values.size()));
  check(cudaMemcpy(data.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        "copy to the GPU");
  return data;
}

/// A hash of i: splitmix64, Steele, Lea and Flood 2014.
__host__ __device__ inline std::uint64_t hashed(std::uint64_t i) {
  i += 0x9e3779b97f4a7c15;
  i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9;
  i = (i ^ i >> 27) * 0x94d049bb133111eb;
  return i ^ i >> 31;
}

/// x [n], uniform in [-scale, scale): random, since a GPU is faster on zeros.
template <class T>
__global__ void fill_kernel(T* x, std::int64_t n, float scale, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < n;
       i += std::int64_t(gridDim.x) * blockDim.x)
    x[i] = T(scale * (float(hashed(seed << 40 ^ std::uint64_t(i)) >> 40) * 0x1p-23f - 1));
}

template <class T>
std::shared_ptr<T> random_memory(std::int64_t count, float scale, std::uint64_t seed) {
  const auto data = device_memory<T>(count);
  fill_kernel<<<1024, 256>>>(data.get(), count, scale, seed);
  check(cudaGetLastError(), "fill");
  return data;
}

/// Seconds of one call of `work`, which launches on the default stream: the median of `repeats`
/// after two that do not count. The calls are queued without a pause.
template <class Work>
double median_seconds(int repeats, Work work) {
  std::vector<cudaEvent_t> events(std::size_t(repeats) + 1);
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
  for (int i = 0; i < 2; ++i) work();
  for (std::size_t i = 0; i < events.size(); ++i) {
    check(cudaEventRecord(events[i]), "cudaEventRecord");
    if (i + 1 < events.size()) work();
  }
  check(cudaDeviceSynchronize(), "the timed work");
  std::vector<double> seconds;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "cudaEventElapsedTime");
    seconds.push_back(double(ms) * 1e-3);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[std::size_t(repeats) / 2];
}

/// Bytes a second, read and written ones counted, of a copy of 4 GiB within the device.
inline double copy_bandwidth() {
  const std::int64_t bytes = std::int64_t(1) << 32;
  const auto from = random_memory<float>(bytes / 4, 1, 1), to = device_memory<float>(bytes / 4);
  return 2.0 * double(bytes) / median_seconds(10, [&] {
           check(cudaMemcpyAsync(to.get(), from.get(), std::size_t(bytes), cudaMemcpyDeviceToDevice,
                                 nullptr),
                 "cudaMemcpyAsync");
         });
}

__global__ inline void read_kernel(const uint4* x, std::int64_t n, unsigned* out) {
  unsigned sum = 0;
  const std::int64_t all = std::int64_t(gridDim.x) * blockDim.x;
#pragma unroll 8
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < n; i += all) {
    const uint4 v = __ldcs(x + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678) *out = sum;  // so that the loads are needed
}

/// Bytes a second of reading 4 GiB.
inline double read_bandwidth() {
  const std::int64_t bytes = std::int64_t(1) << 32;
  const auto from = random_memory<float>(bytes / 4, 1, 1);
  const auto out = device_memory<unsigned>(1);
  return double(bytes) / median_seconds(10, [&] {
           read_kernel<<<132 * 8, 256>>>(reinterpret_cast<const uint4*>(from.get()), bytes / 16,
                                         out.get());
         });
}

/// Operations a second of cuBLAS on random bfloat16 matrices [8192, 8192], sums in fp32.
inline double gemm_rate() {
  constexpr int n = 8192;
  const Cublas& blas = Cublas::library();
  cublasHandle_t handle = nullptr;
  check(blas.create(&handle), "cublasCreate");
  const auto a = random_memory<__nv_bfloat16>(std::int64_t(n) * n, 1, 1);
  const auto b = random_memory<__nv_bfloat16>(std::int64_t(n) * n, 1, 2);
  const auto c = device_memory<__nv_bfloat16>(std::int64_t(n) * n);
  const float one = 1, zero = 0;
  const double seconds = median_seconds(10, [&] {
    check(blas.gemm_ex(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a.get(), CUDA_R_16BF, n,
                       b.get(), CUDA_R_16BF, n, &zero, c.get(), CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  });
  check(blas.destroy(handle), "cublasDestroy");
  return 2.0 * n * n * n / seconds;
}

}  // namespace tokenview::bench
