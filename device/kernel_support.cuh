// SPDX-License-Identifier: Apache-2.0
// What the kernels share: rounding, reductions in a fixed order, launch shapes.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "device/check.hpp"
#include "device/kernels.hpp"

namespace tokenview::kernels {

constexpr int threads = 256;  // of a block, where nothing else is said
constexpr int lanes = 32;     // of a warp

/// Blocks of `threads` for n elements, one each.
inline unsigned blocks_for(std::int64_t n) { return unsigned((n + threads - 1) / threads); }

/// Index of this thread among all of a one-dimensional launch.
__device__ inline std::int64_t thread_index() {
  return std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// A value as it is stored: fp32 as it is, bfloat16 rounded to the nearest, ties to even.
template <class T>
__device__ T stored(float x) {
  return T(x);
}

/// Intermediates in fp32 with the precision of T.
template <class T>
struct Rounder {
  Rounding rounding;
  __device__ float operator()(float x) const { return float(stored<T>(x)); }
  __device__ float hf(float x) const {  // only where hf rounds
    return rounding == Rounding::hf ? (*this)(x) : x;
  }
};

/// Values that a thread loads or stores at once: sixteen bytes, or one value.
template <class T, int count = 16 / int(sizeof(T))>
struct alignas(count * sizeof(T)) Vec {
  static constexpr int size = count;
  T values[count];
};

template <int size, class T>
__device__ Vec<T, size> load(const T* from) {
  return *reinterpret_cast<const Vec<T, size>*>(from);
}
template <class T, int size>
__device__ void store(T* to, const Vec<T, size>& values) {
  *reinterpret_cast<Vec<T, size>*>(to) = values;
}

/// Calls f with the number of values that a thread may take at once, as a constant: sixteen bytes
/// of them where rows of `cols` from each of `pointers` on are aligned to that, else one.
template <class T, class F>
void with_vector_size(std::int64_t cols, std::initializer_list<const T*> pointers, F f) {
  constexpr int size = Vec<T>::size;
  const auto is_aligned = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  if (cols % size == 0 && std::all_of(pointers.begin(), pointers.end(), is_aligned))
    f(std::integral_constant<int, size>());
  else
    f(std::integral_constant<int, 1>());
}

/// A row shared by threads x of a block: each takes every blockDim.x-th vector, of which it may
/// keep this many in registers, so that they are all in flight at once.
constexpr int held = 4;

/// Threads for a row of `vectors`: whole warps, which hold it in registers up to 4096 vectors.
inline unsigned threads_of_row(std::int64_t vectors) {
  constexpr std::int64_t of_warp = held * lanes;
  return unsigned(lanes * std::clamp<std::int64_t>((vectors + of_warp - 1) / of_warp, 1, 32));
}

/// Calls f(v, i) for this thread's vectors of a row, which begin at element i. v is below `held`
/// and known to the compiler for those that may be kept in registers, then `held`.
template <int size, class F>
__device__ void each_vector(std::int64_t width, F f) {
  const std::int64_t stride = std::int64_t(blockDim.x) * size;
  std::int64_t i = std::int64_t(threadIdx.x) * size;
#pragma unroll
  for (int v = 0; v < held; ++v, i += stride)
    if (i < width) f(v, i);
  for (; i < width; i += stride) f(held, i);
}

/// to = from, rows of `width`.
template <int size, class T>
__device__ void copy_row(T* to, const T* from, std::int64_t width) {
  Vec<T, size> mine[held];
  each_vector<size>(width, [&](int v, std::int64_t i) {
    if (v < held) mine[v] = load<size>(from + i);
  });
  each_vector<size>(width, [&](int v, std::int64_t i) {
    store(to + i, v < held ? mine[v] : load<size>(from + i));
  });
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

/// The sum over a warp, on every lane.
__device__ inline float warp_sum(float x) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int step = lanes / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
  return x;
}

/// The sum over a block of whole warps, on every thread: warps first, then their sums in order.
__device__ inline float block_sum(float x) {
  __shared__ float sums[lanes];
  x = warp_sum(x);
  __syncthreads();  // the sums of the call before have been read
  if (threadIdx.x % lanes == 0) sums[threadIdx.x / lanes] = x;
  __syncthreads();
  float total = 0;
  for (unsigned warp = 0; warp < blockDim.x / lanes; ++warp) total += sums[warp];
  return total;
}

}  // namespace tokenview::kernels
