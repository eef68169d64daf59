// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#include "comm_sim/transport/transport.hpp"
#include "reference/program/reduction.hpp"
#include "reference/program/rounding.hpp"
#include "verify/case_runner.hpp"
#include "verify/number_run.hpp"

namespace tokenview {

/// What carries the data of a run's ranks.
enum class CommKind {
  sim,   // all ranks in this process, on one thread
  nccl,  // one rank a GPU: threads of this process, or processes of mpirun or torchrun
  mpi,   // one rank a process of mpirun
};
const char* to_string(CommKind comm);

/// "sim", "nccl", "mpi". Throws UsageError with the nearest word.
CommKind parse_comm(std::string_view word);

/// Where and how a run computes.
struct Executor {
  Device device = Device::cpu;
  CommKind comm = CommKind::sim;
  Rounding rounding = Rounding::none;
  ReductionOrder order = ReductionOrder::rank;
  bool wide = false;  // float64, on the CPU, instead of float32
};

/// Runs `run` as `executor` says:
///
/// | device | comm | ranks                                                                       |
/// | ------ | ---- | --------------------------------------------------------------------------- |
/// | cpu    | sim  | simulated                                                                   |
/// | cuda   | sim  | virtual: they share the first GPU                                           |
/// | cpu    | mpi  | one a process, over MPI                                                     |
/// | cuda   | mpi  | one a process, each on its GPU; data is staged through host memory          |
/// | cuda   | nccl | one a GPU; sums are in the order of NCCL where there are more than two of it |
///
/// Over processes every one of them calls this with the same run and gets the taps of all ranks.
/// Faults that the run injects act in each of them, and are counted on simulated ranks only.
/// Throws UsageError for what cannot be combined, ConfigError for another number of ranks than
/// there are processes or GPUs, DeviceError where a GPU cannot be used.
NumberRunResult run_numbers_on(const Executor& executor, const ParallelRun& run,
                               const WeightSource& weights);

/// False in the processes of mpirun or torchrun that are not rank 0: one of them speaks for all.
bool is_printing_rank();

/// The processes of mpirun, over MPI, or of torchrun, over TCP, which find each other on the first
/// call. Throws UsageError in a process that was started by neither.
Transport& process_world();

// The parts of run_numbers_on().

/// This process, or thread, as one rank of `world`, in arithmetic S on the CPU.
template <class S>
NumberRunResult run_numbers_over(Transport& world, const ParallelRun& run,
                                 const WeightSource& weights,
                                 ReductionOrder order = ReductionOrder::rank,
                                 Rounding rounding = Rounding::none);

/// On GPUs. Throws DeviceError in a build without CUDA.
NumberRunResult run_numbers_on_gpus(const Executor& executor, const ParallelRun& run,
                                    const WeightSource& weights);

/// Collective: gives every rank's taps to all of `world`. `result` has this rank's.
void gather_taps(Transport& world, NumberRunResult& result);

}  // namespace tokenview
