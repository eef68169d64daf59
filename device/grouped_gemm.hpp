// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>

#include "device/kernels.hpp"

namespace tokenview::kernels {

/// out[p] = w[expert of p] in[row of p] for the positions p of all experts, in bfloat16; other rows
/// of `out` are not written. The row of p is p itself, or with k > 0 the token pair_at[p] / k. With
/// pair_weights [T * k] each product times its pair's weight, rounded before that too if `rounding`
/// is hf; null: as it is. out [P, N], in [rows, K], w [count, N, K]. A sum is kept in fp32, in an
/// order that the shapes alone decide. Of `order`, pair_at, offsets and the counts are read, on the
/// device only. Throws DeviceError when a launch is refused.
void grouped_gemm(Out<__nv_bfloat16> out, In<__nv_bfloat16> in, const __nv_bfloat16* w,
                  const ExpertOrder& order, std::int64_t k, const float* pair_weights,
                  Rounding rounding, cudaStream_t stream);

/// out[p] = silu(gate) * up, where gate and up are the halves of grouped_gemm()'s row: grouped_gemm
/// and silu_mul_halves in one pass, with the rounding points of both. out [P, N], w [count, 2N, K].
void grouped_gemm_silu_mul(Out<__nv_bfloat16> out, In<__nv_bfloat16> in, const __nv_bfloat16* w,
                           const ExpertOrder& order, std::int64_t k, Rounding rounding,
                           cudaStream_t stream);

}  // namespace tokenview::kernels
