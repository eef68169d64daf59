// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders as the Hugging Face library writes them, made of any weights.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reference/program/bfloat16.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/temporary_folder.hpp"

namespace tokenview {

/// The 16 bits of the nearest float16 of a value that is below its range's end.
inline std::uint16_t float16_bits(float value) {
  const auto sign = std::uint16_t(std::signbit(value) ? 0x8000 : 0);
  const float size = std::abs(value);
  if (size < 0x1p-14f) return std::uint16_t(sign | unsigned(std::nearbyint(size * 0x1p24f)));
  const auto bits = std::bit_cast<std::uint32_t>(size);
  return std::uint16_t(sign | (((bits + 0xfffu + ((bits >> 13) & 1u)) >> 13) - (112u << 10)));
}

/// A checkpoint to write, and to change or spoil before.
struct CheckpointDraft {
  struct Tensor {
    std::string dtype;  // "F32"
    std::vector<std::int64_t> shape;
    std::string bytes;
  };

  nlohmann::json config;
  std::map<std::string, Tensor> tensors;

  /// Every weight that `weights` has, merged experts, library names; in F32, BF16 or F16.
  CheckpointDraft(const ModelConfig& model, const std::string& config_json,
                  const WeightSource& weights, const std::string& dtype = "F32")
      : config(nlohmann::json::parse(config_json)) {
    for (const auto& [name, shape] : weight_shapes(model)) {
      if (!weights.contains(name)) continue;
      const std::vector<float> values = weights.weight(name, shape).values;
      tensors[name] = {dtype, shape, encoded(values, dtype)};
    }
  }

  static std::string encoded(const std::vector<float>& values, const std::string& dtype) {
    std::string bytes;
    for (const float value : values) {
      const auto append = [&](const auto& element) {
        bytes.append(reinterpret_cast<const char*>(&element), sizeof(element));
      };
      if (dtype == "F32")
        append(value);
      else if (dtype == "BF16")
        append(std::uint16_t(std::bit_cast<std::uint32_t>(round_to_bf16(value)) >> 16));
      else
        append(float16_bits(value));
    }
    return bytes;
  }

  /// Experts one by one, as transformers 5 saves them and published checkpoints have them.
  void split_experts() {
    const auto merged = tensors;
    for (const auto& [name, tensor] : merged) {
      const std::string experts = name.substr(0, name.rfind('.') + 1);
      const bool is_down = name.ends_with(".experts.down_proj");
      if (!is_down && !name.ends_with(".experts.gate_up_proj")) continue;
      const std::size_t pieces = is_down ? 1 : 2;
      const std::vector<std::int64_t> shape = {tensor.shape[1] / std::int64_t(pieces),
                                               tensor.shape[2]};
      const std::size_t bytes = tensor.bytes.size() / (std::size_t(tensor.shape[0]) * pieces);
      for (std::size_t i = 0; i < std::size_t(tensor.shape[0]) * pieces; ++i) {
        const char* const part = is_down ? "down" : i % 2 == 0 ? "gate" : "up";
        tensors[experts + std::to_string(i / pieces) + '.' + part + "_proj.weight"] = {
            tensor.dtype, shape, tensor.bytes.substr(i * bytes, bytes)};
      }
      tensors.erase(name);
    }
  }

  /// The text model of a vision-language model, with a small vision tower beside it.
  void nest() {
    nlohmann::json outer = {{"model_type", "qwen3_5_moe"}, {"text_config", config}};
    outer["text_config"]["model_type"] = "qwen3_5_moe_text";
    config = outer;
    std::map<std::string, Tensor> nested;
    for (auto& [name, tensor] : tensors)
      nested[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] =
          std::move(tensor);
    tensors = std::move(nested);
    tensors["model.visual.patch_embed.weight"] = {"F32", {2}, std::string(8, '\0')};
    tensors["model.visual.pos_embed.weight"] = {"F32", {1}, std::string(4, '\0')};
  }

  static std::string file_of(const std::map<std::string, Tensor>& of_shard) {
    nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const auto& [name, tensor] : of_shard) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    return bytes + text + data;
  }

  static std::string shard_name(std::size_t shard, std::size_t shards) {
    const auto digits = [](std::size_t number) {
      return (number < 10 ? "0000" : "000") + std::to_string(number);
    };
    return "model-" + digits(shard + 1) + "-of-" + digits(shards) + ".safetensors";
  }

  /// config.json and model.safetensors; or an index and so many shards, tensors in turn.
  void write(const std::string& folder, std::size_t shards = 0) const {
    std::filesystem::create_directories(folder);
    write_bytes(folder + "/config.json", config.dump(2));
    if (shards == 0) {
      write_bytes(folder + "/model.safetensors", file_of(tensors));
      return;
    }
    std::vector<std::map<std::string, Tensor>> parts(shards);
    nlohmann::json index = {{"metadata", {{"total_size", 0}}}};
    std::size_t next = 0;
    for (const auto& [name, tensor] : tensors) {
      index["weight_map"][name] = shard_name(next, shards);
      parts[next][name] = tensor;
      next = (next + 1) % shards;
    }
    for (std::size_t i = 0; i < shards; ++i)
      write_bytes(folder + "/" + shard_name(i, shards), file_of(parts[i]));
    write_bytes(folder + "/model.safetensors.index.json", index.dump(2));
  }
};

}  // namespace tokenview
