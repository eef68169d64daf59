// SPDX-License-Identifier: Apache-2.0
// The grouped GEMM of the experts on Hopper's tensor cores (wgmma, sm_90a only).
//
// A tile is 256 outputs by at most 192 rows of one expert. The weights are the left operand and the
// rows the right one, transposed: wgmma's left side is always 64 high, while its right side is a
// multiple of 8 wide, so an expert with few rows costs little and its weights, most of the traffic,
// are read once. One block a multiprocessor walks the tiles. Its first warpgroup loads steps of 64
// inputs into a ring of stages: the weights, and rows that follow each other, by the copy engine;
// rows to be gathered by cp.async. The other two multiply, each 128 outputs. The ring runs on from
// tile to tile, so loads do not pause while results are stored.
//
//   stage: w [256, 64], x [192, 64] in the 128-byte swizzle: of each 8 rows of 128 bytes, chunk c
//   of 16 bytes of row r lies at c ^ (r % 8)
//
// Gated, of a warpgroup's 128 rows of w 64 are gates and 64 their ups: a thread holds both. Results
// are turned to rows of `out` in the place of the weights of the tile's last stage.
// Limits: K and N multiples of 8. Launch: at most one block a multiprocessor, 384 threads.
// Sources: PTX ISA 9.0, "Asynchronous warpgroup level matrix instructions"; CUTLASS 3,
// sm90_mma_tma_gmma_ss_warpspecialized.hpp, for the division into producer and consumers.
#include <cuda.h>

#include <boost/preprocessor/repetition/enum.hpp>
#include <boost/preprocessor/repetition/repeat.hpp>
#include <cuda/ptx>

#include "device/grouped_gemm.cuh"

namespace tokenview::kernels {
namespace {

namespace ptx = cuda::ptx;
using Bf16 = __nv_bfloat16;

constexpr int group_threads = 128;  // of a warpgroup
constexpr int consumer_groups = 2;
constexpr int block_threads = group_threads * (1 + consumer_groups);
constexpr int consumer_warps = consumer_groups * group_threads / lanes;

// Registers of a thread. A warpgroup that asks for more than the block was launched with, less what
// others have given back, waits for ever.
constexpr int launch_registers = 65536 / block_threads / 8 * 8;
constexpr int producer_registers = 56, consumer_registers = 224;
static_assert(producer_registers + consumer_groups * consumer_registers <=
              (1 + consumer_groups) * launch_registers);

constexpr int group_outputs = 128, tile_outputs = consumer_groups * group_outputs;
constexpr int max_rows = 192;
constexpr int step_inputs = 64;                 // 128 bytes, the span of the swizzle
constexpr int box_outputs = 64, box_rows = 32;  // of one load by the copy engine
constexpr int gather_rows = 16;                 // of one load by the warpgroup
constexpr int chunk = 8;                        // elements of 16 bytes
constexpr int stages = 4;

struct Stage {
  Bf16 w[tile_outputs * step_inputs];
  Bf16 x[max_rows * step_inputs];
};

struct Shared {
  Stage stage[stages];
  std::uint64_t full[stages];   // the copy engine and, where rows are gathered, each thread
  std::uint64_t empty[stages];  // each consumer warp
  ExpertTile tile[stages];      // of the stages that begin one
  float2 weight[consumer_groups][max_rows / 2];  // of the rows' pairs
};
static_assert(sizeof(Stage) % 1024 == 0 && sizeof(Shared) <= 227 * 1024);

/// The weights [count, outputs, K] and the rows [rows, K] for the copy engine.
struct Maps {
  CUtensorMap w, x;
};

/// A place in the ring of stages.
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

__device__ unsigned shared_address(const void* data) {
  return unsigned(__cvta_generic_to_shared(data));
}

__device__ void wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

__device__ void load_weights(Bf16* to, const Maps& maps, int input, int output, int expert,
                             std::uint64_t* full) {
  const int place[] = {input, output, expert};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &maps.w, place, full);
}

__device__ void load_rows(Bf16* to, const Maps& maps, int input, int row, std::uint64_t* full) {
  const int place[] = {input, row};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &maps.x, place, full);
}

/// 16 bytes, or zeros.
__device__ void gather(Bf16* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}

