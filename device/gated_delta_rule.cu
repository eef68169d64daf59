// SPDX-License-Identifier: Apache-2.0
// The gated delta rule, token by token (model.md 4.5). For each value head, with its key head's k
// and q (brought to unit length here, q also over sqrt(dk)), log decay g and write strength beta:
//   S <- exp(g) S;  delta = beta (v - S^T k);  S <- S + k delta^T;  read = S^T q
// S [dk, dv] in fp32, from and to the sequence's slot. qkv [T, conv_dim] is [q | k | v], beta and g
// [T, value heads] -> [T, value heads * dv]; value head h reads key head h / (value / key heads).
//
// One block a tile of columns of one head's S and one sequence. The tile stays in registers over
// all rows, so that S is read and written once a call: a thread has `size` neighbouring columns
// (four where dv is a multiple of four: accesses of 16 bytes) of every sixteenth row of S. Sums
// over the rows of S are added in an order that the shape alone decides. Limit: dk <= 256. Sources:
// transformers modular_qwen3_next.py; vllm fused_sigmoid_gating.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

constexpr int warps = 4;
constexpr int across = 8;                     // threads side by side in a tile
constexpr int down = warps * lanes / across;  // and one below the other

/// beta = sigmoid(b), rounded by hf only; g = -exp(A_log) softplus(a + dt_bias), in fp32.
template <class T>
__global__ void delta_gates_kernel(Out<float> beta, float* g, const T* b, const T* a,
                                   const T* A_log, const T* dt_bias, Rounder<T> round) {
  const std::int64_t i = thread_index();
  if (i >= beta.rows * beta.cols) return;
  const std::int64_t head = i % beta.cols;
  beta.data[i] = round.hf(sigmoid(float(b[i])));
  const float x = float(a[i]) + float(dt_bias[head]);
  g[i] = -expf(float(A_log[head])) * (x > 20.0f ? x : log1pf(expf(x)));
}

/// to = x times scale / sqrt(sum of squares + 1e-6), zero from dk on: one warp.
template <class T>
__device__ void normalise(float* to, int width, const T* x, int dk, float scale, int lane) {
  float squares = 0;
  for (int i = lane; i < dk; i += lanes) squares += float(x[i]) * float(x[i]);
  const float inverse = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
  for (int i = lane; i < width; i += lanes) to[i] = i < dk ? float(x[i]) * inverse * scale : 0;
}

/// The sums over all rows of S for the columns of each thread; `sums` is the caller's until the
/// next barrier but one.
template <int size>
__device__ Vec<float, size> sum_over_rows(Vec<float, size> (&sums)[warps][across],
                                          Vec<float, size> part) {
  const int warp = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
#pragma unroll
  for (int step = across; step < lanes; step *= 2)
#pragma unroll
    for (float& value : part.values) value += __shfl_xor_sync(0xffffffff, value, step);
  if (lane < across) sums[warp][lane] = part;
  __syncthreads();
  Vec<float, size> total{};
#pragma unroll
  for (int w = 0; w < warps; ++w)
#pragma unroll
    for (int c = 0; c < size; ++c) total.values[c] += sums[w][lane % across].values[c];
  return total;
}

/// `rows` rows of S a thread, down * rows >= dk.
template <class T, int rows, int size>
__global__ void __launch_bounds__(warps* lanes)
    gated_delta_rule_kernel(Out<T> out, In<T> qkv, In<float> beta, const float* g, DeltaShape shape,
                            float* states, float* kept, const Sequence* sequences) {
  __shared__ float q[down * rows], k[down * rows];
  __shared__ Vec<float, size> predictions[warps][across], reads[warps][across];
  const Sequence s = sequences[blockIdx.z];
  if (s.rows == 0) return;
  const int thread = int(threadIdx.x), warp = thread / lanes, lane = thread % lanes;
  const int dk = int(shape.key_dim), top = thread / across;  // this thread's first row of S
  const std::int64_t head = blockIdx.y, dv = shape.value_dim, heads = shape.num_value_heads;
  const std::int64_t key_head = head / (heads / shape.num_key_heads);
  const std::int64_t column = (std::int64_t(blockIdx.x) * across + thread % across) * size;
  const bool is_inside = column < dv;
  const auto at = [&](std::int64_t of_pool, int r) {  // row r of this thread in state `of_pool`
    return ((of_pool * heads + head) * dk + top + r * down) * dv + column;
  };
  const auto write = [&](float* pool, std::int64_t index, const Vec<float, size>(&state)[rows]) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (is_inside && top + r * down < dk) store(pool + at(index, r), state[r]);
  };

  Vec<float, size> state[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    state[r] = {};
    if (is_inside && top + r * down < dk && s.computed > 0)
      state[r] = load<size>(states + at(s.slot, r));
  }
  for (std::int64_t t = 0; t < s.rows; ++t) {
    const std::int64_t row = s.first + t;
    const T* from = qkv.data + row * qkv.cols + key_head * dk;
    if (warp == 0) normalise(q, down * rows, from, dk, 1.0f / sqrtf(float(dk)), lane);
    if (warp == 1) normalise(k, down * rows, from + shape.num_key_heads * dk, dk, 1.0f, lane);
    const T* v = qkv.data + row * qkv.cols + 2 * shape.num_key_heads * dk + head * dv + column;
    const float decay = expf(g[row * beta.cols + head]);
    const float strength = beta.data[row * beta.cols + head];
    Vec<float, size> delta{}, part{};
#pragma unroll
    for (int c = 0; c < size; ++c) delta.values[c] = is_inside ? float(v[c]) : 0;
    __syncthreads();

#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int c = 0; c < size; ++c) {
        state[r].values[c] *= decay;
        part.values[c] += state[r].values[c] * k[top + r * down];
      }
    const auto predicted = sum_over_rows(predictions, part);
    part = {};
