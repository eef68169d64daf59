// SPDX-License-Identifier: Apache-2.0
// The launchers of the kernels, each in the .cu file of its name. All are asynchronous on `stream`,
// trust their arguments (CudaOps has checked the shapes), do nothing for empty operands and throw
// DeviceError when a launch is refused. An output never overlaps an input unless it says so.
//
// T, the type of values in memory, is float or __nv_bfloat16; both are instantiated. Arithmetic is
// in fp32 for either. `rounding` says which implementation's intermediates are rounded to T as
// well.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/device_matrix.hpp"
#include "reference/program/rounding.hpp"

namespace tokenview::kernels {

template <class T>
using Out = MatrixRef<T>;
template <class T>
using In = MatrixRef<const T>;

/// False where this build has no code for the current GPU.
bool are_built_for_this_gpu();

// elementwise.cu
template <class T>
void add(Out<T> out, In<T> x, In<T> y, cudaStream_t stream);
template <class T>
void silu_mul(Out<T> out, In<T> gate, In<T> up, Rounding rounding, cudaStream_t stream);
template <class T>
void sigmoid_mul(Out<T> out, In<T> x, In<T> gate, cudaStream_t stream);
template <class T>
void sigmoid_scale(Out<T> out, In<T> x, In<T> gate, cudaStream_t stream);

// copy_blocks.cu
/// Blocks of columns, the same in every row:
///   to[t, to_first + b * to_stride + c] = from[t, from_first + b * from_stride + c]
/// for b < blocks, c < width.
struct ColumnBlocks {
  std::int64_t blocks, width;
  std::int64_t from_first, from_stride;
  std::int64_t to_first, to_stride;
};
template <class T>
void copy_blocks(Out<T> to, In<T> from, const ColumnBlocks& columns, cudaStream_t stream);

// embedding.cu
/// out[t] = table[ids[t] - first_row], zero for an id outside the table. ids [out.rows].
template <class T>
void embedding(Out<T> out, const std::int64_t* ids, In<T> table, std::int64_t first_row,
               cudaStream_t stream);

// rms_norm.cu
/// Each head of `width` columns by itself, times 1 + w; w [width].
template <class T>
void rms_norm(Out<T> out, In<T> x, const T* w, std::int64_t width, float eps, cudaStream_t stream);
/// sum = x + y; normed = the norm of the rows of sum as they are stored, times 1 + w [sum.cols].
template <class T>
void add_rms_norm(Out<T> sum, Out<T> normed, In<T> x, In<T> y, const T* w, float eps,
                  cudaStream_t stream);
/// norm(x) w silu(z) a head of `width` columns.
template <class T>
void gated_rms_norm(Out<T> out, In<T> x, In<T> z, const T* w, std::int64_t width, float eps,
                    Rounding rounding, cudaStream_t stream);

// rope.cu
/// positions [.., rows], frequency j of `half` is turned by the row axis[j] of them.
template <class T>
void rope(Out<T> out, In<T> x, std::int64_t head_dim, std::int64_t half,
          const std::int64_t* positions, const std::int64_t* axis, const float* frequencies,
          Rounding rounding, cudaStream_t stream);

/// The rows of one sequence in a batch, and where its past is.
struct Sequence {
  std::int64_t first, rows;  // of the batch; no rows: nothing is read or written
  std::int64_t computed;     // rows of its past; 0: states start from zero
  std::int64_t slot;         // of the pools of states
  std::int64_t first_block;  // attention: its block table begins here
};

// attention.cu
constexpr std::int64_t max_head_dim = 512;
constexpr std::int64_t cache_block = 16;  // positions of a block
/// k, v [T, width] into the pools [blocks * cache_block, width]: row t becomes row cache_row[t];
/// -1: a pad, which is not written.
template <class T>
void append_to_cache(T* keys, T* values, In<T> k, In<T> v, const std::int64_t* cache_row,
                     cudaStream_t stream);
/// out, q [T, num_heads * head_dim]; num_heads / num_kv_heads query heads read one of the pools.
/// `sequence_of_row` [T]; -1: a pad.
template <class T>
void attention(Out<T> out, In<T> q, std::int64_t num_heads, std::int64_t num_kv_heads,
               const T* keys, const T* values, const std::int32_t* block_tables,
               const Sequence* sequences, const std::int32_t* sequence_of_row, Rounding rounding,
               cudaStream_t stream);

// causal_conv.cu
/// out, x [T, channels], w [channels, kernel], states [slots, kernel - 1, channels], the last
/// inputs, oldest first. The states are read.
template <class T>
void causal_conv(Out<T> out, In<T> x, const T* w, std::int64_t kernel, const T* states,
                 const Sequence* sequences, const std::int32_t* sequence_of_row, Rounding rounding,
                 cudaStream_t stream);
/// Moves every state on to the end of its sequence's rows. kept [T, kernel - 1, channels] gets the
/// state after each row; null: none.
template <class T>
void advance_conv_state(T* states, T* kept, In<T> x, std::int64_t kernel, const Sequence* sequences,
                        std::int64_t num_sequences, cudaStream_t stream);

// gated_delta_rule.cu
/// beta in fp32, holding what hf rounds to T; g in fp32.
template <class T>
void delta_gates(Out<float> beta, Out<float> g, In<T> b, In<T> a, const T* A_log, const T* dt_bias,
                 Rounding rounding, cudaStream_t stream);
struct DeltaShape {
  std::int64_t num_key_heads, num_value_heads, key_dim, value_dim;  // dims of one head
};
constexpr std::int64_t max_key_dim = 256;
/// qkv [T, conv_dim], states [slots, num_value_heads, key_dim, value_dim] -> out [T,
/// num_value_heads * value_dim]; rows of no sequence are not written. kept [T, state] gets the
/// state after each row; null: none.
template <class T>
void gated_delta_rule(Out<T> out, In<T> qkv, In<float> beta, In<float> g, const DeltaShape& shape,
                      float* states, float* kept, const Sequence* sequences,
                      std::int64_t num_sequences, cudaStream_t stream);

// chunked_delta_rule.cu
/// The same function in chunks of 64 rows; vllm: with the roundings of its kernels. Throws
/// ShapeError for key heads that need more shared memory than a block may have.
template <class T>
void chunked_delta_rule(Out<T> out, In<T> qkv, In<float> beta, In<float> g, const DeltaShape& shape,
                        float* states, const Sequence* sequences, std::int64_t num_sequences,
                        Rounding rounding, cudaStream_t stream);

// router.cu
constexpr std::int64_t max_experts = 8192;
/// Weights in fp32, holding what hf rounds to T.
template <class T>
void route(Out<float> weights, std::int64_t* ids, In<T> logits, bool renormalise, Rounding rounding,
           cudaStream_t stream);
/// Rows that the mask marks get the expert -1, with weight 0, in place.
void skip_pads(Out<float> weights, std::int64_t* ids, const std::uint8_t* mask, std::int64_t rows,
               cudaStream_t stream);

// experts.cu
/// The (token, choice) pairs of a routing, sorted by expert; see experts.cu.
struct ExpertOrder {
  const std::int32_t* pair_at = {};      // [T * k] pair t * k + j at each position
  const std::int32_t* position_of = {};  // [T * k] -1: another rank's expert
  const std::int32_t* offsets = {};      // [count + 1] first position of each expert
  const std::int32_t* tiles = {};        // [count + 1] first tile of each expert
  std::int64_t count = 0;                // experts
  std::int64_t num_pairs = 0, max_tiles = 0;
};
/// Bytes of scratch memory for sort_by_expert().
std::int64_t sort_by_expert_bytes(std::int64_t num_pairs, std::int64_t count);
/// Fills the arrays of `order` (as writable memory) from ids [num_pairs].
void sort_by_expert(const ExpertOrder& order, const std::int64_t* ids, std::int64_t first_expert,
                    void* scratch, std::int64_t scratch_bytes, cudaStream_t stream);
std::int64_t max_expert_tiles(std::int64_t num_pairs, std::int64_t count);
/// out[p] = w[expert of p] in[row of p] for the positions p of all experts; w [count, out.cols,
/// in.cols]. The row of p is p itself, or with k > 0 the token pair_at[p] / k. With pair_weights
/// [T * k] each product times its pair's weight; null: as it is. For bfloat16: grouped_gemm.hpp.
void grouped_linear(Out<float> out, In<float> in, const float* w, const ExpertOrder& order,
                    std::int64_t k, const float* pair_weights, cudaStream_t stream);
/// inner [P, I] = silu(gate) * up of both [P, 2I], for positions that have an expert.
void silu_mul_halves(Out<float> inner, In<float> both, const ExpertOrder& order,
                     cudaStream_t stream);
/// out[t] = sum over j < k in order of rows[position of (t, j)].
template <class T>
void combine(Out<T> out, In<T> rows, std::int64_t k, const ExpertOrder& order, cudaStream_t stream);

// add_rows.cu
/// out[r] = sum of x[order[p]] for begin[r] <= p < begin[r + 1], in that order.
template <class T>
void add_rows(Out<T> out, In<T> x, const std::int64_t* begin, const std::int64_t* order,
              cudaStream_t stream);

// argmax.cu
/// The column of the largest value of each row, of equal ones the lowest. ids [x.rows].
template <class T>
void argmax(std::int64_t* ids, In<T> x, cudaStream_t stream);

}  // namespace tokenview::kernels
