// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "verify/hdf5_file.hpp"

namespace tokenview {
namespace {

using nlohmann::json;

const std::string golden_folder = TOKENVIEW_SOURCE_DIR "/data/golden/";
const std::vector<std::string> golden_names = {
    "qwen3_next_tiny",  "qwen3_next_mixed", "qwen3_next_tp8",  "qwen3_next_bf16",
    "qwen3_5_moe_tiny", "qwen3_5_moe_tp3",  "qwen3_5_moe_bf16"};

ConfigReading read(const json& file) { return read_config_json(file.dump(), "a.json"); }
ModelConfig config_of(const json& file) { return read(file).config; }

/// A complete file of the tiny model, with some keys changed. A null removes a key.
json next_with(const json& changes = json::object()) {
  json file = json::parse(write_config_json(*preset("qwen3-next")));
  file.merge_patch(changes);
  return file;
}

json next_5_with(const json& changes = json::object()) {
  json file = json::parse(write_config_json(*preset("qwen3.5-moe")));
  file.merge_patch(changes);
  return file;
}

json deepseek_with(const json& changes = json::object()) {
  json file = json::parse(write_config_json(*preset("deepseek-v3.2")));
  file.merge_patch(changes);
  return file;
}

/// The one line that refuses `text`, or "accepted".
std::string refusal_of_text(const std::string& file) {
  try {
    read_config_json(file, "a.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const json& file) { return refusal_of_text(file.dump()); }

std::string refusal(const ModelConfig& config, const ParallelConfig& parallel) {
  try {
    validate(config, parallel);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

// ---- reading

BOOST_AUTO_TEST_SUITE(reading)

BOOST_AUTO_TEST_CASE(absent_keys_of_qwen3_next_get_its_published_defaults) {
  const ModelConfig config = config_of({{"model_type", "qwen3_next"}});
  ModelConfig expected = *preset("qwen3-next-80b");
  expected.intermediate_size = 5632;
  expected.max_position_embeddings = 32768;
  expected.rope_theta = 10000;
  BOOST_TEST((config == expected));
}

BOOST_AUTO_TEST_CASE(absent_keys_of_qwen3_5_get_its_published_defaults) {
  const ModelConfig config = config_of({{"model_type", "qwen3_5_moe_text"}});
  ModelConfig expected = *preset("qwen3.5-35b");
  expected.max_position_embeddings = 32768;
  expected.rope_theta = 10000;
  expected.mrope_section.clear();
  expected.mrope_interleaved = false;
  BOOST_TEST((config == expected));
}

BOOST_AUTO_TEST_CASE(the_published_80b_file_is_its_preset) {
  const char* const file = R"({
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
    "model_type": "qwen3_next", "moe_intermediate_size": 512, "norm_topk_prob": true,
    "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 10000000, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0.dev0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})";
  const ConfigReading reading = read_config_json(file, "config.json");
  BOOST_TEST((reading.config == *preset("qwen3-next-80b")));
  BOOST_TEST(reading.ignored_keys.empty());
}

BOOST_AUTO_TEST_CASE(a_nested_text_config_is_read) {
  const json file = {{"model_type", "qwen3_5_moe"},
                     {"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                     {"image_token_id", 248056},
                     {"vision_config", {{"depth", 27}, {"hidden_size", 1152}}},
                     {"text_config",
                      {{"model_type", "qwen3_5_moe_text"},
                       {"max_position_embeddings", 262144},
                       {"num_hidden_layers", 40},
                       {"attn_output_gate", true},
                       {"mamba_ssm_dtype", "float32"},
                       {"mtp_num_hidden_layers", 1},
                       {"mtp_use_dedicated_embeddings", false},
                       {"rope_parameters",
                        {{"rope_type", "default"},
                         {"rope_theta", 10000000},
                         {"partial_rotary_factor", 0.25},
                         {"mrope_interleaved", true},
                         {"mrope_section", {11, 11, 10}}}}}}};
  const ConfigReading reading = read(file);
  BOOST_TEST((reading.config == *preset("qwen3.5-35b")));
  BOOST_TEST(reading.ignored_keys.empty());
}

BOOST_AUTO_TEST_CASE(a_flat_qwen3_5_moe_file_is_read_like_its_text_config) {
  json file = next_5_with({{"model_type", "qwen3_5_moe"}});
  BOOST_TEST((config_of(file) == *preset("qwen3.5-moe")));
}

BOOST_AUTO_TEST_CASE(a_layer_list_wins_over_the_interval) {
  const json list = {"full_attention", "linear_attention", "linear_attention", "linear_attention"};
  const ModelConfig config =
      config_of(next_with({{"layer_types", list}, {"full_attention_interval", 2}}));
  BOOST_TEST((config.layer_types[0] == LayerType::full_attention));
  BOOST_TEST((config.layer_types[1] == LayerType::linear_attention));
}

BOOST_AUTO_TEST_CASE(without_a_layer_list_the_interval_decides) {
  json file = next_with({{"layer_types", nullptr}, {"full_attention_interval", 3}});
  const std::vector<LayerType> types = config_of(file).layer_types;
  BOOST_TEST(types.size() == 4u);
  for (std::size_t layer = 0; layer < 4; ++layer)
    BOOST_TEST((types[layer] == LayerType::full_attention) == (layer == 2));
}

BOOST_AUTO_TEST_CASE(the_inner_rotary_factor_wins_over_the_top_level_one) {
  const ModelConfig config = config_of(next_with(
      {{"partial_rotary_factor", 0.25}, {"rope_parameters", {{"partial_rotary_factor", 0.5}}}}));
  BOOST_TEST(config.rotary_dim == 8);
}

BOOST_AUTO_TEST_CASE(older_top_level_rotary_keys_are_read) {
  const ModelConfig config = config_of(next_with(
      {{"rope_parameters", nullptr}, {"rope_theta", 5e6}, {"partial_rotary_factor", 0.5}}));
  BOOST_TEST(config.rope_theta == 5e6);
  BOOST_TEST(config.rotary_dim == 8);
}

BOOST_AUTO_TEST_CASE(sections_in_the_older_rope_scaling_are_read) {
  const ModelConfig config = config_of(next_5_with(
      {{"rope_parameters", nullptr},
       {"partial_rotary_factor", 0.5},
       {"rope_scaling",
        {{"type", "mrope"}, {"mrope_section", {2, 1, 1}}, {"mrope_interleaved", true}}}}));
  BOOST_TEST((config.mrope_section == std::vector<std::int64_t>{2, 1, 1}));
  BOOST_TEST(config.mrope_interleaved);
}

BOOST_AUTO_TEST_CASE(a_rotary_width_is_cut_not_rounded) {
  const json rope = {{"partial_rotary_factor", 0.9}};
  BOOST_TEST(config_of(next_with({{"rope_parameters", rope}})).rotary_dim == 14);  // 14.4
}

BOOST_AUTO_TEST_CASE(qwen3_5_tolerates_four_keys_of_its_sibling) {
  const ConfigReading neutral = read(next_5_with({{"intermediate_size", 9216},
                                                  {"norm_topk_prob", true},
                                                  {"decoder_sparse_step", 1},
                                                  {"mlp_only_layers", json::array()}}));
  BOOST_TEST((neutral.config == *preset("qwen3.5-moe")));
  BOOST_TEST(neutral.ignored_keys.empty());
}

BOOST_AUTO_TEST_CASE(qwen3_5_tells_which_of_the_four_it_does_not_obey) {
  const ConfigReading reading = read(next_5_with(
      {{"norm_topk_prob", false}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {0}}}));
  BOOST_TEST((reading.config == *preset("qwen3.5-moe")));
  BOOST_TEST(
      (reading.ignored_keys ==
       std::vector<std::string>{"decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"}));
}

BOOST_AUTO_TEST_CASE(unknown_keys_are_listed_with_their_path) {
  json inner = next_5_with({{"hiden_size", 64}, {"rope_parameters", {{"factor", 4.0}}}});
  const json file = {{"model_type", "qwen3_5_moe"},
                     {"text_config", inner},
                     {"quantization_config", json::object()}};
  BOOST_TEST((read(file).ignored_keys ==
              std::vector<std::string>{"quantization_config", "text_config.hiden_size",
                                       "text_config.rope_parameters.factor"}));
}

BOOST_AUTO_TEST_CASE(mtp_layers_are_counted_by_each_familys_own_key) {
  BOOST_TEST(config_of(next_with({{"num_nextn_predict_layers", 2}})).num_mtp_layers == 2);
  BOOST_TEST(config_of(next_5_with({{"mtp_num_hidden_layers", 0}})).num_mtp_layers == 0);
  BOOST_TEST(config_of(next_with({{"num_nextn_predict_layers", nullptr}})).num_mtp_layers == 1);
}

BOOST_AUTO_TEST_CASE(a_model_without_experts_is_dense) {
  const ModelConfig config = config_of(next_with({{"num_experts", 0}, {"num_experts_per_tok", 0}}));
  BOOST_TEST(!config.is_moe_layer(0));
}

BOOST_AUTO_TEST_CASE(deepseek_and_glm_are_read_for_their_layout_only) {
  const json file = {{"model_type", "glm4_moe"},
                     {"hidden_size", 4096},
                     {"num_hidden_layers", 46},
                     {"vocab_size", 151552},
                     {"num_attention_heads", 96},
                     {"num_key_value_heads", 8},
                     {"n_routed_experts", 128},
                     {"num_experts_per_tok", 8},
                     {"moe_intermediate_size", 1408},
                     {"n_shared_experts", 1},
                     {"num_nextn_predict_layers", 1},
                     {"attention_bias", true},
                     {"rope_scaling", {{"rope_type", "yarn"}}}};
  const ConfigReading reading = read(file);
  BOOST_TEST((reading.config.model_type == ModelType::glm4_moe));
  BOOST_TEST(reading.config.first_k_dense_replace == 1);
  BOOST_TEST(reading.config.shared_expert_intermediate_size == 1408);
  BOOST_TEST(reading.config.num_mtp_layers == 1);
  BOOST_TEST(reading.ignored_keys.empty());
  BOOST_CHECK_THROW(require_arithmetic(reading.config), ConfigError);
  BOOST_CHECK_THROW(weight_shapes(reading.config), ConfigError);
  BOOST_CHECK_NO_THROW(require_arithmetic(*preset("qwen3-next")));
}

BOOST_AUTO_TEST_CASE(deepseek_without_experts_is_dense) {
  json file = deepseek_with();
  file["n_routed_experts"] = nullptr;
  BOOST_TEST(!config_of(file).is_moe_layer(60));
}

BOOST_AUTO_TEST_CASE(mlp_layer_types_give_the_number_of_dense_layers) {
  json types = json::array();
  for (int layer = 0; layer < 61; ++layer) types.push_back(layer < 5 ? "dense" : "sparse");
  const json file = deepseek_with({{"first_k_dense_replace", nullptr}, {"mlp_layer_types", types}});
  BOOST_TEST(config_of(file).first_k_dense_replace == 5);
}

BOOST_AUTO_TEST_CASE(every_preset_reads_back_from_its_own_file) {
  for (const std::string& name : preset_names()) {
    const ConfigReading reading = read_config_json(write_config_json(*preset(name)), name);
    BOOST_TEST((reading.config == *preset(name)), name);
    BOOST_TEST(reading.ignored_keys.empty(), name);
  }
}

BOOST_AUTO_TEST_CASE(every_rotary_width_reads_back) {
  ModelConfig config = *preset("qwen3-next");
  for (config.head_dim = 2; config.head_dim <= 96; ++config.head_dim)
    for (config.rotary_dim = 2; config.rotary_dim <= config.head_dim; config.rotary_dim += 2)
      if (read_config_json(write_config_json(config), "w").config != config)
        BOOST_ERROR("head_dim " << config.head_dim << ", rotary_dim " << config.rotary_dim);
}

BOOST_AUTO_TEST_CASE(unusual_values_read_back) {
  ModelConfig config = *preset("qwen3-next");
  config.rms_norm_eps = 1.2345678901234567e-5;
  config.rope_theta = 1.0 / 3;
  config.tie_word_embeddings = true;
  config.norm_topk_prob = false;
  config.decoder_sparse_step = 2;
  config.mlp_only_layers = {1, 3};
  config.num_mtp_layers = 3;
  config.shared_expert_intermediate_size = 0;
  BOOST_TEST((read_config_json(write_config_json(config), "w").config == config));
}

BOOST_AUTO_TEST_CASE(every_golden_config_is_read_whole) {
  for (const std::string& name : golden_names) {
    const Hdf5File file = Hdf5File::open_read(golden_folder + name + ".h5");
    const ConfigReading reading = read_config_json(file.string("/config"), name);
    const bool is_next = name.rfind("qwen3_next", 0) == 0;
    BOOST_TEST(reading.ignored_keys.empty(), name);
    BOOST_TEST(reading.config.hidden_size == (name == "qwen3_5_moe_tp3" ? 96 : 64), name);
    BOOST_TEST(reading.config.num_attention_heads == (name == "qwen3_5_moe_tp3" ? 6 : 8), name);
    BOOST_TEST(reading.config.linear_num_key_heads == (name == "qwen3_next_tp8"    ? 8
                                                       : name == "qwen3_5_moe_tp3" ? 3
                                                                                   : 4),
               name);
    BOOST_TEST(reading.config.rotary_dim == (is_next ? 4 : 8), name);
    BOOST_TEST(reading.config.mrope_interleaved == !is_next, name);
    BOOST_TEST(reading.config.rope_theta == 1e7, name);
    BOOST_TEST(reading.config.num_mtp_layers == 1, name);
    BOOST_TEST(reading.config.is_moe_layer(1) == (name != "qwen3_next_mixed"), name);
    BOOST_TEST((read_config_json(write_config_json(reading.config), name).config == reading.config),
               name);
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- refusals of a file

BOOST_AUTO_TEST_SUITE(refusing)

#define BOOST_CHECK_REFUSAL(found, ...) BOOST_TEST((found) == text(__VA_ARGS__))

BOOST_AUTO_TEST_CASE(an_unknown_model_type_is_refused_with_the_nearest) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"model_type", "qwen3_nxt"}})),
      "a.json: model_type: is \"qwen3_nxt\", expected one of qwen3_next, qwen3_5_moe, "
      "qwen3_5_moe_text, deepseek_v2, deepseek_v3, deepseek_v32, glm_moe_dsa, glm4_moe, "
      "glm4_moe_lite, did you mean qwen3_next?");
}

BOOST_AUTO_TEST_CASE(a_missing_model_type_is_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"model_type", nullptr}})),
                      "a.json: model_type: is missing, expected it: no default");
}

