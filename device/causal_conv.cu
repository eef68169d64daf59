// SPDX-License-Identifier: Apache-2.0
// y[t, c] = silu(sum over m of w[c, m] x[t - (kernel - 1) + m, c]) over the rows of each sequence;
// rows before its first come from its state [kernel - 1, channels], oldest first. x, y [T,
// channels], w [channels, kernel]. Rows of no sequence give zero. One thread a channel of a row.
// The states move on in a launch of their own, one thread a channel of a sequence: every row has
// read them by then.
// Sources: transformers modular_qwen3_next.py; vllm causal_conv1d.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// Input `t` of a sequence, counted from its first row; t >= -(kernel - 1).
__device__ float input(const ConvSequence& s, MatrixRef<const float> x, std::int64_t kernel,
                       std::int64_t t, std::int64_t c) {
  return t < 0 ? s.state[(t + kernel - 1) * x.cols + c] : x.data[(s.first + t) * x.cols + c];
}

/// hf: sum and silu are rounded; vllm: once.
__global__ void causal_conv_kernel(float* out, MatrixRef<const float> x, const float* w,
                                   std::int64_t kernel, const ConvSequence* sequences,
                                   const std::int32_t* sequence_of_row, Rounder round) {
  const std::int64_t i = thread_index();
  if (i >= x.rows * x.cols) return;
  const std::int64_t row = i / x.cols, c = i % x.cols;
  if (sequence_of_row[row] < 0) {
    out[i] = 0;
    return;
  }
  const ConvSequence s = sequences[sequence_of_row[row]];
  float sum = 0;
  for (std::int64_t m = 0; m < kernel; ++m)
    sum += w[c * kernel + m] * input(s, x, kernel, row - s.first - (kernel - 1) + m, c);
  out[i] = round(silu(round.hf(sum)));
}

__global__ void advance_conv_state_kernel(MatrixRef<const float> x, std::int64_t kernel,
                                          const ConvSequence* sequences) {
  const std::int64_t c = thread_index();
  if (c >= x.cols) return;
  const ConvSequence s = sequences[blockIdx.y];
  const std::int64_t size = kernel - 1;
  if (s.kept != nullptr)
    for (std::int64_t t = 0; t < s.rows; ++t)
      for (std::int64_t i = 0; i < size; ++i)
        s.kept[(t * size + i) * x.cols + c] = input(s, x, kernel, t + 1 - size + i, c);
  // In ascending order: a row of the state is read for a lower one before it is written.
  for (std::int64_t i = 0; i < size; ++i)
    s.state[i * x.cols + c] = input(s, x, kernel, s.rows - size + i, c);
}

}  // namespace

void causal_conv(Out out, In x, const float* w, std::int64_t kernel, const ConvSequence* sequences,
                 const std::int32_t* sequence_of_row, Rounding rounding, cudaStream_t stream) {
  const std::int64_t n = x.rows * x.cols;
  if (n == 0) return;
  causal_conv_kernel<<<blocks_for(n), threads, 0, stream>>>(out.data, x, w, kernel, sequences,
                                                            sequence_of_row, Rounder{rounding});
  check(cudaGetLastError(), "causal_conv");
}

void advance_conv_state(In x, std::int64_t kernel, const ConvSequence* sequences,
                        std::int64_t num_sequences, cudaStream_t stream) {
  if (num_sequences == 0 || x.cols == 0) return;
  const dim3 grid(blocks_for(x.cols), unsigned(num_sequences));
  advance_conv_state_kernel<<<grid, threads, 0, stream>>>(x, kernel, sequences);
  check(cudaGetLastError(), "advance_conv_state");
}

}  // namespace tokenview::kernels