/// What one warpgroup loads: one of its threads, and all of them rows that are gathered. A tile
/// without rows is the end.
template <bool gated>
__device__ void produce(Shared& shared, const Maps& maps, const GroupedGemm& gemm, int parts,
                        int steps) {
  const bool gathers = gemm.k > 0;
  const int lane = int(threadIdx.x) % lanes, warp = int(threadIdx.x) / lanes;
  if (!gathers && warp > 0) return;
  // 16 rows at a time, 8 threads each.
  const int my_row = warp * 4 + lane / 8, my_input = lane % 8 * chunk;
  const int place = my_row * step_inputs + (lane % 8 ^ my_row % 8) * chunk;

  ExpertTiles tiles(gemm.order, max_rows, parts);
  Ring ring;
  for (int index = int(blockIdx.x);; index += int(gridDim.x)) {
    const ExpertTile tile = tiles.tile(index);
    const Bf16* rows[max_rows / gather_rows];
    if (gathers && tile.rows > 0)
#pragma unroll
      for (int i = 0; i < max_rows / gather_rows; ++i) {
        const int row = min(i * gather_rows + my_row, tile.rows - 1);  // a copy of it past the last
        rows[i] = gemm.in.data + my_input +
                  gemm.order.pair_at[tile.first + row] / int(gemm.k) * gemm.in.cols;
      }
    for (int step = 0; step < steps; ++step) {
      Stage& stage = shared.stage[ring.stage];
      std::uint64_t* const full = &shared.full[ring.stage];
      const int input = step * step_inputs;
      wait(&shared.empty[ring.stage], ring.parity ^ 1);
      __syncwarp();  // a lane that waited after the stage is full again could miss its turn
      if (threadIdx.x == 0) {
        if (step == 0) shared.tile[ring.stage] = tile;
        const int boxes = gathers ? 0 : (tile.rows + box_rows - 1) / box_rows;
        const unsigned row_bytes = step_inputs * sizeof(Bf16);
        ptx::mbarrier_arrive_expect_tx(
            ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
            tile.rows == 0 ? 0 : sizeof stage.w + unsigned(boxes) * box_rows * row_bytes);
        for (int box = 0; box < tile_outputs / box_outputs && tile.rows > 0; ++box)
          load_weights(stage.w + box * box_outputs * step_inputs, maps, input,
                       gated
                           ? (tile.part * 2 + box / 2) * box_outputs + box % 2 * int(gemm.out.cols)
                           : tile.part * tile_outputs + box * box_outputs,
                       tile.expert, full);
        for (int box = 0; box < boxes; ++box)
          load_rows(stage.x + box * box_rows * step_inputs, maps, input,
                    tile.first + box * box_rows, full);
      }
      if (gathers) {
        __syncwarp();
        const bool is_there = input + my_input < gemm.in.cols;
#pragma unroll
        for (int i = 0; i < max_rows / gather_rows; ++i)
          if (i * gather_rows < tile.rows)
            gather(stage.x + place + i * gather_rows * step_inputs, rows[i] + input, is_there);
        ptx::cp_async_mbarrier_arrive_noinc(full);
      }
      ring.advance();
      if (tile.rows == 0) return;
    }
  }
}

/// sums [64, n] += w [64, 16] x [n, 16]^T, from shared memory; 4 j + 2 i + c of a thread is row
/// warp * 16 + i * 8 + lane / 4, column j * 8 + lane % 4 * 2 + c.
template <int n>
__device__ void multiply_add(float (&sums)[max_rows / 2], std::uint64_t w, std::uint64_t x);

// A register of the accumulator is an operand of its own, so the operands have to be spelt out.
#define TOKENVIEW_NAME(z, i, _) "%" #i ", "
#define TOKENVIEW_OPERAND(z, i, _) "+f"(sums[i])
#define TOKENVIEW_MULTIPLY_ADD(n, registers, last, w_name, x_name)                                \
  template <>                                                                                     \
  __device__ void multiply_add<n>(float(&sums)[max_rows / 2], std::uint64_t w, std::uint64_t x) { \
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" #n   \
                 "k16.f32.bf16.bf16 {" BOOST_PP_REPEAT(                                           \
                     last, TOKENVIEW_NAME, ) "%" #last "}, %" #w_name ", %" #x_name               \
                                             ", add, 1, 1, 0, 0;}"                                \
                 : BOOST_PP_ENUM(registers, TOKENVIEW_OPERAND, )                                  \
                 : "l"(w), "l"(x)                                                                 \
                 : "memory");                                                                     \
  }
