// SPDX-License-Identifier: Apache-2.0
#include "verify/tap_order.hpp"

#include <charconv>
#include <limits>
#include <tuple>

namespace tokenview {
namespace {

constexpr std::int64_t after_layers = std::numeric_limits<std::int64_t>::max();

struct Module {
  std::string_view begins;  // of what follows "layers.N."
  std::int64_t place;
};

/// The first that fits decides: longer beginnings stand before shorter ones. Sources: latent
/// attention, transformers modeling_deepseek_v3.py, and the wrapper around it and its o_proj, vLLM
/// layers/mla.py; norms behind the mixer and around the feed-forward, modeling_glm4.py and
/// modeling_gemma2.py; shared_experts before experts, which may be both, vLLM deepseek_v2.py.
constexpr Module modules_of_layer[] = {
    {"input.", 0},
    {"input_layernorm", 1},
    {"linear_attn.in_proj_qkv", 8},  // qkvz too
    {"linear_attn.in_proj_z", 9},
    {"linear_attn.in_proj_b", 10},  // ba too
    {"self_attn.q_proj", 10},
    {"self_attn.q_norm", 12},
    {"self_attn.k_norm", 13},
    {"self_attn.q_a_layernorm", 12},
    {"self_attn.kv_a_layernorm", 12},
    {"self_attn.q_b_proj", 13},
    {"self_attn.kv_b_proj", 13},
    {"self_attn.attn", 14},
    {"self_attn.mla_attn.", 14},
    {"self_attn.out_proj", 16},
    {"self_attn.o_proj", 16},
    {"self_attn.mla_attn", 17},
    {"self_attn.", 11},
    {"self_attn", 17},
    {"linear_attn.norm", 15},
    {"linear_attn.out_proj", 16},
    {"linear_attn.", 11},
    {"linear_attn", 17},
    {"post_self_attn_layernorm", 19},
    {"post_attention_layernorm", 20},
    {"pre_feedforward_layernorm", 21},
    {"mlp.router", 30},
    {"mlp.gate.logits", 30},
    {"mlp.gate.ids", 31},
    {"mlp.gate.weights", 32},
    {"mlp.gate_", 35},
    {"mlp.gate", 30},
    {"mlp.up_proj", 36},
    {"mlp.shared_experts.gate", 33},
    {"mlp.shared_experts.up_proj", 34},
    {"mlp.shared_experts.down_proj", 35},
    {"mlp.shared_experts", 36},
    {"mlp.experts_and_shared", 46},
    {"mlp.experts", 37},
    {"mlp.shared_expert.gate", 40},  // gate_proj, gate_up_proj; .gated below
    {"mlp.shared_expert.up_proj", 41},
    {"mlp.shared_expert.down_proj", 42},
    {"mlp.shared_expert_gate", 44},
    {"mlp.shared_expert", 43},
    {"mlp.down_proj", 45},
    {"mlp", 50},
    {"post_mlp_layernorm", 55},
    {"post_feedforward_layernorm", 55},
    {"hidden", 60},
    {"residual", 61},
};
constexpr std::int64_t layer_output = 70;
constexpr std::int64_t unknown_module = 18;

constexpr Module modules_outside[] = {
    {"input_ids", -4},
    {"positions", -3},
    {"model.embed_tokens", -2},
    {"mtp.embed_tokens", -2},
    {"mtp.input.", -1},
    {"mtp.pre_fc_norm_embedding", 0},
    {"mtp.pre_fc_norm_hidden", 1},
    {"mtp.fc", 2},
};

std::int64_t place_of_usual(std::string_view rest) {
  if (rest.starts_with("mlp.shared_expert.gated")) return 45;
  for (const Module& module : modules_of_layer)
    if (rest.starts_with(module.begins)) return module.place;
  return unknown_module;
}

/// "block_sparse_moe.gate" stands where "mlp.gate" does.
std::int64_t place_in_layer(std::string_view rest) {
  if (rest.empty()) return layer_output;
  if (const std::int64_t place = place_of_usual(rest); place != unknown_module) return place;
  const std::string_view module = rest.substr(0, rest.find('.'));
  const auto has = [&](const auto&... words) {
    return ((module.find(words) != std::string_view::npos) || ...);
  };
  if (has("norm")) return unknown_module;
  const std::string inside(rest.substr(module.size()));
  if (has("mlp", "moe", "ffn", "feed_forward")) return place_of_usual("mlp" + inside);
  if (has("attn", "attention", "mamba", "mixer")) return place_of_usual("self_attn" + inside);
  return unknown_module;
}

/// Less, equal or greater, character by character: what goes on with a dot comes first, then what
/// ends.
std::strong_ordering inside_first(std::string_view a, std::string_view b) {
  const auto rank = [](std::string_view name, std::size_t i) {
    if (i == name.size()) return 1;
    return name[i] == '.' ? 0 : 2 + int(static_cast<unsigned char>(name[i]));
  };
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return rank(a, i) <=> rank(b, i);
}

}  // namespace

std::strong_ordering TapPlace::operator<=>(const TapPlace& other) const {
  const std::strong_ordering order =
      std::tie(pass, layer, module) <=> std::tie(other.pass, other.layer, other.module);
  return order != 0 ? order : inside_first(name, other.name);
}

TapPlace tap_place(std::string_view tap) {
  TapPlace place;
  place.name = tap;
  const std::size_t slash = tap.find('/');
  const std::string_view pass = slash == std::string_view::npos ? "" : tap.substr(0, slash);
  const std::string_view name = slash == std::string_view::npos ? tap : tap.substr(slash + 1);
  if (pass.starts_with("step"))
    std::from_chars(pass.data() + 4, pass.data() + pass.size(), place.pass);
  else if (pass.empty())
    place.pass = after_layers;  // draft_ids: of all passes

  constexpr std::string_view layers = "layers.";
  const std::size_t at = name.find(layers);
  if (at != std::string_view::npos) {
    const char* const digits = name.data() + at + layers.size();
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(digits, end, place.layer);
    if (error == std::errc() && (stop == end || *stop == '.')) {
      place.module = place_in_layer(std::string_view(stop == end ? stop : stop + 1, end));
      return place;
    }
  }
  for (const Module& module : modules_outside)
    if (name.starts_with(module.begins)) {
      place.layer = -1;
      place.module = module.place;
      return place;
    }
  place.layer = after_layers;
  place.module = name.find("norm") != std::string_view::npos       ? 0
                 : name == "lm_head" || name.starts_with("logits") ? 2
                                                                   : 1;
  return place;
}

bool is_layer_output(std::string_view tap) { return tap_place(tap).module == layer_output; }

bool is_exit(std::string_view tap) {
  const TapPlace place = tap_place(tap);
  return place.layer == after_layers || place.module == layer_output;
}

std::string pass_of(std::string_view tap) {
  const std::size_t slash = tap.find('/');
  return std::string(slash == std::string_view::npos ? std::string_view() : tap.substr(0, slash));
}

std::string name_of(std::string_view tap) {
  const std::size_t slash = tap.find('/');
  return std::string(slash == std::string_view::npos ? tap : tap.substr(slash + 1));
}

}  // namespace tokenview
