// SPDX-License-Identifier: Apache-2.0
#include "reference/program/config_json.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "reference/program/error.hpp"
#include "reference/program/json_section.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {
namespace {

using nlohmann::json;

const std::vector<std::string> model_types = {"qwen3_next",  "qwen3_5_moe", "qwen3_5_moe_text",
                                              "deepseek_v2", "deepseek_v3", "deepseek_v32",
                                              "glm_moe_dsa", "glm4_moe",    "glm4_moe_lite"};

/// Keys of every Hugging Face configuration that do not touch inference of a text decoder.
constexpr std::string_view irrelevant_keys =
    "model_type architectures auto_map transformers_version _name_or_path name_or_path "
    "_commit_hash _attn_implementation _attn_implementation_autoset _attn_implementation_internal "
    "attn_implementation _experts_implementation experts_implementation dtype torch_dtype "
    "use_bfloat16 torchscript use_cache return_dict return_dict_in_generate output_attentions "
    "output_hidden_states output_scores output_router_logits router_aux_loss_coef aux_loss_alpha "
    "seq_aux ep_size pretraining_tp initializer_range attention_dropout chunk_size_feed_forward "
    "is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size "
    "tie_encoder_decoder pruned_heads tf_legacy_loss id2label label2id num_labels problem_type "
    "finetuning_task task_specific_params tokenizer_class prefix pad_token_id bos_token_id "
    "eos_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id "
    "bad_words_ids begin_suppress_tokens suppress_tokens max_length min_length max_new_tokens "
    "do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p "
    "typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size exponential_decay_length_penalty num_return_sequences "
    "remove_invalid_values";

/// Of the outer configuration of a vision-language model.
constexpr std::string_view vision_keys =
    "vision_config image_token_id video_token_id vision_start_token_id vision_end_token_id "
    "language_model_only";

/// Arithmetic of the families that are read for their layout only.
constexpr std::string_view layout_family_keys =
    "head_dim qk_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim kv_lora_rank q_lora_rank "
    "hidden_act attention_bias mlp_bias use_qk_norm rope_theta rope_scaling rope_parameters "
    "rope_interleave partial_rotary_factor n_group topk_group topk_method scoring_func "
    "routed_scaling_factor index_topk index_head_dim index_n_heads indexer_types index_topk_freq "
    "index_skip_topk_offset index_topk_pattern indexer_rope_interleave layer_types "
    "quantization_config";

/// rope_parameters, or the older top-level rope_theta, partial_rotary_factor and rope_scaling.
/// The inner keys win. Source: transformers modeling_rope_utils.py.
void read_rotary(JsonSection& file, ModelConfig& config, std::vector<std::string>& ignored) {
  double factor = file.number("partial_rotary_factor", 0.25);
  config.rope_theta = file.number("rope_theta", config.rope_theta);

  std::optional<JsonSection> rope = file.section("rope_parameters");
  if (std::optional<JsonSection> older = file.section("rope_scaling")) {
    if (rope && rope->object() != older->object())
      file.refuse("rope_scaling", "not the same as rope_parameters", "one of the two");
    rope = std::move(older);
  }
  if (rope) {
    for (const auto& [key, value] : rope->object().items())
      if (value.is_object()) rope->refuse(key, "an object", "one rotary embedding for all layers");
    // "mrope" is how older vision-language files spell a default embedding with sections.
    rope->require_name("rope_type", {"default", "mrope"});
    rope->require_name("type", {"default", "mrope"});
    factor = rope->number("partial_rotary_factor", factor);
    config.rope_theta = rope->number("rope_theta", config.rope_theta);
    config.mrope_section = rope->integers("mrope_section");
    config.mrope_interleaved = rope->boolean("mrope_interleaved", false);
    rope->ignore_unread(ignored);
  }
  if (!(factor > 0 && factor <= 1))
    file.refuse("partial_rotary_factor", text(factor), "a number above 0, up to 1");
  // Below 2^53 the product is exact enough to cut; validate() judges head_dim.
  const double width = double(config.head_dim) * factor;
  config.rotary_dim = std::abs(width) < 0x1p53 ? std::int64_t(width) : 0;
}

std::vector<LayerType> read_layer_types(JsonSection& file, std::int64_t num_layers) {
  const std::int64_t interval = file.integer("full_attention_interval", 4);
  const json* const list = file.find_set("layer_types");
  if (!list)
    return in_scope(file.source(), [&] { return periodic_layer_types(num_layers, interval); });
  std::vector<LayerType> types;
  for (const json& entry : file.to_array("layer_types", *list)) {
    if (entry == "linear_attention")
      types.push_back(LayerType::linear_attention);
    else if (entry == "full_attention")
      types.push_back(LayerType::full_attention);
    else
      file.refuse(text("layer_types[", types.size(), "]"), shown(entry),
                  "linear_attention or full_attention");
  }
  return types;
}

/// Defaults of one Qwen family. Sources: transformers configuration_qwen3_next.py,
/// configuration_qwen3_5_moe.py.
struct QwenDefaults {
  std::int64_t vocab_size, num_hidden_layers, num_experts, num_experts_per_tok;
  const char* mtp_key;
};
constexpr QwenDefaults qwen3_next_defaults{151936, 48, 512, 10, "num_nextn_predict_layers"};
constexpr QwenDefaults qwen3_5_moe_defaults{248320, 40, 256, 8, "mtp_num_hidden_layers"};

void read_qwen_switches(JsonSection& file, std::vector<std::string>& ignored) {
  file.require_name("hidden_act", {"silu", "swish"});
  file.require_name("output_gate_type", {"silu", "swish"});
  file.require_switch("attn_output_gate", true);
  file.require_switch("attention_bias", false);
  file.require_switch("qkv_bias", false);
  file.require_switch("layer_scale", false);
  file.require_switch("mtp_use_dedicated_embeddings", false);
  // No attention of these families has a window, whatever the file says.
  file.know("sliding_window max_window_layers");
  if (file.boolean("use_sliding_window", false)) file.ignore("use_sliding_window", ignored);
  // The recurrent state is kept in the dtype of the run, at least float32.
  const json* const state_dtype = file.find_set("mamba_ssm_dtype");
  if (state_dtype && *state_dtype != "float32") file.ignore("mamba_ssm_dtype", ignored);
}

ModelConfig read_qwen(JsonSection& file, ModelType type, std::vector<std::string>& ignored) {
  const bool is_next = type == ModelType::qwen3_next;
  const QwenDefaults& defaults = is_next ? qwen3_next_defaults : qwen3_5_moe_defaults;
  ModelConfig config;
  config.model_type = type;
  config.vocab_size = file.integer("vocab_size", defaults.vocab_size);
  config.hidden_size = file.integer("hidden_size", 2048);
  config.num_hidden_layers = file.integer("num_hidden_layers", defaults.num_hidden_layers);
  config.rms_norm_eps = file.number("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = file.boolean("tie_word_embeddings", false);
  config.max_position_embeddings = file.integer("max_position_embeddings", 32768);

  config.num_attention_heads = file.integer("num_attention_heads", 16);
  config.num_key_value_heads = file.integer("num_key_value_heads", 2);
  config.head_dim = file.integer("head_dim", 256);
  read_rotary(file, config, ignored);

  config.linear_conv_kernel_dim = file.integer("linear_conv_kernel_dim", 4);
  config.linear_num_key_heads = file.integer("linear_num_key_heads", 16);
  config.linear_num_value_heads = file.integer("linear_num_value_heads", 32);
  config.linear_key_head_dim = file.integer("linear_key_head_dim", 128);
  config.linear_value_head_dim = file.integer("linear_value_head_dim", 128);

  config.num_experts = file.integer("num_experts", defaults.num_experts);
  config.num_experts_per_tok = file.integer("num_experts_per_tok", defaults.num_experts_per_tok);
  config.moe_intermediate_size = file.integer("moe_intermediate_size", 512);
  config.shared_expert_intermediate_size = file.integer("shared_expert_intermediate_size", 512);
  const std::int64_t intermediate_size = file.integer("intermediate_size", is_next ? 5632 : 0);
  const bool norm_topk_prob = file.boolean("norm_topk_prob", true);
  const std::int64_t decoder_sparse_step = file.integer("decoder_sparse_step", 1);
  std::vector<std::int64_t> mlp_only_layers = file.integers("mlp_only_layers");
  if (is_next) {
    config.intermediate_size = intermediate_size;
    config.norm_topk_prob = norm_topk_prob;
    config.decoder_sparse_step = decoder_sparse_step;
    config.mlp_only_layers = std::move(mlp_only_layers);
  } else {
    // Every layer is MoE and the top-k weights are always renormalised, so these four mean
    // nothing; a value that would mean something elsewhere is told.
    if (!norm_topk_prob) file.ignore("norm_topk_prob", ignored);
    if (decoder_sparse_step != 1) file.ignore("decoder_sparse_step", ignored);
    if (!mlp_only_layers.empty()) file.ignore("mlp_only_layers", ignored);
  }

  config.layer_types = read_layer_types(file, config.num_hidden_layers);
  const json* const mtp_layers = file.find_set(defaults.mtp_key);
  config.num_mtp_layers = mtp_layers ? file.to_integer(defaults.mtp_key, *mtp_layers) : 1;
  read_qwen_switches(file, ignored);
  return config;
}

/// How many leading layers are dense when the file does not say.
/// Sources: transformers configuration_deepseek_v2.py, _deepseek_v3.py, _deepseek_v32.py,
/// _glm_moe_dsa.py, _glm4_moe.py.
std::int64_t default_dense_layers(const std::string& model_type) {
  if (model_type == "deepseek_v2") return 0;
  if (model_type == "glm4_moe" || model_type == "glm4_moe_lite") return 1;
  return 3;
}

/// `mlp_layer_types` names each layer "dense" or "sparse"; vLLM decides by first_k_dense_replace
/// and moe_layer_freq, so the two must agree.
void read_mlp_layer_types(JsonSection& file, ModelConfig& config) {
  const json* const list = file.find_set("mlp_layer_types");
  if (!list) return;
  const json& types = file.to_array("mlp_layer_types", *list);
  if (std::int64_t(types.size()) != config.num_hidden_layers)
    file.refuse("mlp_layer_types", shown(*list),
                text("one entry for each of num_hidden_layers (", config.num_hidden_layers, ")"));
  if (!file.has("first_k_dense_replace")) {
    const auto sparse = std::find(types.begin(), types.end(), "sparse");
    config.first_k_dense_replace = sparse - types.begin();
  }
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    const char* const expected = config.is_moe_layer(std::int64_t(layer)) ? "sparse" : "dense";
    if (types[layer] != expected)
      file.refuse(text("mlp_layer_types[", layer, "]"), shown(types[layer]),
                  text(expected, " by first_k_dense_replace (", config.first_k_dense_replace,
                       ") and moe_layer_freq (", config.moe_layer_freq, ")"));
  }
}

/// The fields that decide a token layout; require_arithmetic() tells that the rest was not read.
ModelConfig read_layout(JsonSection& file, ModelType type, const std::string& model_type) {
  ModelConfig config;
  config.model_type = type;
  config.hidden_size = file.integer("hidden_size");
  config.num_hidden_layers = file.integer("num_hidden_layers");
  config.vocab_size = file.integer("vocab_size");
  config.num_attention_heads = file.integer("num_attention_heads");
  const json* const kv_heads = file.find_set("num_key_value_heads");
  config.num_key_value_heads =
      kv_heads ? file.to_integer("num_key_value_heads", *kv_heads) : config.num_attention_heads;
  config.max_position_embeddings =
      file.integer("max_position_embeddings", config.max_position_embeddings);
  config.rms_norm_eps = file.number("rms_norm_eps", config.rms_norm_eps);
  config.tie_word_embeddings = file.boolean("tie_word_embeddings", false);

  // A null is how these files say that the model is dense.
  const json& experts = file.required("n_routed_experts");
  if (!experts.is_null()) {
    config.num_experts = file.to_integer("n_routed_experts", experts);
    config.num_experts_per_tok = file.integer("num_experts_per_tok");
  }
  config.intermediate_size = file.integer("intermediate_size", 0);
  config.moe_intermediate_size = file.integer("moe_intermediate_size", 0);
  if (const json* const shared = file.find_set("n_shared_experts")) {
    constexpr std::int64_t most = 1024;
    const std::int64_t count = file.to_integer("n_shared_experts", *shared);
    if (count < 0 || count > most)
      file.refuse("n_shared_experts", text(count), text("an integer from 0 to ", most));
    if (config.moe_intermediate_size < std::numeric_limits<std::int64_t>::max() / most)
      config.shared_expert_intermediate_size = count * config.moe_intermediate_size;
  }
  config.norm_topk_prob = file.boolean("norm_topk_prob", true);
  config.first_k_dense_replace =
      file.integer("first_k_dense_replace", default_dense_layers(model_type));
  config.moe_layer_freq = file.integer("moe_layer_freq", 1);
  const json* const mtp_layers = file.find_set("num_nextn_predict_layers");
  config.num_mtp_layers = mtp_layers ? file.to_integer("num_nextn_predict_layers", *mtp_layers) : 0;

  in_scope(file.source(), [&] { validate(config); });
  read_mlp_layer_types(file, config);
  config.layer_types.assign(std::size_t(config.num_hidden_layers), LayerType::full_attention);
  return config;
}

ModelType to_model_type(const JsonSection& file, const std::string& name) {
  if (name == "qwen3_next") return ModelType::qwen3_next;
  if (name == "qwen3_5_moe" || name == "qwen3_5_moe_text") return ModelType::qwen3_5_moe;
  if (name == "deepseek_v2") return ModelType::deepseek_v2;
  if (name == "deepseek_v3") return ModelType::deepseek_v3;
  if (name == "deepseek_v32") return ModelType::deepseek_v32;
  if (name == "glm_moe_dsa") return ModelType::glm_moe;
  if (name == "glm4_moe" || name == "glm4_moe_lite") return ModelType::glm4_moe;
  file.refuse("model_type", shown(json(name)),
              "one of " + joined(model_types) + suggestion(name, model_types));
}

/// The text decoder's part of a vision-language configuration.
ModelConfig read_nested(JsonSection& outer, JsonSection& file, std::vector<std::string>& ignored) {
  if (const json* const inner_type = file.find_set("model_type");
      inner_type && *inner_type != "qwen3_5_moe_text" && *inner_type != "qwen3_5_moe")
    file.refuse("model_type", shown(*inner_type), "qwen3_5_moe_text");
  ModelConfig config = read_qwen(file, ModelType::qwen3_5_moe, ignored);

  const bool tied = outer.boolean("tie_word_embeddings", config.tie_word_embeddings);
  if (file.has("tie_word_embeddings") && tied != config.tie_word_embeddings)
    outer.refuse("tie_word_embeddings", tied ? "true" : "false",
                 "the value of text_config.tie_word_embeddings");
  config.tie_word_embeddings = tied;
  file.know(irrelevant_keys);
  file.ignore_unread(ignored);
  outer.know(vision_keys);
  return config;
}

/// The smallest factor that cuts to this rotary width.
double partial_rotary_factor(const ModelConfig& config) {
  double factor = double(config.rotary_dim) / double(config.head_dim);
  while (std::int64_t(double(config.head_dim) * factor) < config.rotary_dim)
    factor = std::nextafter(factor, 2.0);
  return factor;
}

void write_qwen(const ModelConfig& config, json& file) {
  file["head_dim"] = config.head_dim;
  file["hidden_act"] = "silu";
  json& rope = file["rope_parameters"];
  rope["rope_type"] = "default";
  rope["rope_theta"] = config.rope_theta;
  rope["partial_rotary_factor"] = partial_rotary_factor(config);
  if (!config.mrope_section.empty()) rope["mrope_section"] = config.mrope_section;
  if (config.mrope_interleaved) rope["mrope_interleaved"] = true;
  file["linear_conv_kernel_dim"] = config.linear_conv_kernel_dim;
  file["linear_num_key_heads"] = config.linear_num_key_heads;
  file["linear_num_value_heads"] = config.linear_num_value_heads;
  file["linear_key_head_dim"] = config.linear_key_head_dim;
  file["linear_value_head_dim"] = config.linear_value_head_dim;
  file["num_experts"] = config.num_experts;
  file["num_experts_per_tok"] = config.num_experts_per_tok;
  file["moe_intermediate_size"] = config.moe_intermediate_size;
  file["shared_expert_intermediate_size"] = config.shared_expert_intermediate_size;
  json& types = file["layer_types"] = json::array();
  for (const LayerType type : config.layer_types)
    types.push_back(type == LayerType::full_attention ? "full_attention" : "linear_attention");
  if (config.model_type == ModelType::qwen3_5_moe) {
    file["mtp_num_hidden_layers"] = config.num_mtp_layers;
    return;
  }
  file["num_nextn_predict_layers"] = config.num_mtp_layers;
  file["intermediate_size"] = config.intermediate_size;
  file["norm_topk_prob"] = config.norm_topk_prob;
  file["decoder_sparse_step"] = config.decoder_sparse_step;
  file["mlp_only_layers"] = config.mlp_only_layers;
}

void write_layout(const ModelConfig& config, json& file) {
  if (config.num_experts > 0) {
    file["n_routed_experts"] = config.num_experts;
    file["num_experts_per_tok"] = config.num_experts_per_tok;
  } else {
    file["n_routed_experts"] = nullptr;
  }
  file["intermediate_size"] = config.intermediate_size;
  file["moe_intermediate_size"] = config.moe_intermediate_size;
  if (config.moe_intermediate_size > 0)
    file["n_shared_experts"] =
        config.shared_expert_intermediate_size / config.moe_intermediate_size;
  file["norm_topk_prob"] = config.norm_topk_prob;
  file["first_k_dense_replace"] = config.first_k_dense_replace;
  file["moe_layer_freq"] = config.moe_layer_freq;
  file["num_nextn_predict_layers"] = config.num_mtp_layers;
}

}  // namespace

