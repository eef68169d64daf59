// SPDX-License-Identifier: Apache-2.0
// What the kernels share: rounding, reductions in a fixed order, launch shapes.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

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

/// Values rounded to bfloat16 where a bfloat16 model rounds, kept in fp32.
struct Rounder {
  Rounding rounding;
  __device__ float operator()(float x) const {  // by every implementation
    return rounding == Rounding::none ? x : __bfloat162float(__float2bfloat16_rn(x));
  }
  __device__ float hf(float x) const { return rounding == Rounding::hf ? (*this)(x) : x; }
};

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
