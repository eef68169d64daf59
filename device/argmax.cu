// SPDX-License-Identifier: Apache-2.0
// The greedy token: x [rows, cols] -> ids [rows], the column of the largest value, of equal ones
// the lowest. One block a row: each thread looks at every 256th column in ascending order, then
// halves of the block are joined.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

__global__ void argmax_kernel(std::int64_t* ids, MatrixRef<const float> x) {
  __shared__ float values[threads];
  __shared__ std::int64_t columns[threads];
  const float* row = x.data + std::int64_t(blockIdx.x) * x.cols;
  const unsigned me = threadIdx.x;
  values[me] = row[0];
  columns[me] = 0;
  for (std::int64_t c = me; c < x.cols; c += threads)
    if (row[c] > values[me]) {
      values[me] = row[c];
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

void argmax(std::int64_t* ids, In x, cudaStream_t stream) {
  if (x.rows == 0) return;
  argmax_kernel<<<unsigned(x.rows), threads, 0, stream>>>(ids, x);
  check(cudaGetLastError(), "argmax");
}

}  // namespace tokenview::kernels