TOKENVIEW_MULTIPLY_ADD(16, 8, 7, 8, 9)
TOKENVIEW_MULTIPLY_ADD(32, 16, 15, 16, 17)
TOKENVIEW_MULTIPLY_ADD(48, 24, 23, 24, 25)
TOKENVIEW_MULTIPLY_ADD(64, 32, 31, 32, 33)
TOKENVIEW_MULTIPLY_ADD(80, 40, 39, 40, 41)
TOKENVIEW_MULTIPLY_ADD(96, 48, 47, 48, 49)
TOKENVIEW_MULTIPLY_ADD(112, 56, 55, 56, 57)
TOKENVIEW_MULTIPLY_ADD(128, 64, 63, 64, 65)
TOKENVIEW_MULTIPLY_ADD(144, 72, 71, 72, 73)
TOKENVIEW_MULTIPLY_ADD(160, 80, 79, 80, 81)
TOKENVIEW_MULTIPLY_ADD(176, 88, 87, 88, 89)
TOKENVIEW_MULTIPLY_ADD(192, 96, 95, 96, 97)
#undef TOKENVIEW_MULTIPLY_ADD
#undef TOKENVIEW_OPERAND
#undef TOKENVIEW_NAME

/// Names rows of 64 inputs in the 128-byte swizzle, 1024 bytes each 8 rows, to wgmma.
__device__ std::uint64_t descriptor(const Bf16* rows) {
  return shared_address(rows) >> 4 | std::uint64_t(1024 >> 4) << 32 | std::uint64_t(1) << 62;
}

/// Waits until at most `pending` of the committed groups of wgmma run.
template <int pending>
__device__ void wait_for_sums() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// What a thread of a multiplying warpgroup holds: the products of 128 outputs, in two boxes.
using Sums = float[2][max_rows / 2];

/// The products of a tile of at most n rows, whose first stage `ring` is at. Returns the last
/// stage, which is not handed back yet.
template <int n>
__device__ int multiply(Sums& sums, Shared& shared, Ring& ring, bool gathered, int steps) {
  const int group = int(threadIdx.x) / group_threads - 1;
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    const Stage& stage = shared.stage[ring.stage];
    wait(&shared.full[ring.stage], ring.parity);
    if (gathered) ptx::fence_proxy_async(ptx::space_shared);  // they came by ordinary writes
    const std::uint64_t x = descriptor(stage.x);
    const std::uint64_t w = descriptor(stage.w + group * group_outputs * step_inputs);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < step_inputs / 16; ++k)
#pragma unroll
      for (int box = 0; box < 2; ++box)  // 32 bytes further in each row, one box further
        multiply_add<n>(sums[box], w + k * 2 + box * (box_outputs * step_inputs * 2 >> 4),
                        x + k * 2);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    wait_for_sums<1>();
    if (step > 0 && threadIdx.x % lanes == 0) ptx::mbarrier_arrive(&shared.empty[last]);
    last = ring.stage;
    ring.advance();
  }
  wait_for_sums<0>();
  return last;
}

/// multiply() with the least n that holds the rows.
template <int n = 16>
__device__ int multiply_rows(Sums& sums, Shared& shared, Ring& ring, bool gathered, int rows,
                             int steps) {
  if constexpr (n < max_rows)
    if (rows > n) return multiply_rows<n + 16>(sums, shared, ring, gathered, rows, steps);
  return multiply<n>(sums, shared, ring, gathered, steps);
}

/// Four 8 x 8 matrices of a warp, a row's pair a lane, each to 8 rows of shared memory, transposed;
/// lane l names row l % 8 of matrix l / 8.
__device__ void store_transposed(Bf16* row, const __nv_bfloat162 (&pairs)[4]) {
  const auto& words = reinterpret_cast<const unsigned(&)[4]>(pairs);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// x / (1 + e^-x), good to a few units of fp32.
__device__ float fast_silu(float x) {
  float power, reciprocal;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1 + power));
  return x * reciprocal;
}

