// SPDX-License-Identifier: Apache-2.0
// The gated delta rule in chunks of 64 rows (model.md 4.6): the function of gated_delta_rule.cu, as
// products of matrices. Inside a chunk, with S [dk, dv] entering and G the running sum of g:
//   D_ij = exp(G_i - G_j) for j <= i, else 0        Tm = (I + strictly lower part of beta K K^T
//   D)^-1 U = Tm (beta V)      W = Tm (beta exp(G) K)      deltas = U - W S read = exp(G) Q S + ((Q
//   K^T) D) deltas           S <- exp(G_end) S + K^T (exp(G_end - G) deltas)
// qkv [T, conv_dim] is [q | k | v], q and k brought to unit length here, q also over sqrt(dk); beta
// and g [T, value heads] -> [T, value heads * dv]. S in fp32, from and to the sequence's slot.
//
// Operands of products are of type O, sums in fp32. O = bfloat16, the rounding of vllm's kernels:
// tensor cores, and every value is rounded where it becomes an operand. O = float: no rounding.
//
// One block a tile of columns of one head's S and one sequence, chunk after chunk; what does not
// depend on the columns (Tm, W, the masked products) each tile computes for itself. Rows past the
// end of a short chunk are zero, which changes nothing. Limit: shared memory; dk <= 256 for
// bfloat16, 128 for float where a block may have 227 KB.
// Sources: fla chunk.py, chunk_fwd.py, wy_fast.py; transformers modular_qwen3_next.py.
#include <mma.h>

#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int chunk = 64;
constexpr int block = 16;  // rows and columns of a tensor-core product, and of the inverse's blocks
constexpr int warps = threads / lanes;
constexpr int padding = 8;  // elements after a row in shared memory: rows start in other banks

template <class O>
constexpr int tile_cols = std::is_same_v<O, float> ? 16 : 32;  // columns of S that a block owns

/// A matrix in shared memory.
template <class X>
struct Tile {
  X* data;
  int stride;
  __device__ X& operator()(int i, int j) const { return data[i * stride + j]; }
};

/// What a block has in shared memory. dk is rounded up to whole blocks.
template <class O>
struct Tiles {
  Tile<O> q, k, w;          // [chunk, dk]; q is then beta exp(G) K
  Tile<O> inverse, inside;  // [chunk, chunk] Tm and (Q K^T) D
  Tile<O> x;                // [chunk, cols] beta V, then the deltas
  Tile<O> entering;         // [dk, cols] S as an operand
  Tile<float> lower;        // [chunk, chunk] I + beta K K^T D below the diagonal; its inverse
  Tile<float> u, read;      // [chunk, cols]
  Tile<float> state;        // [dk, cols] S
  float *decay_sum, *beta;  // [chunk] G and beta
  Tile<float> product;      // [warps * block, block] what a warp has just multiplied

  /// Cuts `memory` and returns its size in bytes.
  __host__ __device__ std::int64_t place(char* memory, int dk) {
    constexpr int cols = tile_cols<O>;
    std::int64_t used = 0;
    const auto take = [&](auto& tile, int rows, int width, int pad) {
      using X = std::remove_reference_t<decltype(*tile.data)>;
      tile = {reinterpret_cast<X*>(memory + used), width + pad};
      used += std::int64_t(rows) * (width + pad) * std::int64_t(sizeof(X));
    };
    for (Tile<O>* tile : {&q, &k, &w}) take(*tile, chunk, dk, padding);
    for (Tile<O>* tile : {&inverse, &inside}) take(*tile, chunk, chunk, padding);
    take(x, chunk, cols, padding);
    take(entering, dk, cols, padding);
    take(lower, chunk, chunk, 4);
    for (Tile<float>* tile : {&u, &read}) take(*tile, chunk, cols, 0);
    take(state, dk, cols, 0);
    take(product, warps * block, block, 4);
    Tile<float> rows{};
    take(rows, 2, chunk, 0);
    decay_sum = rows.data;
    beta = rows.data + chunk;
    return used;
  }
};

