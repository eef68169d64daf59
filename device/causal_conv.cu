// SPDX-License-Identifier: Apache-2.0
// y[t, c] = silu(sum over m of w[c, m] x[t - (kernel - 1) + m, c]) over the rows of each sequence;
// rows before its first come from its slot's state [kernel - 1, channels], oldest first, and are
// zero for a sequence without computed tokens. x, y [T, channels], w [channels, kernel]. Rows of no
// sequence give zero. One thread a channel of a row. The states move on in a launch of their own,
// one thread a channel of a sequence: every row has read them by then.
// Sources: transformers modular_qwen3_next.py; vllm causal_conv1d.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// Input `t` of a sequence, counted from its first row; t >= -(kernel - 1).
template <class T>
__device__ T input(const Sequence& s, In<T> x, const T* states, std::int64_t kernel, std::int64_t t,
                   std::int64_t c) {
  if (t >= 0) return x.data[(s.first + t) * x.cols + c];
  if (s.computed == 0) return stored<T>(0);
  return states[((s.slot + 1) * (kernel - 1) + t) * x.cols + c];
}

/// hf: sum and silu are rounded; vllm: once.
template <class T>
__global__ void causal_conv_kernel(T* out, In<T> x, const T* w, std::int64_t kernel,
                                   const T* states, const Sequence* sequences,
                                   const std::int32_t* sequence_of_row, Rounder<T> round) {
  const std::int64_t i = thread_index();
  if (i >= x.rows * x.cols) return;
  const std::int64_t row = i / x.cols, c = i % x.cols;
  if (sequence_of_row[row] < 0) {
    out[i] = stored<T>(0);
    return;
  }
  const Sequence s = sequences[sequence_of_row[row]];
  float sum = 0;
  for (std::int64_t m = 0; m < kernel; ++m)
    sum += float(w[c * kernel + m]) *
           float(input(s, x, states, kernel, row - s.first - (kernel - 1) + m, c));
  out[i] = stored<T>(silu(round.hf(sum)));
}

template <class T>
__global__ void advance_conv_state_kernel(T* states, T* kept, In<T> x, std::int64_t kernel,
                                          const Sequence* sequences) {
  const std::int64_t c = thread_index();
  const Sequence s = sequences[blockIdx.y];
  if (c >= x.cols || s.rows == 0) return;
  const std::int64_t size = kernel - 1;
  if (kept != nullptr)
    for (std::int64_t t = 0; t < s.rows; ++t)
      for (std::int64_t i = 0; i < size; ++i)
        kept[((s.first + t) * size + i) * x.cols + c] =
            input(s, x, states, kernel, t + 1 - size + i, c);
  // In ascending order: a row of the state is read for a lower one before it is written.
  for (std::int64_t i = 0; i < size; ++i)
    states[(s.slot * size + i) * x.cols + c] = input(s, x, states, kernel, s.rows - size + i, c);
}

}  // namespace

template <class T>
void causal_conv(Out<T> out, In<T> x, const T* w, std::int64_t kernel, const T* states,
                 const Sequence* sequences, const std::int32_t* sequence_of_row, Rounding rounding,
                 cudaStream_t stream) {
  const std::int64_t n = x.rows * x.cols;
  if (n == 0) return;
  causal_conv_kernel<T><<<blocks_for(n), threads, 0, stream>>>(
      out.data, x, w, kernel, states, sequences, sequence_of_row, Rounder<T>{rounding});
  check(cudaGetLastError(), "causal_conv");
}

template <class T>
void advance_conv_state(T* states, T* kept, In<T> x, std::int64_t kernel, const Sequence* sequences,
                        std::int64_t num_sequences, cudaStream_t stream) {
  if (num_sequences == 0 || x.cols == 0) return;
  const dim3 grid(blocks_for(x.cols), unsigned(num_sequences));
  advance_conv_state_kernel<T><<<grid, threads, 0, stream>>>(states, kept, x, kernel, sequences);
  check(cudaGetLastError(), "advance_conv_state");
}

template void causal_conv<float>(Out<float>, In<float>, const float*, std::int64_t, const float*,
                                 const Sequence*, const std::int32_t*, Rounding, cudaStream_t);
template void causal_conv<__nv_bfloat16>(Out<__nv_bfloat16>, In<__nv_bfloat16>,
                                         const __nv_bfloat16*, std::int64_t, const __nv_bfloat16*,
                                         const Sequence*, const std::int32_t*, Rounding,
                                         cudaStream_t);
template void advance_conv_state<float>(float*, float*, In<float>, std::int64_t, const Sequence*,
                                        std::int64_t, cudaStream_t);
template void advance_conv_state<__nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, In<__nv_bfloat16>,
                                                std::int64_t, const Sequence*, std::int64_t,
                                                cudaStream_t);

}  // namespace tokenview::kernels
