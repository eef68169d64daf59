// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "verify/golden_file.hpp"

namespace tokenview {

class Checkpoint;

/// A golden file in memory, for many runs against it at once: after loading, any number of threads
/// may read it.
class LoadedGolden final : public WeightSource {
 public:
  struct Case {
    GoldenInputs inputs;
    std::int64_t draft_steps = 0;
    std::map<std::string, HostTensor> taps;  // "target/model.norm", "step1/mtp.fc"
    std::map<std::string, IntegerTensor> ids;
  };

  /// Reads everything, the weights from `checkpoint` where the file refers to one. Throws FileError
  /// or ConfigError as GoldenFile, GoldenWeights and read_config_json().
  explicit LoadedGolden(const std::string& path, const Checkpoint* checkpoint = nullptr);

  const std::string& name() const { return name_; }  // without folder and .h5
  DType dtype() const { return dtype_; }
  const ModelConfig& config() const { return config_; }
  const std::map<std::string, Case>& cases() const { return cases_; }

  /// The longest case of one sequence without a context, by name; empty: there is none.
  std::string longest_prefill() const;

  /// The first `tokens` rows of a prefill: its target taps are those of the whole, row by row, for
  /// a row knows nothing of later ones. No draft steps: they pair rows with the token that follows.
  Case prefix(const std::string& prefill, std::int64_t tokens) const;

  bool contains(const std::string& name) const override { return weights_.contains(name); }
  HostTensor weight(const std::string& name, const std::vector<std::int64_t>& shape) const override;

 private:
  std::string path_, name_;
  DType dtype_ = DType::float32;
  ModelConfig config_;
  std::map<std::string, HostTensor> weights_;
  std::map<std::string, Case> cases_;
};

}  // namespace tokenview