/// Two at a time: a conversion of one value is eight times as slow.
__device__ float2 rounded(float2 x) { return __bfloat1622float2(__float22bfloat162_rn(x)); }

/// What is stored for gates and their ups.
__device__ __nv_bfloat162 silu_mul(float2 gate, float2 up, bool is_hf) {
  gate = rounded(gate);
  up = rounded(up);
  float2 silu{fast_silu(gate.x), fast_silu(gate.y)};
  if (is_hf) silu = rounded(silu);
  return __floats2bfloat162_rn(silu.x * up.x, silu.y * up.y);
}

__device__ __nv_bfloat162 weighted(float2 x, float2 weight, bool is_hf) {
  if (is_hf) x = rounded(x);
  return __floats2bfloat162_rn(x.x * weight.x, x.y * weight.y);
}

/// The results of a tile to `out`, through `staged` [128 * 64] and `weight`, which the warpgroup
/// alone uses: some rows of the tile at a time, in the order that swizzle has too.
template <bool gated>
__device__ void store(const GroupedGemm& gemm, const ExpertTile& tile, const Sums& sums,
                      Bf16* staged, float2* weight) {
  constexpr int boxes = gated ? 1 : 2, outputs = boxes * box_outputs, chunks = outputs / chunk;
  constexpr int pass_rows = group_outputs * step_inputs / outputs;
  const int group = int(threadIdx.x) / group_threads - 1, thread = int(threadIdx.x) % group_threads;
  const int warp = thread / lanes, lane = thread % lanes;
  const int first_output = (tile.part * consumer_groups + group) * outputs;
  Bf16* const my_row =
      staged + (lane / 16 * 8 + lane % 8) * outputs + (warp * 2 + lane / 8 % 2 ^ lane % 8) * chunk;
  const bool is_hf = gemm.round.rounding == Rounding::hf;
  if (!gated)
    for (int row = thread; row < tile.rows; row += group_threads)
      reinterpret_cast<float*>(weight)[row] =
          gemm.pair_weights == nullptr ? 1
                                       : gemm.pair_weights[gemm.order.pair_at[tile.first + row]];
#pragma unroll
  for (int first = 0; first < max_rows; first += pass_rows) {
    if (first >= tile.rows) break;
    // All have multiplied, and stored the rows before.
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(group_threads) : "memory");
#pragma unroll
    for (int row = first; row < first + pass_rows && row < max_rows; row += 16) {
      if (row >= tile.rows) break;
#pragma unroll
      for (int box = 0; box < boxes; ++box) {
        __nv_bfloat162 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = row / 2 + 2 * i;
          const float2 pair{sums[box][at], sums[box][at + 1]};
          if constexpr (gated)
            pairs[i] = silu_mul(pair, {sums[1][at], sums[1][at + 1]}, is_hf);
          else
            pairs[i] = weighted(pair, weight[row / 2 + i / 2 * 4 + lane % 4], is_hf);
        }
        store_transposed(my_row + (row - first) * outputs + box * box_outputs, pairs);
      }
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(group_threads) : "memory");
    const int rows = min(pass_rows, tile.rows - first), c = thread % chunks;
    const int output = first_output + c * chunk;
    if (output < gemm.out.cols)
#pragma unroll 4
      for (int row = thread / chunks; row < rows; row += group_threads / chunks) {
        auto* const to = reinterpret_cast<uint4*>(
            gemm.out.data + (tile.first + first + row) * gemm.out.cols + output);
        *to = *reinterpret_cast<const uint4*>(staged + row * outputs + (c ^ row % 8) * chunk);
      }
  }
}

/// The tile that begins with a stage: read by the lane that hands the stage back, so that it has
/// read it by then.
__device__ ExpertTile tile_of(const Shared& shared, int stage) {
  ExpertTile tile{};
  if (threadIdx.x % lanes == 0) tile = shared.tile[stage];
  for (int* part : {&tile.expert, &tile.first, &tile.rows, &tile.part})
    *part = __shfl_sync(0xffffffff, *part, 0);
  return tile;
}

