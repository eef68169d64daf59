// SPDX-License-Identifier: Apache-2.0
#include "verify/executor.hpp"

#include <memory>
#include <vector>

#include "comm_sim/transport/host_group.hpp"
#include "comm_sim/transport/mpi_transport.hpp"
#include "comm_sim/transport/process_rank.hpp"
#include "comm_sim/transport/tcp_transport.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/tensor_bytes.hpp"

namespace tokenview {
namespace {

constexpr CommKind all_comms[] = {CommKind::sim, CommKind::nccl, CommKind::mpi};

Bytes packed(const RankTaps& taps) {
  ByteWriter to;
  const auto add_all = [&](const auto& matrices) {
    to.add(std::uint64_t(matrices.size()));
    for (const auto& [name, matrix] : matrices) {
      to.add(std::string_view(name));
      write_matrix(to, matrix);
    }
  };
  add_all(taps.values);
  add_all(taps.ids);
  return to.take();
}

RankTaps unpacked(const Bytes& bytes) {
  RankTaps taps;
  ByteReader from(bytes);
  const auto read_all = [&](auto& matrices) {
    for (auto left = from.read<std::uint64_t>(); left > 0; --left) {
      const std::string name = from.read_word();
      read_matrix(from, matrices[name]);
    }
  };
  read_all(taps.values);
  read_all(taps.ids);
  return taps;
}

}  // namespace

const char* to_string(CommKind comm) {
  constexpr const char* words[] = {"sim", "nccl", "mpi"};
  return words[std::size_t(comm)];
}

CommKind parse_comm(std::string_view word) {
  std::vector<std::string> words;
  for (const CommKind comm : all_comms) {
    words.emplace_back(to_string(comm));
    if (word == words.back()) return comm;
  }
  throw UsageError(text("communicator '", word, "': expected one of ", joined(words),
                        suggestion(std::string(word), words)));
}

bool is_printing_rank() {
  const auto process = process_rank();
  return !process || process->rank == 0;
}

Transport& process_world() {
  static const std::unique_ptr<Transport> world = [] {
    const auto process = process_rank();
    if (!process)
      throw UsageError(
          "this process is on its own: start one a rank by mpirun -n RANKS, or by torchrun "
          "(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)");
    return process->launcher == ProcessRank::Launcher::mpirun
               ? mpi_transport()
               : tcp_transport(process->rank, process->size, meeting_place());
  }();
  return *world;
}

void gather_taps(Transport& world, NumberRunResult& result) {
  if (!result.error.empty()) return;  // the ranks do not stand at the same place
  try {
    run_rank(world, "taps", [&] {
      const RankTaps& mine = result.taps[std::size_t(world.rank())];
      const std::vector<Bytes> of_ranks = world.all_gather(world.world(), packed(mine));
      for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
        result.taps[rank] = unpacked(of_ranks[rank]);
    });
  } catch (const Error& error) {
    result.error = error.what();
  }
}

NumberRunResult run_numbers_on(const Executor& executor, const ParallelRun& asked,
                               const WeightSource& weights) {
  ParallelRun run = asked;
  if (executor.comm != CommKind::sim) run.fault_hits = nullptr;  // ranks would count at once
  const bool on_gpus = usable(executor.device) == Device::cuda;
  if (executor.wide && (on_gpus || executor.rounding != Rounding::none))
    throw UsageError("float64: there is one arithmetic for it, on the CPU without rounding");
  if (executor.comm == CommKind::nccl && !on_gpus)
    throw UsageError("--comm nccl: NCCL is between GPUs, expected --device cuda");
  if (executor.comm == CommKind::mpi) {
    const auto process = process_rank();
    if (!process || process->launcher != ProcessRank::Launcher::mpirun)
      throw UsageError(
          text("--comm mpi: expected to be started by mpirun -n ", run.plan.parallel.world_size()));
  }
  if (on_gpus) return run_numbers_on_gpus(executor, run, weights);
  if (executor.comm == CommKind::mpi)
    return executor.wide ? run_numbers_over<double>(process_world(), run, weights, executor.order)
                         : run_numbers_over<float>(process_world(), run, weights, executor.order,
                                                   executor.rounding);
  return executor.wide ? run_numbers<double>(run, weights, executor.order)
                       : run_numbers<float>(run, weights, executor.order, executor.rounding);
}

}  // namespace tokenview
