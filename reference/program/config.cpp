// SPDX-License-Identifier: Apache-2.0
#include "reference/program/config.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

// Limits far above any model, low enough that the largest tensor, [experts, 2 * width, width], has
// fewer than 2^58 elements: no product of sizes overflows.
constexpr std::int64_t max_width = std::int64_t{1} << 20;
constexpr std::int64_t max_count = std::int64_t{1} << 16;  // heads, experts, ranks
constexpr std::int64_t max_vocab = std::int64_t{1} << 28;
constexpr std::int64_t max_positions = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t max_conv_kernel = 1024;
constexpr std::int64_t max_mtp_layers = 256;

void require_range(const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    throw ConfigError(text(key, ": is ", value, ", expected an integer from ", low, " to ", high));
}

void require_multiple(const char* key, std::int64_t value, const char* divisor_key,
                      std::int64_t divisor) {
  if (value % divisor != 0)
    throw ConfigError(
        text(key, ": is ", value, ", expected a multiple of ", divisor_key, " (", divisor, ")"));
}

/// vLLM's `divide`, and what it raises.
void require_split(const char* what, std::int64_t size, const char* over, std::int64_t ranks) {
  if (size % ranks != 0)
    throw ConfigError(text(what, ": ", size, " is not divisible by ", over, " ", ranks));
}

/// Whether some layer of the model or of its MTP stack answers `moe` to is_moe_layer().
bool has_layer(const ModelConfig& config, bool moe) {
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    if (config.is_moe_layer(layer) == moe) return true;
  for (std::int64_t j = 0; j < config.num_mtp_layers; ++j)
    if (config.is_moe_layer(config.first_mtp_layer() + j) == moe) return true;
  return false;
}

void validate_rotary(const ModelConfig& config) {
  if (!(config.rope_theta > 0) || !std::isfinite(config.rope_theta))
    throw ConfigError(
        text("rope_theta: is ", config.rope_theta, ", expected a finite number above 0"));
  if (config.rotary_dim < 2 || config.rotary_dim > config.head_dim || config.rotary_dim % 2 != 0)
    throw ConfigError(text("partial_rotary_factor: gives a rotary width of ", config.rotary_dim,
                           ", expected an even number from 2 to head_dim (", config.head_dim, ")"));
  if (config.mrope_section.empty()) return;
  if (config.mrope_section.size() != 3)
    throw ConfigError(text("mrope_section: has ", config.mrope_section.size(),
                           " entries, expected 3 (temporal, height, width)"));
  for (const std::int64_t section : config.mrope_section)
    require_range("mrope_section", section, 0, config.rotary_dim / 2);
  const std::int64_t sum =
      std::accumulate(config.mrope_section.begin(), config.mrope_section.end(), std::int64_t{0});
  if (sum != config.rotary_dim / 2)
    throw ConfigError(text("mrope_section: sums to ", sum, ", expected half of the rotary width (",
                           config.rotary_dim / 2, ")"));
}

void validate_layers(const ModelConfig& config) {
  if (std::int64_t(config.layer_types.size()) != config.num_hidden_layers)
    throw ConfigError(text("layer_types: has ", config.layer_types.size(),
                           " entries, expected one for each of num_hidden_layers (",
                           config.num_hidden_layers, ")"));
  require_range("decoder_sparse_step", config.decoder_sparse_step, 1, max_width);
  const std::int64_t indices = std::max(config.num_hidden_layers, config.num_mtp_layers);
  if (std::int64_t(config.mlp_only_layers.size()) > indices)
    throw ConfigError(text("mlp_only_layers: has ", config.mlp_only_layers.size(),
                           " entries, expected at most one a layer (", indices, ")"));
  for (const std::int64_t layer : config.mlp_only_layers)
    require_range("mlp_only_layers", layer, 0, indices - 1);
  require_range("intermediate_size", config.intermediate_size, has_layer(config, false) ? 1 : 0,
                max_width);

  if (config.model_type != ModelType::qwen3_5_moe) return;
  if (config.num_experts == 0)
    throw ConfigError("num_experts: is 0, expected at least 1: every layer of this family is MoE");
  if (!config.norm_topk_prob)
    throw ConfigError("norm_topk_prob: is false, expected true: this family always renormalises");
  if (config.decoder_sparse_step != 1 || !config.mlp_only_layers.empty())
    throw ConfigError(
        "decoder_sparse_step, mlp_only_layers: name dense layers, expected none in this family");
}

}  // namespace

