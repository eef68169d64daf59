// SPDX-License-Identifier: Apache-2.0
#include "verify/loaded_golden.hpp"

#include <filesystem>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/golden_weights.hpp"
#include "verify/record.hpp"

namespace tokenview {

LoadedGolden::LoadedGolden(const std::string& path, const Checkpoint* checkpoint)
    : path_(path), name_(std::filesystem::path(path).stem().string()) {
  const GoldenFile file = GoldenFile::open(path);
  dtype_ = file.dtype();
  config_ = read_config_json(file.config_json(), path + ":/config").config;
  require_arithmetic(config_);
  if (checkpoint != nullptr) require_memory(config_, sizeof(float));
  const GoldenWeights weights(file, config_, checkpoint);
  for (const auto& [name, shape] : weight_shapes(config_))
    if (weights.contains(name)) weights_.emplace(name, weights.weight(name, shape));
  for (const std::string& name : file.case_names()) {
    Case& loaded = cases_[name];
    loaded.inputs = file.inputs(name, config_.vocab_size);
    loaded.draft_steps = file.mtp_step_count(name);
    for (const std::string& tap : file.tap_names(name))
      if (GoldenFile::holds_ids(tap))
        loaded.ids.emplace("target/" + tap, file.tap_ids(name, tap));
      else
        loaded.taps.emplace("target/" + tap, file.tap(name, tap));
    for (std::int64_t step = 0; step < loaded.draft_steps; ++step)
      for (const std::string& tap : file.mtp_tap_names(name, step))
        if (GoldenFile::holds_ids(tap))
          loaded.ids.emplace(text("step", step, '/', tap), file.mtp_ids(name, step, tap));
        else
          loaded.taps.emplace(text("step", step, '/', tap), file.mtp_tap(name, step, tap));
  }
}

HostTensor LoadedGolden::weight(const std::string& name,
                                const std::vector<std::int64_t>& shape) const {
  const auto found = weights_.find(name);
  if (found == weights_.end())
    throw FileError(text(path_, ":", GoldenFile::weight_path(name), ": no such weight"));
  if (found->second.shape != shape)
    throw FileError(text(path_, ":", GoldenFile::weight_path(name), ": shape is ",
                         to_string(found->second.shape), ", expected ", to_string(shape)));
  return found->second;
}

std::string LoadedGolden::longest_prefill() const {
  std::string longest;
  std::int64_t most = 0;
  for (const auto& [name, of_file] : cases_)
    if (of_file.inputs.num_sequences() == 1 && of_file.inputs.context_ids.empty() &&
        of_file.inputs.num_tokens() > most) {
      longest = name;
      most = of_file.inputs.num_tokens();
    }
  return longest;
}

LoadedGolden::Case LoadedGolden::prefix(const std::string& prefill, std::int64_t tokens) const {
  const Case& whole = cases_.at(prefill);
  Case part;
  const auto count = std::ptrdiff_t(tokens);
  part.inputs.input_ids.assign(whole.inputs.input_ids.begin(),
                               whole.inputs.input_ids.begin() + count);
  part.inputs.positions.assign(whole.inputs.positions.begin(),
                               whole.inputs.positions.begin() + count);
  part.inputs.query_start_loc = {0, std::int32_t(tokens)};
  part.inputs.context_start_loc = {0, 0};
  const auto first_rows = [&](const auto& tensor) {
    auto rows = tensor;
    const std::int64_t width = std::int64_t(tensor.values.size()) / tensor.shape[0];
    rows.shape[0] = tokens;
    rows.values.resize(std::size_t(tokens * width));
    return rows;
  };
  for (const auto& [name, tap] : whole.taps)
    if (name.starts_with("target/")) part.taps.emplace(name, first_rows(tap));
  for (const auto& [name, ids] : whole.ids)
    if (name.starts_with("target/")) part.ids.emplace(name, first_rows(ids));
  return part;
}

}  // namespace tokenview
