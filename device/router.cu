// SPDX-License-Identifier: Apache-2.0
// The router: logits [T, E] -> weights and ids [T, k]. P = softmax(logits) over all experts in
// fp32; the k largest, equal ones by lower index, largest first; divided by their sum where asked.
// hf rounds the weights, which are fp32 in memory. One warp a row; it keeps P in shared memory and
// takes the largest k times. Limit: E <= 8192. Source: transformers modular_qwen2_moe.py; vllm
// topk_softmax_kernels.cu.
#include "device/kernel_support.cuh"

namespace tokenview::kernels {
namespace {

struct Choice {
  float probability;
  int expert;
};

__device__ Choice better(Choice a, Choice b) {
  const bool b_wins =
      b.probability > a.probability || (b.probability == a.probability && b.expert < a.expert);
  return b_wins ? b : a;
}

template <class T>
__global__ void route_kernel(MatrixRef<float> weights, std::int64_t* ids, MatrixRef<const T> logits,
                             bool renormalise, Rounder<T> round) {
  extern __shared__ float probability[];  // [E]; -1: chosen
  const std::int64_t row = blockIdx.x;
  const int num_experts = int(logits.cols), k = int(weights.cols), lane = int(threadIdx.x);
  const T* logit = logits.data + row * logits.cols;
  float largest = -INFINITY, total = 0;
  for (int e = lane; e < num_experts; e += lanes) largest = fmaxf(largest, float(logit[e]));
  largest = warp_max(largest);
  for (int e = lane; e < num_experts; e += lanes) {
    probability[e] = expf(float(logit[e]) - largest);
    total += probability[e];
  }
  total = warp_sum(total);
  for (int e = lane; e < num_experts; e += lanes) probability[e] /= total;

  float selected = 0;
  for (int j = 0; j < k; ++j) {
    Choice best{-1.0f, num_experts};  // stays where all that is left is not a number
    for (int e = lane; e < num_experts; e += lanes)
      if (probability[e] >= 0) best = better(best, {probability[e], e});
    for (int step = lanes / 2; step > 0; step /= 2)
      best = better(best, {__shfl_xor_sync(0xffffffff, best.probability, step),
                           __shfl_xor_sync(0xffffffff, best.expert, step)});
    selected += best.probability;
    if (best.expert < num_experts && best.expert % lanes == lane) probability[best.expert] = -1;
    if (lane == 0) {
      ids[row * k + j] = best.expert;
      weights.data[row * k + j] = best.probability;
    }
  }
  __syncwarp();
  for (int j = lane; j < k; j += lanes) {
    float& weight = weights.data[row * k + j];
    weight = round.hf(renormalise ? weight / selected : weight);
  }
}

__global__ void skip_pads_kernel(MatrixRef<float> weights, std::int64_t* ids,
                                 const std::uint8_t* mask, std::int64_t rows) {
  const std::int64_t i = thread_index();
  if (i >= rows * weights.cols || mask[i / weights.cols] == 0) return;
  weights.data[i] = 0;
  ids[i] = -1;
}

}  // namespace

template <class T>
void route(Out<float> weights, std::int64_t* ids, In<T> logits, bool renormalise, Rounding rounding,
           cudaStream_t stream) {
  if (logits.rows == 0) return;
  route_kernel<<<unsigned(logits.rows), lanes, std::size_t(logits.cols) * sizeof(float), stream>>>(
      weights, ids, logits, renormalise, Rounder<T>{rounding});
  check(cudaGetLastError(), "route");
}

void skip_pads(Out<float> weights, std::int64_t* ids, const std::uint8_t* mask, std::int64_t rows,
               cudaStream_t stream) {
  const std::int64_t n = rows * weights.cols;
  if (n == 0) return;
  skip_pads_kernel<<<blocks_for(n), threads, 0, stream>>>(weights, ids, mask, rows);
  check(cudaGetLastError(), "skip_pads");
}

#define TOKENVIEW_INSTANTIATE(T) \
  template void route<T>(Out<float>, std::int64_t*, In<T>, bool, Rounding, cudaStream_t);
TOKENVIEW_INSTANTIATE(float)
TOKENVIEW_INSTANTIATE(__nv_bfloat16)
#undef TOKENVIEW_INSTANTIATE

}  // namespace tokenview::kernels
