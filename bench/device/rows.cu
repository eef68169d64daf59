// SPDX-License-Identifier: Apache-2.0
// Kernels that read and write rows once, beside a copy of as many bytes in the same run:
//   bench_device_rows [features]
// Each call takes the next of several sets of operands, together larger than the L2. Times are of
// graphs of 16 calls, so that launches from the host do not count. Every result is compared with
// one in float64, or bit by bit where values are only moved.
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "bench/device/timing.cuh"
#include "device/kernels.hpp"
#include "device/row_gather.hpp"

namespace tokenview::bench {
namespace {

constexpr int calls = 16;  // of a graph
constexpr float eps = 1e-6f;

/// Seconds of one of `calls` calls of work(i, stream).
template <class Work>
double seconds_of_call(Work work) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  for (int i = 0; i < calls; ++i) work(i, stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  const double seconds =
      median_seconds(15, [&] { check(cudaGraphLaunch(exec, nullptr), "cudaGraphLaunch"); });
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return seconds / calls;
}

/// The largest |found - norm(x + y)| / |norm|, norm in float64 of the sum rounded to T; and whether
/// sum is that. y and sum null: of x.
template <class T>
__global__ void norm_error_kernel(unsigned* error, const T* found, const T* sum, const T* x,
                                  const T* y, const T* w, std::int64_t rows, std::int64_t width) {
  const std::int64_t row = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  const auto value = [&](std::int64_t i) {
    const std::int64_t at = row * width + i;
    return y == nullptr ? x[at] : T(float(x[at]) + float(y[at]));
  };
  double squares = 0;
  for (std::int64_t i = 0; i < width; ++i) squares += double(float(value(i))) * float(value(i));
  const double scale = 1 / sqrt(squares / double(width) + double(eps));
  for (std::int64_t i = 0; i < width; ++i) {
    const double expected = float(value(i)) * scale * (1 + double(float(w[i])));
    double off = fabs(float(found[row * width + i]) - expected) / (fabs(expected) + 1e-30);
    if (sum != nullptr && float(sum[row * width + i]) != float(value(i))) off = 1e30;
    if (!(off <= 1e30)) off = 1e30;  // NaN
    atomicMax(error, __float_as_uint(float(off)));
  }
}

template <class T>
__global__ void move_error_kernel(unsigned* error, const T* found, const T* table,
                                  const std::int64_t* ids, std::int64_t rows, std::int64_t width) {
  const std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x;
  if (i < rows * width && float(found[i]) != float(table[ids[i / width] * width + i % width]))
    *error = __float_as_uint(1e30f);
}

template <class T>
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t width) : rows_(rows), width_(width) {
    const std::int64_t bytes = rows * width * std::int64_t(sizeof(T));
    num_sets_ = int(std::clamp<std::int64_t>((std::int64_t(1) << 29) / bytes, 2, calls));
    std::vector<std::int64_t> ids(std::size_t(rows * num_sets_));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = std::int64_t(hashed(i) % std::uint64_t(rows * num_sets_));
    x_ = random_memory<T>(rows * width * num_sets_, 1, 1);
    y_ = random_memory<T>(rows * width * num_sets_, 1, 2);
    out_ = random_memory<T>(rows * width * num_sets_, 1, 3);
    sum_ = random_memory<T>(rows * width * num_sets_, 1, 4);
    w_ = random_memory<T>(width, 0.5f, 5);
    ids_ = to_device(ids);
    error_ = device_memory<unsigned>(1);
  }

  void run() {
    using namespace kernels;
    line("rms_norm", 2, [&](int i, cudaStream_t s) {
      kernels::rms_norm<T>(out(i), in(x_, i), w_.get(), width_, eps, s);
    });
    line("add_rms_norm", 4, [&](int i, cudaStream_t s) {
      kernels::add_rms_norm<T>(ref(sum_, i), out(i), in(x_, i), in(y_, i), w_.get(), eps, s);
    });
    line("row_gather", 2, [&](int i, cudaStream_t s) {
      row_gather<T>(out(i), table(), ids_.get() + set(i) * rows_, s);
    });
    line("embedding", 2, [&](int i, cudaStream_t s) {
      kernels::embedding<T>(out(i), ids_.get() + set(i) * rows_, table(), 0, s);
    });
  }

