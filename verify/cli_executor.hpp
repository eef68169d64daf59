// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "verify/cli_options.hpp"
#include "verify/executor.hpp"

namespace tokenview {

inline constexpr Word<CommKind> comm_words[] = {
    {"sim", CommKind::sim}, {"nccl", CommKind::nccl}, {"mpi", CommKind::mpi}};

/// --device and --comm of a run with numbers.
struct ExecutorArguments {
  Device device = Device::cpu;
  CommKind comm = CommKind::sim;

  bool any() const { return device != Device::cpu || comm != CommKind::sim; }
};
void add_executor_options(CLI::App& app, ExecutorArguments& arguments);

/// What the options come to on this machine; in float64 on the CPU where `wide`. Throws UsageError
/// for what cannot be combined, ConfigError for a communicator that this build lacks, DeviceError
/// where there is no GPU.
Executor executor_of(const ExecutorArguments& arguments, bool wide);

/// Whether the executor has so many ranks: all of the processes, or at most a GPU each; simulated,
/// any number.
bool has_ranks(const Executor& executor, std::int64_t ranks);

/// Throws ConfigError where it has not, with what to do.
void require_ranks(const Executor& executor, std::int64_t ranks);

/// One process of several prints: the standard output of the others goes nowhere.
void silence_other_ranks(const Executor& executor);

}  // namespace tokenview
