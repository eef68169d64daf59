// SPDX-License-Identifier: Apache-2.0
// bench_device_experts: the routed experts of Qwen3-Next in bfloat16 on one GPU. 512 experts, 10 a
// token, hidden 2048, intermediate 512.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>

#include "bench/device/timing.cuh"
#include "device/grouped_gemm.hpp"

using namespace tokenview;
using namespace tokenview::bench;

namespace {

using Bf16 = __nv_bfloat16;
constexpr std::int64_t E = 512, k = 10, H = 2048, I = 512;

/// ids [T, k]: k experts without repeats; the chance of an expert falls as 1 / (1 + e)^skew.
std::vector<std::int64_t> routing(std::int64_t T, double skew, unsigned seed) {
  std::mt19937 random(seed);
  std::extreme_value_distribution<double> gumbel;  // the k largest of log p + Gumbel: p, no repeats
  std::vector<std::int64_t> ids, experts(E);
  std::vector<double> score(E);
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::size_t e = 0; e < E; ++e)
      score[e] = gumbel(random) - skew * std::log(1.0 + double(e));
    std::iota(experts.begin(), experts.end(), 0);
    std::partial_sort(experts.begin(), experts.begin() + k, experts.end(), [&](auto a, auto b) {
      return score[std::size_t(a)] > score[std::size_t(b)];
    });
    ids.insert(ids.end(), experts.begin(), experts.begin() + k);
  }
  return ids;
}

/// to[p] = x[pair_at[p] / k]: what a GEMM without a gather needs first.
__global__ void permute_kernel(Bf16* to, const Bf16* x, const std::int32_t* pair_at) {
  const std::int64_t p = blockIdx.x, c = 8 * threadIdx.x;
  *reinterpret_cast<uint4*>(to + p * H + c) =
      *reinterpret_cast<const uint4*>(x + pair_at[p] / k * H + c);
}

/// Square sums of the error and of the value of samples of out[p] = w[e] in[row], in float64.
__global__ void check_kernel(double* squares, MatrixRef<const Bf16> out, MatrixRef<const Bf16> in,
                             const Bf16* w, const float* pair_weights, kernels::ExpertOrder order,
                             std::int64_t by_token, bool gated) {
  const std::int64_t p = std::int64_t(hashed(blockIdx.x) % std::uint64_t(order.num_pairs));
  const std::int64_t o = std::int64_t(hashed(~blockIdx.x) % std::uint64_t(out.cols));
  std::int64_t e = 0;
  while (order.offsets[e + 1] <= p) ++e;
  const Bf16* x = in.data + (by_token > 0 ? order.pair_at[p] / by_token : p) * in.cols;
  double sums[2] = {};
  for (int half = 0; half < (gated ? 2 : 1); ++half) {
    const Bf16* row = w + ((e * (gated ? 2 : 1) + half) * out.cols + o) * in.cols;
    for (std::int64_t i = threadIdx.x; i < in.cols; i += 32)
      sums[half] += double(float(x[i])) * double(float(row[i]));
    for (int step = 16; step > 0; step /= 2)
      sums[half] += __shfl_xor_sync(0xffffffff, sums[half], step);
  }
  if (threadIdx.x != 0) return;
  const double weight = pair_weights != nullptr ? double(pair_weights[order.pair_at[p]]) : 1;
  const double want = gated ? sums[0] / (1 + exp(-sums[0])) * sums[1] : sums[0] * weight;
  const double error = double(float(out.data[p * out.cols + o])) - want;
  atomicAdd(&squares[0], error * error);
  atomicAdd(&squares[1], want * want);
}

__global__ void count_nan_kernel(double* count, const Bf16* x, std::int64_t n) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < n;
       i += std::int64_t(gridDim.x) * blockDim.x)
    if (x[i] != x[i]) atomicAdd(count, 1);
}