 private:
  std::int64_t set(int i) const { return i % num_sets_; }
  MatrixRef<T> ref(const std::shared_ptr<T>& data, int i) const {
    return {data.get() + set(i) * rows_ * width_, rows_, width_};
  }
  MatrixRef<const T> in(const std::shared_ptr<T>& data, int i) const {
    return {ref(data, i).data, rows_, width_};
  }
  MatrixRef<T> out(int i) const { return ref(out_, i); }
  MatrixRef<const T> table() const { return {x_.get(), rows_ * num_sets_, width_}; }

  /// `passes` times the bytes of a matrix are read or written.
  template <class Work>
  void line(const char* name, int passes, Work work) {
    const auto bytes = std::size_t(rows_ * width_) * sizeof(T) * std::size_t(passes);
    check(cudaMemset(out_.get(), 0xff, std::size_t(rows_ * width_ * num_sets_) * sizeof(T)),
          "cudaMemset");
    const double seconds = seconds_of_call(work);
    const float error = checked(name);
    // As many bytes, half of them read: of one matrix to another, or of two.
    const double copy = seconds_of_call([&](int i, cudaStream_t s) {
      const auto part = std::size_t(rows_ * width_) * sizeof(T);
      check(cudaMemcpyAsync(out(i).data, in(x_, i).data, part, cudaMemcpyDeviceToDevice, s),
            "cudaMemcpyAsync");
      if (passes == 4)
        check(cudaMemcpyAsync(ref(sum_, i).data, in(y_, i).data, part, cudaMemcpyDeviceToDevice, s),
              "cudaMemcpyAsync");
    });
    std::printf(
        "%-8s %6lld  %-13s %8.2f us %7.0f GB/s   copy %8.2f us %7.0f GB/s  %5.1f %%   %.1e\n",
        sizeof(T) == 4 ? "float32" : "bfloat16", static_cast<long long>(rows_), name, seconds * 1e6,
        double(bytes) / seconds * 1e-9, copy * 1e6, double(bytes) / copy * 1e-9,
        100 * copy / seconds, double(error));
    std::fflush(stdout);
  }

  /// Of all sets that the calls wrote.
  float checked(const std::string& name) {
    check(cudaMemset(error_.get(), 0, sizeof(unsigned)), "cudaMemset");
    const auto blocks = [](std::int64_t n) { return unsigned((n + 255) / 256); };
    for (int i = 0; i < num_sets_; ++i)
      if (name == "rms_norm")
        norm_error_kernel<T><<<blocks(rows_), 256>>>(
            error_.get(), out(i).data, nullptr, in(x_, i).data, nullptr, w_.get(), rows_, width_);
      else if (name == "add_rms_norm")
        norm_error_kernel<T><<<blocks(rows_), 256>>>(error_.get(), out(i).data, ref(sum_, i).data,
                                                     in(x_, i).data, in(y_, i).data, w_.get(),
                                                     rows_, width_);
      else
        move_error_kernel<T><<<blocks(rows_ * width_), 256>>>(
            error_.get(), out(i).data, x_.get(), ids_.get() + i * rows_, rows_, width_);
    check(cudaGetLastError(), "check");
    unsigned bits = 0;
    check(cudaMemcpy(&bits, error_.get(), sizeof bits, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return std::bit_cast<float>(bits);
  }

  std::int64_t rows_, width_;
  int num_sets_;
  std::shared_ptr<T> x_, y_, out_, sum_, w_;
  std::shared_ptr<std::int64_t> ids_;
  std::shared_ptr<unsigned> error_;
};

int run(int argc, char** argv) {
  const std::int64_t width = argc > 1 ? std::atoll(argv[1]) : 2048;
  std::printf("a copy of 4 GiB: %.0f GB/s; rows of %lld features\n", copy_bandwidth() * 1e-9,
              static_cast<long long>(width));
  std::printf(
      "last column: largest relative error, expected below 1e-5 in float32, 2^-8 = 3.9e-3 "
      "in bfloat16, 0 where rows are moved\n");
  for (const std::int64_t rows : {1, 64, 512, 8192}) {
    Rows<float>(rows, width).run();
    Rows<__nv_bfloat16>(rows, width).run();
  }
  return 0;
}

}  // namespace
}  // namespace tokenview::bench

int main(int argc, char** argv) {
  try {
    return tokenview::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_device_rows: %s\n", error.what());
    return 1;
  }
}
