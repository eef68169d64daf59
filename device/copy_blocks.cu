// SPDX-License-Identifier: Apache-2.0
// Blocks of columns moved: slices, joins and the splits of fused projections. One thread an
// element that is copied.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

template <class T>
__global__ void copy_blocks_kernel(MatrixRef<T> to, MatrixRef<const T> from, ColumnBlocks columns) {
  const std::int64_t i = thread_index(), of_row = columns.blocks * columns.width;
  if (i >= to.rows * of_row) return;
  const std::int64_t t = i / of_row, b = i % of_row / columns.width, c = i % columns.width;
  to.data[t * to.cols + columns.to_first + b * columns.to_stride + c] =
      from.data[t * from.cols + columns.from_first + b * columns.from_stride + c];
}

}  // namespace

template <class T>
void copy_blocks(Out<T> to, In<T> from, const ColumnBlocks& columns, cudaStream_t stream) {
  const std::int64_t n = to.rows * columns.blocks * columns.width;
  if (n == 0) return;
  copy_blocks_kernel<<<blocks_for(n), threads, 0, stream>>>(to, from, columns);
  check(cudaGetLastError(), "copy_blocks");
}

#define TOKENVIEW_INSTANTIATE(T) \
  template void copy_blocks<T>(Out<T>, In<T>, const ColumnBlocks&, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