/// The toolkit's grouped product, which takes the sizes of the groups from the host.
class GroupedCublas {
 public:
  GroupedCublas() {
    const Cublas& blas = Cublas::library();
    check(blas.create(&handle_), "cublasCreate");
    void* const library = dlopen(("libcublas.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(),
                                 RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr)
      gemm_ = reinterpret_cast<decltype(gemm_)>(dlsym(library, "cublasGemmGroupedBatchedEx"));
  }
  ~GroupedCublas() { Cublas::library().destroy(handle_); }

  /// Seconds of out[p] = w[expert of p] in[p]; 0 where the library refuses.
  double seconds(MatrixRef<Bf16> out, MatrixRef<const Bf16> in, const Bf16* w,
                 const std::vector<std::int32_t>& offsets) {
    std::vector<int> m, n, inner, lda, ldb, ldc, sizes;
    std::vector<const void*> a, b;
    std::vector<void*> c;
    for (std::size_t e = 0; e < E; ++e) {
      const int rows = offsets[e + 1] - offsets[e];
      if (rows == 0) continue;
      m.push_back(int(out.cols));
      n.push_back(rows);
      inner.push_back(int(in.cols));
      a.push_back(w + std::int64_t(e) * out.cols * in.cols);
      b.push_back(in.data + offsets[e] * in.cols);
      c.push_back(out.data + offsets[e] * out.cols);
    }
    lda = ldb = inner;
    ldc = m;
    sizes.resize(m.size(), 1);
    const std::vector<cublasOperation_t> t(m.size(), CUBLAS_OP_T), none(m.size(), CUBLAS_OP_N);
    const std::vector<float> one(m.size(), 1), zero(m.size(), 0);
    const auto da = to_device(a), db = to_device(b);
    const auto dc = to_device(c);
    bool is_refused = gemm_ == nullptr;
    const double result = is_refused ? 0 : median_seconds(5, [&] {
      is_refused |= gemm_(handle_, t.data(), none.data(), m.data(), n.data(), inner.data(),
                          one.data(), da.get(), CUDA_R_16BF, lda.data(), db.get(), CUDA_R_16BF,
                          ldb.data(), zero.data(), dc.get(), CUDA_R_16BF, ldc.data(), int(m.size()),
                          sizes.data(), CUBLAS_COMPUTE_32F) != CUBLAS_STATUS_SUCCESS;
    });
    return is_refused ? 0 : result;
  }

 private:
  cublasHandle_t handle_ = nullptr;
  decltype(&cublasGemmGroupedBatchedEx) gemm_ = nullptr;
};

/// One line: time, and what it is of the time for the weights, for the products and for all bytes.
struct Table {
  double bandwidth, rate;  // bytes, operations a second

