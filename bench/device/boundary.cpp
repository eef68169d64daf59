// SPDX-License-Identifier: Apache-2.0
// One MoE layer boundary over NCCL, a thread a GPU, bfloat16: what lies between a mixer's output
// and the next mixer's input, without the mixers and the experts. The protocols' own code runs, on
// random rows:
//
//   mixer's output, partial [T, H] -> attention_output -> add and norm
//     -> the MoE block's own moves: S sums over tp; A cuts its rows and gathers them again
//     -> add and norm of the next layer -> attention_input -> the mixer's input, full [T, H]
//
//   bench_device_boundary [GPUS]
//
// `plain` are the collectives alone, called on NCCL: AR+AG is A's pair, RS+AG that of B and D.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "bench/device/nccl_bench.hpp"
#include "device/cuda_context.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/protocols.hpp"

namespace tokenview {
namespace {

using T = __nv_bfloat16;
using Ops = CudaOps<T>;
using R = Rank<Ops, DistributedComm<Ops>>;
constexpr int rounds = 21, calls = 20;
constexpr double eps = 1e-6;

std::vector<float> random_values(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = float(seed >> 8) * 0x1p-23f - 1;
  }
  return values;
}

/// What is timed.
struct Variant {
  const char* name;
  double volume;  // bytes that a rank sends on a ring, in units of (p - 1) / p T H 2 bytes
  std::function<void()> run;
};

/// One rank at work.
class Bench {
 public:
  explicit Bench(Transport& transport)
      : transport_(transport), device_(int(transport.rank())), ops_(device_, Rounding::vllm) {}

  void run() {
    check(cudaSetDevice(device_), "cudaSetDevice");
    transport_.start_run();
    NcclConnection connection(transport_, device_);
    const NcclConnection::Watch watch(connection);
    const std::vector<std::int64_t> all(transport_.world().begin(), transport_.world().end());
    nccl_ = connection.group("all", all);
    const NcclOptions quiet{.compares_calls = false};
    NcclComm<Ops> tp(ops_, {transport_, "tp", all}, connection, nccl_, quiet);
    NcclComm<Ops> solo(ops_, {transport_, "dp", {transport_.rank()}}, connection, nullptr, quiet);
    R rank(ops_, tp, solo, tp, solo);
    if (device_ == 0)
      std::printf("%6s %6s | %-14s %9s %10s %8s %10s\n", "H", "T", "", "us", "MB sent", "GB/s",
                  "A / this");
    for (const std::int64_t hidden : {2048, 3072})
      for (const std::int64_t tokens : {512, 2048, 8192, 32768}) measure(rank, tokens, hidden);
  }

 private:
  cudaStream_t stream() const { return ops_.context().stream(); }

