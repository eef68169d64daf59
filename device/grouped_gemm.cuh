// SPDX-License-Identifier: Apache-2.0
// What the kernels of grouped_gemm.hpp share: their arguments, and how the work is cut into tiles.
#pragma once
#include "device/grouped_gemm.hpp"
#include "device/kernel_support.cuh"

namespace tokenview::kernels {

/// The arguments of grouped_gemm() or, gated, of grouped_gemm_silu_mul().
struct GroupedGemm {
  Out<__nv_bfloat16> out;
  In<__nv_bfloat16> in;
  const __nv_bfloat16* w;
  ExpertOrder order;
  std::int64_t k;
  bool gated;
  const float* pair_weights;
  Rounder<__nv_bfloat16> round;
};

/// Launches the kernel of compute capability 9.0; false where the GPU or the operands do not fit
/// it. In builds with TOKENVIEW_WGMMA.
bool launch_wgmma_grouped_gemm(const GroupedGemm& gemm, cudaStream_t stream);

/// Some rows of one expert, by some of the outputs. No rows: past the last tile.
struct ExpertTile {
  int expert, first, rows;  // positions first .. first + rows
  int part;                 // of the outputs
};

/// The tiles of all experts in a fixed numbering, found by a warp together: the rows of an expert
/// are cut into chunks of at most `max_rows`, near equal and full multiples of 16; chunks of one
/// part of the outputs follow each other, since they read the same weights, then the next part.
class ExpertTiles {
 public:
  __device__ ExpertTiles(const ExpertOrder& order, int max_rows, int parts)
      : offsets_(order.offsets), count_(int(order.count)), max_rows_(max_rows), parts_(parts) {
    look_at_32_experts();
  }

  /// Number `index`, which is not below that of the call before.
  __device__ ExpertTile tile(int index) {
    while (index >= last_end()) {
      if (expert_ + lanes >= count_) return {};
      expert_ += lanes;
      begin_ = last_end();
      look_at_32_experts();
    }
    const int lane = __ffs(int(__ballot_sync(all, index < end_))) - 1;
    const int rows = __shfl_sync(all, rows_, lane), first = __shfl_sync(all, first_, lane);
    const int chunks = chunks_of(rows);
    const int local = index - (__shfl_sync(all, end_, lane) - chunks * parts_);
    const int height = ((rows + chunks - 1) / chunks + 15) / 16 * 16;
    const int begin = local % chunks * height;
    return {expert_ + lane, first + begin, min(height, rows - begin), local / chunks};
  }

 private:
  static constexpr unsigned all = 0xffffffff;

  __device__ int last_end() const { return __shfl_sync(all, end_, lanes - 1); }
  __device__ int chunks_of(int rows) const { return (rows + max_rows_ - 1) / max_rows_; }

  /// Each lane's expert, and the number behind its last tile.
  __device__ void look_at_32_experts() {
    const int lane = int(threadIdx.x) % lanes, expert = expert_ + lane;
    first_ = expert < count_ ? offsets_[expert] : 0;
    rows_ = expert < count_ ? offsets_[expert + 1] - first_ : 0;
    end_ = chunks_of(rows_) * parts_;
    for (int step = 1; step < lanes; step *= 2) {
      const int before = __shfl_up_sync(all, end_, step);
      if (lane >= step) end_ += before;
    }
    end_ += begin_;
  }

  const std::int32_t* offsets_;
  int count_, max_rows_, parts_;
  int expert_ = 0, begin_ = 0;  // the first of the 32 experts, and of their tiles
  int first_, rows_, end_;      // of this lane's expert
};

/// At least as many as there can be tiles.
inline std::int64_t max_tiles(const ExpertOrder& order, int max_rows, int parts) {
  return (order.num_pairs / max_rows + std::min(order.num_pairs, order.count)) * parts;
}

}  // namespace tokenview::kernels