BOOST_AUTO_TEST_CASE(a_missing_text_config_is_refused) {
  BOOST_CHECK_REFUSAL(refusal({{"model_type", "qwen3_5_moe"}}),
                      "a.json: text_config: is missing, expected it: no default");
}

BOOST_AUTO_TEST_CASE(a_text_config_of_another_model_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal({{"model_type", "qwen3_5_moe"}, {"text_config", next_with()}}),
      "a.json: text_config.model_type: is \"qwen3_next\", expected qwen3_5_moe_text");
}

BOOST_AUTO_TEST_CASE(a_text_config_that_is_no_object_is_refused) {
  BOOST_CHECK_REFUSAL(refusal({{"model_type", "qwen3_5_moe"}, {"text_config", {1, 2}}}),
                      "a.json: text_config: is an array of 2, expected an object");
}

BOOST_AUTO_TEST_CASE(inner_and_outer_tied_embeddings_must_agree) {
  BOOST_CHECK_REFUSAL(refusal({{"model_type", "qwen3_5_moe"},
                               {"tie_word_embeddings", true},
                               {"text_config", next_5_with({{"tie_word_embeddings", false}})}}),
                      "a.json: tie_word_embeddings: is true, expected the value of "
                      "text_config.tie_word_embeddings");
}

BOOST_AUTO_TEST_CASE(a_missing_layout_key_is_refused) {
  for (const char* const key : {"hidden_size", "num_hidden_layers", "vocab_size",
                                "num_attention_heads", "n_routed_experts", "num_experts_per_tok"})
    BOOST_CHECK_REFUSAL(refusal(deepseek_with({{key, nullptr}})), "a.json: ", key,
                        ": is missing, expected it: no default");
}