/// An operand of a product: a tile, or its transpose.
template <class O, class Order>
struct Operand {
  Tile<O> tile;
  __device__ O* at(int i, int j) const {
    return std::is_same_v<Order, wmma::row_major> ? &tile(i, j) : &tile(j, i);
  }
};
template <class O>
__device__ Operand<O, wmma::row_major> plain(const Tile<O>& tile) {
  return {tile};
}
template <class O>
__device__ Operand<O, wmma::col_major> transposed(const Tile<O>& tile) {
  return {tile};
}

/// f(i, j, sum over m < depth of a(i, m) b(m, j)) for i < rows, j < cols; whole blocks all three.
/// No barrier on either side.
template <class A, class B, class F>
__device__ void multiply(Operand<float, A> a, Operand<float, B> b, int rows, int cols, int depth,
                         const Tile<float>&, F f) {
  for (int at = int(threadIdx.x); at < rows * cols; at += threads) {
    const int i = at / cols, j = at % cols;
    float sum = 0;
    for (int m = 0; m < depth; ++m) sum += *a.at(i, m) * *b.at(m, j);
    f(i, j, sum);
  }
}
template <class A, class B, class F>
__device__ void multiply(Operand<__nv_bfloat16, A> a, Operand<__nv_bfloat16, B> b, int rows,
                         int cols, int depth, const Tile<float>& products, F f) {
  const int warp = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  float* const product = &products(warp * block, 0);
  for (int at = warp; at < rows / block * (cols / block); at += warps) {
    const int i = at / (cols / block) * block, j = at % (cols / block) * block;
    wmma::fragment<wmma::accumulator, block, block, block, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int m = 0; m < depth; m += block) {
      wmma::fragment<wmma::matrix_a, block, block, block, __nv_bfloat16, A> left;
      wmma::fragment<wmma::matrix_b, block, block, block, __nv_bfloat16, B> right;
      wmma::load_matrix_sync(left, a.at(i, m), unsigned(a.tile.stride));
      wmma::load_matrix_sync(right, b.at(m, j), unsigned(b.tile.stride));
      wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(product, sum, unsigned(products.stride), wmma::mem_row_major);
    __syncwarp();
    for (int e = lane; e < block * block; e += lanes)
      f(i + e / block, j + e % block, product[e / block * products.stride + e % block]);
    __syncwarp();
  }
}

/// a [chunk, chunk], unit lower triangular with an explicit diagonal and zeros above: a <- a^-1, in
/// blocks of 16. Diagonal blocks by substitution, then each row of blocks from those above it:
/// Tm_ij = -Tm_ii sum of a_im Tm_mj over j <= m < i.
__device__ void invert(const Tile<float>& a) {
  const int thread = int(threadIdx.x);
  if (thread < chunk) {  // a thread a column of a diagonal block
    const int first = thread / block * block, column = thread % block;
    float x[block];
#pragma unroll
    for (int i = 0; i < block; ++i) {
      float sum = 0;
#pragma unroll
      for (int m = 0; m < i; ++m) sum += a(first + i, first + m) * x[m];
      x[i] = i == column ? 1.0f : -sum;
    }
    __syncwarp();  // the block, of half a warp, has been read
#pragma unroll
    for (int i = 0; i < block; ++i) a(first + i, first + column) = x[i];
  }
  __syncthreads();

  constexpr int most =
      block * (chunk - block) / threads;  // elements of a thread in a row of blocks
  for (int first = block; first < chunk; first += block) {
    float values[most];
    const auto each = [&](auto f) {
#pragma unroll
      for (int e = 0; e < most; ++e)
        if (const int at = thread + e * threads; at < block * first)
          f(values[e], first + at / first, at % first);
    };
    each([&](float& value, int i, int j) {
      value = 0;
      for (int m = 0; m < first; ++m) value += a(i, m) * a(m, j);
    });
    __syncthreads();
    each([&](float value, int i, int j) { a(i, j) = value; });
    __syncthreads();
    each([&](float& value, int i, int j) {
      value = 0;
      for (int m = 0; m < block; ++m) value -= a(i, first + m) * a(first + m, j);
    });
    __syncthreads();
    each([&](float value, int i, int j) { a(i, j) = value; });
    __syncthreads();
  }
}