ConfigReading read_config_json(std::string_view json_text, const std::string& source_name) {
  const json document = parse_strict_json(json_text, source_name);
  if (!document.is_object())
    throw ConfigError(text(source_name, ": holds ", shown(document), ", expected an object"));
  JsonSection file(document, "", source_name);
  const std::string& name = file.to_string("model_type", file.required("model_type"));
  const ModelType type = to_model_type(file, name);

  ConfigReading reading;
  std::vector<std::string>& ignored = reading.ignored_keys;
  std::optional<JsonSection> nested;
  if (type == ModelType::qwen3_5_moe) {
    nested = file.section("text_config");
    // The outer class has no text fields of its own: without them nothing is described at all.
    if (!nested && name == "qwen3_5_moe" && !file.has("hidden_size")) file.required("text_config");
  }
  const bool layout_only = type != ModelType::qwen3_next && type != ModelType::qwen3_5_moe;
  if (nested)
    reading.config = read_nested(file, *nested, ignored);
  else
    reading.config = layout_only ? read_layout(file, type, name) : read_qwen(file, type, ignored);

  file.know(irrelevant_keys);
  if (type == ModelType::qwen3_5_moe) file.know(vision_keys);
  if (layout_only) file.know(layout_family_keys);
  file.ignore_unread(ignored);
  std::sort(ignored.begin(), ignored.end());
  in_scope(source_name, [&] { validate(reading.config); });
  return reading;
}

