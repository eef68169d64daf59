// SPDX-License-Identifier: Apache-2.0
// RMS norms of heads of `width` columns (the whole row is one head): x [T, heads * width], w
// [width]. One block a head of a row, threads striding over its features; the sum of squares is
// added in fp32, lane by lane, then over the warps in order.
// Source: vllm layernorm.py, GemmaRMSNorm; layernorm_guard.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// rsqrt(mean(x^2) + eps) of this block's head.
__device__ float inverse_rms(const float* x, std::int64_t width, float eps) {
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) squares += x[i] * x[i];
  return 1.0f / sqrtf(block_sum(squares) / float(width) + eps);
}

/// x * rsqrt(mean(x^2) + eps) * (1 + w), one rounding.
__global__ void rms_norm_kernel(float* out, const float* x, const float* w, std::int64_t width,
                                float eps, Rounder round) {
  const std::int64_t at = std::int64_t(blockIdx.x) * width;
  const float scale = inverse_rms(x + at, width, eps);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x)
    out[at + i] = round(x[at + i] * scale * (1.0f + w[i]));
}

/// norm(x) w silu(z). hf: the norm and its product with w are rounded before the gate.
__global__ void gated_rms_norm_kernel(float* out, const float* x, const float* z, const float* w,
                                      std::int64_t width, float eps, Rounder round) {
  const std::int64_t at = std::int64_t(blockIdx.x) * width;
  const float scale = inverse_rms(x + at, width, eps);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float normed = round.hf(round.hf(x[at + i] * scale) * w[i]);
    out[at + i] = round(normed * silu(z[at + i]));
  }
}

unsigned threads_for(std::int64_t width) {
  return unsigned(std::clamp<std::int64_t>((width + lanes - 1) / lanes * lanes, lanes, threads));
}

}  // namespace

void rms_norm(Out out, In x, const float* w, std::int64_t width, float eps, Rounding rounding,
              cudaStream_t stream) {
  const std::int64_t heads = x.rows * x.cols / width;
  if (heads == 0) return;
  rms_norm_kernel<<<unsigned(heads), threads_for(width), 0, stream>>>(out.data, x.data, w, width,
                                                                      eps, Rounder{rounding});
  check(cudaGetLastError(), "rms_norm");
}

void gated_rms_norm(Out out, In x, In z, const float* w, std::int64_t width, float eps,
                    Rounding rounding, cudaStream_t stream) {
  const std::int64_t heads = x.rows * x.cols / width;
  if (heads == 0) return;
  gated_rms_norm_kernel<<<unsigned(heads), threads_for(width), 0, stream>>>(
      out.data, x.data, z.data, w, width, eps, Rounder{rounding});
  check(cudaGetLastError(), "gated_rms_norm");
}

}  // namespace tokenview::kernels
