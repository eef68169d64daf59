// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "verify/golden_case.hpp"

namespace tokenview {

/// Where a model runs. `automatic`: on a GPU where there is one that this build can use.
enum class Device { cpu, cuda, automatic };

/// What `device` comes to on this machine: cpu or cuda. Throws DeviceError where a GPU is demanded
/// and there is none, as in every build without CUDA.
Device usable(Device device);

/// The unsharded model on one device, as run_case() runs it.
template <class S>
class CaseRunner {
 public:
  virtual ~CaseRunner() = default;
  virtual bool has_mtp() const = 0;
  virtual std::vector<std::vector<std::int64_t>> run(const GoldenInputs& inputs,
                                                     std::int64_t draft_steps,
                                                     CaseObserver<S>& observer) const = 0;
};

/// A SerialModel<S>, or one with its interface.
template <class Model, class S>
class ModelRunner final : public CaseRunner<S> {
 public:
  template <class... Args>
  explicit ModelRunner(Args&&... args) : model_(std::forward<Args>(args)...) {}

  bool has_mtp() const override { return model_.has_mtp(); }
  std::vector<std::vector<std::int64_t>> run(const GoldenInputs& inputs, std::int64_t draft_steps,
                                             CaseObserver<S>& observer) const override {
    return run_case(model_, inputs, draft_steps, observer);
  }

 private:
  Model model_;
};

/// The model on the first GPU: in float32, or in bfloat16 with the rounding points of `rounding`,
/// whose weights must then be bfloat16 values. Every tap comes to the host, and goes back where the
/// observer changes it. Throws DeviceError where the GPU cannot be used.
std::unique_ptr<CaseRunner<float>> cuda_runner(const ModelConfig& config,
                                               const WeightSource& weights, Rounding rounding);

}  // namespace tokenview