/// to = x times scale / sqrt(sum of squares + 1e-6), zero from dk on: one warp.
template <class O, class T>
__device__ void normalise(O* to, int width, const T* x, int dk, float scale, int lane) {
  float squares = 0;
  for (int i = lane; i < dk; i += lanes) squares += float(x[i]) * float(x[i]);
  const float inverse = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
  for (int i = lane; i < width; i += lanes)
    to[i] = i < dk ? stored<O>(float(x[i]) * inverse * scale) : stored<O>(0);
}

template <class T, class O>
__global__ void __launch_bounds__(threads)
    chunked_delta_rule_kernel(Out<T> out, In<T> qkv, In<float> beta, const float* g,
                              DeltaShape shape, float* states, const Sequence* sequences) {
  extern __shared__ __align__(128) char memory[];
  const Sequence s = sequences[blockIdx.z];
  if (s.rows == 0) return;
  constexpr int cols = tile_cols<O>;
  const int thread = int(threadIdx.x), warp = thread / lanes, lane = thread % lanes;
  const int dk = int(shape.key_dim), width = (dk + block - 1) / block * block;
  const std::int64_t head = blockIdx.y, dv = shape.value_dim;
  const std::int64_t key_head = head / (shape.num_value_heads / shape.num_key_heads);
  const std::int64_t first_column = std::int64_t(blockIdx.x) * cols;
  const int columns = int(min(dv - first_column, std::int64_t(cols)));  // of this tile
  float* const of_head = states + (s.slot * shape.num_value_heads + head) * dk * dv + first_column;
  Tiles<O> t;
  t.place(memory, width);
  const auto for_each = [&](int rows, int row_width, auto f) {
    for (int at = thread; at < rows * row_width; at += threads) f(at / row_width, at % row_width);
  };

  for_each(width, cols, [&](int i, int j) {
    const bool is_inside = i < dk && j < columns && s.computed > 0;
    t.state(i, j) = is_inside ? of_head[i * dv + j] : 0;
    t.entering(i, j) = stored<O>(t.state(i, j));
  });
  for (std::int64_t begin = 0; begin < s.rows; begin += chunk) {
    const int n = int(min(s.rows - begin, std::int64_t(chunk)));
    const std::int64_t first = s.first + begin;  // of the batch
    __syncthreads();                             // the chunk before has been read
    for (int i = warp; i < chunk; i += warps) {
      const T* q = qkv.data + (first + i) * qkv.cols + key_head * dk;
      const T* k = q + shape.num_key_heads * dk;
      const int present = i < n ? dk : 0;
      normalise(&t.q(i, 0), width, q, present, 1.0f / sqrtf(float(dk)), lane);
      normalise(&t.k(i, 0), width, k, present, 1.0f, lane);
    }
    for_each(chunk, cols, [&](int i, int j) {
      const std::int64_t at = 2 * shape.num_key_heads * dk + head * dv + first_column + j;
      const bool is_inside = i < n && j < columns;
      t.x(i, j) = stored<O>(is_inside ? beta.data[(first + i) * beta.cols + head] *
                                            float(qkv.data[(first + i) * qkv.cols + at])
                                      : 0);
    });
    if (thread < chunk) {
      t.beta[thread] = thread < n ? beta.data[(first + thread) * beta.cols + head] : 0;
      float sum = 0;
      for (int i = 0; i <= min(thread, n - 1); ++i) sum += g[(first + i) * beta.cols + head];
      t.decay_sum[thread] = sum;
    }
    __syncthreads();
    const auto decay_between = [&](int i, int j) {  // j <= i: never overflows
      return expf(t.decay_sum[i] - t.decay_sum[j]);
    };

    multiply(plain(t.q), transposed(t.k), chunk, chunk, width, t.product,
             [&](int i, int j, float value) {
               t.inside(i, j) = stored<O>(j <= i ? value * decay_between(i, j) : 0);
             });
    multiply(plain(t.k), transposed(t.k), chunk, chunk, width, t.product,
             [&](int i, int j, float value) {
               t.lower(i, j) = j < i ? t.beta[i] * value * decay_between(i, j) : float(i == j);
             });
    multiply(plain(t.q), plain(t.entering), chunk, cols, width, t.product,
             [&](int i, int j, float value) { t.read(i, j) = expf(t.decay_sum[i]) * value; });
    __syncthreads();
    invert(t.lower);
    for_each(chunk, chunk, [&](int i, int j) { t.inverse(i, j) = stored<O>(t.lower(i, j)); });
    for_each(chunk, width, [&](int i, int j) {
      t.q(i, j) = stored<O>(t.beta[i] * expf(t.decay_sum[i]) * float(t.k(i, j)));
    });
    __syncthreads();

    multiply(plain(t.inverse), plain(t.x), chunk, cols, chunk, t.product,
             [&](int i, int j, float value) { t.u(i, j) = float(stored<O>(value)); });
    multiply(plain(t.inverse), plain(t.q), chunk, width, chunk, t.product,
             [&](int i, int j, float value) { t.w(i, j) = stored<O>(value); });
    __syncthreads();
    multiply(plain(t.w), plain(t.entering), chunk, cols, width, t.product,
             [&](int i, int j, float value) { t.x(i, j) = stored<O>(t.u(i, j) - value); });
    __syncthreads();
    multiply(plain(t.inside), plain(t.x), chunk, cols, chunk, t.product,
             [&](int i, int j, float value) {
               if (i < n && j < columns)
                 out.data[(first + i) * out.cols + head * dv + first_column + j] =
                     stored<T>(t.read(i, j) + value);
             });
    __syncthreads();
    for_each(chunk, cols, [&](int i, int j) {
      t.x(i, j) = stored<O>(decay_between(chunk - 1, i) * float(t.x(i, j)));
    });
    __syncthreads();
    multiply(transposed(t.k), plain(t.x), width, cols, chunk, t.product,
             [&](int i, int j, float value) {
               t.state(i, j) = expf(t.decay_sum[chunk - 1]) * t.state(i, j) + value;
               t.entering(i, j) = stored<O>(t.state(i, j));
             });
  }
  __syncthreads();
  for_each(dk, columns, [&](int i, int j) { of_head[i * dv + j] = t.state(i, j); });
}

