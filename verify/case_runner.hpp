// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <type_traits>

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

/// The model on the first GPU: in float32, or in bfloat16 with the rounding points of `rounding`,
/// whose weights must then be bfloat16 values. Every tap comes to the host, and goes back where the
/// observer changes it. Throws DeviceError where the GPU cannot be used.
std::unique_ptr<CaseRunner<float>> cuda_runner(const ModelConfig& config,
                                               const WeightSource& weights, Rounding rounding,
                                               GdnForm gdn_form);

/// The model on `device`, with the arithmetic of `ops` where that is the CPU, and with its rounding
/// points anyway. Throws UsageError for float64 on a GPU.
template <class S>
std::unique_ptr<CaseRunner<S>> runner_on(Device device, const ModelConfig& config,
                                         const WeightSource& weights, const EigenOps<S>& ops) {
  if (usable(device) == Device::cpu)
    return std::make_unique<ModelRunner<SerialModel<S>, S>>(config, weights, ops);
  if constexpr (std::is_same_v<S, float>)
    return cuda_runner(config, weights, ops.rounding(), ops.gdn_form());
  throw UsageError("the GPU has no float64 arithmetic: expected float32");
}

}  // namespace tokenview
