// SPDX-License-Identifier: Apache-2.0
// The grouped GEMM of the experts on Hopper's tensor cores (wgmma, sm_90a only).
//
// A tile is 256 outputs by at most 192 rows of one expert. The weights are the left operand and the
// rows the right one, transposed: wgmma's left side is always 64 high, while its right side is a
// multiple of 8 wide, so an expert with few rows costs little and its weights, most of the traffic,
// are read once. One block a multiprocessor walks the tiles. Its first warpgroup loads steps of 64
// inputs into a ring of stages: the weights by the copy engine, the rows, gathered, by cp.async;
// the other two multiply, each 2 x 64 outputs, and store. The ring runs on from tile to tile, so
// loads do not pause while results are stored.
//
//   stage: w [256, 64], x [192, 64] in the 128-byte swizzle: of each 8 rows of 128 bytes, chunk c
//   of 16 bytes of row r lies at c ^ (r % 8)
//
// Gated, the first 128 rows of w are gates and the others their ups: a thread holds both.
// Limits: K % 8 == 0, N even. Launch: at most one block a multiprocessor, 384 threads.
// Sources: PTX ISA 9.0, "Asynchronous warpgroup level matrix instructions"; CUTLASS 3,
// sm90_mma_tma_gmma_ss_warpspecialized.hpp, for the division into producer and consumers.
#include <cuda.h>
#include <cuda_pipeline_primitives.h>

#include <boost/preprocessor/repetition/enum.hpp>
#include <boost/preprocessor/repetition/repeat.hpp>
#include <cuda/ptx>

#include "device/grouped_gemm.cuh"

namespace tokenview::kernels {
namespace {

namespace ptx = cuda::ptx;
using Bf16 = __nv_bfloat16;

constexpr int tile_outputs = 256, box_outputs = tile_outputs / 2;
constexpr int max_rows = 192;
constexpr int step_inputs = 64;  // 128 bytes, the span of the swizzle
constexpr int chunk = 8;         // elements of 16 bytes
constexpr int stages = 4;
constexpr int group_threads = 128;  // of a warpgroup
constexpr int consumer_groups = 2;
constexpr int block_threads = group_threads * (1 + consumer_groups);
constexpr int consumer_warps = consumer_groups * group_threads / lanes;

struct Stage {
  Bf16 w[tile_outputs * step_inputs];
  Bf16 x[max_rows * step_inputs];
};

struct Shared {
  Stage stage[stages];
  std::uint64_t full[stages];   // the copy engine and each loading thread
  std::uint64_t empty[stages];  // each consumer warp
  ExpertTile tile[stages];      // of the stages that begin one
};
static_assert(sizeof(Stage) % 1024 == 0 && sizeof(Shared) <= 227 * 1024);

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

__device__ void wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

__device__ void load_box(void* to, const CUtensorMap& map, int input, int output, int expert,
                         std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
          unsigned(__cvta_generic_to_shared(to))),
      "l"(&map), "r"(input), "r"(output), "r"(expert),
      "r"(unsigned(__cvta_generic_to_shared(barrier))), "l"(policy)
      : "memory");
}