template <class T, class O>
void launch(Out<T> out, In<T> qkv, In<float> beta, In<float> g, const DeltaShape& shape,
            float* states, const Sequence* sequences, std::int64_t num_sequences,
            cudaStream_t stream) {
  const std::int64_t bytes =
      Tiles<O>().place(nullptr, int((shape.key_dim + block - 1) / block * block));
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  if (bytes > most)
    throw ShapeError(text("chunked_delta_rule: a key head of ", shape.key_dim, " features needs ",
                          bytes, " bytes of shared memory, of which a block may have ", most));
  const auto kernel = chunked_delta_rule_kernel<T, O>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
        "cudaFuncSetAttribute");
  const dim3 grid(unsigned((shape.value_dim + tile_cols<O> - 1) / tile_cols<O>),
                  unsigned(shape.num_value_heads), unsigned(num_sequences));
  kernel<<<grid, threads, std::size_t(bytes), stream>>>(out, qkv, beta, g.data, shape, states,
                                                        sequences);
  check(cudaGetLastError(), "chunked_delta_rule");
}

}  // namespace

template <class T>
void chunked_delta_rule(Out<T> out, In<T> qkv, In<float> beta, In<float> g, const DeltaShape& shape,
                        float* states, const Sequence* sequences, std::int64_t num_sequences,
                        Rounding rounding, cudaStream_t stream) {
  if (num_sequences == 0) return;
  const auto run = rounding == Rounding::vllm ? launch<T, T> : launch<T, float>;  // T: bfloat16
  run(out, qkv, beta, g, shape, states, sequences, num_sequences, stream);
}

template void chunked_delta_rule<float>(Out<float>, In<float>, In<float>, In<float>,
                                        const DeltaShape&, float*, const Sequence*, std::int64_t,
                                        Rounding, cudaStream_t);
template void chunked_delta_rule<__nv_bfloat16>(Out<__nv_bfloat16>, In<__nv_bfloat16>, In<float>,
                                                In<float>, const DeltaShape&, float*,
                                                const Sequence*, std::int64_t, Rounding,
                                                cudaStream_t);

}  // namespace tokenview::kernels
