// SPDX-License-Identifier: Apache-2.0
#include "verify/checkpoint.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"
#include "reference/program/strict_json.hpp"
#include "reference/program/weight_block.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/input_file.hpp"

namespace tokenview {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string config_path(const std::string& folder) {
  return (fs::path(folder) / "config.json").string();
}

std::string config_text(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw FileError(text(printable(folder), ": is no folder, expected that of a checkpoint"));
  return read_json_file(config_path(folder), "a config.json");
}

/// Quantised weights are integers or 8-bit floats with scales beside them.
ConfigReading read_unquantised(const std::string& config_json, const std::string& source) {
  ConfigReading reading = read_config_json(config_json, source);
  in_scope(source, [&] { require_arithmetic(reading.config); });
  const json config = parse_strict_json(config_json, source);
  const auto refuse_in = [&](const json& section) {
    const auto found = section.find("quantization_config");
    if (found == section.end() || found->is_null()) return;
    const json method = found->is_object() ? found->value("quant_method", json()) : json();
    throw FileError(text(source, ": quantization_config: the weights are quantised",
                         method.is_string() ? " (" + shown(method) + ")" : "",
                         ", expected a checkpoint in float32, bfloat16 or float16"));
  };
  refuse_in(config);
  if (const auto nested = config.find("text_config"); nested != config.end()) refuse_in(*nested);
  return reading;
}

DType dtype_of(const FolderTensor& tensor) {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    if (tensor.entry.type == storage_type(type)) return type;
  throw FileError(text(tensor.place(), ": is ", to_string(tensor.entry.type),
                       ", expected float32, bfloat16 or float16"));
}

/// Widens the elements first .. first + count - 1 of a tensor to the end of `values`.
void append(const FolderTensor& tensor, std::span<const std::byte> bytes, std::int64_t first,
            std::int64_t count, std::vector<float>& values) {
  const std::size_t begin = values.size();
  values.resize(begin + std::size_t(count));
  widen(tensor.entry.type, bytes.data() + first * element_bytes(tensor.entry.type), count,
        values.data() + begin);
  const auto bad = std::find_if(values.begin() + std::ptrdiff_t(begin), values.end(),
                                [](float value) { return !std::isfinite(value); });
  if (bad != values.end())
    throw FileError(text(tensor.place(), ": element ",
                         first + (bad - values.begin()) - std::ptrdiff_t(begin), " of ",
                         to_string(tensor.entry.shape), " is ", *bad, ", expected finite weights"));
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder)
    : folder_(folder),
      config_json_(config_text(folder)),
      reading_(read_unquantised(config_json_, printable(config_path(folder)))),
      files_(folder) {
  const ModelConfig& config = reading_.config;
  Names names = text_names();
  const auto is_mtp = [](const auto& entry) { return entry.first.starts_with("mtp."); };
  const bool has_mtp = std::ranges::any_of(names, is_mtp);
  for (const WeightShape& weight : weight_shapes(config))
    if (has_mtp || !weight.name.starts_with("mtp."))
      weights_.emplace(weight.name, taken(names, weight.name, weight.shape));
  if (config.tie_word_embeddings) require_tied_head(names);
  if (!names.empty())
    throw FileError(text(names.begin()->second->place(), ": no such weight in a ",
                         to_string(config.model_type), " model of this configuration",
                         names.size() > 1 ? text(" (", names.size(), " in all)") : ""));
}

Checkpoint::Names Checkpoint::text_names() {
  constexpr std::string_view nested = "model.language_model.";
  Names names;
  for (const auto& [stored_name, tensor] : files_.tensors()) {
    const bool is_nested = stored_name.starts_with(nested);
    const bool is_text =
        is_nested || stored_name.starts_with("lm_head.") || stored_name.starts_with("mtp.") ||
        (stored_name.starts_with("model.") && !stored_name.starts_with("model.visual."));
    if (!is_text) {  // by its first two modules
      unused_[stored_name.substr(0, stored_name.find('.', stored_name.find('.') + 1))] += 1;
      continue;
    }
    const std::string name = is_nested ? "model." + stored_name.substr(nested.size()) : stored_name;
    const auto [there, is_new] = names.emplace(name, &tensor);
    if (!is_new)
      throw FileError(
          text(tensor.place(), ": is there a second time, as ", there->second->place()));
  }
  return names;
}

Checkpoint::Weight Checkpoint::taken(Names& names, const std::string& name,
                                     const std::vector<std::int64_t>& shape) const {
  Weight weight{shape, {}};
  const auto take = [&](const std::string& piece, const std::vector<std::int64_t>& expected) {
    const auto found = names.find(piece);
    if (found == names.end())
      throw FileError(
          text(printable(folder_), ": ", piece, ": is missing, expected ", to_string(expected)));
    const FolderTensor& tensor = *found->second;
    if (tensor.entry.shape != expected)
      throw FileError(text(tensor.place(), ": shape is ", to_string(tensor.entry.shape),
                           ", expected ", to_string(expected)));
    dtype_of(tensor);
    weight.pieces.push_back(&tensor);
    names.erase(found);
  };

  const std::string_view merged = name;
  const bool is_gate_up = merged.ends_with(".experts.gate_up_proj");
  const bool is_down = merged.ends_with(".experts.down_proj");
  const std::string experts = name.substr(0, name.rfind('.') + 1);
  const std::string first = experts + (is_down ? "0.down_proj.weight" : "0.gate_proj.weight");
  if (!(is_gate_up || is_down) || names.contains(name) || !names.contains(first)) {
    take(name, shape);
    return weight;
  }
  // [E, 2I, H] row by row is gate [I, H] and up [I, H] of expert 0, then those of expert 1, ...
  for (std::int64_t expert = 0; expert < shape[0]; ++expert)
    if (is_down) {
      take(text(experts, expert, ".down_proj.weight"), {shape[1], shape[2]});
    } else {
      take(text(experts, expert, ".gate_proj.weight"), {shape[1] / 2, shape[2]});
      take(text(experts, expert, ".up_proj.weight"), {shape[1] / 2, shape[2]});
    }
  return weight;
}

void Checkpoint::require_tied_head(Names& names) const {
  const auto head = names.find("lm_head.weight");
  if (head == names.end()) return;
  const FolderTensor& embedding = *weights_.at("model.embed_tokens.weight").pieces.front();
  if (head->second->entry.type != embedding.entry.type ||
      !std::ranges::equal(head->second->bytes(), embedding.bytes()))
    throw FileError(text(head->second->place(),
                         ": is not model.embed_tokens.weight, expected the same of a "
                         "configuration with tie_word_embeddings"));
  names.erase(head);
}

const Checkpoint::Weight& Checkpoint::found(const std::string& name,
                                            const std::vector<std::int64_t>& shape) const {
  const auto weight = weights_.find(name);
  if (weight == weights_.end())
    throw FileError(text(printable(folder_), ": ", printable(name), ": is missing, expected ",
                         to_string(shape)));
  if (weight->second.shape != shape)
    throw FileError(text(printable(folder_), ": ", printable(name), ": shape is ",
                         to_string(weight->second.shape), ", expected ", to_string(shape)));
  return weight->second;
}

HostTensor Checkpoint::weight(const std::string& name,
                              const std::vector<std::int64_t>& shape) const {
  const Weight& weight = found(name, shape);
  HostTensor tensor{shape, {}, dtype_of(*weight.pieces.front())};
  tensor.values.reserve(std::size_t(element_count(shape)));
  for (const FolderTensor* const piece : weight.pieces) {
    append(*piece, piece->bytes(), 0, element_count(piece->entry.shape), tensor.values);
    if (dtype_of(*piece) != tensor.dtype) tensor.dtype = DType::float32;
  }
  return tensor;
}

std::string Checkpoint::fingerprint(DType type, const std::function<std::string()>& make) const {
  const std::lock_guard lock(fingerprints_mutex_);
  std::string& known = fingerprints_[type];
  if (known.empty()) known = make();
  return known;
}

HostTensor Checkpoint::part(const WeightBlock& block) const {
  const Weight& weight = found(block.name, block.shape);
  const std::int64_t piece_elements = element_count(weight.pieces.front()->entry.shape);
  HostTensor tensor{block.part_shape(), {}, dtype_of(*weight.pieces.front())};
  tensor.values.reserve(std::size_t(element_count(tensor.shape)));
  const FolderTensor* piece = nullptr;
  std::span<const std::byte> bytes;
  block.for_each_run([&](std::int64_t first, std::int64_t count) {
    if (first < 0) {
      tensor.values.insert(tensor.values.end(), std::size_t(count), 0.0f);
      return;
    }
    // A piece is whole rows, and a run lies in one row.
    const FolderTensor* const of_run = weight.pieces[std::size_t(first / piece_elements)];
    if (of_run != piece) {
      piece = of_run;
      bytes = piece->bytes();
      if (dtype_of(*piece) != tensor.dtype) tensor.dtype = DType::float32;
    }
    append(*piece, bytes, first % piece_elements, count, tensor.values);
  });
  return tensor;
}

}  // namespace tokenview
