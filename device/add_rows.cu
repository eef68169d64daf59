// SPDX-License-Identifier: Apache-2.0
// Rows that come back from the ranks of their experts are added to their tokens: x [n, cols] -> out
// [rows, cols], which rows of x belong to a row of out being listed in begin [rows + 1] and order
// [n]. One block a row of out, so the order of its sum is that of the list.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

template <class T>
__global__ void add_rows_kernel(MatrixRef<T> out, const T* x, const std::int64_t* begin,
                                const std::int64_t* order) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t c = threadIdx.x; c < out.cols; c += blockDim.x) {
    float sum = 0;
    for (std::int64_t p = begin[row]; p < begin[row + 1]; ++p)
      sum += float(x[order[p] * out.cols + c]);
    out.data[row * out.cols + c] = stored<T>(sum);
  }
}

}  // namespace

template <class T>
void add_rows(Out<T> out, In<T> x, const std::int64_t* begin, const std::int64_t* order,
              cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return;
  add_rows_kernel<<<unsigned(out.rows), threads, 0, stream>>>(out, x.data, begin, order);
  check(cudaGetLastError(), "add_rows");
}

#define TOKENVIEW_INSTANTIATE(T) \
  template void add_rows<T>(Out<T>, In<T>, const std::int64_t*, const std::int64_t*, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
