// SPDX-License-Identifier: Apache-2.0
// The routed experts of one rank, without a synchronisation: nothing is read on the host.
//
// The T * k pairs (token, choice) are sorted by expert (stable: CUB's radix sort); pairs of other
// ranks' experts come last. Then: both = x w_gate_up^T; inner = silu(gate) * up; rows = inner
// w_down^T, weighted; and the k rows of a token are added in the order of the routing, so the
// result does not depend on where the sort put them. The products in bfloat16 are those of
// grouped_gemm.hpp. For float the rows of an expert are cut into tiles of 32 positions, numbered
// through all experts: a grid of the most tiles that there can be covers them, and a block finds
// its expert by bisection.
// Sources: transformers integrations/moe.py, grouped_mm_experts_forward; vllm fused_moe.
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

constexpr int tile = 32;  // positions, outputs and inputs of a step
constexpr int warps = 8;
constexpr int rows_of_warp = tile / warps;

/// Bits that hold the keys 0 .. count; `count` is another rank's expert.
int key_bits(std::int64_t count) {
  int bits = 1;
  while ((std::int64_t(1) << bits) <= count) ++bits;
  return bits;
}

std::int64_t sort_bytes(std::int64_t num_pairs, std::int64_t count) {
  std::size_t bytes = 0;
  std::int32_t* none = nullptr;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, none, none, none, int(num_pairs), 0,
                                        key_bits(count)),
        "cub::DeviceRadixSort");
  return std::int64_t(bytes);
}

__global__ void make_keys_kernel(std::int32_t* keys, std::int32_t* pairs, const std::int64_t* ids,
                                 std::int64_t n, std::int64_t first, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  const std::int64_t expert = ids[i] - first;
  keys[i] = std::int32_t(expert >= 0 && expert < count ? expert : count);
  pairs[i] = std::int32_t(i);
}

/// The first position whose value is not below `value`.
__device__ std::int64_t lower_bound(const std::int32_t* sorted, std::int64_t n,
                                    std::int32_t value) {
  std::int64_t begin = 0;
  while (n > 0) {
    const std::int64_t half = n / 2;
    if (sorted[begin + half] < value) {
      begin += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return begin;
}

/// offsets[e]: the first position whose key is not below e, or the number of pairs. A thread a
/// position, and one past the last.
__global__ void find_positions_kernel(std::int32_t* position_of, std::int32_t* offsets,
                                      const std::int32_t* keys, ExpertOrder order) {
  const std::int64_t i = thread_index();
  if (i > order.num_pairs) return;
  const auto count = std::int32_t(order.count), position = std::int32_t(i);
  const std::int32_t key = i < order.num_pairs ? keys[i] : count;
  for (std::int32_t e = i > 0 ? keys[i - 1] + 1 : 0; e <= key; ++e) offsets[e] = position;
  if (i < order.num_pairs) position_of[order.pair_at[i]] = key < count ? position : -1;
}

/// One block.
__global__ void number_tiles_kernel(std::int32_t* tiles, ExpertOrder order) {
  using Scan = cub::BlockScan<std::int32_t, threads>;
  __shared__ Scan::TempStorage scratch;
  std::int32_t before = 0;
  for (std::int64_t first = 0; first < order.count; first += threads) {
    const std::int64_t e = first + threadIdx.x;
    const std::int32_t rows = e < order.count ? order.offsets[e + 1] - order.offsets[e] : 0;
    std::int32_t own, all;
    Scan(scratch).ExclusiveSum((rows + tile - 1) / tile, own, all);
    if (e < order.count) tiles[e] = before + own;
    before += all;
    __syncthreads();  // before the scratch memory is used again
  }
  if (threadIdx.x == 0) tiles[order.count] = before;
}

/// One block a tile of 32 positions and 32 outputs: a lane owns an output, a warp four positions.
/// Each sum runs over the inputs in order, in one accumulator.
__global__ void grouped_linear_kernel(MatrixRef<float> out, MatrixRef<const float> in,
                                      const float* w, ExpertOrder order, std::int64_t k,
                                      const float* pair_weights) {
  __shared__ float x_tile[tile][tile], w_tile[tile][tile + 1];
  const auto my_tile = std::int32_t(blockIdx.x);
  if (my_tile >= order.tiles[order.count]) return;
  // The expert whose tiles begin at or before this one; those without rows have none.
  const std::int64_t expert = lower_bound(order.tiles, order.count + 1, my_tile + 1) - 1;
  const std::int64_t first =
      order.offsets[expert] + std::int64_t(my_tile - order.tiles[expert]) * tile;
  const std::int64_t rows = min(std::int64_t(tile), order.offsets[expert + 1] - first);
  const std::int64_t first_output = std::int64_t(blockIdx.y) * tile;
  const float* weights = w + expert * out.cols * in.cols;
  const int warp = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;

  float sums[rows_of_warp] = {};
  for (std::int64_t step = 0; step < in.cols; step += tile) {
    const std::int64_t i = step + lane;
    for (int r = warp; r < tile; r += warps) {
      const std::int64_t position = first + r, output = first_output + r;
      const bool has_row = r < rows && i < in.cols, has_output = output < out.cols && i < in.cols;
      const std::int64_t row = !has_row ? 0 : k > 0 ? order.pair_at[position] / k : position;
      x_tile[r][lane] = has_row ? in.data[row * in.cols + i] : 0;
      w_tile[r][lane] = has_output ? weights[output * in.cols + i] : 0;
    }
    __syncthreads();
    for (int c = 0; c < tile; ++c)
      for (int r = 0; r < rows_of_warp; ++r)
        sums[r] += x_tile[warp * rows_of_warp + r][c] * w_tile[lane][c];
    __syncthreads();
  }
  for (int r = 0; r < rows_of_warp; ++r) {
    const std::int64_t position = warp * rows_of_warp + r, output = first_output + lane;
    if (position >= rows || output >= out.cols) continue;
    const float weight =
        pair_weights == nullptr ? 1 : pair_weights[order.pair_at[first + position]];
    out.data[(first + position) * out.cols + output] = sums[r] * weight;
  }
}

__global__ void silu_mul_halves_kernel(MatrixRef<float> inner, const float* both,
                                       ExpertOrder order) {
  const std::int64_t i = thread_index();
  if (i >= inner.rows * inner.cols) return;
  const std::int64_t position = i / inner.cols, c = i % inner.cols;
  if (position >= order.offsets[order.count]) return;
  const float* row = both + position * 2 * inner.cols;
  inner.data[i] = silu(row[c]) * row[inner.cols + c];
}

/// In fp32, rounded once. One block a token, a thread a vector of its columns.
template <int size, class T>
__global__ void combine_kernel(MatrixRef<T> out, const T* rows, std::int64_t k,
                               const std::int32_t* position_of) {
  const std::int64_t t = blockIdx.x;
  for (std::int64_t c = std::int64_t(threadIdx.x) * size; c < out.cols; c += blockDim.x * size) {
    Vec<float, size> sum{};
#pragma unroll 4
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t position = position_of[t * k + j];
      if (position < 0) continue;
      const Vec<float, size> row = floats(load<size>(rows + position * out.cols + c));
#pragma unroll
      for (int e = 0; e < size; ++e) sum.values[e] += row.values[e];
    }
    store(out.data + t * out.cols + c, packed<T>(sum));
  }
}

}  // namespace