BOOST_AUTO_TEST_CASE(a_wrong_type_is_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"hidden_size", "64"}})),
                      "a.json: hidden_size: is \"64\", expected an integer below 2^63");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"num_experts", true}})),
                      "a.json: num_experts: is true, expected an integer below 2^63");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"rms_norm_eps", "1e-6"}})),
                      "a.json: rms_norm_eps: is \"1e-6\", expected a number");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"norm_topk_prob", 1}})),
                      "a.json: norm_topk_prob: is 1, expected true or false");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"layer_types", "full_attention"}})),
                      "a.json: layer_types: is \"full_attention\", expected an array");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"model_type", 3}})),
                      "a.json: model_type: is 3, expected a string");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"hidden_act", 3}})),
                      "a.json: hidden_act: is 3, expected a string");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"rope_parameters", 3}})),
                      "a.json: rope_parameters: is 3, expected an object");
}

BOOST_AUTO_TEST_CASE(a_null_where_a_size_belongs_is_refused) {
  json file = next_with();
  file["hidden_size"] = nullptr;
  BOOST_CHECK_REFUSAL(refusal(file),
                      "a.json: hidden_size: is null, expected an integer below 2^63");
}

BOOST_AUTO_TEST_CASE(a_fraction_where_an_integer_belongs_is_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"hidden_size", 64.0}})),
                      "a.json: hidden_size: is 64.0, expected an integer below 2^63");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"mlp_only_layers", {0, 1.5}}})),
                      "a.json: mlp_only_layers[1]: is 1.5, expected an integer below 2^63");
}

BOOST_AUTO_TEST_CASE(an_integer_of_more_than_63_bits_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"vocab_size", std::numeric_limits<std::uint64_t>::max()}})),
      "a.json: vocab_size: is 18446744073709551615, expected an integer below 2^63");
}

BOOST_AUTO_TEST_CASE(a_size_that_is_not_positive_is_refused) {
  for (const char* const key :
       {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
        "num_key_value_heads", "head_dim", "linear_conv_kernel_dim", "linear_num_key_heads",
        "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "moe_intermediate_size", "max_position_embeddings", "decoder_sparse_step"})
    for (const int size : {0, -4}) {
      const std::string found = refusal(next_with({{key, size}}));
      BOOST_TEST(
          found.rfind(text("a.json: ", key, ": is ", size, ", expected an integer from 1"), 0) == 0,
          found);
    }
}

BOOST_AUTO_TEST_CASE(a_negative_count_is_refused) {
  for (const char* const key : {"num_experts", "shared_expert_intermediate_size",
                                "num_nextn_predict_layers", "intermediate_size"}) {
    const std::string found = refusal(next_with({{key, -1}}));
    BOOST_TEST(found.rfind(text("a.json: ", key, ": is -1, expected an integer from 0"), 0) == 0,
               found);
  }
}

BOOST_AUTO_TEST_CASE(an_absurd_size_is_refused_at_once) {
  for (const char* const key :
       {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "head_dim",
        "linear_num_value_heads", "num_experts", "moe_intermediate_size",
        "num_nextn_predict_layers", "intermediate_size"}) {
    const std::string found =
        refusal(next_with({{key, std::int64_t{1} << 40}, {"layer_types", nullptr}}));
    BOOST_TEST(found.rfind(text("a.json: ", key, ": is 1099511627776, expected "), 0) == 0, found);
  }
}

BOOST_AUTO_TEST_CASE(heads_that_do_not_divide_are_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"num_key_value_heads", 3}})),
      "a.json: num_attention_heads: is 8, expected a multiple of num_key_value_heads (3)");
}