  void line(const char* name, double seconds, double weights, double bytes,
            double operations) const {
    const double tensor = operations / rate, traffic = bytes / bandwidth;
    std::printf("  %-22s %8.1f", name, seconds * 1e6);
    if (operations > 0)
      std::printf(" %8.1f %8.1f %8.1f  %5.2f %5.2f %5.2f  %6.2f TB/s %6.0f TFLOP/s",
                  weights / bandwidth * 1e6, traffic * 1e6, tensor * 1e6,
                  seconds * bandwidth / weights, seconds / tensor,
                  seconds / std::max(tensor, traffic), bytes / seconds * 1e-12,
                  operations / seconds * 1e-12);
    std::printf("\n");
  }
};

void run(const Table& table, std::int64_t T, double skew, const Bf16* gate_up, const Bf16* down,
         GroupedCublas& blas) {
  const std::int64_t pairs = T * k;
  const auto ids = to_device(routing(T, skew, unsigned(T)));
  const auto x = random_memory<Bf16>(T * H, 1, 3);
  const auto weights = random_memory<float>(pairs, 0.1f, 4);
  const auto pair_at = device_memory<std::int32_t>(pairs),
             position_of = device_memory<std::int32_t>(pairs);
  const auto offsets = device_memory<std::int32_t>(E + 1),
             tiles = device_memory<std::int32_t>(E + 1);
  const kernels::ExpertOrder order{pair_at.get(),
                                   position_of.get(),
                                   offsets.get(),
                                   tiles.get(),
                                   E,
                                   pairs,
                                   kernels::max_expert_tiles(pairs, E)};
  const std::int64_t bytes = kernels::sort_by_expert_bytes(pairs, E);
  const auto scratch = device_memory<char>(bytes);
  const auto both = device_memory<Bf16>(pairs * 2 * I), inner = device_memory<Bf16>(pairs * I);
  const auto rows = device_memory<Bf16>(pairs * H), out = device_memory<Bf16>(T * H);
  const auto sorted = device_memory<Bf16>(pairs * H);
  const MatrixRef<const Bf16> x_in{x.get(), T, H}, inner_in{inner.get(), pairs, I};
  const MatrixRef<Bf16> both_out{both.get(), pairs, 2 * I}, inner_out{inner.get(), pairs, I};
  const MatrixRef<Bf16> rows_out{rows.get(), pairs, H};

  const auto sort = [&] {
    kernels::sort_by_expert(order, ids.get(), 0, scratch.get(), bytes, nullptr);
  };
  const auto plain = [&] {
    kernels::grouped_gemm(both_out, x_in, gate_up, order, k, nullptr, Rounding::hf, nullptr);
  };
  const auto gated = [&] {
    kernels::grouped_gemm_silu_mul(inner_out, x_in, gate_up, order, k, Rounding::hf, nullptr);
  };
  const auto project = [&] {
    kernels::grouped_gemm(rows_out, inner_in, down, order, 0, weights.get(), Rounding::hf, nullptr);
  };
  const auto combine = [&] {
    kernels::combine<Bf16>({out.get(), T, H}, {rows.get(), pairs, H}, k, order, nullptr);
  };
  const auto permute = [&] {
    permute_kernel<<<unsigned(pairs), H / 8>>>(sorted.get(), x.get(), pair_at.get());
    check(cudaGetLastError(), "permute");
  };

  for (const auto& [data, n] :
       {std::pair(both, pairs * 2 * I), {inner, pairs * I}, {rows, pairs * H}})
    check(cudaMemset(data.get(), 0xff, std::size_t(n) * 2), "cudaMemset");  // NaN
  sort();
  plain();
  gated();
  project();
  std::vector<std::int32_t> first(E + 1);
  check(cudaMemcpy(first.data(), offsets.get(), (E + 1) * 4, cudaMemcpyDeviceToHost), "sort");
  std::int64_t experts = 0, most = 0;
  for (std::size_t e = 0; e < E; ++e) {
    const std::int64_t n = first[e + 1] - first[e];
    experts += n > 0;
    most = std::max(most, n);
  }
  const auto squares = to_device(std::vector<double>(9));
  check_kernel<<<4096, 32>>>(squares.get(), {both.get(), pairs, 2 * I}, x_in, gate_up, nullptr,
                             order, k, false);
  check_kernel<<<4096, 32>>>(squares.get() + 2, inner_in, x_in, gate_up, nullptr, order, k, true);
  check_kernel<<<4096, 32>>>(squares.get() + 4, {rows.get(), pairs, H}, inner_in, down,
                             weights.get(), order, 0, false);
  count_nan_kernel<<<1024, 256>>>(squares.get() + 6, both.get(), pairs * 2 * I);
  count_nan_kernel<<<1024, 256>>>(squares.get() + 7, inner.get(), pairs * I);
  count_nan_kernel<<<1024, 256>>>(squares.get() + 8, rows.get(), pairs * H);
  std::vector<double> s(9);
  check(cudaMemcpy(s.data(), squares.get(), 9 * 8, cudaMemcpyDeviceToHost), "check");
  std::printf(
      "T = %ld, skew %.1f: %ld experts with rows, most %ld; relative error %.1e %.1e %.1e, "
      "unwritten %.0f %.0f %.0f\n",
      long(T), skew, long(experts), long(most), std::sqrt(s[0] / s[1]), std::sqrt(s[2] / s[3]),
      std::sqrt(s[4] / s[5]), s[6], s[7], s[8]);
  std::printf("  %-22s %8s %8s %8s %8s  %5s %5s %5s\n", "", "us", "weights", "bytes", "tensor",
              "/w", "/t", "/max");

  const int repeats = 20;
  const double P = double(pairs), w = double(experts) * 2 * I * H * 2, d = w / 2;
  const double flops = 2 * P * H * I;
  table.line("sort", median_seconds(repeats, sort), 0, 0, 0);
  table.line("gate_up", median_seconds(repeats, plain), w, w + 2.0 * (double(T) * H + P * 2 * I),
             2 * flops);
  table.line("gate_up, silu", median_seconds(repeats, gated), w, w + 2.0 * (double(T) * H + P * I),
             2 * flops);
  table.line("down", median_seconds(repeats, project), d, d + 2 * P * (I + H), flops);
  table.line("combine", median_seconds(repeats, combine), 0, 0, 0);
  table.line("the experts",
             median_seconds(repeats,
                            [&] {
                              sort();
                              gated();
                              project();
                              combine();
                            }),
             w + d, w + d + 2.0 * (2 * double(T) * H + 2 * P * I + 2 * P * H), 3 * flops);
  table.line("permute for cuBLAS", median_seconds(repeats, permute), 0, 0, 0);
  table.line("cuBLAS grouped gate_up",
             blas.seconds(both_out, {sorted.get(), pairs, H}, gate_up, first), w,
             w + 2 * P * (H + 2 * I), 2 * flops);
  table.line("cuBLAS grouped down", blas.seconds(rows_out, inner_in, down, first), d,
             d + 2 * P * (I + H), flops);
}

}  // namespace

int main() try {
  const double copy = copy_bandwidth(), read = read_bandwidth(), rate = gemm_rate();
  std::printf(
      "copy %.2f TB/s, read %.2f TB/s, cuBLAS bfloat16 %.0f TFLOP/s; limits below: copy and "
      "cuBLAS\n",
      copy * 1e-12, read * 1e-12, rate * 1e-12);
  const auto gate_up = random_memory<Bf16>(E * 2 * I * H, 0.05f, 5);
  const auto down = random_memory<Bf16>(E * H * I, 0.05f, 6);
  GroupedCublas blas;
  for (const std::int64_t T : {64, 512, 2048, 8192})
    run({copy, rate}, T, 0, gate_up.get(), down.get(), blas);
  run({copy, rate}, 8192, 0.8, gate_up.get(), down.get(), blas);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
