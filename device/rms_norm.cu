// SPDX-License-Identifier: Apache-2.0
// RMS norms of heads of `width` columns (the whole row is one head): x [T, heads * width], w
// [width]. A warp takes a head of up to 128 vectors of sixteen bytes, a block of its own a larger
// one; x is read once and kept in registers (of heads over 4096 vectors the rest is read again).
// The sum of squares is in fp32, in an order that width and T alone decide: vectors of a thread,
// lanes, warps. Limit: 2^31 heads.
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

template <int size, class T>
__device__ float squares_of(const Vec<T, size>& x) {
  float sum = 0;
#pragma unroll
  for (const T value : x.values) sum += float(value) * float(value);
  return sum;
}

/// rsqrt(mean(x^2) + eps) of the head whose squares the threads have.
__device__ float inverse_rms(float squares, std::int64_t width, float eps) {
  const float sum = blockDim.x == lanes ? warp_sum(squares) : block_sum(squares);
  return 1.0f / sqrtf(sum / float(width) + eps);
}

template <int size, class T>
__device__ Vec<T, size> normed(const Vec<T, size>& x, float scale, const Vec<T, size>& w) {
  Vec<T, size> out;
#pragma unroll
  for (int e = 0; e < size; ++e)
    out.values[e] = stored<T>(float(x.values[e]) * scale * (1.0f + float(w.values[e])));
  return out;
}

/// x * rsqrt(mean(x^2) + eps) * (1 + w), one rounding.
template <int size, class T>
__global__ void rms_norm_kernel(T* out, const T* x, const T* w, std::int64_t heads,
                                std::int64_t width, float eps) {
  const Head head = this_head(heads, width);
  if (!head.is_inside) return;  // a whole warp
  x += head.begin;
  out += head.begin;
  Vec<T, size> mine[held];
  each_vector<size>(width, [&](int v, std::int64_t i) {
    if (v < held) mine[v] = load<size>(x + i);
  });
  float squares = 0;
  each_vector<size>(width, [&](int v, std::int64_t i) {
    squares += squares_of(v < held ? mine[v] : load<size>(x + i));
  });
  const float scale = inverse_rms(squares, width, eps);
  each_vector<size>(width, [&](int v, std::int64_t i) {
    store(out + i, normed(v < held ? mine[v] : load<size>(x + i), scale, load<size>(w + i)));
  });
}

/// sum = x + y, rounded; out its norm: the operations of add() and rms_norm_kernel in their order.
template <int size, class T>
__global__ void add_rms_norm_kernel(T* sum, T* out, const T* x, const T* y, const T* w,
                                    std::int64_t heads, std::int64_t width, float eps) {
  const Head head = this_head(heads, width);
  if (!head.is_inside) return;
  x += head.begin;
  y += head.begin;
  sum += head.begin;
  out += head.begin;
  Vec<T, size> mine[held], other[held];
  each_vector<size>(width, [&](int v, std::int64_t i) {
    if (v >= held) return;
    mine[v] = load<size>(x + i);
    other[v] = load<size>(y + i);
  });
  float squares = 0;
  each_vector<size>(width, [&](int v, std::int64_t i) {
    Vec<T, size> a = v < held ? mine[v] : load<size>(x + i);
    const Vec<T, size> b = v < held ? other[v] : load<size>(y + i);
#pragma unroll
    for (int e = 0; e < size; ++e) a.values[e] = stored<T>(float(a.values[e]) + float(b.values[e]));
    store(sum + i, a);
    if (v < held) mine[v] = a;
    squares += squares_of(a);
  });
  const float scale = inverse_rms(squares, width, eps);
  each_vector<size>(width, [&](int v, std::int64_t i) {
    store(out + i, normed(v < held ? mine[v] : load<size>(sum + i), scale, load<size>(w + i)));
  });
}

/// norm(x) w silu(z). hf: the norm and its product with w are rounded before the gate.
template <int size, class T>
__global__ void gated_rms_norm_kernel(T* out, const T* x, const T* z, const T* w,
                                      std::int64_t heads, std::int64_t width, float eps,
                                      Rounder<T> round) {
  const Head head = this_head(heads, width);
  if (!head.is_inside) return;
  x += head.begin;
  z += head.begin;
  out += head.begin;
  Vec<T, size> mine[held], gates[held];
  each_vector<size>(width, [&](int v, std::int64_t i) {
    if (v >= held) return;
    mine[v] = load<size>(x + i);
    gates[v] = load<size>(z + i);
  });
  float squares = 0;
  each_vector<size>(width, [&](int v, std::int64_t i) {
    squares += squares_of(v < held ? mine[v] : load<size>(x + i));
  });
  const float scale = inverse_rms(squares, width, eps);
  each_vector<size>(width, [&](int v, std::int64_t i) {
    Vec<T, size> a = v < held ? mine[v] : load<size>(x + i);
    const Vec<T, size> gate = v < held ? gates[v] : load<size>(z + i), weight = load<size>(w + i);
#pragma unroll
    for (int e = 0; e < size; ++e) {
      const float weighted =
          round.hf(round.hf(float(a.values[e]) * scale) * float(weight.values[e]));
      a.values[e] = stored<T>(weighted * silu(float(gate.values[e])));
    }
    store(out + i, a);
  });
}

/// Calls launch(size, blocks, threads of a block) for heads of `width`.
template <class T, class F>
void for_heads(std::int64_t heads, std::int64_t width, std::initializer_list<const T*> pointers,
               F launch) {
  with_vector_size<T>(width, pointers, [&](auto size) {
    const unsigned of_head = threads_of_row((width + size - 1) / size);
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