const char* to_string(ModelType type) {
  switch (type) {
    case ModelType::qwen3_next:
      return "qwen3_next";
    case ModelType::qwen3_5_moe:
      return "qwen3_5_moe_text";
    case ModelType::deepseek_v2:
      return "deepseek_v2";
    case ModelType::deepseek_v3:
      return "deepseek_v3";
    case ModelType::deepseek_v32:
      return "deepseek_v32";
    case ModelType::glm_moe:
      return "glm_moe_dsa";
    case ModelType::glm4_moe:
      return "glm4_moe";
  }
  return "unknown";
}

bool ModelConfig::is_moe_layer(std::int64_t layer) const {
  switch (model_type) {
    case ModelType::qwen3_next:
      return num_experts > 0 && (layer + 1) % decoder_sparse_step == 0 &&
             std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) ==
                 mlp_only_layers.end();
    case ModelType::qwen3_5_moe:
      return true;
    case ModelType::deepseek_v2:
    case ModelType::deepseek_v3:
    case ModelType::deepseek_v32:
    case ModelType::glm_moe:
    case ModelType::glm4_moe:
      break;
  }
  // No + 1 here: vllm deepseek_v2.py counts the period from layer 0.
  return num_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

std::vector<LayerType> periodic_layer_types(std::int64_t num_layers, std::int64_t interval) {
  require_range("num_hidden_layers", num_layers, 1, max_hidden_layers);
  require_range("full_attention_interval", interval, 1, max_width);
  std::vector<LayerType> types(std::size_t(num_layers), LayerType::linear_attention);
  for (std::int64_t layer = interval - 1; layer < num_layers; layer += interval)
    types[std::size_t(layer)] = LayerType::full_attention;
  return types;
}

void require_arithmetic(const ModelConfig& config) {
  if (!config.has_arithmetic())
    throw ConfigError(text("model_type: is ", to_string(config.model_type),
                           ", which is known by its token layout only; numeric work expects ",
                           to_string(ModelType::qwen3_next), " or ",
                           to_string(ModelType::qwen3_5_moe)));
}

void require_draft_steps(const ModelConfig& config, std::int64_t draft_steps) {
  const std::int64_t n_predict = config.num_mtp_layers;
  if (draft_steps > 0 && n_predict == 0)
    throw ConfigError(
        text("the model has no MTP layer: found ", draft_steps, " draft steps, expected 0"));
  if (draft_steps > n_predict && draft_steps % n_predict != 0)
    throw ConfigError(text("num_speculative_tokens:", draft_steps,
                           " must be divisible by n_predict=", n_predict, " (the MTP layers)"));
}

