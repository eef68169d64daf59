// SPDX-License-Identifier: Apache-2.0
// Collectives through our interface beside plain NCCL, in one run on the same communicator: a
// thread for each of two GPUs or more, bfloat16.
//
//   bench_device_nccl [GPUS]
//
// `queued`: microseconds of a call among many on the stream, host and GPU overlapping; `waited`: of
// a call that the host waits for. `bus`: GB/s as nccl-tests counts them, of plain NCCL.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "bench/device/nccl_bench.hpp"
#include "device/cuda_context.hpp"

namespace tokenview {
namespace {

using T = __nv_bfloat16;
using Ops = CudaOps<T>;
constexpr int rounds = 15;

struct Times {
  double queued, waited;  // microseconds a call
};

/// One rank at work.
class Bench {
 public:
  explicit Bench(Transport& transport)
      : transport_(transport), device_(int(transport.rank())), ops_(device_, Rounding::hf) {}

  void run() {
    check(cudaSetDevice(device_), "cudaSetDevice");
    transport_.start_run();
    NcclConnection connection(transport_, device_);
    const NcclConnection::Watch watch(connection);
    const std::vector<std::int64_t> all(transport_.world().begin(), transport_.world().end());
    nccl_ = connection.group("all", all);
    NcclComm<Ops> comm(ops_, {transport_, "tp", all}, connection, nccl_, {.compares_calls = false});
    if (device_ == 0)
      std::printf("%-15s %10s | %9s %9s %7s %9s %9s %7s | %8s %6s\n", "", "bytes", "queued us",
                  "ours", "added", "waited us", "ours", "added", "bus GB/s", "ratio");
    for (const char* op : {"all_reduce", "all_gather", "reduce_scatter"})
      for (std::int64_t bytes = 512; bytes <= std::int64_t{256} << 20;
           bytes *= bytes == std::int64_t{128} << 20 ? 2 : 4)
        measure(comm, op, bytes);
  }

 private:
  cudaStream_t stream() const { return ops_.context().stream(); }
  void meet() { transport_.barrier(transport_.world()); }

  void measure(NcclComm<Ops>& comm, const std::string& op, std::int64_t bytes) {
    const std::int64_t n = comm.size(), elements = bytes / std::int64_t(sizeof(T)),
                       part = elements / n;
    const bool gathers = op == "all_gather", scatters = op == "reduce_scatter";
    const std::int64_t rows = scatters ? n : 1, cols = scatters || gathers ? part : elements;
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = float((i * 7 + std::size_t(comm.rank()) * 3) % 16);
    const auto x = ops_.upload(values, rows, cols);
    const auto out = ops_.blank(1, scatters ? part : elements);
    const auto plain = [&] {
      require(gathers ? ncclAllGather(x.data(), out.data(), std::size_t(part), ncclBfloat16, nccl_,
                                      stream())
              : scatters ? ncclReduceScatter(x.data(), out.data(), std::size_t(part), ncclBfloat16,
                                             ncclSum, nccl_, stream())
                         : ncclAllReduce(x.data(), out.data(), std::size_t(elements), ncclBfloat16,
                                         ncclSum, nccl_, stream()));
    };
    const auto ours = [&] {
      return gathers    ? comm.all_gather(x, Axis::rows)
             : scatters ? comm.reduce_scatter(x, Axis::rows)
                        : comm.all_reduce(x);
    };
    plain();
    if (ops_.download(ours()) != ops_.download(out))
      throw DeviceError(text(op, " of ", bytes, " bytes: other values than plain NCCL's"));

    const int calls = int(std::clamp<std::int64_t>((std::int64_t{64} << 20) / bytes, 4, 200));
    std::vector<double> queued[2], waited[2], queued_more, waited_more;
    for (int round = 0; round < rounds; ++round) {
      Times times[2];
      for (const int who : {round % 2, 1 - round % 2})  // each is the first one half of the time
        times[who] = who == 0 ? time_of(calls, plain) : time_of(calls, ours);
      for (const int who : {0, 1}) {
        queued[who].push_back(times[who].queued);
        waited[who].push_back(times[who].waited);
      }
      queued_more.push_back(times[1].queued - times[0].queued);
      waited_more.push_back(times[1].waited - times[0].waited);
    }
    if (device_ != 0) return;
    const double plain_us = median(queued[0]), ours_us = median(queued[1]);
    const double factor = double(n - 1) / double(n) * (gathers || scatters ? 1 : 2);
    std::printf("%-15s %10ld | %9.2f %9.2f %7.2f %9.2f %9.2f %7.2f | %8.1f %6.3f\n", op.c_str(),
                long(bytes), plain_us, ours_us, median(queued_more), median(waited[0]),
                median(waited[1]), median(waited_more), factor * double(bytes) / plain_us * 1e-3,
                plain_us / ours_us);
    std::fflush(stdout);
  }

  template <class Call>
  Times time_of(int calls, Call call) {
    const auto microseconds = [&](int count, auto body) {
      check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
      meet();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) body();
      check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - start;
      return time.count() / count;
    };
    call();  // warm
    const double queued = microseconds(calls, call);
    const double waited = microseconds(std::min(calls, 50), [&] {
      call();
      check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    });
    return {queued, waited};
  }

  Transport& transport_;
  int device_;
  Ops ops_;
  ncclComm_t nccl_ = nullptr;
};

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  using namespace tokenview;
  return run_on_gpus(argc, argv, [](Transport& transport) { Bench(transport).run(); });
}
