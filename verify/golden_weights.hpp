// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "reference/program/config.hpp"
#include "verify/checkpoint.hpp"
#include "verify/golden_file.hpp"
#include "verify/weights_of_type.hpp"

namespace tokenview {

/// Attributes of a golden file that refers to the weights of a checkpoint instead of holding them:
/// the folder, as it was named, and weights_fingerprint() of what was recorded with.
inline constexpr const char* checkpoint_attribute = "checkpoint";
inline constexpr const char* fingerprint_attribute = "weights_fingerprint";

/// 16 hexadecimal digits that depend on the name, shape and value of every weight of the model, and
/// on nothing else: not on files, order of tensors, or a type that holds the values exactly. Two
/// models differ in it but for one chance in 2^64; it is no defence against forgery. Reads all
/// weights.
std::string weights_fingerprint(const WeightSource& weights, const ModelConfig& config);

/// The weights that the model of a golden file has: the file's own, or those of the checkpoint that
/// it was recorded from, rounded to the file's type. An interrupt ends the reading of a checkpoint.
/// All three outlive it.
class GoldenWeights final : public WeightSource {
 public:
  /// Throws FileError for a file with weights that its configuration does not have. For a file
  /// without weights: unless there is a checkpoint, of an equal configuration, and with the
  /// fingerprint that the file has (if any). For a file with weights: where there is one.
  GoldenWeights(const GoldenFile& golden, const ModelConfig& config,
                const Checkpoint* checkpoint = nullptr);

  bool contains(const std::string& name) const override { return source().contains(name); }
  HostTensor weight(const std::string& name,
                    const std::vector<std::int64_t>& shape) const override {
    return source().weight(name, shape);
  }
  HostTensor part(const WeightBlock& block) const override { return source().part(block); }

 private:
  const WeightSource& source() const;

  const GoldenFile& golden_;
  std::optional<WeightsOfType> of_checkpoint_;
};

}  // namespace tokenview
