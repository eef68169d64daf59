// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/executor.hpp"
#include "verify/golden_file.hpp"

namespace tokenview {

struct DumpRunOptions {
  std::string folder;  // made where it is not there
  std::string producer;
  bool annotate = true;    // with the views and columns of a symbolic run
  std::string label = {};  // as DumpWriter has it
};

/// What a step of a run is given, on each dp rank, as a dump and a golden have it.
std::vector<GoldenInputs> inputs_of_step(const ParallelRun& run, std::size_t step);

/// Throws UsageError where the folder holds dumps of ranks that a world of `world_size` does not
/// have: left there, they would be read as one with the new ones.
void require_dump_folder(const std::string& folder, std::int64_t world_size);

/// Runs `run` with numbers, as `executor` says, and writes what every rank has in every engine step
/// into `folder`/dump.rank<R>.h5, as float32. What stops the run ends the step in which it happens;
/// the taps until then are written. The first step's table of collectives has those of the pass
/// over its context too; it is filled on simulated ranks of the CPU.
///
/// Returns what stopped it; empty: nothing.
std::string dump_run(const Executor& executor, const ParallelRun& run, const WeightSource& weights,
                     const DumpRunOptions& options);

}  // namespace tokenview