/// What one warpgroup loads: the weights by one thread, the rows by all.
template <bool gated>
__device__ void produce(Shared& shared, const CUtensorMap& map, const GroupedGemm& gemm, int parts,
                        int steps) {
  const int lane = int(threadIdx.x) % lanes, warp = int(threadIdx.x) / lanes;
  // A load of the group covers 16 rows, a warp's 4 of them: lane l keeps rows
  // l / 4 * 16 + warp * 4 + l % 4, and 128 further on.
  const int column = lane % 8 * chunk, row = warp * 4 + lane / 8;
  const int place = row * step_inputs + (lane % 8 ^ row % 8) * chunk;
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));

  ExpertTiles tiles(gemm.order, max_rows, parts);
  Ring ring;
  for (int index = int(blockIdx.x);; index += int(gridDim.x)) {
    const ExpertTile tile = tiles.tile(index);
    if (tile.rows == 0) break;
    int rows[2];
    for (int half = 0; half < 2; ++half) {
      const int r = half * 128 + lane / 4 * 16 + warp * 4 + lane % 4, p = tile.first + r;
      rows[half] = r >= tile.rows ? -1 : gemm.k > 0 ? gemm.order.pair_at[p] / int(gemm.k) : p;
    }
    for (int step = 0; step < steps; ++step) {
      Stage& stage = shared.stage[ring.stage];
      std::uint64_t* const full = &shared.full[ring.stage];
      const int input = step * step_inputs;
      wait(&shared.empty[ring.stage], ring.parity ^ 1);
      if (threadIdx.x == 0) {
        if (step == 0) shared.tile[ring.stage] = tile;
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                       sizeof stage.w);
        const int output = tile.part * (gated ? box_outputs : tile_outputs);
        const int second = output + (gated ? int(gemm.out.cols) : box_outputs);
        load_box(stage.w, map, input, output, tile.expert, full, policy);
        load_box(stage.w + box_outputs * step_inputs, map, input, second, tile.expert, full,
                 policy);
      }
      __syncwarp();
#pragma unroll 4
      for (int i = 0; i * 16 < tile.rows; ++i) {
        const int from = __shfl_sync(0xffffffff, i < 8 ? rows[0] : rows[1], i % 8 * 4 + lane / 8);
        const bool is_there = from >= 0 && input + column < gemm.in.cols;
        const Bf16* x = gemm.in.data + (is_there ? from * gemm.in.cols + input + column : 0);
        __pipeline_memcpy_async(stage.x + place + i * 16 * step_inputs, x, 16, is_there ? 0 : 16);
      }
      ptx::cp_async_mbarrier_arrive_noinc(full);
      ring.advance();
    }
  }
  // The end, as a stage without rows.
  wait(&shared.empty[ring.stage], ring.parity ^ 1);
  if (threadIdx.x == 0) {
    shared.tile[ring.stage].rows = 0;
    ptx::mbarrier_arrive(&shared.full[ring.stage]);
  }
  ptx::mbarrier_arrive(&shared.full[ring.stage]);
}

/// sums [64, n] += w [64, 16] x [n, 16]^T, from shared memory; 4 j + 2 i + c of a thread is row
/// warp * 16 + i * 8 + lane / 4, column j * 8 + lane % 4 * 2 + c.
template <int n>
__device__ void multiply_add(float (&sums)[n / 2], std::uint64_t w, std::uint64_t x);

// A register of the accumulator is an operand of its own, so the operands have to be spelt out.
#define TOKENVIEW_NAME(z, i, _) "%" #i ", "
#define TOKENVIEW_OPERAND(z, i, _) "+f"(sums[i])
#define TOKENVIEW_MULTIPLY_ADD(n, registers, last, w_name, x_name)                              \
  template <>                                                                                   \
  __device__ void multiply_add<n>(float(&sums)[n / 2], std::uint64_t w, std::uint64_t x) {      \
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" #n \
                 "k16.f32.bf16.bf16 {" BOOST_PP_REPEAT(                                         \
                     last, TOKENVIEW_NAME, ) "%" #last "}, %" #w_name ", %" #x_name             \
                                             ", add, 1, 1, 0, 0;}"                              \
                 : BOOST_PP_ENUM(registers, TOKENVIEW_OPERAND, )                                \
                 : "l"(w), "l"(x)                                                               \
                 : "memory");                                                                   \
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
  const std::uint64_t address = __cvta_generic_to_shared(rows);
  return address >> 4 | std::uint64_t(1024 >> 4) << 32 | std::uint64_t(1) << 62;
}