BOOST_AUTO_TEST_CASE(gdn_heads_that_do_not_divide_are_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"linear_num_key_heads", 5}})),
      "a.json: linear_num_value_heads: is 16, expected a multiple of linear_num_key_heads (5)");
}

BOOST_AUTO_TEST_CASE(more_choices_than_experts_are_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"num_experts_per_tok", 17}})),
      "a.json: num_experts_per_tok: is 17, expected an integer from 1 to num_experts (16)");
  BOOST_CHECK_REFUSAL(
      refusal(deepseek_with({{"num_experts_per_tok", 257}})),
      "a.json: num_experts_per_tok: is 257, expected an integer from 1 to num_experts (256)");
}

BOOST_AUTO_TEST_CASE(no_choice_among_experts_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"num_experts_per_tok", 0}})),
      "a.json: num_experts_per_tok: is 0, expected an integer from 1 to num_experts (16)");
}

BOOST_AUTO_TEST_CASE(an_unknown_layer_type_is_refused) {
  const json types = {"linear_attention", "linear_attention", "sliding_attention",
                      "full_attention"};
  BOOST_CHECK_REFUSAL(refusal(next_with({{"layer_types", types}})),
                      "a.json: layer_types[2]: is \"sliding_attention\", expected "
                      "linear_attention or full_attention");
}

BOOST_AUTO_TEST_CASE(a_layer_list_of_the_wrong_length_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"layer_types", {"full_attention"}}})),
      "a.json: layer_types: has 1 entries, expected one for each of num_hidden_layers (4)");
}

BOOST_AUTO_TEST_CASE(an_interval_that_is_not_positive_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"layer_types", nullptr}, {"full_attention_interval", 0}})),
      "a.json: full_attention_interval: is 0, expected an integer from 1 to 1048576");
}

BOOST_AUTO_TEST_CASE(a_dense_layer_that_does_not_exist_is_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"mlp_only_layers", {1, 4}}})),
                      "a.json: mlp_only_layers: is 4, expected an integer from 0 to 3");
}

BOOST_AUTO_TEST_CASE(more_dense_layers_than_layers_are_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"mlp_only_layers", {0, 1, 2, 3, 0}}})),
                      "a.json: mlp_only_layers: has 5 entries, expected at most one a layer (4)");
}

BOOST_AUTO_TEST_CASE(dense_layers_need_a_width) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"mlp_only_layers", {1}}, {"intermediate_size", 0}})),
                      "a.json: intermediate_size: is 0, expected an integer from 1 to 1048576");
}

BOOST_AUTO_TEST_CASE(qwen3_5_without_experts_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_5_with({{"num_experts", 0}})),
      "a.json: num_experts: is 0, expected at least 1: every layer of this family is MoE");
}

BOOST_AUTO_TEST_CASE(an_odd_rotary_width_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"rope_parameters", {{"partial_rotary_factor", 0.2}}}})),
      "a.json: partial_rotary_factor: gives a rotary width of 3, expected an even number from 2 to "
      "head_dim (16)");
}

BOOST_AUTO_TEST_CASE(a_rotary_factor_outside_zero_to_one_is_refused) {
  for (const char* const factor : {"0.0", "-0.5", "1.5"})
    BOOST_CHECK_REFUSAL(
        refusal(next_with({{"rope_parameters", {{"partial_rotary_factor", json::parse(factor)}}}})),
        "a.json: partial_rotary_factor: is ", json::parse(factor).get<double>(),
        ", expected a number above 0, up to 1");
}

BOOST_AUTO_TEST_CASE(sections_of_the_wrong_sum_are_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_5_with({{"rope_parameters", {{"mrope_section", {2, 2, 1}}}}})),
                      "a.json: mrope_section: sums to 5, expected half of the rotary width (4)");
}

BOOST_AUTO_TEST_CASE(a_number_of_sections_other_than_three_is_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_5_with({{"rope_parameters", {{"mrope_section", {2, 2}}}}})),
                      "a.json: mrope_section: has 2 entries, expected 3 (temporal, height, width)");
}

BOOST_AUTO_TEST_CASE(a_rotary_base_that_is_not_positive_is_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"rope_parameters", {{"rope_theta", 0}}}})),
                      "a.json: rope_theta: is 0, expected a finite number above 0");
}

BOOST_AUTO_TEST_CASE(two_different_rotary_descriptions_are_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"rope_scaling", {{"rope_type", "default"}}}})),
      "a.json: rope_scaling: is not the same as rope_parameters, expected one of the two");
}

BOOST_AUTO_TEST_CASE(rotary_parameters_by_layer_type_are_refused) {
  BOOST_CHECK_REFUSAL(
      refusal(next_with({{"rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}}})),
      "a.json: rope_parameters.full_attention: is an object, expected one rotary embedding for all "
      "layers");
}

BOOST_AUTO_TEST_CASE(an_epsilon_outside_zero_to_one_is_refused) {
  for (const char* const epsilon : {"0", "-1e-06", "1"})
    BOOST_CHECK_REFUSAL(refusal(next_with({{"rms_norm_eps", json::parse(epsilon)}})),
                        "a.json: rms_norm_eps: is ", epsilon,
                        ", expected a number between 0 and 1");
}

BOOST_AUTO_TEST_CASE(switches_without_arithmetic_are_refused) {
  const std::pair<const char*, bool> switches[] = {{"attn_output_gate", true},
                                                   {"attention_bias", false},
                                                   {"qkv_bias", false},
                                                   {"layer_scale", false},
                                                   {"mtp_use_dedicated_embeddings", false}};
  for (const auto& [key, only] : switches) {
    BOOST_TEST((config_of(next_with({{key, only}})) == *preset("qwen3-next")), key);
    BOOST_CHECK_REFUSAL(refusal(next_with({{key, !only}})), "a.json: ", key, ": is ",
                        only ? "false" : "true", ", expected ", only ? "true" : "false",
                        ": the program has no arithmetic for the other");
  }
}

BOOST_AUTO_TEST_CASE(names_without_arithmetic_are_refused) {
  BOOST_CHECK_REFUSAL(refusal(next_with({{"hidden_act", "gelu"}})),
                      "a.json: hidden_act: is \"gelu\", expected silu, swish: the program has no "
                      "arithmetic for others");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"output_gate_type", "sigmoid"}})),
                      "a.json: output_gate_type: is \"sigmoid\", expected silu, swish: the program "
                      "has no arithmetic for others");
  BOOST_CHECK_REFUSAL(refusal(next_with({{"rope_parameters", {{"rope_type", "yarn"}}}})),
                      "a.json: rope_parameters.rope_type: is \"yarn\", expected default, mrope: "
                      "the program has no arithmetic for others");
}

