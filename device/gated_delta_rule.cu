// SPDX-License-Identifier: Apache-2.0
// The gated delta rule, token by token (model.md 4.5). For each value head, with its key head's k
// and q (unit length, q over sqrt(dk)), log decay g and write strength beta:
//   S <- exp(g) S;  delta = beta (v - S^T k);  S <- S + k delta^T;  read = S^T q
// S [dk, dv] in fp32, updated in the sequence's slot. qkv [T, conv_dim] is [q | k | v], beta and g
// [T, value heads] -> [T, value heads * dv]; value head h reads key head h / (value / key heads).
//
// One block a tile of 32 columns of one head's S and one sequence: it keeps the tile in shared
// memory over all rows, so S is read and written once a call. A lane owns a column, a warp every
// eighth row of S; partial sums are added over the warps in order. Limit: dk <= 256.
// Sources: transformers modular_qwen3_next.py; vllm fused_sigmoid_gating.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

constexpr int warps = 8;

/// beta = sigmoid(b), rounded by hf only; g = -exp(A_log) softplus(a + dt_bias), in fp32.
template <class T>
__global__ void delta_gates_kernel(MatrixRef<float> beta, float* g, const T* b, const T* a,
                                   const T* A_log, const T* dt_bias, Rounder<T> round) {
  const std::int64_t i = thread_index();
  if (i >= beta.rows * beta.cols) return;
  const std::int64_t head = i % beta.cols;
  beta.data[i] = round.hf(sigmoid(float(b[i])));
  const float x = float(a[i]) + float(dt_bias[head]);
  g[i] = -expf(float(A_log[head])) * (x > 20.0f ? x : log1pf(expf(x)));
}

/// x / sqrt(sum of squares + 1e-6): one warp a head of a row, queries first, then keys.
template <class T>
__global__ void normalise_kernel(MatrixRef<float> qk, MatrixRef<const T> qkv, DeltaShape shape) {
  const std::int64_t heads = 2 * shape.num_key_heads, head = blockIdx.x % heads;
  const std::int64_t row = blockIdx.x / heads, dk = shape.key_dim;
  const T* x = qkv.data + row * qkv.cols + head * dk;
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < dk; i += lanes) squares += float(x[i]) * float(x[i]);
  const float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
  const float of_query = head < shape.num_key_heads ? 1.0f / sqrtf(float(dk)) : 1.0f;
  for (std::int64_t i = threadIdx.x; i < dk; i += lanes)
    qk.data[row * qk.cols + head * dk + i] = float(x[i]) * scale * of_query;
}

/// The sum of `part` over the warps, for each lane.
__device__ float sum_over_warps(float (&parts)[warps][lanes], float part, int warp, int lane) {
  __syncthreads();  // the sums of the call before have been read
  parts[warp][lane] = part;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < warps; ++w) total += parts[w][lane];
  return total;
}

template <class T>
__global__ void gated_delta_rule_kernel(MatrixRef<T> out, MatrixRef<const float> qk,
                                        MatrixRef<const T> qkv, MatrixRef<const float> beta,
                                        const float* g, DeltaShape shape,
                                        const DeltaSequence* sequences) {
  __shared__ float tile[max_key_dim][lanes];
  __shared__ float parts[warps][lanes];
  const DeltaSequence s = sequences[blockIdx.z];
  const int warp = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  const std::int64_t head = blockIdx.y, dk = shape.key_dim, dv = shape.value_dim;
  const std::int64_t key_head = head / (shape.num_value_heads / shape.num_key_heads);
  const std::int64_t column = std::int64_t(blockIdx.x) * lanes + lane;
  const bool is_inside = column < dv;
  const std::int64_t state_size = shape.num_value_heads * dk * dv, of_head = head * dk * dv;

  // A thread reads and writes only what is its own of the tile.
  for (std::int64_t i = warp; i < dk; i += warps)
    tile[i][lane] = is_inside ? s.state[of_head + i * dv + column] : 0;
  for (std::int64_t t = 0; t < s.rows; ++t) {
    const std::int64_t row = s.first + t;
    const float* q = qk.data + row * qk.cols + key_head * dk;
    const float* k = q + shape.num_key_heads * dk;
    const T* v = qkv.data + row * qkv.cols + 2 * shape.num_key_heads * dk + head * dv;
    const float decay = expf(g[row * beta.cols + head]);
    float part = 0;
    for (std::int64_t i = warp; i < dk; i += warps) {
      tile[i][lane] *= decay;
      part += tile[i][lane] * k[i];
    }
    const float predicted = sum_over_warps(parts, part, warp, lane);
    const float delta =
        is_inside ? beta.data[row * beta.cols + head] * (float(v[column]) - predicted) : 0;
    part = 0;
    for (std::int64_t i = warp; i < dk; i += warps) {
      tile[i][lane] += k[i] * delta;
      part += tile[i][lane] * q[i];
    }
    const float read = sum_over_warps(parts, part, warp, lane);
    if (!is_inside) continue;
    if (warp == 0) out.data[row * out.cols + head * dv + column] = stored<T>(read);
    if (s.kept != nullptr)
      for (std::int64_t i = warp; i < dk; i += warps)
        s.kept[t * state_size + of_head + i * dv + column] = tile[i][lane];
  }
  if (!is_inside) return;
  for (std::int64_t i = warp; i < dk; i += warps)
    s.state[of_head + i * dv + column] = tile[i][lane];
}

}  // namespace

template <class T>
void delta_gates(Out<float> beta, Out<float> g, In<T> b, In<T> a, const T* A_log, const T* dt_bias,
                 Rounding rounding, cudaStream_t stream) {
  const std::int64_t n = b.rows * b.cols;
  if (n == 0) return;
  delta_gates_kernel<<<blocks_for(n), threads, 0, stream>>>(beta, g.data, b.data, a.data, A_log,
                                                            dt_bias, Rounder<T>{rounding});
  check(cudaGetLastError(), "delta_gates");
}

template <class T>
void normalise_query_key(Out<float> qk, In<T> qkv, const DeltaShape& shape, cudaStream_t stream) {
  const std::int64_t heads = qkv.rows * 2 * shape.num_key_heads;
  if (heads == 0) return;
  normalise_kernel<<<unsigned(heads), lanes, 0, stream>>>(qk, qkv, shape);
  check(cudaGetLastError(), "normalise_query_key");
}

template <class T>
void gated_delta_rule(Out<T> out, In<float> qk, In<T> qkv, In<float> beta, In<float> g,
                      const DeltaShape& shape, const DeltaSequence* sequences,
                      std::int64_t num_sequences, cudaStream_t stream) {
  if (num_sequences == 0) return;
  const dim3 grid(unsigned((shape.value_dim + lanes - 1) / lanes), unsigned(shape.num_value_heads),
                  unsigned(num_sequences));
  gated_delta_rule_kernel<<<grid, warps * lanes, 0, stream>>>(out, qk, qkv, beta, g.data, shape,
                                                              sequences);
  check(cudaGetLastError(), "gated_delta_rule");
}

#define TOKENVIEW_INSTANTIATE(T)                                                                   \
  template void delta_gates<T>(Out<float>, Out<float>, In<T>, In<T>, const T*, const T*, Rounding, \
                               cudaStream_t);                                                      \
  template void normalise_query_key<T>(Out<float>, In<T>, const DeltaShape&, cudaStream_t);        \
  template void gated_delta_rule<T>(Out<T>, In<float>, In<T>, In<float>, In<float>,                \
                                    const DeltaShape&, const DeltaSequence*, std::int64_t,         \
                                    cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