/// Waits until at most `pending` of the committed groups of wgmma run.
template <int pending>
__device__ void wait_for_sums() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// What is stored for a gate and its up. The quotient is good to a few units of fp32.
__device__ float silu_mul(float gate, float up, Rounder<Bf16> round) {
  gate = round(gate);
  return round.hf(__fdividef(gate, 1 + __expf(-gate))) * round(up);
}

/// The 8 x 8 matrix of a warp, a row's pair a lane, transposed.
__device__ unsigned transposed(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  unsigned result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(result)
               : "r"(reinterpret_cast<const unsigned&>(pair)));
  return result;
}

/// The values [outputs, rows] that a thread has in the places of multiply_add(), transposed, to the
/// rows of `out`: `boxes` times 64 outputs of the group; `output` is the warp's first.
template <int n, int boxes, class Value>
__device__ void store(const GroupedGemm& gemm, const ExpertTile& tile, int output, Value value) {
  const int lane = int(threadIdx.x) % lanes, row = lane / 4, column = output + lane % 4 * 2;
  const int left = tile.rows - row, width = int(gemm.out.cols) - column;
  Bf16* out = gemm.out.data + (tile.first + row) * gemm.out.cols + column;
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
#pragma unroll
    for (int box = 0; box < boxes; ++box)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned pair = transposed(value(box, 4 * j + 2 * i), value(box, 4 * j + 2 * i + 1));
        const int further = box * box_outputs + i * 8;
        if (j * 8 < left && further < width) *reinterpret_cast<unsigned*>(out + further) = pair;
      }
    out += 8 * gemm.out.cols;
  }
}

/// Sums in the places of multiply_add() times the weights of their rows.
template <int n>
__device__ void weigh(float (&sums)[2][n / 2], const GroupedGemm& gemm, const ExpertTile& tile,
                      Rounder<Bf16> round) {
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    const int row = i / 2 * 8 + int(threadIdx.x) % 4 * 2 + i % 2;
    const float weight = row < tile.rows ? gemm.weight(tile.first + row) : 0;
#pragma unroll
    for (int box = 0; box < 2; ++box)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& sum = sums[box][i / 2 * 4 + half * 2 + i % 2];
        sum = round.hf(sum) * weight;
      }
  }
}

/// One tile of at most n rows, whose first stage `ring` is at and is full.
template <bool gated, int n>
__device__ void consume(Shared& shared, Ring& ring, const GroupedGemm& gemm, const ExpertTile& tile,
                        int steps) {
  const int group = int(threadIdx.x) / group_threads - 1;
  const int warp = int(threadIdx.x) / lanes % 4, lane = int(threadIdx.x) % lanes;
  float sums[2][n / 2] = {};
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    const Stage& stage = shared.stage[ring.stage];
    wait(&shared.full[ring.stage], ring.parity);
    ptx::fence_proxy_async(ptx::space_shared);  // the rows came by ordinary writes
    const std::uint64_t x = descriptor(stage.x);
    const std::uint64_t w = descriptor(stage.w + group * 64 * step_inputs);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < step_inputs / 16; ++k)
#pragma unroll
      for (int box = 0; box < 2; ++box)  // 32 bytes further in each row, one box further
        multiply_add<n>(sums[box], w + k * 2 + box * (box_outputs * step_inputs * 2 >> 4),
                        x + k * 2);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    wait_for_sums<1>();
    if (step > 0 && lane == 0) ptx::mbarrier_arrive(&shared.empty[last]);
    last = ring.stage;
    ring.advance();
  }
  wait_for_sums<0>();
  for (float& sum : sums[0]) asm volatile("" : "+f"(sum)::"memory");  // not read before the wait
  for (float& sum : sums[1]) asm volatile("" : "+f"(sum)::"memory");
  if (lane == 0) ptx::mbarrier_arrive(&shared.empty[last]);

  const int output = group * 64 + warp * 16;
  const Rounder<Bf16> round{gemm.rounding};
  if constexpr (gated) {
    store<n, 1>(gemm, tile, tile.part * box_outputs + output,
                [&](int, int i) { return silu_mul(sums[0][i], sums[1][i], round); });
  } else {
    if (gemm.pair_weights != nullptr) weigh<n>(sums, gemm, tile, round);
    store<n, 2>(gemm, tile, tile.part * tile_outputs + output,
                [&](int box, int i) { return sums[box][i]; });
  }
}

