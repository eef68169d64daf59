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

/// In words: the compiler would take values of two bytes apart, and so wait for them, where they
/// are loaded.
template <int count>
struct alignas(count * 2) Vec<__nv_bfloat16, count> {
  static constexpr int size = count;
  using Word = std::conditional_t<count == 1, std::uint16_t, std::uint32_t>;
  Word words[(count + 1) / 2];
};

template <int size, class T>
__device__ Vec<T, size> load(const T* from) {
  return *reinterpret_cast<const Vec<T, size>*>(from);
}
template <class T, int size>
__device__ void store(T* to, const Vec<T, size>& values) {
  if constexpr (sizeof(values) == 16) {  // said so: the compiler may store member by member
    std::uint32_t words[4];
    memcpy(words, &values, sizeof(words));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else {
    *reinterpret_cast<Vec<T, size>*>(to) = values;
  }
}

template <int size>
__device__ Vec<float, size> floats(const Vec<float, size>& x) {
  return x;
}
template <int size>
__device__ Vec<float, size> floats(const Vec<__nv_bfloat16, size>& x) {  // upper halves of floats
  Vec<float, size> out;
#pragma unroll
  for (int i = 0; i < size; ++i)
    out.values[i] = __uint_as_float(i % 2 == 0 ? std::uint32_t(x.words[i / 2]) << 16
                                               : x.words[i / 2] & 0xffff0000u);
  return out;
}

/// stored<T>() of each.
template <class T, int size>
__device__ Vec<T, size> packed(const Vec<float, size>& x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (size == 1) {
    return {{__bfloat16_as_ushort(stored<T>(x.values[0]))}};
  } else {
    Vec<T, size> out;
#pragma unroll
    for (int i = 0; i < size; i += 2)  // the two of a word in one instruction
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
          : "=r"(out.words[i / 2])
          : "f"(x.values[i + 1]), "f"(x.values[i]));
    return out;
  }
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

/// A row shared by the threads x of a block: each takes every blockDim.x-th vector and holds this
/// many of them in registers, so that they are all in flight at once.
constexpr int held = 8;
constexpr int row_threads = 512;  // at most: the registers of more would not fit
constexpr std::int64_t max_held_row = row_threads * held;  // vectors that a block can hold

/// Threads for a row of `vectors`, in whole warps: each takes `of_thread` of them as long as there
/// are threads.
inline unsigned threads_of_row(std::int64_t vectors, int of_thread = held) {
  const std::int64_t of_warp = of_thread * lanes;
  const std::int64_t warps = (vectors + of_warp - 1) / of_warp;
  return unsigned(lanes * std::clamp<std::int64_t>(warps, 1, row_threads / lanes));
}

/// Calls f(v, i) for the `held` vectors of this thread from `first` on that are inside the row;
/// vector v, which the compiler knows, begins at element i.
template <int size, class F>
__device__ void each_held(std::int64_t first, std::int64_t width, F f) {
  std::int64_t i = first + std::int64_t(threadIdx.x) * size;
#pragma unroll
  for (int v = 0; v < held; ++v, i += std::int64_t(blockDim.x) * size)
    if (i < width) f(v, i);
}

/// to = from, rows of `width`; without `from`: zeros.
template <int size, class T>
__device__ void copy_row(T* to, const T* from, std::int64_t width) {
  for (std::int64_t first = 0; first < width; first += std::int64_t(blockDim.x) * size * held) {
    Vec<T, size> mine[held]{};
    if (from != nullptr)
      each_held<size>(first, width, [&](int v, std::int64_t i) { mine[v] = load<size>(from + i); });
    each_held<size>(first, width, [&](int v, std::int64_t i) { store(to + i, mine[v]); });
  }
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
