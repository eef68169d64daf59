// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// The library name and the shape of one parameter.
struct WeightShape {
  std::string name;
  std::vector<std::int64_t> shape;

  bool operator==(const WeightShape&) const = default;
};

/// Every parameter of the model and of its MTP stack, under the names of a golden file (experts
/// fused, prefix `model.`), layer by layer. With tie_word_embeddings there is no lm_head.weight.
/// Throws ConfigError for a family that is known by its layout only.
/// Sources: transformers modeling_qwen3_next.py, modeling_qwen3_5_moe.py; vllm qwen3_next_mtp.py.
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

/// The number of parameters whose name begins with `mtp.`, and of all others. Throws ConfigError
/// as weight_shapes().
struct ParameterCount {
  std::int64_t model = 0;
  std::int64_t mtp = 0;
};
ParameterCount parameter_count(const ModelConfig& config);

/// Random weights of a configuration. Element i of a weight depends on the seed, the weight's name
/// and i alone: on no shape, no order of calls, no rank and no machine (A_log takes one logarithm
/// from the math library). Scaled so that activations stay of order one: linear weights have
/// variance 1 / inputs, the embedding variance 1.
class SeededWeights : public WeightSource {
 public:
  /// With DType::bfloat16 every value is rounded to nearest even. Throws ConfigError for a family
  /// that is known by its layout only, or another dtype than float32 and bfloat16.
  SeededWeights(const ModelConfig& config, std::uint64_t seed, DType dtype = DType::float32);

  bool contains(const std::string& name) const override;
  HostTensor weight(const std::string& name, const std::vector<std::int64_t>& shape) const override;

  /// The same by name alone, in the shape of weight_shapes().
  HostTensor weight(const std::string& name) const;

 private:
  const std::vector<std::int64_t>& shape_of(const std::string& name) const;

  std::uint64_t seed_;
  DType dtype_;
  std::unordered_map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace tokenview
