// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "reference/program/config.hpp"
#include "verify/dump_file.hpp"
#include "verify/golden_file.hpp"
#include "verify/golden_run.hpp"
#include "verify/golden_weights.hpp"
#include "verify/trusted_step.hpp"

namespace tokenview {

/// The side that a dump is held against.
class TrustedSide {
 public:
  virtual ~TrustedSide() = default;

  /// What step `number` of data-parallel rank `dp`, of which `step` is one rank's part, is held
  /// against; null: nothing belongs to it. The same step gets the same answer.
  virtual std::shared_ptr<const TrustedStep> step_of(std::int64_t number, std::int64_t dp,
                                                     const DumpStep& step) = 0;

  /// Why step_of() gave nothing, in a few words.
  virtual std::string no_step() const = 0;

  /// The model; null where it is not known.
  virtual const ModelConfig* config() const { return nullptr; }

  /// Of the arithmetic that its values were made in, as far as that is known.
  virtual DType dtype() const { return DType::float32; }

  /// The case that a step of this side is, with what its model is made of; null where that is not
  /// known. It lives as long as this side.
  virtual const GoldenCase* golden_case(const TrustedStep&) { return nullptr; }

  /// A weight of the model, where this side has them.
  virtual std::optional<HostTensor> weight(const std::string&) const { return std::nullopt; }
};

/// The cases of a golden file, which must outlive it.
class GoldenSide final : public TrustedSide {
 public:
  /// `case_name`: that of every step; absent: the case with the step's inputs, as far as they are
  /// known, rather the one whose name ends in ".step<number>". `checkpoint`: has the weights of a
  /// golden without any. Throws UsageError where the golden does not have the case.
  GoldenSide(const GoldenFile& golden, std::optional<std::string> case_name,
             const Checkpoint* checkpoint = nullptr);

  std::shared_ptr<const TrustedStep> step_of(std::int64_t number, std::int64_t dp,
                                             const DumpStep& step) override;
  std::string no_step() const override { return "no case of the golden has its inputs"; }
  const ModelConfig* config() const override { return &config_; }
  DType dtype() const override { return golden_.dtype(); }
  const GoldenCase* golden_case(const TrustedStep& step) override;
  std::optional<HostTensor> weight(const std::string& name) const override;

 private:
  std::optional<std::string> case_of(std::int64_t number, const DumpStep& step);
  const GoldenInputs& inputs_of(const std::string& case_name);

  const GoldenFile& golden_;
  std::optional<std::string> case_name_;
  const Checkpoint* checkpoint_;
  std::optional<GoldenWeights> weights_;  // of the checkpoint
  ModelConfig config_;
  std::map<std::string, GoldenInputs> inputs_;
  std::map<std::string, std::shared_ptr<const TrustedStep>> steps_;  // by case
  std::unique_ptr<LoadedGolden> loaded_;                             // when asked for
  std::map<std::string, GoldenCase> cases_;
};

}  // namespace tokenview
