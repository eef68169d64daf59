// SPDX-License-Identifier: Apache-2.0
// Partial rotary embedding: x [T, heads * head_dim]; in each head the pairs (j, j + half), j <
// half, are turned by the angle position * frequency j, the features from 2 * half on pass. With
// M-RoPE frequency j takes the position of row axis[j]. One thread an element; sine and cosine are
// those of fp32 with full range reduction.
// Sources: transformers modular_qwen3_next.py; vllm rotary_embedding/base.py, mrope.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// hf: table, products and sum are rounded; vllm: table and result.
template <class T>
__global__ void rope_kernel(MatrixRef<T> out, const T* x, std::int64_t head_dim, std::int64_t half,
                            const std::int64_t* positions, const std::int64_t* axis,
                            const float* frequencies, Rounder<T> round) {
  const std::int64_t i = thread_index();
  if (i >= out.rows * out.cols) return;
  const std::int64_t t = i / out.cols, c = i % out.cols % head_dim;
  if (c >= 2 * half) {
    out.data[i] = x[i];
    return;
  }
  const std::int64_t j = c % half;
  const float angle = float(positions[axis[j] * out.rows + t]) * frequencies[j];
  const float cosine = round(cosf(angle)), sine = round(sinf(angle));
  const float turned =
      c < half ? -round.hf(float(x[i + half]) * sine) : round.hf(float(x[i - half]) * sine);
  out.data[i] = stored<T>(round.hf(float(x[i]) * cosine) + turned);
}

}  // namespace

template <class T>
void rope(Out<T> out, In<T> x, std::int64_t head_dim, std::int64_t half,
          const std::int64_t* positions, const std::int64_t* axis, const float* frequencies,
          Rounding rounding, cudaStream_t stream) {
  const std::int64_t n = x.rows * x.cols;
  if (n == 0) return;
  rope_kernel<<<blocks_for(n), threads, 0, stream>>>(out, x.data, head_dim, half, positions, axis,
                                                     frequencies, Rounder<T>{rounding});
  check(cudaGetLastError(), "rope");
}

#define TOKENVIEW_INSTANTIATE(T)                                                        \
  template void rope<T>(Out<T>, In<T>, std::int64_t, std::int64_t, const std::int64_t*, \
                        const std::int64_t*, const float*, Rounding, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
