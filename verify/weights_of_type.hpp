// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "reference/program/bfloat16.hpp"
#include "reference/program/float16.hpp"
#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// A source whose values are those of another, rounded to the nearest of `dtype` where that is
/// bfloat16 or float16. `source` outlives it.
class WeightsOfType final : public WeightSource {
 public:
  /// `progress` is called before each tensor; it may throw.
  WeightsOfType(const WeightSource& source, DType dtype,
                std::function<void(const std::string&)> progress = {})
      : source_(source), dtype_(dtype), progress_(std::move(progress)) {}

  bool contains(const std::string& name) const override { return source_.contains(name); }

  HostTensor weight(const std::string& name,
                    const std::vector<std::int64_t>& shape) const override {
    if (progress_) progress_("weights");
    return rounded(source_.weight(name, shape));
  }

  HostTensor part(const WeightBlock& block) const override {
    if (progress_) progress_("weights");
    return rounded(source_.part(block));
  }

 private:
  HostTensor rounded(HostTensor tensor) const {
    if (dtype_ == DType::bfloat16)
      std::ranges::transform(tensor.values, tensor.values.begin(), round_to_bf16);
    if (dtype_ == DType::float16)
      std::ranges::transform(tensor.values, tensor.values.begin(), round_to_float16);
    tensor.dtype = dtype_;
    return tensor;
  }

  const WeightSource& source_;
  DType dtype_;
  std::function<void(const std::string&)> progress_;
};

}  // namespace tokenview
