// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "verify/device.hpp"
#include "verify/golden_case.hpp"

namespace tokenview {

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

/// The model on the first GPU, in float32 arithmetic with the rounding points of `rounding`. Every
/// tap comes to the host, and goes back where the observer changes it. Throws DeviceError where
/// the GPU cannot be used.
std::unique_ptr<CaseRunner<float>> cuda_runner(const ModelConfig& config,
                                               const WeightSource& weights, Rounding rounding);

}  // namespace tokenview
