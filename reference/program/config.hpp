// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokenview {

enum class LayerType { linear_attention, full_attention };

/// Which model family a configuration describes. The DeepSeek and GLM families are read for the
/// fields that decide their token layout only; the program has no arithmetic for them.
/// glm_moe is GLM-5.x, which shares the code of DeepSeek-V3.2; glm4_moe is GLM-4.x.
enum class ModelType {
  qwen3_next,
  qwen3_5_moe,
  deepseek_v2,
  deepseek_v3,
  deepseek_v32,
  glm_moe,
  glm4_moe,
};

/// "qwen3_next", "qwen3_5_moe_text", ...: the `model_type` of a Hugging Face config.json.
const char* to_string(ModelType type);

/// Sizes and switches of one model, under the names of its Hugging Face configuration.
/// Sources: transformers configuration_qwen3_next.py and configuration_qwen3_5_moe.py.
struct ModelConfig {
  ModelType model_type = ModelType::qwen3_next;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  std::int64_t max_position_embeddings = 32768;

  // Full attention.
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  double rope_theta = 10000.0;
  std::int64_t rotary_dim = 0;              // int(head_dim * partial_rotary_factor), even
  std::vector<std::int64_t> mrope_section;  // empty: plain rotary embedding
  bool mrope_interleaved = false;

  // Gated DeltaNet.
  std::int64_t linear_conv_kernel_dim = 4;
  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;

  // Feed-forward.
  std::int64_t intermediate_size = 0;  // dense layers
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert
  bool norm_topk_prob = true;
  std::int64_t decoder_sparse_step = 1;
  std::vector<std::int64_t> mlp_only_layers;

  std::vector<LayerType> layer_types;  // one a layer
  std::int64_t num_mtp_layers = 1;

  // DeepSeek and GLM families: which layers are MoE (vllm deepseek_v2.py).
  std::int64_t first_k_dense_replace = 0;
  std::int64_t moe_layer_freq = 1;

  bool has_arithmetic() const {
    return model_type == ModelType::qwen3_next || model_type == ModelType::qwen3_5_moe;
  }
  std::int64_t key_dim() const { return linear_num_key_heads * linear_key_head_dim; }
  std::int64_t value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
  std::int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }

  /// The layer that the first MTP layer counts as: 0 in the Qwen families, where its place in the
  /// MTP stack decides, and in the others the one after the last.
  std::int64_t first_mtp_layer() const { return has_arithmetic() ? 0 : num_hidden_layers; }

  /// True when layer `layer` has a sparse MoE feed-forward.
  /// Sources: transformers modular_qwen3_next.py; vllm qwen3_next.py, deepseek_v2.py.
  bool is_moe_layer(std::int64_t layer) const;

  bool operator==(const ModelConfig&) const = default;
};

/// The longest model that validate() lets through.
inline constexpr std::int64_t max_hidden_layers = 16384;

/// Layer i of `num_layers` is full attention when (i + 1) % `interval` == 0, else Gated DeltaNet.
/// Source: transformers configuration_qwen3_next.py.
std::vector<LayerType> periodic_layer_types(std::int64_t num_layers, std::int64_t interval);

/// Throws ConfigError for a family that is read for its token layout only.
void require_arithmetic(const ModelConfig& config);

/// Throws ConfigError, naming the key, its value and what was expected, for sizes that no model can
/// have: not positive, absurdly large, indivisible heads, top-k over the number of experts, an odd
/// rotary width, an M-RoPE section of the wrong sum, a layer list of the wrong length.
void validate(const ModelConfig& config);

/// Throws ConfigError for draft steps of a model without MTP, and for a number of them over
/// n_predict, the model's MTP layers, that is no multiple of it. Source: vllm
/// config/speculative.py.
void require_draft_steps(const ModelConfig& config, std::int64_t draft_steps);

/// Degrees of parallelism. Ranks are numbered [dp, pp, tp], tp fastest.
struct ParallelConfig {
  std::int64_t tp = 1;  // tensor parallel
  std::int64_t dp = 1;  // data parallel
  std::int64_t pp = 1;  // pipeline parallel
  bool enable_expert_parallel = false;

  std::int64_t world_size() const { return dp * pp * tp; }

  bool operator==(const ParallelConfig&) const = default;
};

/// Where a rank is in a dp x pp x tp world; ranks are numbered with tp fastest.
/// Source: vllm parallel_state.py; expert parallelism spans dp x tp at one pipeline stage.
struct RankCoordinates {
  std::int64_t world = 0;
  std::int64_t tp = 0;
  std::int64_t pp = 0;
  std::int64_t dp = 0;
  std::int64_t ep = 0;
};

inline RankCoordinates coordinates_of(std::int64_t world, const ParallelConfig& parallel) {
  RankCoordinates at;
  at.world = world;
  at.tp = world % parallel.tp;
  at.pp = world / parallel.tp % parallel.pp;
  at.dp = world / (parallel.tp * parallel.pp);
  at.ep = at.dp * parallel.tp + at.tp;
  return at;
}

/// Throws ConfigError for a pair that a serving engine refuses at construction, with both numbers:
/// heads not divisible by tp, key/value heads neither dividing nor divided by tp, GDN heads or an
/// expert, shared expert or dense width not divisible, tp over the number of experts, expert
/// parallelism without experts, a padded vocabulary not divisible by tp.
/// The shared expert's width is free where sequence-parallel MoE replicates it: expert parallelism
/// with tp > 1 and dp > 1. Source: vllm qwen3_next.py, linear.py, parallel.py, model.py.
void validate(const ModelConfig& config, const ParallelConfig& parallel);

/// Vocabulary rows of the embedding and the head with their padding to a multiple of 64.
/// Source: vllm vocab_parallel_embedding.py.
inline std::int64_t padded_vocab_size(const ModelConfig& config) {
  return (config.vocab_size + 63) / 64 * 64;
}

}  // namespace tokenview
