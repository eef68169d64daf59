// SPDX-License-Identifier: Apache-2.0
#include "verify/trusted_side.hpp"

#include <algorithm>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

GoldenSide::GoldenSide(const GoldenFile& golden, std::optional<std::string> case_name,
                       const Checkpoint* checkpoint)
    : golden_(golden),
      case_name_(std::move(case_name)),
      checkpoint_(checkpoint),
      config_(read_config_json(golden.config_json(), golden.path() + ":/config").config) {
  const std::vector<std::string> names = golden.case_names();
  if (case_name_ && std::ranges::find(names, *case_name_) == names.end())
    throw UsageError(text("--case ", printable(*case_name_), ": ", printable(golden.path()),
                          " has ", joined(names), suggestion(*case_name_, names)));
  if (checkpoint != nullptr) weights_.emplace(golden, config_, checkpoint);
}

std::shared_ptr<const TrustedStep> GoldenSide::step_of(std::int64_t number, std::int64_t,
                                                       const DumpStep& step) {
  const std::optional<std::string> name = case_of(number, step);
  if (!name) return nullptr;
  std::shared_ptr<const TrustedStep>& found = steps_[*name];
  if (!found) found = std::make_shared<GoldenStep>(golden_, *name, inputs_of(*name));
  return found;
}

const GoldenCase* GoldenSide::golden_case(const TrustedStep& step) {
  if (!loaded_) loaded_ = std::make_unique<LoadedGolden>(golden_.path(), checkpoint_);
  const auto found = cases_.find(step.name());
  if (found != cases_.end()) return &found->second;
  return &cases_.emplace(step.name(), GoldenCase(*loaded_, step.name())).first->second;
}

std::optional<HostTensor> GoldenSide::weight(const std::string& name) const {
  if (weights_)
    for (const auto& [known, shape] : weight_shapes(config_))
      if (known == name && weights_->contains(name)) return weights_->weight(name, shape);
  const auto found = golden_.weight_shapes().find(name);
  if (found == golden_.weight_shapes().end()) return std::nullopt;
  return golden_.weight(name, found->second);
}

std::optional<std::string> GoldenSide::case_of(std::int64_t number, const DumpStep& step) {
  if (case_name_) return case_name_;
  const std::string end = text(".step", number);
  std::optional<std::string> found;
  for (const std::string& name : golden_.case_names()) {
    if (step.inputs && step.inputs->difference(inputs_of(name)) != nullptr) continue;
    if (step.num_tokens >= 0 && step.num_tokens != golden_.num_tokens(name)) continue;
    if (name.ends_with(end)) return name;
    if (!found && step.inputs && step.inputs->input_ids) found = name;
  }
  return found;
}

const GoldenInputs& GoldenSide::inputs_of(const std::string& case_name) {
  const auto found = inputs_.find(case_name);
  if (found != inputs_.end()) return found->second;
  return inputs_.emplace(case_name, golden_.inputs(case_name, config_.vocab_size)).first->second;
}

}  // namespace tokenview