void validate(const ModelConfig& config) {
  require_range("num_hidden_layers", config.num_hidden_layers, 1, max_hidden_layers);
  require_range("vocab_size", config.vocab_size, 1, max_vocab);
  require_range("hidden_size", config.hidden_size, 1, max_width);
  require_range("max_position_embeddings", config.max_position_embeddings, 1, max_positions);
  require_range("num_attention_heads", config.num_attention_heads, 1, max_count);
  require_range("num_key_value_heads", config.num_key_value_heads, 1, max_count);
  require_multiple("num_attention_heads", config.num_attention_heads, "num_key_value_heads",
                   config.num_key_value_heads);
  // A zero row has a mean square of 0: without epsilon its norm is a NaN.
  if (!(config.rms_norm_eps > 0 && config.rms_norm_eps < 1))
    throw ConfigError(
        text("rms_norm_eps: is ", config.rms_norm_eps, ", expected a number between 0 and 1"));

  require_range("num_experts", config.num_experts, 0, max_count);
  if (config.num_experts > 0 &&
      (config.num_experts_per_tok < 1 || config.num_experts_per_tok > config.num_experts))
    throw ConfigError(text("num_experts_per_tok: is ", config.num_experts_per_tok,
                           ", expected an integer from 1 to num_experts (", config.num_experts,
                           ")"));
  const bool needs_widths = config.has_arithmetic() && config.num_experts > 0;
  require_range("moe_intermediate_size", config.moe_intermediate_size, needs_widths ? 1 : 0,
                max_width);
  require_range("shared_expert_intermediate_size", config.shared_expert_intermediate_size, 0,
                max_width);
  require_range(config.model_type == ModelType::qwen3_5_moe ? "mtp_num_hidden_layers"
                                                            : "num_nextn_predict_layers",
                config.num_mtp_layers, 0, max_mtp_layers);

  if (!config.has_arithmetic()) {
    require_range("intermediate_size", config.intermediate_size, 0, max_width);
    require_range("first_k_dense_replace", config.first_k_dense_replace, 0, max_hidden_layers);
    require_range("moe_layer_freq", config.moe_layer_freq, 1, max_hidden_layers);
    return;
  }
  require_range("head_dim", config.head_dim, 1, max_width);
  validate_rotary(config);
  require_range("linear_conv_kernel_dim", config.linear_conv_kernel_dim, 1, max_conv_kernel);
  require_range("linear_num_key_heads", config.linear_num_key_heads, 1, max_count);
  require_range("linear_num_value_heads", config.linear_num_value_heads, 1, max_count);
  require_multiple("linear_num_value_heads", config.linear_num_value_heads, "linear_num_key_heads",
                   config.linear_num_key_heads);
  require_range("linear_key_head_dim", config.linear_key_head_dim, 1, max_width);
  require_range("linear_value_head_dim", config.linear_value_head_dim, 1, max_width);
  validate_layers(config);
}

void validate(const ModelConfig& config, const ParallelConfig& parallel) {
  validate(config);
  require_range("tensor parallel size", parallel.tp, 1, max_count);
  require_range("data parallel size", parallel.dp, 1, max_count);
  require_range("pipeline parallel size", parallel.pp, 1, max_count);
  const std::int64_t tp = parallel.tp;

  if (config.num_attention_heads % tp != 0)
    throw ConfigError(text("Total number of attention heads (", config.num_attention_heads,
                           ") must be divisible by tensor parallel size (", tp, ")"));
  const std::int64_t kv_heads = config.num_key_value_heads;
  if (std::max(kv_heads, tp) % std::min(kv_heads, tp) != 0)
    throw ConfigError(text("Total number of key/value heads (", kv_heads,
                           ") must divide or be divisible by tensor parallel size (", tp, ")"));
  if (parallel.enable_expert_parallel && config.num_experts == 0)
    throw ConfigError(
        "Number of experts in the model must be greater than 0 when expert parallelism is "
        "enabled, found 0");

  const char* const over_tp = "tensor parallel size";
  if (has_layer(config, true)) {
    if (tp > config.num_experts)
      throw ConfigError(text("Tensor parallel size ", tp, " is greater than the number of experts ",
                             config.num_experts));
    // The experts' group is flattened over data and tensor parallel ranks.
    if (!parallel.enable_expert_parallel)
      require_split("moe_intermediate_size", config.moe_intermediate_size,
                    "expert tensor parallel size (data * tensor)", parallel.dp * tp);
    const bool shared_is_replicated = parallel.enable_expert_parallel && parallel.dp > 1;
    if (!shared_is_replicated)
      require_split("shared_expert_intermediate_size", config.shared_expert_intermediate_size,
                    over_tp, tp);
  }
  if (has_layer(config, false))
    require_split("intermediate_size", config.intermediate_size, over_tp, tp);
  require_split("vocab_size padded to a multiple of 64", padded_vocab_size(config), over_tp, tp);

  if (!config.has_arithmetic()) return;
  if (std::find(config.layer_types.begin(), config.layer_types.end(),
                LayerType::linear_attention) != config.layer_types.end()) {
    require_split("linear_num_key_heads", config.linear_num_key_heads, over_tp, tp);
    require_split("linear_num_value_heads", config.linear_num_value_heads, over_tp, tp);
  }
  if (config.num_mtp_layers > 0)  // mtp.fc is column parallel
    require_split("hidden_size", config.hidden_size, over_tp, tp);
}

}  // namespace tokenview