  void measure(R& rank, std::int64_t tokens, std::int64_t hidden) {
    const std::int64_t p = rank.tp.size(), shard = tokens / p;
    const auto seed = std::uint32_t(rank.tp.rank() + 1);
    const auto partial = ops_.upload(random_values(tokens * hidden, seed), tokens, hidden);
    const auto residual = ops_.upload(random_values(tokens * hidden, 77), tokens, hidden);
    const auto residual_shard =
        ops_.slice(residual, Axis::rows, rank.tp.rank() * shard, (rank.tp.rank() + 1) * shard);
    const Ops::Weight weight{ops_.upload(random_values(hidden, 5), hidden, 1)};
    const auto whole = ops_.blank(tokens, hidden);
    const auto elements = std::size_t(tokens * hidden), part = elements / std::size_t(p);

    const ModelConfig config = preset("qwen3.5-moe").value();
    const ParallelConfig parallel{.tp = p, .enable_expert_parallel = true};
    std::vector<std::unique_ptr<Protocol<R>>> protocols;
    std::vector<Variant> variants;
    for (const auto& [id, volume] : {std::pair(ProtocolId::S, 4.0),
                                     {ProtocolId::A, 3.0},
                                     {ProtocolId::B, 2.0},
                                     {ProtocolId::D, 2.0}}) {
      const Protocol<R>& protocol =
          *protocols.emplace_back(make_protocol<R>(plan_for(config, parallel, id)));
      const bool scatters = protocol.plan.scatters_all();
      variants.push_back(
          {to_string(id), volume, [&, scatters, id = id] {
             LayerCall call{.num_tokens = tokens,
                            .scatters = scatters,
                            .is_moe = true,
                            .is_last = false,
                            .has_residual = true,
                            .stream_sharded = scatters,
                            .on_shard = scatters};
             LayerStream<Ops::Tensor> stream{partial, scatters ? residual_shard : residual,
                                             scatters};
             stream.hidden = protocol.attention_output(rank, call, partial, *stream.residual);
             stream.hidden = protocol.norm(rank, "post_attention_layernorm", stream, weight, eps);
             if (id == ProtocolId::S)
               stream.hidden = rank.tp.all_reduce(stream.hidden);
             else if (id == ProtocolId::A)
               stream.hidden = gather_and_trim(rank, chunk(rank, stream.hidden), tokens);
             stream.hidden = protocol.norm(rank, "input_layernorm", stream, weight, eps);
             const auto x = protocol.attention_input(rank, call, stream.hidden);
             if (x.rows() != tokens) throw ShapeError("the mixer's input is not full");
           }});
    }
    const auto all_reduce = [&] {
      require(ncclAllReduce(partial.data(), whole.data(), elements, ncclBfloat16, ncclSum, nccl_,
                            stream()));
    };
    const auto reduce_scatter = [&] {
      require(ncclReduceScatter(partial.data(), whole.data(), part, ncclBfloat16, ncclSum, nccl_,
                                stream()));
    };
    const auto all_gather = [&] {
      require(ncclAllGather(partial.data(), whole.data(), part, ncclBfloat16, nccl_, stream()));
    };
    variants.push_back({"plain AR+AR", 4, [&] { all_reduce(), all_reduce(); }});
    variants.push_back({"plain AR+AG", 3, [&] { all_reduce(), all_gather(); }});
    variants.push_back({"plain RS+AG", 2, [&] { reduce_scatter(), all_gather(); }});

    std::vector<std::vector<double>> times(variants.size());
    for (int round = 0; round < rounds; ++round)  // in turns, each the first one now and then
      for (std::size_t i = 0; i < variants.size(); ++i) {
        const std::size_t who = (i + std::size_t(round)) % variants.size();
        times[who].push_back(microseconds(variants[who].run));
      }
    if (device_ != 0) return;
    const auto of = [&](std::size_t i) { return median(times[i]); };
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const double bytes = variants[i].volume * double(p - 1) / double(p) * double(elements) * 2;
      std::printf("%6ld %6ld | %-14s %9.1f %10.1f %8.1f %10.3f\n", long(hidden), long(tokens),
                  variants[i].name, of(i), bytes * 1e-6, bytes / of(i) * 1e-3,
                  of(i < protocols.size() ? 1 : protocols.size() + 1) / of(i));
    }
    std::fflush(stdout);
  }

  /// Of one call among several that are queued.
  double microseconds(const std::function<void()>& run) {
    run();  // warm
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    transport_.barrier(transport_.world());
    check(cudaEventRecord(begin_.event, stream()), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) run();
    check(cudaEventRecord(end_.event, stream()), "cudaEventRecord");
    check(cudaEventSynchronize(end_.event), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_.event, end_.event), "cudaEventElapsedTime");
    return double(ms) * 1e3 / calls;
  }

  struct Event {
    Event() { check(cudaEventCreate(&event), "cudaEventCreate"); }
    ~Event() { cudaEventDestroy(event); }
    cudaEvent_t event = nullptr;
  };

  Transport& transport_;
  int device_;
  Ops ops_;  // makes its GPU the current one
  Event begin_, end_;
  ncclComm_t nccl_ = nullptr;
};

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  using namespace tokenview;
  return run_on_gpus(argc, argv, [](Transport& transport) { Bench(transport).run(); });
}
