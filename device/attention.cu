// SPDX-License-Identifier: Apache-2.0
// Causal attention of each sequence's rows over its cache:
//   P[t, j] = softmax over j <= computed + t of q_t . k_j / sqrt(head_dim);  out_t = sum P[t, j]
//   v_j
// q, out [T, num_heads * head_dim]; a cache is keys and values [positions, num_kv_heads *
// head_dim]; query head h reads key/value head h / (num_heads / num_kv_heads). Rows of no sequence
// give zero.
//
// One block a row and head. Each of its warps takes every fourth position, its lanes the features.
// Two passes over the cache: the largest score and the sum of exponentials; then the probabilities,
// which are rounded where eager attention rounds them, times the values. All sums in fp32, in an
// order that the number of positions alone decides. Limit: head_dim <= 512.
// Source: transformers modeling_qwen3_next.py, eager_attention_forward.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

constexpr int warps = 4;
constexpr int features = int(max_head_dim / lanes);  // of a lane, at most

template <class T>
__global__ void append_to_cache_kernel(MatrixRef<const T> k, const T* v,
                                       const AttentionSequence<T>* sequences,
                                       const std::int32_t* sequence_of_row) {
  const std::int64_t row = blockIdx.x;
  if (sequence_of_row[row] < 0) return;
  const AttentionSequence<T> s = sequences[sequence_of_row[row]];
  const std::int64_t to = (s.computed + row - s.first) * k.cols;
  for (std::int64_t c = threadIdx.x; c < k.cols; c += blockDim.x) {
    s.keys[to + c] = k.data[row * k.cols + c];
    s.values[to + c] = v[row * k.cols + c];
  }
}

/// What a warp has seen of the scores.
struct Softmax {
  float largest = -INFINITY, total = 0;  // total of exp(score - largest)
  __device__ void see(float score) {
    const float now = fmaxf(largest, score);
    total = total * expf(largest - now) + expf(score - now);
    largest = now;
  }
};

template <class T>
__global__ void attention_kernel(MatrixRef<T> out, const T* q, std::int64_t head_dim,
                                 std::int64_t queries_per_kv, std::int64_t width,
                                 const AttentionSequence<T>* sequences,
                                 const std::int32_t* sequence_of_row, Rounder<T> round) {
  __shared__ float parts[warps][max_head_dim];
  __shared__ Softmax seen[warps];
  const std::int64_t row = blockIdx.x, head = blockIdx.y, at = row * out.cols + head * head_dim;
  const int warp = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  if (sequence_of_row[row] < 0) {
    for (std::int64_t c = threadIdx.x; c < head_dim; c += blockDim.x) out.data[at + c] = T(0.0f);
    return;
  }
  const AttentionSequence<T> s = sequences[sequence_of_row[row]];
  const std::int64_t visible = s.computed + row - s.first + 1;
  const T* keys = s.keys + head / queries_per_kv * head_dim;
  const T* values = s.values + head / queries_per_kv * head_dim;
  const float scale = 1.0f / sqrtf(float(head_dim));

  float query[features], sum[features];
#pragma unroll
  for (int f = 0; f < features; ++f) {
    const int c = f * lanes + lane;
    query[f] = c < head_dim ? float(q[at + c]) : 0;
    sum[f] = 0;
  }
  const auto score_of = [&](std::int64_t j) {  // of the whole warp
    float dot = 0;
#pragma unroll
    for (int f = 0; f < features; ++f) {
      const int c = f * lanes + lane;
      if (c < head_dim) dot += query[f] * float(keys[j * width + c]);
    }
    return round.hf(round.hf(warp_sum(dot)) * scale);
  };

  Softmax mine;
  for (std::int64_t j = warp; j < visible; j += warps) mine.see(score_of(j));
  if (lane == 0) seen[warp] = mine;
  __syncthreads();
  float largest = -INFINITY, total = 0;
  for (const Softmax& part : seen) largest = fmaxf(largest, part.largest);
  for (const Softmax& part : seen) total += part.total * expf(part.largest - largest);

  for (std::int64_t j = warp; j < visible; j += warps) {
    const float probability = round.hf(expf(score_of(j) - largest) / total);
#pragma unroll
    for (int f = 0; f < features; ++f) {
      const int c = f * lanes + lane;
      if (c < head_dim) sum[f] += probability * float(values[j * width + c]);
    }
  }
#pragma unroll
  for (int f = 0; f < features; ++f) parts[warp][f * lanes + lane] = sum[f];
  __syncthreads();
  for (int c = int(threadIdx.x); c < head_dim; c += int(blockDim.x)) {
    float whole = 0;
    for (int w = 0; w < warps; ++w) whole += parts[w][c];
    out.data[at + c] = stored<T>(whole);
  }
}

}  // namespace

template <class T>
void append_to_cache(In<T> k, In<T> v, const AttentionSequence<T>* sequences,
                     const std::int32_t* sequence_of_row, cudaStream_t stream) {
  if (k.rows == 0) return;
  append_to_cache_kernel<<<unsigned(k.rows), threads, 0, stream>>>(k, v.data, sequences,
                                                                   sequence_of_row);
  check(cudaGetLastError(), "append_to_cache");
}

template <class T>
void attention(Out<T> out, In<T> q, std::int64_t num_heads, std::int64_t num_kv_heads,
               const AttentionSequence<T>* sequences, const std::int32_t* sequence_of_row,
               Rounding rounding, cudaStream_t stream) {
  if (q.rows == 0) return;
  const std::int64_t head_dim = q.cols / num_heads;
  attention_kernel<<<dim3(unsigned(q.rows), unsigned(num_heads)), warps * lanes, 0, stream>>>(
      out, q.data, head_dim, num_heads / num_kv_heads, num_kv_heads * head_dim, sequences,
      sequence_of_row, Rounder<T>{rounding});
  check(cudaGetLastError(), "attention");
}

#define TOKENVIEW_INSTANTIATE(T)                                                                   \
  template void append_to_cache<T>(In<T>, In<T>, const AttentionSequence<T>*, const std::int32_t*, \
                                   cudaStream_t);                                                  \
  template void attention<T>(Out<T>, In<T>, std::int64_t, std::int64_t,                            \
                             const AttentionSequence<T>*, const std::int32_t*, Rounding,           \
                             cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
