// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/assert_record.hpp"
#include "reference/eigen_ops.hpp"
#include "reference/program/error.hpp"
#include "verify/parallel_run.hpp"
#include "verify/view_run.hpp"

namespace tokenview {

/// The taps of one rank by name ("target/model.norm", "step1/mtp.fc"), widened.
struct RankTaps {
  std::map<std::string, Matrix<double>> values;
  std::map<std::string, Matrix<std::int64_t>> ids;
  std::string last_name =
      {};  // of the one that the rank named last; also where its values are lost
};

/// The sharded program with numbers.
struct NumberRunResult {
  std::vector<RankTaps> taps;  // of each rank of the world
  std::string error;           // what stopped the run; empty: nothing
  Fault fault = Fault::usage;  // of the error

  // Of a run that an error ended on a GPU of this process:
  std::string cuda_error = {};                     // "cudaErrorAssert": what has ended CUDA
  std::optional<AssertRecord> assert_record = {};  // of the first device-side assert
};

/// Runs `run` in arithmetic S on simulated ranks.
template <class S>
NumberRunResult run_numbers(const ParallelRun& run, const WeightSource& weights,
                            ReductionOrder order = ReductionOrder::rank,
                            Rounding rounding = Rounding::none);

/// Where the numbers of a run leave those of the right one, in program order: for each named tensor
/// the first rank with a token row that differs, or is not finite, or is not there. Rows are judged
/// where `views`, of the right run, says that they are tokens; equal means to `tolerance` of the
/// largest value of the tensor.
std::vector<Finding> number_findings(const ViewRunResult& views, const ParallelConfig& parallel,
                                     const NumberRunResult& right, const NumberRunResult& wrong,
                                     double tolerance);

}  // namespace tokenview
