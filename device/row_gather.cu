// SPDX-License-Identifier: Apache-2.0
#include "device/row_gather.hpp"

#include "device/assert_record.cuh"
#include "device/check.hpp"
#include "device/kernel_support.cuh"
#include "reference/program/error.hpp"

// The assert stays on in release builds: it is what a user of PyTorch sees.
#undef NDEBUG
#include <cassert>

namespace tokenview {
namespace {

constexpr std::int64_t max_blocks = 0x7fffffff;  // of gridDim.x

/// One block per row of `out`, threads striding over its features in vectors of `size`.
template <int size, class T>
__global__ void row_gather_kernel(MatrixRef<T> out, MatrixRef<const T> x,
                                  const std::int64_t* indices, AssertNote note) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t index = indices[row];
  const std::int64_t sizes[] = {x.rows};  // named so that the assert reads as PyTorch's does
  constexpr int i = 0;
  if (index < -sizes[i] || index >= sizes[i])
    note_bad_index(note, AssertingKernel::row_gather, row, index, sizes[i]);
  assert(-sizes[i] <= index && index < sizes[i] && "index out of bounds");
  kernels::copy_row<size>(out.data + row * x.cols,
                          x.data + (index < 0 ? index + x.rows : index) * x.cols, x.cols);
}

}  // namespace

template <class T>
void row_gather(MatrixRef<T> out, MatrixRef<const T> x, const std::int64_t* index,
                cudaStream_t stream, AssertNote note) {
  if (out.cols != x.cols || out.rows < 0 || x.rows < 0 || x.cols < 0 || out.rows > max_blocks)
    throw ShapeError(text("row_gather: out [", out.rows, ", ", out.cols, "], x [", x.rows, ", ",
                          x.cols, "]: expected the same columns and at most ", max_blocks,
                          " rows"));
  if (out.rows == 0) return;  // a rank may hold no token, and CUDA refuses an empty grid
  // At least one warp, also where there is no feature to copy: the index is checked all the same.
  kernels::with_vector_size<T>(x.cols, {out.data, x.data}, [&](auto size) {
    row_gather_kernel<size>
        <<<unsigned(out.rows), kernels::threads_of_row(x.cols / size), 0, stream>>>(out, x, index,
                                                                                    note);
  });
  check(cudaGetLastError(), "row_gather");
}

template void row_gather(MatrixRef<float>, MatrixRef<const float>, const std::int64_t*,
                         cudaStream_t, AssertNote);
template void row_gather(MatrixRef<__nv_bfloat16>, MatrixRef<const __nv_bfloat16>,
                         const std::int64_t*, cudaStream_t, AssertNote);
template void row_gather(MatrixRef<std::int64_t>, MatrixRef<const std::int64_t>,
                         const std::int64_t*, cudaStream_t, AssertNote);

}  // namespace tokenview
