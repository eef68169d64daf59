// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_executor.hpp"

#include <cstdio>

#include "comm_sim/transport/process_rank.hpp"
#include "device/device_info.hpp"
#include "reference/program/error.hpp"
#include "tokenview_version.hpp"
#include "verify/not_here.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

bool has_mpi() {
  for (const build::Part& part : build::parts)
    if (std::string(part.name) == "MPI") return !std::string(part.value).starts_with("no");
  return false;
}

std::int64_t gpu_count() {
  std::string reason;
  return std::int64_t(devices(reason).size());
}

}  // namespace

void add_executor_options(CLI::App& app, ExecutorArguments& arguments) {
  add_choice(app, "--device", arguments.device, device_words,
             "Where numbers are computed: on the CPU (default), in float32 on the GPU, or there "
             "where there is one");
  add_choice(app, "--comm", arguments.comm, comm_words,
             "What joins the ranks: simulated in this process (sim, the default; on a GPU virtual "
             "ranks, any number on one), NCCL with a GPU a rank, or MPI with a process a rank");
}

Executor executor_of(const ExecutorArguments& arguments, bool wide) {
  Executor executor{.device = usable(arguments.device), .comm = arguments.comm};
  executor.wide = wide && executor.device == Device::cpu;
  if (executor.comm == CommKind::nccl && executor.device == Device::cpu)
    throw UsageError("--comm nccl: NCCL is between GPUs, expected --device cuda");
  if (executor.comm == CommKind::nccl && nccl_version().empty())
    throw NotHere("--comm nccl: built without NCCL");
  if (executor.comm != CommKind::mpi) return executor;
  if (!has_mpi()) throw NotHere("--comm mpi: built without MPI");
  const auto process = process_rank();
  if (!process || process->launcher != ProcessRank::Launcher::mpirun)
    throw UsageError("--comm mpi: expected to be started by mpirun, a process a rank");
  return executor;
}

bool has_ranks(const Executor& executor, std::int64_t ranks) {
  if (executor.comm == CommKind::sim) return true;
  const auto process = process_rank();
  return process ? ranks == process->size : ranks <= gpu_count();
}

void require_ranks(const Executor& executor, std::int64_t ranks) {
  if (has_ranks(executor, ranks)) return;
  const auto process = process_rank();
  throw ConfigError(
      text("--comm ", to_string(executor.comm), ": ", plural(ranks, "rank"), " on ",
           process ? text(process->size, process->size == 1 ? " process" : " processes")
                   : plural(gpu_count(), "GPU"),
           ", expected one a rank; --comm sim has any number of ",
           executor.device == Device::cuda ? "virtual ranks on one GPU" : "ranks in one process"));
}

void silence_other_ranks(const Executor& executor) {
  if (executor.comm == CommKind::sim || is_printing_rank()) return;
  if (std::freopen("/dev/null", "w", stdout) == nullptr)
    throw FileError("/dev/null: cannot be opened");
}

}  // namespace tokenview
