// SPDX-License-Identifier: Apache-2.0
// RMS norms of heads of `width` columns (the whole row is one head): x [T, heads * width], w
// [width]. A warp takes a head of up to 128 vectors of sixteen bytes, a block of its own a larger
// one; x is read once and held in registers. The sum of squares is in fp32, in an order that width
// and T alone decide: vectors of a thread, lanes, warps. Limits: 4096 vectors a head, 2^31 heads.
// Sources: vllm layernorm.py, GemmaRMSNorm, fused_add_rms_norm; layernorm_guard.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// One head of this block, or of this warp of it.
struct Head {
  std::int64_t begin;  // its first element
  bool is_inside;
};
__device__ Head this_head(std::int64_t heads, std::int64_t width) {
  const std::int64_t head = std::int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  return {head * width, head < heads};
}

template <int size>
__device__ float squares_of(const Vec<float, size>& x) {
  float sum = 0;
#pragma unroll
  for (const float value : x.values) sum += value * value;
  return sum;
}

/// rsqrt(mean(x^2) + eps) of the head whose squares the threads have.
__device__ float inverse_rms(float squares, std::int64_t width, float eps) {
  const float sum = blockDim.x == lanes ? warp_sum(squares) : block_sum(squares);
  return 1.0f / sqrtf(sum / float(width) + eps);
}

template <int size, class T>
__device__ Vec<T, size> normed(const Vec<T, size>& x, float scale, const Vec<T, size>& w) {
  Vec<float, size> out = floats(x);
  const Vec<float, size> weight = floats(w);
#pragma unroll
  for (int e = 0; e < size; ++e) out.values[e] = out.values[e] * scale * (1.0f + weight.values[e]);
  return packed<T>(out);
}

template <class T, int size>
__device__ void store_held(T* to, const Vec<T, size> (&mine)[held], std::int64_t width) {
  each_held<size>(0, width, [&](int v, std::int64_t i) { store(to + i, mine[v]); });
}

/// x * rsqrt(mean(x^2) + eps) * (1 + w), one rounding.
template <int size, class T>
__global__ void __launch_bounds__(row_threads)
    rms_norm_kernel(T* out, const T* x, const T* w, std::int64_t heads, std::int64_t width,
                    float eps) {
  const Head head = this_head(heads, width);
  if (!head.is_inside) return;  // a whole warp
  Vec<T, size> mine[held];
  each_held<size>(0, width,
                  [&](int v, std::int64_t i) { mine[v] = load<size>(x + head.begin + i); });
  float squares = 0;
  each_held<size>(0, width, [&](int v, std::int64_t) { squares += squares_of(floats(mine[v])); });
  const float scale = inverse_rms(squares, width, eps);
  each_held<size>(0, width, [&](int v, std::int64_t i) {
    mine[v] = normed(mine[v], scale, load<size>(w + i));
  });
  store_held(out + head.begin, mine, width);
}

/// sum = x + y, rounded; out its norm: the operations of add() and rms_norm_kernel in their order.
template <int size, class T>
__global__ void __launch_bounds__(row_threads)
    add_rms_norm_kernel(T* sum, T* out, const T* x, const T* y, const T* w, std::int64_t heads,
                        std::int64_t width, float eps) {
  const Head head = this_head(heads, width);
  if (!head.is_inside) return;
  Vec<T, size> mine[held], other[held];
  each_held<size>(0, width, [&](int v, std::int64_t i) {
    mine[v] = load<size>(x + head.begin + i);
    other[v] = load<size>(y + head.begin + i);
  });
  float squares = 0;
  each_held<size>(0, width, [&](int v, std::int64_t) {
    Vec<float, size> a = floats(mine[v]);
    const Vec<float, size> b = floats(other[v]);
#pragma unroll
    for (int e = 0; e < size; ++e) a.values[e] += b.values[e];
    mine[v] = packed<T>(a);
    squares += squares_of(floats(mine[v]));
  });
  store_held(sum + head.begin, mine, width);
  const float scale = inverse_rms(squares, width, eps);
  each_held<size>(0, width, [&](int v, std::int64_t i) {
    mine[v] = normed(mine[v], scale, load<size>(w + i));
  });
  store_held(out + head.begin, mine, width);
}

