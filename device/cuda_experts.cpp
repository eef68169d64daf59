// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "device/cuda_context.hpp"
#include "device/cuda_ops.hpp"
#include "device/grouped_gemm.hpp"
#include "device/sorted_pairs.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::route(const Tensor& logits, std::int64_t k,
                                               bool renormalise) const {
  if (logits.cols() > kernels::max_experts || k > logits.cols())
    throw ShapeError(text("route: ", k, " of ", logits.cols(),
                          " experts, of which there are at most ", kernels::max_experts));
  const Routing routing{gpu_->matrix<float>(logits.rows(), k),
                        gpu_->matrix<std::int64_t>(logits.rows(), k)};
  kernels::route<T>(routing.weights, routing.ids.data(), logits, renormalise, rounding_,
                    gpu_->stream());
  return routing;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::experts(const Tensor& x, const Routing& routing, const Weight& gate_up,
                                    const Weight& down, std::int64_t first_expert) const {
  const std::int64_t count = gate_up.count, width = down.in(), hidden = down.out();
  const std::int64_t k = routing.ids.cols(), pairs = routing.ids.size();
  require_shape("experts", x, routing.ids.rows(), gate_up.in());
  if (gate_up.out() != 2 * width || down.count != count)
    throw ShapeError(text("experts: gate_up is [", count, ", ", gate_up.out(), ", ...], down [",
                          down.count, ", ..., ", width, "]"));
  if (pairs > std::numeric_limits<std::int32_t>::max())
    throw ShapeError(text("experts: ", pairs, " pairs of token and expert, over 2^31"));

  const SortedPairs sorted(*gpu_, routing.ids.data(), pairs, first_expert, count);
  const kernels::ExpertOrder& order = sorted.order();
  const Tensor inner = matrix(pairs, width), rows = matrix(pairs, hidden);
  const Tensor out = matrix(x.rows(), hidden);
  const T *const w1 = gate_up.values.data(), *const w2 = down.values.data();
  const float* const pair_weights = routing.weights.data();
  if constexpr (std::is_same_v<T, float>) {
    const Tensor both = matrix(pairs, 2 * width);
    kernels::grouped_linear(both, x, w1, order, k, nullptr, gpu_->stream());
    kernels::silu_mul_halves(inner, both, order, gpu_->stream());
    kernels::grouped_linear(rows, inner, w2, order, 0, pair_weights, gpu_->stream());
  } else {
    kernels::grouped_gemm_silu_mul(inner, x, w1, order, k, rounding_, gpu_->stream());
    kernels::grouped_gemm(rows, inner, w2, order, 0, pair_weights, rounding_, gpu_->stream());
  }
  kernels::combine<T>(out, rows, k, order, gpu_->stream());
  return out;
}

template class CudaOps<float>;
template class CudaOps<__nv_bfloat16>;

}  // namespace tokenview