template <bool gated>
__device__ void consume(Shared& shared, const GroupedGemm& gemm, int steps) {
  const int group = int(threadIdx.x) / group_threads - 1;
  for (Ring ring;;) {
    wait(&shared.full[ring.stage], ring.parity);
    const ExpertTile tile = tile_of(shared, ring.stage);
    if (tile.rows == 0) return;
    Sums sums = {};
    const int last = multiply_rows(sums, shared, ring, gemm.k > 0, tile.rows, steps);
    for (auto& box : sums)
      for (float& sum : box) asm volatile("" : "+f"(sum)::"memory");  // not read before the wait
    store<gated>(gemm, tile, sums, shared.stage[last].w + group * group_outputs * step_inputs,
                 shared.weight[group]);
    ptx::fence_proxy_async(ptx::space_shared);  // the copy engine writes there next
    __syncwarp();
    if (threadIdx.x % lanes == 0) ptx::mbarrier_arrive(&shared.empty[last]);
  }
}

template <bool gated>
__global__ void __launch_bounds__(block_threads, 1)
    wgmma_grouped_gemm_kernel(const __grid_constant__ Maps maps, const GroupedGemm gemm, int parts,
                              int steps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(&shared.full[s], 1 + (gemm.k > 0 ? group_threads : 0));
      ptx::mbarrier_init(&shared.empty[s], consumer_warps);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if (threadIdx.x < group_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(producer_registers));
    produce<gated>(shared, maps, gemm, parts, steps);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(consumer_registers));
    consume<gated>(shared, gemm, steps);
  }
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

bool is_aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// A tensor of `sizes`, the first innermost, in boxes of 64 inputs by `height`, each in the
/// 128-byte swizzle; what lies outside of it reads as 0.
template <std::size_t n>
CUtensorMap tensor_map(const Bf16* data, const std::int64_t (&sizes)[n], int height) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  cuuint64_t size[n], strides[n];
  cuuint32_t box[n], every[n];
  for (std::size_t i = 0; i < n; ++i) {
    size[i] = cuuint64_t(sizes[i]);
    strides[i] = size[i] * (i == 0 ? sizeof(Bf16) : strides[i - 1]);  // of the dimension after
    box[i] = cuuint32_t(i == 0 ? step_inputs : i == 1 ? height : 1);
    every[i] = 1;
  }
  CUtensorMap map;
  const CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, n, const_cast<Bf16*>(data), size, strides, box, every,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError(text("cuTensorMapEncodeTiled: error ", int(status), " for [..., ", sizes[1],
                           ", ", sizes[0], "]"));
  return map;
}

}  // namespace

bool launch_wgmma_grouped_gemm(const GroupedGemm& gemm, cudaStream_t stream) {
  const std::int64_t inputs = gemm.in.cols, outputs = gemm.out.cols;
  if (attribute(cudaDevAttrComputeCapabilityMajor) != 9 ||
      attribute(cudaDevAttrComputeCapabilityMinor) != 0 || inputs == 0 || inputs % chunk != 0 ||
      outputs % chunk != 0 || !is_aligned(gemm.in.data, 16) || !is_aligned(gemm.w, 16) ||
      !is_aligned(gemm.out.data, 16))
    return false;
  const Maps maps{
      tensor_map(gemm.w, {inputs, outputs * (gemm.gated ? 2 : 1), gemm.order.count}, box_outputs),
      tensor_map(gemm.in.data, {inputs, gemm.in.rows}, box_rows)};
  const int part = gemm.gated ? tile_outputs / 2 : tile_outputs;
  const int parts = int((outputs + part - 1) / part);
  const int steps = int((inputs + step_inputs - 1) / step_inputs);
  const std::int64_t blocks = std::min<std::int64_t>(max_tiles(gemm.order, max_rows, parts),
                                                     attribute(cudaDevAttrMultiProcessorCount));
  const auto kernel =
      gemm.gated ? wgmma_grouped_gemm_kernel<true> : wgmma_grouped_gemm_kernel<false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
        "cudaFuncSetAttribute(wgmma_grouped_gemm)");
  kernel<<<unsigned(blocks), block_threads, sizeof(Shared), stream>>>(maps, gemm, parts, steps);
  check(cudaGetLastError(), "wgmma_grouped_gemm");
  return true;
}

}  // namespace tokenview::kernels