ConfigReading read_config_file(const std::string& path) {
  const auto failed = [&](int error) {
    return FileError(text(path, ": cannot be read: ", std::generic_category().message(error),
                          "; expected a config.json"));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) throw failed(errno);
  // One byte over the limit is enough for the refusal, however long the file is.
  std::string document(max_json_bytes + 1, '\0');
  const std::size_t bytes = std::fread(document.data(), 1, document.size(), file.get());
  if (std::ferror(file.get())) throw failed(errno);
  document.resize(bytes);
  return read_config_json(document, path);
}

std::string write_config_json(const ModelConfig& config) {
  json file;
  file["model_type"] = to_string(config.model_type);
  file["vocab_size"] = config.vocab_size;
  file["hidden_size"] = config.hidden_size;
  file["num_hidden_layers"] = config.num_hidden_layers;
  file["rms_norm_eps"] = config.rms_norm_eps;
  file["tie_word_embeddings"] = config.tie_word_embeddings;
  file["max_position_embeddings"] = config.max_position_embeddings;
  file["num_attention_heads"] = config.num_attention_heads;
  file["num_key_value_heads"] = config.num_key_value_heads;
  if (config.has_arithmetic())
    write_qwen(config, file);
  else
    write_layout(config, file);
  return file.dump(2) + "\n";
}

}  // namespace tokenview