std::int64_t max_expert_tiles(std::int64_t num_pairs, std::int64_t count) {
  return num_pairs / tile + std::min(num_pairs, count);  // at most one partial tile an expert
}

std::int64_t sort_by_expert_bytes(std::int64_t num_pairs, std::int64_t count) {
  return 3 * num_pairs * std::int64_t(sizeof(std::int32_t)) + sort_bytes(num_pairs, count);
}

void sort_by_expert(const ExpertOrder& order, const std::int64_t* ids, std::int64_t first_expert,
                    void* scratch, std::int64_t scratch_bytes, cudaStream_t stream) {
  const std::int64_t n = order.num_pairs;
  if (n == 0) return;
  auto* const keys = static_cast<std::int32_t*>(scratch);
  auto *const sorted_keys = keys + n, *const pairs = keys + 2 * n;
  auto bytes = std::size_t(scratch_bytes - 3 * n * std::int64_t(sizeof(std::int32_t)));
  make_keys_kernel<<<blocks_for(n), threads, 0, stream>>>(keys, pairs, ids, n, first_expert,
                                                          order.count);
  check(cudaGetLastError(), "make_keys");
  check(cub::DeviceRadixSort::SortPairs(keys + 3 * n, bytes, keys, sorted_keys, pairs,
                                        const_cast<std::int32_t*>(order.pair_at), int(n), 0,
                                        key_bits(order.count), stream),
        "cub::DeviceRadixSort");
  find_positions_kernel<<<blocks_for(n + 1), threads, 0, stream>>>(
      const_cast<std::int32_t*>(order.position_of), const_cast<std::int32_t*>(order.offsets),
      sorted_keys, order);
  check(cudaGetLastError(), "find_positions");
  number_tiles_kernel<<<1, threads, 0, stream>>>(const_cast<std::int32_t*>(order.tiles), order);
  check(cudaGetLastError(), "number_tiles");
}

void grouped_linear(Out<float> out, In<float> in, const float* w, const ExpertOrder& order,
                    std::int64_t k, const float* pair_weights, cudaStream_t stream) {
  if (order.max_tiles == 0 || out.cols == 0) return;
  const dim3 grid(unsigned(order.max_tiles), unsigned((out.cols + tile - 1) / tile));
  grouped_linear_kernel<<<grid, warps * lanes, 0, stream>>>(out, in, w, order, k, pair_weights);
  check(cudaGetLastError(), "grouped_linear");
}

void silu_mul_halves(Out<float> inner, In<float> both, const ExpertOrder& order,
                     cudaStream_t stream) {
  const std::int64_t n = inner.rows * inner.cols;
  if (n == 0) return;
  silu_mul_halves_kernel<<<blocks_for(n), threads, 0, stream>>>(inner, both.data, order);
  check(cudaGetLastError(), "silu_mul_halves");
}

template <class T>
void combine(Out<T> out, In<T> rows, std::int64_t k, const ExpertOrder& order,
             cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return;
  with_vector_size<T>(out.cols, {out.data, rows.data}, [&](auto size) {
    combine_kernel<size>
        <<<unsigned(out.rows), threads, 0, stream>>>(out, rows.data, k, order.position_of);
  });
  check(cudaGetLastError(), "combine");
}

template void combine<float>(Out<float>, In<float>, std::int64_t, const ExpertOrder&, cudaStream_t);
template void combine<__nv_bfloat16>(Out<__nv_bfloat16>, In<__nv_bfloat16>, std::int64_t,
                                     const ExpertOrder&, cudaStream_t);

}  // namespace tokenview::kernels
