// SPDX-License-Identifier: Apache-2.0
// Causal attention of each sequence's rows over its cache:
//   P[t, j] = softmax over j <= computed + t of q_t . k_j / sqrt(head_dim);  out_t = sum P[t, j]
//   v_j
// q, out [T, num_heads * head_dim]; query head h reads key/value head h / (num_heads /
// num_kv_heads). The caches are pools of blocks of 16 positions, keys and values [blocks * 16,
// num_kv_heads * head_dim] each; position j of a sequence is row j % 16 of block j / 16 of its
// block table. Rows of no sequence give zero, and write nothing.
//
// One block a row and head. Each of its warps takes every fourth position, its lanes the features.
// Two passes over the cache: the largest score and the sum of exponentials; then the probabilities,
// which are rounded where eager attention rounds them, times the values. All sums in fp32, in an
// order that the number of positions alone decides. Limit: head_dim <= 512.
// Sources: transformers modeling_qwen3_next.py, eager_attention_forward; vllm reshape_and_cache.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

constexpr int warps = 4;
constexpr int features = int(max_head_dim / lanes);  // of a lane, at most

template <class T>
__global__ void append_to_cache_kernel(T* keys, T* values, In<T> k, const T* v,
                                       const std::int64_t* cache_row) {
  const std::int64_t row = blockIdx.x, to = cache_row[row] * k.cols;
  if (to < 0) return;
  for (std::int64_t c = threadIdx.x; c < k.cols; c += blockDim.x) {
    keys[to + c] = k.data[row * k.cols + c];
    values[to + c] = v[row * k.cols + c];
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
__global__ void attention_kernel(Out<T> out, const T* q, std::int64_t head_dim,
                                 std::int64_t queries_per_kv, std::int64_t width, const T* keys,
                                 const T* values, const std::int32_t* block_tables,
                                 const Sequence* sequences, const std::int32_t* sequence_of_row,
                                 Rounder<T> round) {
  __shared__ float parts[warps][max_head_dim];
  __shared__ Softmax seen[warps];
  const std::int64_t row = blockIdx.x, head = blockIdx.y, at = row * out.cols + head * head_dim;
  const int warp = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  if (sequence_of_row[row] < 0) {
    for (std::int64_t c = threadIdx.x; c < head_dim; c += blockDim.x)
      out.data[at + c] = stored<T>(0);
    return;
  }
  const Sequence s = sequences[sequence_of_row[row]];
  const std::int64_t visible = s.computed + row - s.first + 1;
  const std::int32_t* const blocks = block_tables + s.first_block;
  const std::int64_t of_head = head / queries_per_kv * head_dim;
  const auto place = [&](std::int64_t j) {  // of position j in the pools
    return (blocks[j / cache_block] * cache_block + j % cache_block) * width + of_head;
  };
  const float scale = 1.0f / sqrtf(float(head_dim));

  float query[features], sum[features];
#pragma unroll
  for (int f = 0; f < features; ++f) {
    const int c = f * lanes + lane;
    query[f] = c < head_dim ? float(q[at + c]) : 0;
    sum[f] = 0;
  }
  const auto score_of = [&](std::int64_t j) {  // of the whole warp
    const T* const key = keys + place(j);
    float dot = 0;
#pragma unroll
    for (int f = 0; f < features; ++f) {
      const int c = f * lanes + lane;
      if (c < head_dim) dot += query[f] * float(key[c]);
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
    const T* const value = values + place(j);
#pragma unroll
    for (int f = 0; f < features; ++f) {
      const int c = f * lanes + lane;
      if (c < head_dim) sum[f] += probability * float(value[c]);
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
void append_to_cache(T* keys, T* values, In<T> k, In<T> v, const std::int64_t* cache_row,
                     cudaStream_t stream) {
  if (k.rows == 0) return;
  append_to_cache_kernel<T>
      <<<unsigned(k.rows), threads, 0, stream>>>(keys, values, k, v.data, cache_row);
  check(cudaGetLastError(), "append_to_cache");
}

template <class T>
void attention(Out<T> out, In<T> q, std::int64_t num_heads, std::int64_t num_kv_heads,
               const T* keys, const T* values, const std::int32_t* block_tables,
               const Sequence* sequences, const std::int32_t* sequence_of_row, Rounding rounding,
               cudaStream_t stream) {
  if (q.rows == 0) return;
  const std::int64_t head_dim = q.cols / num_heads;
  attention_kernel<T><<<dim3(unsigned(q.rows), unsigned(num_heads)), warps * lanes, 0, stream>>>(
      out, q.data, head_dim, num_heads / num_kv_heads, num_kv_heads * head_dim, keys, values,
      block_tables, sequences, sequence_of_row, Rounder<T>{rounding});
  check(cudaGetLastError(), "attention");
}

template void append_to_cache<float>(float*, float*, In<float>, In<float>, const std::int64_t*,
                                     cudaStream_t);
template void append_to_cache<__nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, In<__nv_bfloat16>,
                                             In<__nv_bfloat16>, const std::int64_t*, cudaStream_t);
template void attention<float>(Out<float>, In<float>, std::int64_t, std::int64_t, const float*,
                               const float*, const std::int32_t*, const Sequence*,
                               const std::int32_t*, Rounding, cudaStream_t);
template void attention<__nv_bfloat16>(Out<__nv_bfloat16>, In<__nv_bfloat16>, std::int64_t,
                                       std::int64_t, const __nv_bfloat16*, const __nv_bfloat16*,
                                       const std::int32_t*, const Sequence*, const std::int32_t*,
                                       Rounding, cudaStream_t);

}  // namespace tokenview::kernels
