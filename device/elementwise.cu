// SPDX-License-Identifier: Apache-2.0
// Operations on equal [rows, cols] matrices, element by element: out[i] = f(x[i], y[i]) in fp32,
// rounded when it is stored. A thread takes sixteen bytes of each where they are aligned.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

template <int size, class T, class F>
__global__ void elementwise_kernel(T* out, const T* x, const T* y, std::int64_t n, F f) {
  const std::int64_t i = thread_index() * size;
  if (i >= n) return;
  const auto packed_a = load<size>(x + i), packed_b = load<size>(y + i);
  Vec<float, size> a = floats(packed_a);
  const Vec<float, size> b = floats(packed_b);
#pragma unroll
  for (int e = 0; e < size; ++e) a.values[e] = f(a.values[e], b.values[e]);
  store(out + i, packed<T>(a));
}

template <class T, class F>
void launch(Out<T> out, In<T> x, In<T> y, F f, const char* name, cudaStream_t stream) {
  const std::int64_t n = out.rows * out.cols;
  if (n == 0) return;
  with_vector_size<T>(n, {out.data, x.data, y.data}, [&](auto size) {
    elementwise_kernel<size>
        <<<blocks_for(n / size), threads, 0, stream>>>(out.data, x.data, y.data, n, f);
  });
  check(cudaGetLastError(), name);
}

template <int size, class T>
__global__ void sigmoid_scale_kernel(MatrixRef<T> out, const T* x, const T* gate,
                                     Rounder<T> round) {
  const std::int64_t i = thread_index() * size;
  if (i >= out.rows * out.cols) return;
  const float factor = round(sigmoid(float(gate[i / out.cols])));
  Vec<float, size> a = floats(load<size>(x + i));
#pragma unroll
  for (float& value : a.values) value *= factor;
  store(out.data + i, packed<T>(a));
}

}  // namespace

bool are_built_for_this_gpu() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(&sigmoid_scale_kernel<1, float>));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return false;
  }
  check(status, "cudaFuncGetAttributes");
  return true;
}

template <class T>
void add(Out<T> out, In<T> x, In<T> y, cudaStream_t stream) {
  launch<T>(
      out, x, y, [] __device__(float a, float b) { return a + b; }, "add", stream);
}

/// silu(gate) * up. hf: two roundings; vllm: one.
template <class T>
void silu_mul(Out<T> out, In<T> gate, In<T> up, Rounding rounding, cudaStream_t stream) {
  launch<T>(
      out, gate, up,
      [round = Rounder<T>{rounding}] __device__(float g, float u) {
        return round.hf(g * sigmoid(g)) * u;
      },
      "silu_mul", stream);
}

/// x * sigmoid(gate); the sigmoid is rounded by both.
template <class T>
void sigmoid_mul(Out<T> out, In<T> x, In<T> gate, cudaStream_t stream) {
  launch<T>(
      out, x, gate,
      [round = Rounder<T>{}] __device__(float a, float g) { return a * round(sigmoid(g)); },
      "sigmoid_mul", stream);
}

/// Each row of x times the sigmoid of its gate [rows, 1].
template <class T>
void sigmoid_scale(Out<T> out, In<T> x, In<T> gate, cudaStream_t stream) {
  const std::int64_t n = out.rows * out.cols;
  if (n == 0) return;
  with_vector_size<T>(out.cols, {out.data, x.data}, [&](auto size) {
    sigmoid_scale_kernel<size>
        <<<blocks_for(n / size), threads, 0, stream>>>(out, x.data, gate.data, Rounder<T>{});
  });
  check(cudaGetLastError(), "sigmoid_scale");
}

#define TOKENVIEW_INSTANTIATE(T)                                           \
  template void add<T>(Out<T>, In<T>, In<T>, cudaStream_t);                \
  template void silu_mul<T>(Out<T>, In<T>, In<T>, Rounding, cudaStream_t); \
  template void sigmoid_mul<T>(Out<T>, In<T>, In<T>, cudaStream_t);        \
  template void sigmoid_scale<T>(Out<T>, In<T>, In<T>, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
