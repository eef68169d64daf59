// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "verify/number_run.hpp"

namespace tokenview {

/// Runs configurations of one model with numbers on virtual ranks that share one GPU: in float32,
/// or as a bfloat16 model with rounding points. Weights stay on the GPU for later runs: each part
/// of the model is uploaded once, whatever configurations have a rank that holds it. Not for
/// several threads.
class GpuNumbers {
 public:
  virtual ~GpuNumbers() = default;

  /// An error is told in the result. After a device-side assert every further run fails.
  virtual NumberRunResult run(const ParallelRun& run) = 0;

  virtual std::int64_t uploads() const = 0;  // of one rank's weights
};

/// On the first GPU; `config` and `weights` outlive it. Throws DeviceError where it cannot be used.
std::unique_ptr<GpuNumbers> gpu_numbers(const ModelConfig& config, const WeightSource& weights,
                                        Rounding rounding = Rounding::none,
                                        ReductionOrder order = ReductionOrder::rank);

}  // namespace tokenview
