// SPDX-License-Identifier: Apache-2.0
// The grouped GEMM of the experts for any tensor cores with bfloat16 (sm_80 on) and any shape.
//
// A tile is 32 rows of one expert by 64 outputs; a grid of all multiprocessors walks the tiles. A
// block of 4 warps copies steps of 32 inputs to shared memory, a warp multiplies 16 outputs of all
// rows. Gated, the outputs of a tile are 32 gates and their 32 ups. Launch: 128 threads a block.
#include "device/grouped_gemm.cuh"

#include <mma.h>

namespace tokenview::kernels {
namespace {

using Bf16 = __nv_bfloat16;
namespace wmma = nvcuda::wmma;

constexpr int tile_rows = 32, tile_outputs = 64, step_inputs = 32;
constexpr int side = 16;  // of a fragment
constexpr int block_threads = tile_outputs / side * lanes;
constexpr int pitch = step_inputs + 8;  // apart in banks, and a multiple of 16 bytes
constexpr int sum_pitch = tile_outputs + 4;
constexpr int blocks_per_multiprocessor = 4;

/// Copies elements [first_row of the tile, step of inputs] of `from(row)`, null: zeros.
template <int rows, class From>
__device__ void copy(Bf16 (&to)[rows][pitch], std::int64_t first, std::int64_t inputs, From from) {
  for (int i = int(threadIdx.x); i < rows * step_inputs; i += block_threads) {
    const int row = i / step_inputs, input = i % step_inputs;
    const Bf16* const x = from(row);
    to[row][input] = x != nullptr && first + input < inputs ? x[first + input] : Bf16(0.0f);
  }
}

__global__ void __launch_bounds__(block_threads)
    grouped_gemm_kernel(const GroupedGemm gemm, int parts) {
  __shared__ alignas(32) Bf16 x_step[tile_rows][pitch], w_step[tile_outputs][pitch];
  __shared__ alignas(32) float sums[tile_rows][sum_pitch];
  const std::int64_t inputs = gemm.in.cols, outputs = gemm.out.cols;
  const int part_outputs = gemm.gated ? tile_outputs / 2 : tile_outputs;
  const int warp = int(threadIdx.x) / lanes;

  ExpertTiles tiles(gemm.order, tile_rows, parts);
  for (int index = int(blockIdx.x);; index += int(gridDim.x)) {
    const ExpertTile tile = tiles.tile(index);
    if (tile.rows == 0) return;
    const std::int64_t first_output = std::int64_t(tile.part) * part_outputs;
    const Bf16* const w = gemm.w + tile.expert * outputs * inputs * (gemm.gated ? 2 : 1);
    const auto row_of_in = [&](int row) -> const Bf16* {
      if (row >= tile.rows) return nullptr;
      const std::int64_t p = tile.first + row;
      return gemm.in.data + (gemm.k > 0 ? gemm.order.pair_at[p] / gemm.k : p) * inputs;
    };
    const auto row_of_w = [&](int row) -> const Bf16* {
      const std::int64_t output = first_output + row % part_outputs;
      return output < outputs ? w + (output + row / part_outputs * outputs) * inputs : nullptr;
    };

    wmma::fragment<wmma::accumulator, side, side, side, float> sum[tile_rows / side];
    for (auto& s : sum) wmma::fill_fragment(s, 0);
    for (std::int64_t step = 0; step < inputs; step += step_inputs) {
      copy(x_step, step, inputs, row_of_in);
      copy(w_step, step, inputs, row_of_w);
      __syncthreads();
      for (int i = 0; i < step_inputs; i += side) {
        wmma::fragment<wmma::matrix_b, side, side, side, Bf16, wmma::col_major> w_part;
        wmma::load_matrix_sync(w_part, &w_step[warp * side][i], pitch);
        for (int r = 0; r < tile_rows / side; ++r) {
          wmma::fragment<wmma::matrix_a, side, side, side, Bf16, wmma::row_major> x_part;
          wmma::load_matrix_sync(x_part, &x_step[r * side][i], pitch);
          wmma::mma_sync(sum[r], x_part, w_part, sum[r]);
        }
      }
      __syncthreads();
    }
    for (int r = 0; r < tile_rows / side; ++r)
      wmma::store_matrix_sync(&sums[r * side][warp * side], sum[r], sum_pitch, wmma::mem_row_major);
    __syncthreads();
    for (int i = int(threadIdx.x); i < tile.rows * part_outputs; i += block_threads) {
      const int row = i / part_outputs, c = i % part_outputs;
      if (first_output + c >= outputs) continue;
      float value = sums[row][c];
      if (gemm.gated)
        value = gemm.round.hf(silu(gemm.round(value))) * gemm.round(sums[row][part_outputs + c]);
      else if (gemm.pair_weights != nullptr)
        value = gemm.round.hf(value) * gemm.pair_weights[gemm.order.pair_at[tile.first + row]];
      gemm.out.data[(tile.first + row) * outputs + first_output + c] = Bf16(value);
    }
    __syncthreads();
  }
}

void launch(const GroupedGemm& gemm, cudaStream_t stream) {
  if (gemm.order.num_pairs == 0 || gemm.order.count == 0 || gemm.out.cols == 0) return;
#ifdef TOKENVIEW_WGMMA
  if (launch_wgmma_grouped_gemm(gemm, stream)) return;
#endif
  const int part = gemm.gated ? tile_outputs / 2 : tile_outputs;
  const int parts = int((gemm.out.cols + part - 1) / part);
  int device = 0, multiprocessors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  const std::int64_t blocks = std::min<std::int64_t>(max_tiles(gemm.order, tile_rows, parts),
                                                     multiprocessors * blocks_per_multiprocessor);
  grouped_gemm_kernel<<<unsigned(blocks), block_threads, 0, stream>>>(gemm, parts);
  check(cudaGetLastError(), "grouped_gemm");
}

}  // namespace

void grouped_gemm(Out<Bf16> out, In<Bf16> in, const Bf16* w, const ExpertOrder& order,
                  std::int64_t k, const float* pair_weights, Rounding rounding,
                  cudaStream_t stream) {
  launch({out, in, w, order, k, false, pair_weights, {rounding}}, stream);
}

void grouped_gemm_silu_mul(Out<Bf16> out, In<Bf16> in, const Bf16* w, const ExpertOrder& order,
                           std::int64_t k, Rounding rounding, cudaStream_t stream) {
  launch({out, in, w, order, k, true, nullptr, {rounding}}, stream);
}

}  // namespace tokenview::kernels
