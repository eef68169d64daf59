// SPDX-License-Identifier: Apache-2.0
// Operations on equal [rows, cols] matrices, element by element, one thread each.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// out[i] = f(i).
template <class F>
__global__ void elementwise_kernel(float* out, std::int64_t n, F f) {
  const std::int64_t i = thread_index();
  if (i < n) out[i] = f(i);
}

template <class F>
void launch(Out out, F f, const char* name, cudaStream_t stream) {
  const std::int64_t n = out.rows * out.cols;
  if (n == 0) return;
  elementwise_kernel<<<blocks_for(n), threads, 0, stream>>>(out.data, n, f);
  check(cudaGetLastError(), name);
}

}  // namespace

bool are_built_for_this_gpu() {
  const auto f = [] __device__(std::int64_t) { return 0.0f; };
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(&elementwise_kernel<decltype(f)>));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return false;
  }
  check(status, "cudaFuncGetAttributes");
  return true;
}

void add(Out out, In x, In y, Rounding rounding, cudaStream_t stream) {
  launch(
      out,
      [a = x.data, b = y.data, round = Rounder{rounding}] __device__(std::int64_t i) {
        return round(a[i] + b[i]);
      },
      "add", stream);
}

/// silu(gate) * up. hf: two roundings; vllm: one.
void silu_mul(Out out, In gate, In up, Rounding rounding, cudaStream_t stream) {
  launch(
      out,
      [g = gate.data, u = up.data, round = Rounder{rounding}] __device__(std::int64_t i) {
        return round(round.hf(g[i] * sigmoid(g[i])) * u[i]);
      },
      "silu_mul", stream);
}

/// x * sigmoid(gate); the sigmoid is rounded by both.
void sigmoid_mul(Out out, In x, In gate, Rounding rounding, cudaStream_t stream) {
  launch(
      out,
      [a = x.data, g = gate.data, round = Rounder{rounding}] __device__(std::int64_t i) {
        return round(a[i] * round(sigmoid(g[i])));
      },
      "sigmoid_mul", stream);
}

/// Each row of x times the sigmoid of its gate [rows, 1].
void sigmoid_scale(Out out, In x, In gate, Rounding rounding, cudaStream_t stream) {
  launch(
      out,
      [a = x.data, cols = x.cols, g = gate.data, round = Rounder{rounding}] __device__(
          std::int64_t i) { return round(a[i] * round(sigmoid(g[i / cols]))); },
      "sigmoid_scale", stream);
}

void scale(Out out, In x, float factor, cudaStream_t stream) {
  launch(
      out, [a = x.data, factor] __device__(std::int64_t i) { return a[i] * factor; }, "scale",
      stream);
}

void round(Out x, Rounding rounding, cudaStream_t stream) {
  if (rounding == Rounding::none) return;
  launch(
      x,
      [a = x.data, to_bf16 = Rounder{rounding}] __device__(std::int64_t i) {
        return to_bf16(a[i]);
      },
      "round", stream);
}

}  // namespace tokenview::kernels
