// SPDX-License-Identifier: Apache-2.0
// The lookup of a vocabulary shard: ids [T], table [rows, H] from global row first_row on ->
// [T, H]. An id of another rank's shard gives zeros, so that the sum over ranks is exact.
// One block a token, threads striding over its features in vectors of sixteen bytes where rows are
// aligned to that. Source: vllm vocab_parallel_embedding.py.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

template <int size, class T>
__global__ void embedding_kernel(MatrixRef<T> out, const std::int64_t* ids,
                                 MatrixRef<const T> table, std::int64_t first_row) {
  const std::int64_t t = blockIdx.x, row = ids[t] - first_row;
  const bool is_mine = row >= 0 && row < table.rows;
  copy_row<size>(out.data + t * out.cols, is_mine ? table.data + row * table.cols : nullptr,
                 out.cols);
}

}  // namespace

template <class T>
void embedding(Out<T> out, const std::int64_t* ids, In<T> table, std::int64_t first_row,
               cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return;
  with_vector_size<T>(out.cols, {out.data, table.data}, [&](auto size) {
    embedding_kernel<size><<<unsigned(out.rows), threads_of_row(out.cols / size), 0, stream>>>(
        out, ids, table, first_row);
  });
  check(cudaGetLastError(), "embedding");
}

#define TOKENVIEW_INSTANTIATE(T) \
  template void embedding<T>(Out<T>, const std::int64_t*, In<T>, std::int64_t, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