/// consume() with the least n that holds the rows.
template <bool gated, int n = 16>
__device__ void consume_rows(Shared& shared, Ring& ring, const GroupedGemm& gemm,
                             const ExpertTile& tile, int steps) {
  if constexpr (n < max_rows)
    if (tile.rows > n) return consume_rows<gated, n + 16>(shared, ring, gemm, tile, steps);
  consume<gated, n>(shared, ring, gemm, tile, steps);
}

template <bool gated>
__global__ void __launch_bounds__(block_threads, 1)
    wgmma_grouped_gemm_kernel(const __grid_constant__ CUtensorMap map, const GroupedGemm gemm,
                              int parts, int steps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(&shared.full[s], 1 + group_threads);
      ptx::mbarrier_init(&shared.empty[s], consumer_warps);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if (threadIdx.x < group_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<gated>(shared, map, gemm, parts, steps);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    for (Ring ring;;) {
      wait(&shared.full[ring.stage], ring.parity);
      const ExpertTile tile = shared.tile[ring.stage];
      if (tile.rows == 0) break;
      consume_rows<gated>(shared, ring, gemm, tile, steps);
    }
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

/// Boxes of 64 inputs by 128 outputs of an expert; what lies outside of it reads as 0.
CUtensorMap weight_map(const GroupedGemm& gemm) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  const std::int64_t inputs = gemm.in.cols, outputs = gemm.out.cols * (gemm.gated ? 2 : 1);
  const cuuint64_t sizes[] = {cuuint64_t(inputs), cuuint64_t(outputs),
                              cuuint64_t(gemm.order.count)};
  const cuuint64_t strides[] = {cuuint64_t(inputs) * sizeof(Bf16),
                                cuuint64_t(inputs * outputs) * sizeof(Bf16)};
  const cuuint32_t box[] = {step_inputs, box_outputs, 1}, every[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<Bf16*>(gemm.w), sizes, strides, box,
      every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError(text("cuTensorMapEncodeTiled: error ", int(status), " for weights [",
                           gemm.order.count, ", ", outputs, ", ", inputs, "]"));
  return map;
}

}  // namespace

bool launch_wgmma_grouped_gemm(const GroupedGemm& gemm, cudaStream_t stream) {
  if (attribute(cudaDevAttrComputeCapabilityMajor) != 9 ||
      attribute(cudaDevAttrComputeCapabilityMinor) != 0 || gemm.in.cols == 0 ||
      gemm.in.cols % chunk != 0 || gemm.out.cols % 2 != 0 || !is_aligned(gemm.in.data, 16) ||
      !is_aligned(gemm.w, 16) || !is_aligned(gemm.out.data, 4))
    return false;
  const int part = gemm.gated ? box_outputs : tile_outputs;
  const int parts = int((gemm.out.cols + part - 1) / part);
  const int steps = int((gemm.in.cols + step_inputs - 1) / step_inputs);
  const std::int64_t blocks = std::min<std::int64_t>(max_tiles(gemm.order, max_rows, parts),
                                                     attribute(cudaDevAttrMultiProcessorCount));
  const auto kernel =
      gemm.gated ? wgmma_grouped_gemm_kernel<true> : wgmma_grouped_gemm_kernel<false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
        "cudaFuncSetAttribute(wgmma_grouped_gemm)");
  kernel<<<unsigned(blocks), block_threads, sizeof(Shared), stream>>>(weight_map(gemm), gemm, parts,
                                                                      steps);
  check(cudaGetLastError(), "wgmma_grouped_gemm");
  return true;
}

}  // namespace tokenview::kernels
