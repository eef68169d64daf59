// SPDX-License-Identifier: Apache-2.0
#include "verify/case_runner.hpp"
#include "verify/executor.hpp"
#include "verify/gpu_numbers.hpp"
#include "verify/not_here.hpp"

namespace tokenview {

Device usable(Device device) {
  if (device == Device::cuda) throw NotHere("no GPU: built without CUDA");
  return Device::cpu;
}

std::unique_ptr<CaseRunner<float>> cuda_runner(const ModelConfig&, const WeightSource&, Rounding,
                                               GdnForm) {
  throw NotHere("no GPU: built without CUDA");
}

std::unique_ptr<GpuNumbers> gpu_numbers(const ModelConfig&, const WeightSource&, Rounding,
                                        ReductionOrder) {
  throw NotHere("no GPU: built without CUDA");
}

NumberRunResult run_numbers_on_gpus(const Executor&, const ParallelRun&, const WeightSource&) {
  throw NotHere("no GPU: built without CUDA");
}

}  // namespace tokenview