BOOST_AUTO_TEST_CASE(layout_fields_that_cannot_be_are_refused) {
  BOOST_CHECK_REFUSAL(refusal(deepseek_with({{"moe_layer_freq", 0}})),
                      "a.json: moe_layer_freq: is 0, expected an integer from 1 to 16384");
  BOOST_CHECK_REFUSAL(refusal(deepseek_with({{"first_k_dense_replace", -1}})),
                      "a.json: first_k_dense_replace: is -1, expected an integer from 0 to 16384");
  BOOST_CHECK_REFUSAL(refusal(deepseek_with({{"n_shared_experts", 2000}})),
                      "a.json: n_shared_experts: is 2000, expected an integer from 0 to 1024");
  BOOST_CHECK_REFUSAL(refusal(deepseek_with({{"mlp_layer_types", {"dense"}}})),
                      "a.json: mlp_layer_types: is an array of 1, expected one entry for each of "
                      "num_hidden_layers (61)");
  BOOST_CHECK_REFUSAL(
      refusal(deepseek_with({{"mlp_layer_types", std::vector<std::string>(61, "sparse")}})),
      "a.json: mlp_layer_types[0]: is \"sparse\", expected dense by first_k_dense_replace (3) and "
      "moe_layer_freq (1)");
}

BOOST_AUTO_TEST_CASE(an_empty_text_is_refused) {
  for (const char* const empty : {"", " \n\t "})
    BOOST_CHECK_REFUSAL(refusal_of_text(empty), "a.json: is empty, expected a JSON object");
}

BOOST_AUTO_TEST_CASE(malformed_json_is_refused_with_its_place) {
  BOOST_CHECK_REFUSAL(refusal_of_text("{\n  \"hidden_size\": 64,\n  }"),
                      "a.json: malformed JSON at line 3, column 3: unexpected '}' after key "
                      "hidden_size, expected valid JSON in UTF-8");
  BOOST_CHECK_REFUSAL(refusal_of_text("{\"a\": 1"),
                      "a.json: malformed JSON at line 1, column 8: the text ends early, expected "
                      "more");
  BOOST_CHECK_REFUSAL(refusal_of_text("{} {}"),
                      "a.json: malformed JSON at line 1, column 4: unexpected '{', expected valid "
                      "JSON in UTF-8");
}

BOOST_AUTO_TEST_CASE(text_that_is_no_object_is_refused) {
  BOOST_CHECK_REFUSAL(refusal_of_text("[1, 2, 3]"),
                      "a.json: holds an array of 3, expected an object");
  BOOST_CHECK_REFUSAL(refusal_of_text("7"), "a.json: holds 7, expected an object");
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_utf_8_are_refused) {
  BOOST_CHECK_REFUSAL(refusal_of_text("{\"name\": \"\xff\"}"),
                      "a.json: malformed JSON at line 1, column 11: unexpected byte 255 after key "
                      "name, expected valid JSON in UTF-8");
}

BOOST_AUTO_TEST_CASE(a_zero_byte_does_not_end_the_text) {
  BOOST_CHECK_REFUSAL(
      refusal_of_text(std::string("{}\0}", 4)),
      "a.json: malformed JSON at line 1, column 3: a zero byte, expected UTF-8 text");
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_are_refused) {
  for (const char* const word : {"NaN", "Infinity", "-Infinity", "nan", "inf", "-NaN"})
    BOOST_CHECK_REFUSAL(
        refusal_of_text(text("{\"rope_parameters\": {\"rope_theta\": ", word, "}}")),
        "a.json: rope_parameters.rope_theta: is ", word, " (line 1, column ", 36,
        "), expected a finite number");
}

BOOST_AUTO_TEST_CASE(a_number_out_of_range_is_refused) {
  BOOST_CHECK_REFUSAL(
      refusal_of_text("{\"rms_norm_eps\": 1e999}"),
      "a.json: rms_norm_eps: is a number out of range, expected at most 1.8e308 in magnitude");
}

BOOST_AUTO_TEST_CASE(a_key_that_appears_twice_is_refused) {
  BOOST_CHECK_REFUSAL(refusal_of_text("{\"a\": {\"b\": 1, \"c\": 2, \"b\": 3}}"),
                      "a.json: a.b: appears twice in one object, expected once");
  BOOST_CHECK_REFUSAL(refusal_of_text("{\"a\": {\"b\": 1}, \"c\": {\"b\": 1}}"),
                      "a.json: model_type: is missing, expected it: no default");
}

BOOST_AUTO_TEST_CASE(a_million_brackets_are_refused) {
  BOOST_CHECK_REFUSAL(refusal_of_text("{\"a\": " + std::string(1000000, '[')),
                      "a.json: a: is nested deeper than 64 levels, expected a config.json");
}

BOOST_AUTO_TEST_CASE(a_text_over_the_limit_is_refused) {
  BOOST_CHECK_REFUSAL(refusal_of_text(std::string((16 << 20) + 1, ' ')),
                      "a.json: has 16777217 bytes, expected a config.json of at most 16777216");
}

BOOST_AUTO_TEST_CASE(a_long_value_does_not_fill_the_message) {
  const std::string found = refusal(next_with({{"model_type", std::string(100000, 'x')}}));
  BOOST_TEST(found.size() < 400u, found.substr(0, 500));
}

BOOST_AUTO_TEST_CASE(a_file_that_is_missing_is_refused) {
  const auto tells = [](const FileError& error) {
    return error.what() == std::string(
                               "/nowhere/config.json: cannot be read: No such file or directory; "
                               "expected a config.json");
  };
  BOOST_CHECK_EXCEPTION(read_config_file("/nowhere/config.json"), FileError, tells);
}

BOOST_AUTO_TEST_CASE(a_folder_is_refused) {
  const auto tells = [](const FileError& error) {
    return error.what() == std::string("/: cannot be read: Is a directory; expected a config.json");
  };
  BOOST_CHECK_EXCEPTION(read_config_file("/"), FileError, tells);
}

BOOST_AUTO_TEST_CASE(an_endless_file_is_refused) {
  BOOST_CHECK_THROW(read_config_file("/dev/zero"), FileError);
}

