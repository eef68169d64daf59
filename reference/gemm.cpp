// SPDX-License-Identifier: Apache-2.0
#include "reference/gemm.hpp"

#include <algorithm>

namespace tokenview {
namespace {

// A 64-byte vector is one AVX-512 register, or two of AVX2; `stored` is one anywhere in memory.
template <class S>
struct Vector {
  typedef S type __attribute__((vector_size(64)));
  typedef S stored __attribute__((vector_size(64), aligned(sizeof(S)), may_alias));
};

// Rows that one pass of a panel serves: their accumulators, two vectors each, fill the registers.
#ifdef __AVX512F__
constexpr int tile_rows = 12;
#else
constexpr int tile_rows = 3;
#endif

// Below this many multiply-adds a second thread costs more than it brings.
constexpr std::int64_t min_work_per_thread = 400'000;

template <class S>
typename Vector<S>::type load(const S* from) {
  return *reinterpret_cast<const typename Vector<S>::stored*>(from);
}
template <class S>
void store(S* to, const typename Vector<S>::type& value) {
  *reinterpret_cast<typename Vector<S>::stored*>(to) = value;
}

/// Rows [0, R) of x times one panel: R * panel_width sums, kept in registers.
template <class S, int R>
void tile(const S* x, std::int64_t x_stride, const S* panel, std::int64_t in, S* y,
          std::int64_t y_stride, std::int64_t width) {
  using V = typename Vector<S>::type;
  constexpr std::int64_t lanes = PackedMatrix<S>::lanes;
  V sum[R][2] = {};
  for (std::int64_t i = 0; i < in; ++i) {
    const V w[2] = {load<S>(panel + i * 2 * lanes), load<S>(panel + i * 2 * lanes + lanes)};
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const S value = x[r * x_stride + i];
      sum[r][0] += value * w[0];
      sum[r][1] += value * w[1];
    }
  }
  if (width == 2 * lanes) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      store<S>(y + r * y_stride, sum[r][0]);
      store<S>(y + r * y_stride + lanes, sum[r][1]);
    }
  } else {  // the last panel is only partly there
    S row[R][2 * lanes];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      store<S>(row[r], sum[r][0]);
      store<S>(row[r] + lanes, sum[r][1]);
    }
    for (int r = 0; r < R; ++r) std::copy_n(row[r], width, y + r * y_stride);
  }
}

template <class S, int R = tile_rows>
void tile_of(std::int64_t rows, const S* x, std::int64_t x_stride, const S* panel, std::int64_t in,
             S* y, std::int64_t y_stride, std::int64_t width) {
  if (rows == R)
    tile<S, R>(x, x_stride, panel, in, y, y_stride, width);
  else if constexpr (R > 1)
    tile_of<S, R - 1>(rows, x, x_stride, panel, in, y, y_stride, width);
}

}  // namespace

template <class S>
PackedMatrix<S>::PackedMatrix(std::int64_t count, std::int64_t out, std::int64_t in)
    : count_(count), out_(out), in_(in) {
  values_.setZero(count * panels() * in * panel_width);
}

template <class S>
void gemm(const S* x, std::int64_t x_stride, std::int64_t rows, const PackedMatrix<S>& w,
          std::int64_t index, S* y, std::int64_t y_stride, int num_threads) {
  constexpr std::int64_t width = PackedMatrix<S>::panel_width;
  constexpr std::int64_t chunk_rows = 8 * tile_rows;  // of x, to stay in the second-level cache
  const std::int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  const std::int64_t tasks = chunks * w.panels();
  const bool parallel =
      num_threads > 1 && tasks > 1 && rows * w.out() * w.in() >= 2 * min_work_per_thread;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads) if (parallel)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t p = task / chunks;
    const std::int64_t first = task % chunks * chunk_rows;
    const std::int64_t columns = std::min(width, w.out() - p * width);
    for (std::int64_t r = first; r < std::min(rows, first + chunk_rows); r += tile_rows)
      tile_of<S>(std::min<std::int64_t>(tile_rows, rows - r), x + r * x_stride, x_stride,
                 w.panel(index, p), w.in(), y + r * y_stride + p * width, y_stride, columns);
  }
}

template class PackedMatrix<float>;
template class PackedMatrix<double>;
template void gemm(const float*, std::int64_t, std::int64_t, const PackedMatrix<float>&,
                   std::int64_t, float*, std::int64_t, int);
template void gemm(const double*, std::int64_t, std::int64_t, const PackedMatrix<double>&,
                   std::int64_t, double*, std::int64_t, int);

}  // namespace tokenview
