// SPDX-License-Identifier: Apache-2.0
// Blocks of columns moved: slices, joins and the splits of fused projections. One thread an
// element that is copied, or sixteen bytes of them where all blocks are aligned to that.
#include <numeric>

#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

/// V: an element, or a vector of them, in which all numbers count.
template <class V>
__global__ void copy_blocks_kernel(MatrixRef<V> to, MatrixRef<const V> from, ColumnBlocks columns) {
  const std::int64_t i = thread_index(), of_row = columns.blocks * columns.width;
  if (i >= to.rows * of_row) return;
  const std::int64_t t = i / of_row, b = i % of_row / columns.width, c = i % columns.width;
  to.data[t * to.cols + columns.to_first + b * columns.to_stride + c] =
      from.data[t * from.cols + columns.from_first + b * columns.from_stride + c];
}

}  // namespace

template <class T>
void copy_blocks(Out<T> to, In<T> from, const ColumnBlocks& columns, cudaStream_t stream) {
  const auto [blocks, width, from_first, from_stride, to_first, to_stride] = columns;
  const std::int64_t n = to.rows * blocks * width;
  if (n == 0) return;
  const std::int64_t divisor =
      std::gcd(std::gcd(std::gcd(to.cols, from.cols), std::gcd(width, from_first)),
               std::gcd(std::gcd(from_stride, to_first), to_stride));
  with_vector_size<T>(divisor, {to.data, from.data}, [&](auto size) {
    using V = Vec<T, size>;
    copy_blocks_kernel<V><<<blocks_for(n / size), threads, 0, stream>>>(
        {reinterpret_cast<V*>(to.data), to.rows, to.cols / size},
        {reinterpret_cast<const V*>(from.data), from.rows, from.cols / size},
        {blocks, width / size, from_first / size, from_stride / size, to_first / size,
         to_stride / size});
  });
  check(cudaGetLastError(), "copy_blocks");
}

#define TOKENVIEW_INSTANTIATE(T) \
  template void copy_blocks<T>(Out<T>, In<T>, const ColumnBlocks&, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