/// norm(x) w silu(z). hf: the norm and its product with w are rounded before the gate.
template <int size, class T>
__global__ void __launch_bounds__(row_threads)
    gated_rms_norm_kernel(T* out, const T* x, const T* z, const T* w, std::int64_t heads,
                          std::int64_t width, float eps, Rounder<T> round) {
  const Head head = this_head(heads, width);
  if (!head.is_inside) return;
  Vec<T, size> mine[held], gates[held];
  each_held<size>(0, width, [&](int v, std::int64_t i) {
    mine[v] = load<size>(x + head.begin + i);
    gates[v] = load<size>(z + head.begin + i);
  });
  float squares = 0;
  each_held<size>(0, width, [&](int v, std::int64_t) { squares += squares_of(floats(mine[v])); });
  const float scale = inverse_rms(squares, width, eps);
  each_held<size>(0, width, [&](int v, std::int64_t i) {
    Vec<float, size> a = floats(mine[v]);
    const Vec<float, size> gate = floats(gates[v]), weight = floats(load<size>(w + i));
#pragma unroll
    for (int e = 0; e < size; ++e)
      a.values[e] =
          round.hf(round.hf(a.values[e] * scale) * weight.values[e]) * silu(gate.values[e]);
    mine[v] = packed<T>(a);
  });
  store_held(out + head.begin, mine, width);
}

/// Calls launch(size, blocks, threads of a block) for heads of `width`.
template <class T, class F>
void for_heads(std::int64_t heads, std::int64_t width, std::initializer_list<const T*> pointers,
               F launch) {
  with_vector_size<T>(width, pointers, [&](auto size) {
    if (width / size > max_held_row)
      throw ShapeError(
          text("a norm over ", width, " features: expected at most ", size * max_held_row));
    const unsigned of_head = threads_of_row(width / size, held / 2);  // they compute, too
    const dim3 block(of_head, of_head == lanes ? threads / lanes : 1);
    launch(size, unsigned((heads + block.y - 1) / block.y), block);
  });
}

}  // namespace

template <class T>
void rms_norm(Out<T> out, In<T> x, const T* w, std::int64_t width, float eps, cudaStream_t stream) {
  const std::int64_t heads = x.rows * x.cols / width;
  if (heads == 0) return;
  for_heads<T>(heads, width, {out.data, x.data, w}, [&](auto size, unsigned blocks, dim3 block) {
    rms_norm_kernel<size><<<blocks, block, 0, stream>>>(out.data, x.data, w, heads, width, eps);
  });
  check(cudaGetLastError(), "rms_norm");
}

template <class T>
void add_rms_norm(Out<T> sum, Out<T> normed, In<T> x, In<T> y, const T* w, float eps,
                  cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return;
  for_heads<T>(x.rows, x.cols, {sum.data, normed.data, x.data, y.data, w},
               [&](auto size, unsigned blocks, dim3 block) {
                 add_rms_norm_kernel<size><<<blocks, block, 0, stream>>>(
                     sum.data, normed.data, x.data, y.data, w, x.rows, x.cols, eps);
               });
  check(cudaGetLastError(), "add_rms_norm");
}

template <class T>
void gated_rms_norm(Out<T> out, In<T> x, In<T> z, const T* w, std::int64_t width, float eps,
                    Rounding rounding, cudaStream_t stream) {
  const std::int64_t heads = x.rows * x.cols / width;
  if (heads == 0) return;
  for_heads<T>(heads, width, {out.data, x.data, z.data, w},
               [&](auto size, unsigned blocks, dim3 block) {
                 gated_rms_norm_kernel<size><<<blocks, block, 0, stream>>>(
                     out.data, x.data, z.data, w, heads, width, eps, Rounder<T>{rounding});
               });
  check(cudaGetLastError(), "gated_rms_norm");
}

#define TOKENVIEW_INSTANTIATE(T)                                                                 \
  template void rms_norm<T>(Out<T>, In<T>, const T*, std::int64_t, float, cudaStream_t);         \
  template void add_rms_norm<T>(Out<T>, Out<T>, In<T>, In<T>, const T*, float, cudaStream_t);    \
  template void gated_rms_norm<T>(Out<T>, In<T>, In<T>, const T*, std::int64_t, float, Rounding, \
                                  cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