BOOST_AUTO_TEST_CASE(a_file_is_read_and_named_in_its_refusal) {
  const std::string path = "test_config.json";
  std::ofstream(path) << next_with().dump();
  BOOST_TEST((read_config_file(path).config == *preset("qwen3-next")));
  std::ofstream(path) << "{";
  const auto tells = [&](const FileError& error) {
    return std::string(error.what()).rfind(path + ": ", 0) == 0;
  };
  BOOST_CHECK_EXCEPTION(read_config_file(path), FileError, tells);
  std::remove(path.c_str());
}

BOOST_AUTO_TEST_CASE(damaged_files_are_read_or_refused_and_nothing_else) {
  std::mt19937 random(1);
  int refused = 0;
  const std::string whole[] = {next_with().dump(), next_5_with().dump(), deepseek_with().dump()};
  for (int round = 0; round < 3000; ++round) {
    std::string file = whole[round % 3];
    for (std::uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % file.size();
      const std::size_t kind = random() % 4;
      if (kind == 0) file[at] = char(random());
      if (kind == 1) file.erase(at, 1 + random() % 8);
      if (kind == 2) file.insert(at, 1, "0123456789-.e\"[]{},:"[random() % 20]);
      if (kind == 3) file.insert(at, file.substr(random() % file.size(), random() % 20));
    }
    try {
      const ModelConfig config = read_config_json(file, "a.json").config;
      BOOST_TEST((read_config_json(write_config_json(config), "w").config == config), file);
    } catch (const Error& error) {
      ++refused;
      BOOST_TEST(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  BOOST_TEST(refused > 1000);
  BOOST_TEST(refused < 3000);
}

BOOST_AUTO_TEST_SUITE_END()

// ---- which layers are sparse

BOOST_AUTO_TEST_SUITE(sparse_layers)

std::string sparse_pattern(const ModelConfig& config, std::int64_t layers) {
  std::string pattern;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    pattern += config.is_moe_layer(layer) ? 's' : 'd';
  return pattern;
}

BOOST_AUTO_TEST_CASE(a_sparse_step_counts_from_one) {
  ModelConfig config = *preset("qwen3-next");
  config.decoder_sparse_step = 2;
  BOOST_TEST(sparse_pattern(config, 6) == "dsdsds");
}

BOOST_AUTO_TEST_CASE(mlp_only_layers_are_dense) {
  ModelConfig config = *preset("qwen3-next");
  config.mlp_only_layers = {0, 2};
  BOOST_TEST(sparse_pattern(config, 4) == "dsds");
}

BOOST_AUTO_TEST_CASE(qwen3_5_has_no_dense_layer) {
  BOOST_TEST(sparse_pattern(*preset("qwen3.5-moe"), 4) == "ssss");
}

BOOST_AUTO_TEST_CASE(the_deepseek_period_counts_from_zero) {
  ModelConfig config = *preset("deepseek-v2");
  config.first_k_dense_replace = 3;
  config.moe_layer_freq = 2;
  BOOST_TEST(sparse_pattern(config, 8) == "ddddsdsd");
}

BOOST_AUTO_TEST_SUITE_END()

// ---- degrees of parallelism

BOOST_AUTO_TEST_SUITE(parallel)

BOOST_AUTO_TEST_CASE(the_tiny_presets_run_on_one_to_eight_ranks) {
  for (const char* const name : {"qwen3-next", "qwen3.5-moe"})
    for (const std::int64_t tp : {1, 2, 4, 8})
      for (const std::int64_t dp : {1, 2, 4})
        for (const bool expert_parallel : {false, true})
          BOOST_TEST(
              refusal(*preset(name),
                      {.tp = tp, .dp = dp, .pp = 1, .enable_expert_parallel = expert_parallel}) ==
              "accepted");
}

BOOST_AUTO_TEST_CASE(published_models_run_on_sixteen_ranks_but_not_on_thirty_two) {
  BOOST_TEST(refusal(*preset("qwen3.5-397b"), {.tp = 16}) == "accepted");
  BOOST_CHECK_REFUSAL(refusal(*preset("qwen3.5-397b"), {.tp = 32}),
                      "linear_num_key_heads: 16 is not divisible by tensor parallel size 32");
}

BOOST_AUTO_TEST_CASE(attention_heads_must_divide) {
  BOOST_CHECK_REFUSAL(
      refusal(*preset("qwen3-next"), {.tp = 3}),
      "Total number of attention heads (8) must be divisible by tensor parallel size (3)");
}

BOOST_AUTO_TEST_CASE(key_value_heads_must_divide_or_be_divided) {
  ModelConfig config = *preset("qwen3-next");
  config.num_attention_heads = 24;
  config.num_key_value_heads = 6;
  for (const std::int64_t tp : {2, 3, 6})
    BOOST_TEST(refusal(config, {.tp = tp}).find("key/value") == std::string::npos);
  for (const std::int64_t tp : {4, 8})
    BOOST_CHECK_REFUSAL(refusal(config, {.tp = tp}),
                        "Total number of key/value heads (6) must divide or be divisible by tensor "
                        "parallel size (",
                        tp, ")");
}

BOOST_AUTO_TEST_CASE(gdn_heads_must_divide_where_there_is_a_gdn_layer) {
  ModelConfig config = *preset("qwen3-next");
  config.linear_num_key_heads = 4;
  BOOST_CHECK_REFUSAL(refusal(config, {.tp = 8}),
                      "linear_num_key_heads: 4 is not divisible by tensor parallel size 8");
  config.layer_types.assign(4, LayerType::full_attention);
  BOOST_TEST(refusal(config, {.tp = 8}) == "accepted");
}

BOOST_AUTO_TEST_CASE(expert_parallelism_needs_experts) {
  ModelConfig config = *preset("qwen3-next");
  config.num_experts = 0;
  BOOST_TEST(refusal(config, {.tp = 2}) == "accepted");
  BOOST_CHECK_REFUSAL(
      refusal(config, {.tp = 2, .dp = 1, .pp = 1, .enable_expert_parallel = true}),
      "Number of experts in the model must be greater than 0 when expert parallelism is enabled, "
      "found 0");
}

BOOST_AUTO_TEST_CASE(more_ranks_than_experts_are_refused_even_with_expert_parallelism) {
  ModelConfig config = *preset("qwen3-next");
  config.num_experts = 4;
  for (const bool expert_parallel : {false, true})
    BOOST_CHECK_REFUSAL(
        refusal(config, {.tp = 8, .dp = 1, .pp = 1, .enable_expert_parallel = expert_parallel}),
        "Tensor parallel size 8 is greater than the number of experts 4");
}

BOOST_AUTO_TEST_CASE(the_expert_width_is_split_over_data_and_tensor_ranks_unless_experts_are) {
  ModelConfig config = *preset("qwen3-next");
  config.moe_intermediate_size = 24;
  BOOST_TEST(refusal(config, {.tp = 4, .dp = 2}) == "accepted");
  BOOST_CHECK_REFUSAL(refusal(config, {.tp = 4, .dp = 4}),
                      "moe_intermediate_size: 24 is not divisible by expert tensor parallel size "
                      "(data * tensor) 16");
  BOOST_TEST(refusal(config, {.tp = 4, .dp = 4, .pp = 1, .enable_expert_parallel = true}) ==
             "accepted");
}

BOOST_AUTO_TEST_CASE(the_shared_expert_is_split_unless_sequence_parallelism_replicates_it) {
  ModelConfig config = *preset("qwen3-next");
  config.shared_expert_intermediate_size = 20;
  BOOST_CHECK_REFUSAL(
      refusal(config, {.tp = 8, .dp = 1, .pp = 1, .enable_expert_parallel = true}),
      "shared_expert_intermediate_size: 20 is not divisible by tensor parallel size 8");
  BOOST_TEST(refusal(config, {.tp = 8, .dp = 2, .pp = 1, .enable_expert_parallel = true}) ==
             "accepted");
}

BOOST_AUTO_TEST_CASE(the_dense_width_is_split_where_there_is_a_dense_layer) {
  ModelConfig config = *preset("qwen3-next");
  config.intermediate_size = 50;
  BOOST_TEST(refusal(config, {.tp = 4}) == "accepted");
  config.mlp_only_layers = {2};
  BOOST_CHECK_REFUSAL(refusal(config, {.tp = 4}),
                      "intermediate_size: 50 is not divisible by tensor parallel size 4");
}

BOOST_AUTO_TEST_CASE(the_padded_vocabulary_is_split) {
  ModelConfig config = *preset("qwen3-next");
  config.num_attention_heads = config.num_key_value_heads = config.linear_num_key_heads = 5;
  config.linear_num_value_heads = 10;
  config.moe_intermediate_size = config.shared_expert_intermediate_size = 40;
  BOOST_CHECK_REFUSAL(
      refusal(config, {.tp = 5}),
      "vocab_size padded to a multiple of 64: 192 is not divisible by tensor parallel size 5");
  config.vocab_size = 300;
  config.hidden_size = 80;
  BOOST_TEST(refusal(config, {.tp = 5}) == "accepted");
}

BOOST_AUTO_TEST_CASE(the_hidden_size_is_split_where_there_is_an_mtp_layer) {
  ModelConfig config = *preset("qwen3-next");
  config.hidden_size = 60;
  BOOST_CHECK_REFUSAL(refusal(config, {.tp = 8}),
                      "hidden_size: 60 is not divisible by tensor parallel size 8");
  config.num_mtp_layers = 0;
  BOOST_TEST(refusal(config, {.tp = 8}) == "accepted");
}

BOOST_AUTO_TEST_CASE(degrees_that_are_not_positive_are_refused) {
  BOOST_CHECK_REFUSAL(refusal(*preset("qwen3-next"), {.tp = 0}),
                      "tensor parallel size: is 0, expected an integer from 1 to 65536");
  BOOST_CHECK_REFUSAL(refusal(*preset("qwen3-next"), {.tp = 1, .dp = -1}),
                      "data parallel size: is -1, expected an integer from 1 to 65536");
  BOOST_CHECK_REFUSAL(refusal(*preset("qwen3-next"), {.tp = 1, .dp = 1, .pp = 0}),
                      "pipeline parallel size: is 0, expected an integer from 1 to 65536");
}

BOOST_AUTO_TEST_SUITE_END()

// ---- presets and seeded weights

BOOST_AUTO_TEST_SUITE(weights)

BOOST_AUTO_TEST_CASE(presets_are_known_by_name_only) {
  BOOST_TEST(preset_names().size() == 8u);
  for (const std::string& name : preset_names()) BOOST_CHECK_NO_THROW(validate(*preset(name)));
  BOOST_TEST(!preset("qwen3"));
  BOOST_TEST(nearest("qwen3-nxt", preset_names()) == "qwen3-next");
  BOOST_TEST(nearest("llama", preset_names()) == "");
}

/// Parameters in units of 10^9; the rounding is half of the last decimal. Active: without the
/// experts that a token is not sent to.
BOOST_AUTO_TEST_CASE(published_presets_have_their_published_parameter_counts) {
  struct Published {
    const char* name;
    double total, active, mtp;
  };
  for (const Published& p : {Published{"qwen3-next-80b", 79.67, 3.875, 1.650},
                             Published{"qwen3.5-35b", 34.66, 3.455, 0.845},
                             Published{"qwen3.5-122b", 122.11, 9.771, 2.524},
                             Published{"qwen3.5-397b", 396.35, 17.349, 6.596}}) {
    const ModelConfig config = *preset(p.name);
    const ParameterCount count = parameter_count(config);
    const std::int64_t idle = config.num_hidden_layers *
                              (config.num_experts - config.num_experts_per_tok) * 3 *
                              config.moe_intermediate_size * config.hidden_size;
    BOOST_TEST(std::abs(double(count.model) * 1e-9 - p.total) <= 0.005, p.name);
    BOOST_TEST(std::abs(double(count.model - idle) * 1e-9 - p.active) <= 0.0005, p.name);
    BOOST_TEST(std::abs(double(count.mtp) * 1e-9 - p.mtp) <= 0.0005, p.name);
  }
}

BOOST_AUTO_TEST_CASE(weight_shapes_are_those_of_every_golden_file) {
  for (const std::string& name : golden_names) {
    const Hdf5File file = Hdf5File::open_read(golden_folder + name + ".h5");
    std::map<std::string, std::vector<std::int64_t>> expected, found;
    for (const std::string& weight : file.children("/weights").datasets)
      expected[weight] = file.info("/weights/" + weight).shape;
    const ModelConfig config = read_config_json(file.string("/config"), name).config;
    for (const WeightShape& weight : weight_shapes(config)) found[weight.name] = weight.shape;
    BOOST_TEST((found == expected), name);
    BOOST_TEST(found.size() == weight_shapes(config).size(), name);
  }
}

BOOST_AUTO_TEST_CASE(a_tied_model_has_no_head_and_a_model_without_mtp_no_mtp) {
  ModelConfig config = *preset("qwen3-next");
  config.tie_word_embeddings = true;
  config.num_mtp_layers = 0;
  const SeededWeights weights(config, 0);
  BOOST_TEST(!weights.contains("lm_head.weight"));
  BOOST_TEST(!weights.contains("mtp.fc.weight"));
  BOOST_TEST(weights.contains("model.norm.weight"));
}

BOOST_AUTO_TEST_CASE(a_dense_mtp_layer_follows_layer_zero) {
  ModelConfig config = *preset("qwen3-next");
  config.decoder_sparse_step = 2;
  const SeededWeights weights(config, 0);
  BOOST_TEST(weights.contains("mtp.layers.0.mlp.gate_proj.weight"));
  BOOST_TEST(!weights.contains("mtp.layers.0.mlp.gate.weight"));
}

BOOST_AUTO_TEST_CASE(a_model_without_shared_expert_has_no_gate_for_it) {
  ModelConfig config = *preset("qwen3-next");
  config.shared_expert_intermediate_size = 0;
  const SeededWeights weights(config, 0);
  BOOST_TEST(!weights.contains("model.layers.0.mlp.shared_expert_gate.weight"));
  BOOST_TEST(!weights.contains("model.layers.0.mlp.shared_expert.up_proj.weight"));
}

// Written down once: files recorded from a seed stay comparable for ever.
BOOST_AUTO_TEST_CASE(seeded_values_never_change) {
  const HostTensor norm = SeededWeights(*preset("qwen3-next"), 0).weight("model.norm.weight");
  BOOST_TEST(norm.values[0] == 0.0547053814f);
  BOOST_TEST(norm.values[63] == -0.099468179f);
}

BOOST_AUTO_TEST_CASE(values_depend_on_seed_name_and_index_alone) {
  const ModelConfig config = *preset("qwen3-next");
  ModelConfig longer = config;
  longer.vocab_size = 200;
  const std::string name = "model.embed_tokens.weight";
  const HostTensor tensor = SeededWeights(config, 7).weight(name);
  const HostTensor more = SeededWeights(longer, 7).weight(name);
  BOOST_TEST(std::equal(tensor.values.begin(), tensor.values.end(), more.values.begin()));
  BOOST_TEST(SeededWeights(config, 8).weight(name).values != tensor.values);
  BOOST_TEST(SeededWeights(config, 7).weight("lm_head.weight").values[0] != tensor.values[0]);
}

BOOST_AUTO_TEST_CASE(linear_weights_have_variance_one_over_inputs) {
  const SeededWeights weights(*preset("qwen3-next"), 0);
  const HostTensor tensor = weights.weight("model.layers.0.mlp.experts.gate_up_proj");
  const double n = double(tensor.values.size());
  double sum = 0, squares = 0;
  for (const float value : tensor.values) {
    sum += value;
    squares += double(value) * value;
  }
  // Six standard errors; a value has variance 1/64 and kurtosis 2.7.
  BOOST_TEST(std::abs(sum / n) <= 6 * std::sqrt(1 / 64.0 / n));
  BOOST_TEST(std::abs(squares / n - 1 / 64.0) <= 6 / 64.0 * std::sqrt(1.7 / n));
}

BOOST_AUTO_TEST_CASE(each_kind_of_vector_has_its_range) {
  const SeededWeights weights(*preset("qwen3.5-moe"), 3);
  const auto within = [&](const std::string& name, double low, double high) {
    for (const float value : weights.weight("model.layers.0." + name).values)
      if (value < low || value > high) return false;
    return true;
  };
  BOOST_TEST(within("linear_attn.A_log", std::log(0.5), std::log(8.0)));
  BOOST_TEST(within("linear_attn.dt_bias", -5, 1));
  BOOST_TEST(within("linear_attn.conv1d.weight", -0.5, 0.5));
  BOOST_TEST(within("linear_attn.norm.weight", 0.65, 1.35));
  BOOST_TEST(within("input_layernorm.weight", -0.35, 0.35));
}

BOOST_AUTO_TEST_CASE(bfloat16_values_are_the_nearest) {
  const ModelConfig config = *preset("qwen3-next");
  const SeededWeights exact(config, 0), rounded(config, 0, DType::bfloat16);
  const HostTensor a = exact.weight("lm_head.weight"), b = rounded.weight("lm_head.weight");
  BOOST_TEST((b.dtype == DType::bfloat16));
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    int exponent;
    std::frexp(b.values[i], &exponent);  // 8 bits of significand: a step of 2^(exponent - 8)
    const double step = std::ldexp(1.0, exponent - 8);
    BOOST_REQUIRE(std::abs(double(a.values[i]) - b.values[i]) <= step / 2);
    BOOST_REQUIRE(std::fmod(b.values[i], step) == 0);
  }
}

BOOST_AUTO_TEST_CASE(bfloat16_ties_go_to_the_even_neighbour) {
  int ties_down = 0, ties_up = 0;  // one value in 65536 is a tie
  for (const std::int64_t width : {56, 72, 88, 104, 120}) {
    ModelConfig config = *preset("qwen3-next");
    config.hidden_size = width;
    const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
    const HostTensor exact = SeededWeights(config, 0).weight(name);
    const HostTensor rounded = SeededWeights(config, 0, DType::bfloat16).weight(name);
    for (std::size_t i = 0; i < exact.values.size(); ++i) {
      const auto before = std::bit_cast<std::uint32_t>(exact.values[i]);
      if ((before & 0xffff) != 0x8000) continue;
      const auto after = std::bit_cast<std::uint32_t>(rounded.values[i]);
      BOOST_TEST((after & 0x1ffff) == 0u);
      ++(after > before ? ties_up : ties_down);
    }
  }
  BOOST_TEST(ties_down > 0);
  BOOST_TEST(ties_up > 0);
}

BOOST_AUTO_TEST_CASE(a_weight_of_another_shape_or_name_is_refused) {
  const SeededWeights weights(*preset("qwen3-next"), 5);
  const auto tells = [](const char* expected) {
    return [expected](const FileError& error) { return error.what() == std::string(expected); };
  };
  BOOST_CHECK_EXCEPTION(
      weights.weight("model.norm.weight", {65}), FileError,
      tells("weights of seed 5: model.norm.weight: shape is [64], expected [65]"));
  BOOST_CHECK_EXCEPTION(
      weights.weight("model.layers.4.mlp.gate.weight", {16, 64}), FileError,
      tells("weights of seed 5: model.layers.4.mlp.gate.weight: no such weight in this model"));
}

BOOST_AUTO_TEST_CASE(float16_weights_are_refused) {
  BOOST_CHECK_THROW(SeededWeights(*preset("qwen3-next"), 0, DType::float16), ConfigError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
