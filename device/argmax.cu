// SPDX-License-Identifier: Apache-2.0
// The greedy token: x [rows, cols] -> ids [rows], the column of the largest value, of equal ones
// the lowest. One block a row: each thread looks at every 256th column in ascending order, then
// halves of the block are joined.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

template <class T>
__global__ void argmax_kernel(std::int64_t* ids, MatrixRef<const T> x) {
  __shared__ float values[threads];
  __shared__ std::int64_t columns[threads];
  const T* row = x.data + std::int64_t(blockIdx.x) * x.cols;
  const unsigned me = threadIdx.x;
  values[me] = float(row[0]);
  columns[me] = 0;
  for (std::int64_t c = me; c < x.cols; c += threads)
    if (float(row[c]) > values[me]) {
      values[me] = float(row[c]);
      columns[me] = c;
    }
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (me >= half) continue;
    const float other = values[me + half];
    const std::int64_t column = columns[me + half];
    if (other > values[me] || (other == values[me] && column < columns[me])) {
      values[me] = other;
      columns[me] = column;
    }
  }
  if (me == 0) ids[blockIdx.x] = columns[0];
}

}  // namespace

template <class T>
void argmax(std::int64_t* ids, In<T> x, cudaStream_t stream) {
  if (x.rows == 0) return;
  argmax_kernel<<<unsigned(x.rows), threads, 0, stream>>>(ids, x);
  check(cudaGetLastError(), "argmax");
}

#define TOKENVIEW_INSTANTIATE(T) template void argmax<T>(std::int64_t*, In<T>, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
