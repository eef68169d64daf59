// SPDX-License-Identifier: Apache-2.0
#include "reference/program/presets.hpp"

namespace tokenview {
namespace {

/// Small enough to run in milliseconds. Heads, experts and widths divide by 8, so that tp = 8
/// replicates key/value heads, and the vocabulary needs padding.
ModelConfig tiny(ModelType type) {
  ModelConfig config;
  config.model_type = type;
  config.vocab_size = 160;
  config.hidden_size = 64;
  config.num_hidden_layers = 4;
  config.max_position_embeddings = 512;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.rope_theta = 1e7;
  config.rotary_dim = 4;
  config.linear_num_key_heads = 8;
  config.linear_num_value_heads = 16;
  config.linear_key_head_dim = 16;
  config.linear_value_head_dim = 16;
  config.num_experts = 16;
  config.num_experts_per_tok = 4;
  config.moe_intermediate_size = 32;
  config.shared_expert_intermediate_size = 32;
  config.layer_types = periodic_layer_types(config.num_hidden_layers, 4);
  if (type == ModelType::qwen3_next) {
    config.intermediate_size = 64;
  } else {
    config.rotary_dim = 8;
    config.mrope_section = {2, 1, 1};
    config.mrope_interleaved = true;
  }
  return config;
}

/// What the published Qwen models have in common.
/// Source: config.json of the checkpoints on the Hugging Face hub, read from third-party copies.
ModelConfig published(ModelType type, std::int64_t num_hidden_layers) {
  ModelConfig config;
  config.model_type = type;
  config.num_hidden_layers = num_hidden_layers;
  config.max_position_embeddings = 262144;
  config.num_key_value_heads = 2;
  config.head_dim = 256;
  config.rope_theta = 1e7;
  config.rotary_dim = 64;
  config.linear_num_key_heads = 16;
  config.linear_key_head_dim = 128;
  config.linear_value_head_dim = 128;
  config.layer_types = periodic_layer_types(num_hidden_layers, 4);
  if (type == ModelType::qwen3_5_moe) {
    config.vocab_size = 248320;
    config.mrope_section = {11, 11, 10};
    config.mrope_interleaved = true;
  }
  return config;
}

/// Qwen3-Next-80B-A3B.
ModelConfig qwen3_next_80b() {
  ModelConfig config = published(ModelType::qwen3_next, 48);
  config.vocab_size = 151936;
  config.hidden_size = 2048;
  config.num_attention_heads = 16;
  config.linear_num_value_heads = 32;
  config.intermediate_size = 5120;
  config.num_experts = 512;
  config.num_experts_per_tok = 10;
  config.moe_intermediate_size = 512;
  config.shared_expert_intermediate_size = 512;
  return config;
}

/// Qwen3.5-35B-A3B.
ModelConfig qwen3_5_35b() {
  ModelConfig config = published(ModelType::qwen3_5_moe, 40);
  config.hidden_size = 2048;
  config.num_attention_heads = 16;
  config.linear_num_value_heads = 32;
  config.num_experts = 256;
  config.num_experts_per_tok = 8;
  config.moe_intermediate_size = 512;
  config.shared_expert_intermediate_size = 512;
  return config;
}

/// Qwen3.5-122B-A10B.
ModelConfig qwen3_5_122b() {
  ModelConfig config = published(ModelType::qwen3_5_moe, 48);
  config.hidden_size = 3072;
  config.num_attention_heads = 32;
  config.linear_num_value_heads = 64;
  config.num_experts = 256;
  config.num_experts_per_tok = 8;
  config.moe_intermediate_size = 1024;
  config.shared_expert_intermediate_size = 1024;
  return config;
}

/// Qwen3.5-397B-A17B. Its mrope_section was not to be seen and is taken from its siblings; text
/// positions do not depend on it.
ModelConfig qwen3_5_397b() {
  ModelConfig config = published(ModelType::qwen3_5_moe, 60);
  config.hidden_size = 4096;
  config.num_attention_heads = 32;
  config.linear_num_value_heads = 64;
  config.num_experts = 512;
  config.num_experts_per_tok = 10;
  config.moe_intermediate_size = 1024;
  config.shared_expert_intermediate_size = 1024;
  return config;
}

/// DeepSeek-V2 (236B): layout only.
ModelConfig deepseek_v2() {
  ModelConfig config;
  config.model_type = ModelType::deepseek_v2;
  config.vocab_size = 102400;
  config.hidden_size = 5120;
  config.num_hidden_layers = 60;
  config.max_position_embeddings = 163840;
  config.num_attention_heads = 128;
  config.num_key_value_heads = 128;
  config.intermediate_size = 12288;
  config.num_experts = 160;
  config.num_experts_per_tok = 6;
  config.moe_intermediate_size = 1536;
  config.shared_expert_intermediate_size = 2 * 1536;
  config.norm_topk_prob = false;
  config.first_k_dense_replace = 1;
  config.num_mtp_layers = 0;
  config.layer_types.assign(60, LayerType::full_attention);
  return config;
}

/// DeepSeek-V3.2: layout only.
ModelConfig deepseek_v3_2() {
  ModelConfig config;
  config.model_type = ModelType::deepseek_v32;
  config.vocab_size = 129280;
  config.hidden_size = 7168;
  config.num_hidden_layers = 61;
  config.max_position_embeddings = 163840;
  config.num_attention_heads = 128;
  config.num_key_value_heads = 128;
  config.intermediate_size = 18432;
  config.num_experts = 256;
  config.num_experts_per_tok = 8;
  config.moe_intermediate_size = 2048;
  config.shared_expert_intermediate_size = 2048;
  config.first_k_dense_replace = 3;
  config.layer_types.assign(61, LayerType::full_attention);
  return config;
}

struct Preset {
  const char* name;
  ModelConfig (*config)();
};

constexpr Preset presets[] = {
    {"qwen3-next", [] { return tiny(ModelType::qwen3_next); }},
    {"qwen3.5-moe", [] { return tiny(ModelType::qwen3_5_moe); }},
    {"qwen3-next-80b", qwen3_next_80b},
    {"qwen3.5-35b", qwen3_5_35b},
    {"qwen3.5-122b", qwen3_5_122b},
    {"qwen3.5-397b", qwen3_5_397b},
    {"deepseek-v2", deepseek_v2},
    {"deepseek-v3.2", deepseek_v3_2},
};

}  // namespace

std::optional<ModelConfig> preset(std::string_view name) {
  for (const Preset& known : presets)
    if (name == known.name) return known.config();
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& known : presets) names.emplace_back(known.name);
  return names;
}

}  // namespace tokenview
