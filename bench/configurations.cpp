// SPDX-License-Identifier: Apache-2.0
// How many parallel configurations are checked in a second: on token views, and with numbers.
//
//   bench_configurations                      a table
//   bench_configurations TP DP PROTOCOL       the collectives that rank 0 calls in one
//   configuration,
//                                             a line each: operation, group, elements brought
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm_sim/array_ops.hpp"
#include "comm_sim/sim_mesh.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/number_run.hpp"
#include "verify/requests.hpp"
#include "verify/view_run.hpp"

namespace tokenview {
namespace {

/// Median of `rounds` timings of `body` a call, in microseconds.
template <class Body>
double median_microseconds(int rounds, int calls, Body body) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) body();
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    times.push_back(elapsed.count() / calls);
  }
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return times[std::size_t(rounds) / 2];
}

ParallelRun configuration(const ModelConfig& config, const ParallelConfig& parallel,
                          ProtocolId protocol) {
  return {.config = config,
          .plan = plan_for(config, parallel, protocol),
          .inputs = inputs_of(parse_requests("17", parallel.dp)),
          .draft_steps = 1};
}

/// Elements that a rank of `p` brings to a call of which it sends so many on a ring.
std::int64_t brought(const CollectiveRecord& call, double p) {
  const double others = p - 1;
  if (p == 1) return 0;
  if (call.op == "all_reduce") return std::int64_t(call.elements * p / (2 * others));
  if (call.op.starts_with("all_gather")) return std::int64_t(call.elements / others);
  return std::int64_t(call.elements * p / others);
}

void list_collectives(const ModelConfig& config, const ParallelConfig& parallel,
                      ProtocolId protocol) {
  std::vector<CollectiveRecord> calls;
  ParallelRun run = configuration(config, parallel, protocol);
  run.collectives = &calls;
  run_views(run, false);
  for (const CollectiveRecord& call : calls) {
    const std::int64_t p = call.group == "tp"   ? parallel.tp
                           : call.group == "dp" ? parallel.dp
                                                : parallel.tp * parallel.dp;
    std::printf("%s %s %ld\n", call.op.c_str(), call.group.c_str(), long(brought(call, double(p))));
  }
}

/// Microseconds of the configuration's collectives alone, on float32 buffers.
double collectives_alone(const ModelConfig& config, const ParallelConfig& parallel,
                         ProtocolId protocol) {
  std::vector<CollectiveRecord> calls;
  ParallelRun run = configuration(config, parallel, protocol);
  run.collectives = &calls;
  run_views(run, false);
  const ArrayOps<float> ops;
  SimMesh mesh(parallel);
  return median_microseconds(9, 100, [&] {
    mesh.run(
        [&](const RankCoordinates&) -> const ArrayOps<float>& { return ops; },
        [&](SimComms<ArrayOps<float>>& comms) {
          for (const CollectiveRecord& call : calls) {
            auto& group = call.group == "tp" ? comms.tp : call.group == "dp" ? comms.dp : comms.ep;
            const std::int64_t p = group.size();
            const std::int64_t elements = brought(call, double(p));
            if (call.op == "all_reduce")
              group.all_reduce(Array<float>(elements, 1));
            else if (call.op.starts_with("all_gather"))
              group.all_gather(Array<float>(elements, 1), Axis::rows);
            else
              group.reduce_scatter(Array<float>(elements / p * p, 1), Axis::rows);
          }
          return 0;
        });
  });
}

void measure(const ModelConfig& config, const ParallelConfig& parallel, ProtocolId protocol) {
  const ParallelRun run = configuration(config, parallel, protocol);
  ViewWeights weights(config);
  const double views = median_microseconds(9, 200, [&] { run_views(run, false, &weights); });
  const SeededWeights numbers(config, 1);
  const double sharded = median_microseconds(5, 2, [&] { run_numbers<float>(run, numbers); });
  const double alone = collectives_alone(config, parallel, protocol);
  std::printf(
      "tp=%ld dp=%ld protocol %s: views %.1f us (%.0f a second), numbers %.2f ms (%.0f), "
      "collectives alone %.1f us (%.0f)\n",
      long(parallel.tp), long(parallel.dp), to_string(run.plan.protocol), views, 1e6 / views,
      sharded / 1e3, 1e6 / sharded, alone, 1e6 / alone);
}

}  // namespace
}  // namespace tokenview

int main(int argc, char** argv) {
  using namespace tokenview;
  const ModelConfig config = *preset("qwen3.5-moe");
  if (argc == 4) {
    list_collectives(
        config,
        {.tp = std::atol(argv[1]), .dp = std::atol(argv[2]), .enable_expert_parallel = true},
        parse_protocol(argv[3]));
    return 0;
  }
  std::printf("tiny model, %ld layers + MTP, T = 17, one draft step, one thread\n",
              long(config.num_hidden_layers));
  for (const ParallelConfig& parallel :
       {ParallelConfig{.tp = 4, .dp = 2, .enable_expert_parallel = true},
        ParallelConfig{.tp = 8, .enable_expert_parallel = true},
        ParallelConfig{.tp = 2, .enable_expert_parallel = true}})
    for (const ProtocolId protocol : {ProtocolId::S, ProtocolId::A, ProtocolId::C, ProtocolId::D})
      measure(config, parallel, protocol);
}