#pragma unroll
    for (int c = 0; c < size; ++c)
      delta.values[c] = strength * (delta.values[c] - predicted.values[c]);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int c = 0; c < size; ++c) {
        state[r].values[c] += k[top + r * down] * delta.values[c];
        part.values[c] += state[r].values[c] * q[top + r * down];
      }
    if (kept != nullptr) write(kept, row, state);
    const auto read = sum_over_rows(reads, part);
    if (thread < across && is_inside)
#pragma unroll
      for (int c = 0; c < size; ++c)
        out.data[row * out.cols + head * dv + column + c] = stored<T>(read.values[c]);
  }
  write(states, s.slot, state);
}

}  // namespace

template <class T>
void delta_gates(Out<float> beta, Out<float> g, In<T> b, In<T> a, const T* A_log, const T* dt_bias,
                 Rounding rounding, cudaStream_t stream) {
  const std::int64_t n = b.rows * b.cols;
  if (n == 0) return;
  delta_gates_kernel<T><<<blocks_for(n), threads, 0, stream>>>(beta, g.data, b.data, a.data, A_log,
                                                               dt_bias, Rounder<T>{rounding});
  check(cudaGetLastError(), "delta_gates");
}

template <class T>
void gated_delta_rule(Out<T> out, In<T> qkv, In<float> beta, In<float> g, const DeltaShape& shape,
                      float* states, float* kept, const Sequence* sequences,
                      std::int64_t num_sequences, cudaStream_t stream) {
  if (num_sequences == 0) return;
  const auto launch = [&](auto rows, auto size) {
    constexpr int cols = across * size();
    const dim3 grid(unsigned((shape.value_dim + cols - 1) / cols), unsigned(shape.num_value_heads),
                    unsigned(num_sequences));
    gated_delta_rule_kernel<T, rows(), size()><<<grid, warps * lanes, 0, stream>>>(
        out, qkv, beta, g.data, shape, states, kept, sequences);
    check(cudaGetLastError(), "gated_delta_rule");
  };
  with_vector_size<float>(shape.value_dim, {}, [&](auto size) {
    if (shape.key_dim <= max_key_dim / 2)
      launch(std::integral_constant<int, int(max_key_dim) / 2 / down>(), size);
    else
      launch(std::integral_constant<int, int(max_key_dim) / down>(), size);
  });
}

template void delta_gates<float>(Out<float>, Out<float>, In<float>, In<float>, const float*,
                                 const float*, Rounding, cudaStream_t);
template void delta_gates<__nv_bfloat16>(Out<float>, Out<float>, In<__nv_bfloat16>,
                                         In<__nv_bfloat16>, const __nv_bfloat16*,
                                         const __nv_bfloat16*, Rounding, cudaStream_t);
template void gated_delta_rule<float>(Out<float>, In<float>, In<float>, In<float>,
                                      const DeltaShape&, float*, float*, const Sequence*,
                                      std::int64_t, cudaStream_t);
template void gated_delta_rule<__nv_bfloat16>(Out<__nv_bfloat16>, In<__nv_bfloat16>, In<float>,
                                              In<float>, const DeltaShape&, float*, float*,
                                              const Sequence*, std::int64_t, cudaStream_t);

}  // namespace tokenview::kernels
