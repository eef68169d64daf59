// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "reference/program/injected_fault.hpp"
#include "reference/program/operations.hpp"
#include "reference/program/parallel_plan.hpp"

namespace tokenview {

/// Weights of one rank. Shapes in the comments are of the unsharded weight; the partition is
/// vLLM's (qwen3_next.py, linear.py, qwen_gdn_linear_attn.py, fused_moe/config.py).
template <class W>
struct AttentionWeights {
  W q_proj;          // [heads * 2 * head_dim, H]  whole heads, each query then gate
  W k_proj, v_proj;  // [kv_heads * head_dim, H]   whole heads, shared where tp > kv_heads
  W q_norm, k_norm;  // [head_dim]                 replicated
  W o_proj;          // [H, heads * head_dim]      columns, in head order
};

template <class W>
struct GdnWeights {
  // Qwen3-Next: two matrices, grouped by key head.
  std::optional<W> in_proj_qkvz;  // [2 key_dim + 2 value_dim, H]  whole groups
  std::optional<W> in_proj_ba;    // [2 value_heads, H]            whole groups
  // Qwen3.5: four plain matrices.
  std::optional<W> in_proj_qkv;  // [conv_dim, H]      each of q, k, v sliced by itself
  std::optional<W> in_proj_z;    // [value_dim, H]     rows
  std::optional<W> in_proj_b;    // [value_heads, H]   rows
  std::optional<W> in_proj_a;    // [value_heads, H]   rows
  W conv1d;                      // [conv_dim, 1, K]   each of q, k, v sliced by itself
  W A_log, dt_bias;              // [value_heads]
  W norm;                        // [value_head_dim]   replicated, not zero-centred
  W out_proj;                    // [H, value_dim]     columns, in value head order
};

template <class W>
struct SwigluWeights {
  W gate_proj, up_proj;  // [F, H]  rows
  W down_proj;           // [H, F]  columns
};

template <class W>
struct MoeWeights {
  W gate;                         // [E, H]      replicated
  W experts_gate_up;              // [E, 2I, H]  this rank's experts, or rows of each
  W experts_down;                 // [E, H, I]   this rank's experts, or columns of each
  std::int64_t first_expert = 0;  // global index of this rank's first expert
  std::optional<SwigluWeights<W>> shared_expert;  // F = Is
  std::optional<W> shared_expert_gate;            // [1, H]      replicated
};

template <class W>
struct LayerWeights {
  W input_layernorm, post_attention_layernorm;   // [H]  replicated, zero-centred
  std::optional<AttentionWeights<W>> self_attn;  // one of the two mixers
  std::optional<GdnWeights<W>> linear_attn;
  std::optional<MoeWeights<W>> moe;  // one of the two feed-forwards
  std::optional<SwigluWeights<W>> dense;
};

template <class W>
struct MtpWeights {
  W pre_fc_norm_embedding, pre_fc_norm_hidden;  // [H]  replicated, zero-centred
  W fc;                                         // [H, 2H]  rows; its output is gathered; or whole
  LayerWeights<W> layer;                        // layer 0 of the stack serves every draft step
  W norm;                                       // [H]
};

template <class W>
struct ModelWeights {
  W embed_tokens;                    // [V padded to 64, H]  rows
  std::int64_t first_vocab_row = 0;  // global index of this rank's first row
  std::vector<LayerWeights<W>> layers;
  W norm;     // [H]  zero-centred
  W lm_head;  // [V padded to 64, H]  rows
  std::optional<MtpWeights<W>> mtp;
};

/// Which rank's weights to load.
struct WeightPlacement {
  std::int64_t tp_rank = 0, tp_size = 1;
  std::int64_t expert_rank = 0, expert_size = 1;  // dp * tp ranks share the routed experts
  bool expert_parallel = false;            // whole experts a rank, else a slice of every expert
  bool shared_expert_whole = false;        // not split over tp: under sequence-parallel MoE
  bool dense_whole = false;                // dense feed-forwards not split over tp: protocol E
  bool fc_whole = false;                   // the MTP's projection not split over tp: protocol E
  std::vector<PlacedWeights> placed = {};  // what lies otherwise

  bool operator==(const WeightPlacement&) const = default;
};

/// Loads one rank's part of every weight. Names are the Hugging Face library's.
template <class Ops>
class WeightLoader {
 public:
  using W = typename Ops::Weight;

  WeightLoader(const Ops& ops, const WeightSource& source, const ModelConfig& config,
               const WeightPlacement& placement)
      : ops_(ops), source_(source), c_(config), at_(placement) {}

  ModelWeights<W> model() const {
    const Range vocab = block_of(padded_vocab_size(c_), at_.tp_rank, at_.tp_size);
    const auto vocabulary = [&](const std::string& name) {
      return ops_.load(source_, {.name = name,
                                 .shape = {c_.vocab_size, c_.hidden_size},
                                 .out = {vocab},
                                 .in = {},
                                 .experts = {},
                                 .padded_out = padded_vocab_size(c_),
                                 .part = at_.tp_rank,
                                 .parts = at_.tp_size});
    };
    ModelWeights<W> model{.embed_tokens = vocabulary("model.embed_tokens.weight"),
                          .first_vocab_row = vocab.begin,
                          .layers = {},
                          .norm = whole("model.norm.weight", {c_.hidden_size}),
                          .lm_head = vocabulary(c_.tie_word_embeddings ? "model.embed_tokens.weight"
                                                                       : "lm_head.weight"),
                          .mtp = {}};
    for (std::int64_t i = 0; i < c_.num_hidden_layers; ++i)
      model.layers.push_back(
          layer(text_name("model.layers", i), c_.layer_types[std::size_t(i)], c_.is_moe_layer(i)));
    if (c_.num_mtp_layers > 0 && source_.contains("mtp.fc.weight")) model.mtp = mtp();
    return model;
  }

 private:
  static std::string text_name(const char* list, std::int64_t index) {
    return std::string(list) + '.' + std::to_string(index) + '.';
  }
  bool is_whole(const std::string& name, bool otherwise) const {
    for (const PlacedWeights& placed : at_.placed)
      if (fits(placed.at, name)) otherwise = placed.whole;
    return otherwise;
  }
  W whole(const std::string& name, std::vector<std::int64_t> shape) const {
    return ops_.load(source_, {name, std::move(shape), {}, {}, {}, 0});
  }
  /// This rank's block of `units` equal groups of output rows.
  W rows(const std::string& name, std::vector<std::int64_t> shape) const {
    if (is_whole(name, false)) return whole(name, std::move(shape));
    const Range block = block_of(shape[0], at_.tp_rank, at_.tp_size);
    return ops_.load(source_,
                     {name, std::move(shape), {block}, {}, {}, 0, at_.tp_rank, at_.tp_size});
  }
  W columns(const std::string& name, std::vector<std::int64_t> shape) const {
    if (is_whole(name, false)) return whole(name, std::move(shape));
    const Range block = block_of(shape[1], at_.tp_rank, at_.tp_size);
    return ops_.load(source_,
                     {name, std::move(shape), {}, {block}, {}, 0, at_.tp_rank, at_.tp_size});
  }

  LayerWeights<W> layer(const std::string& prefix, LayerType type, bool is_moe) const {
    LayerWeights<W> w{.input_layernorm = whole(prefix + "input_layernorm.weight", {c_.hidden_size}),
                      .post_attention_layernorm =
                          whole(prefix + "post_attention_layernorm.weight", {c_.hidden_size}),
                      .self_attn = {},
                      .linear_attn = {},
                      .moe = {},
                      .dense = {}};
    if (type == LayerType::full_attention)
      w.self_attn = attention(prefix + "self_attn.");
    else
      w.linear_attn = gated_delta_net(prefix + "linear_attn.");
    if (is_moe)
      w.moe = moe(prefix + "mlp.");
    else
      w.dense = swiglu(prefix + "mlp.", c_.intermediate_size, at_.dense_whole);
    return w;
  }

  AttentionWeights<W> attention(const std::string& prefix) const {
    const std::int64_t h = c_.hidden_size, d = c_.head_dim;
    const Range kv = kv_head_block(c_.num_key_value_heads, at_.tp_rank, at_.tp_size);
    const auto kv_rows = [&](const char* name) {
      return ops_.load(source_, {prefix + name,
                                 {c_.num_key_value_heads * d, h},
                                 {{kv.begin * d, kv.end * d}},
                                 {},
                                 {},
                                 0,
                                 kv.begin / kv.size(),
                                 c_.num_key_value_heads / kv.size()});
    };
    block_of(c_.num_attention_heads, at_.tp_rank, at_.tp_size);  // whole heads only
    return {.q_proj = rows(prefix + "q_proj.weight", {c_.num_attention_heads * 2 * d, h}),
            .k_proj = kv_rows("k_proj.weight"),
            .v_proj = kv_rows("v_proj.weight"),
            .q_norm = whole(prefix + "q_norm.weight", {d}),
            .k_norm = whole(prefix + "k_norm.weight", {d}),
            .o_proj = columns(prefix + "o_proj.weight", {h, c_.num_attention_heads * d})};
  }

  GdnWeights<W> gated_delta_net(const std::string& prefix) const {
    const std::int64_t h = c_.hidden_size;
    const std::int64_t key = c_.key_dim(), value = c_.value_dim(),
                       heads = c_.linear_num_value_heads;
    block_of(c_.linear_num_key_heads, at_.tp_rank, at_.tp_size);  // whole heads only
    // q, k and v are three segments of one axis, each cut by itself.
    const Range k = block_of(key, at_.tp_rank, at_.tp_size);
    const Range v = block_of(value, at_.tp_rank, at_.tp_size);
    const std::vector<Range> segments = {
        k, {key + k.begin, key + k.end}, {2 * key + v.begin, 2 * key + v.end}};
    GdnWeights<W> w{.in_proj_qkvz = {},
                    .in_proj_ba = {},
                    .in_proj_qkv = {},
                    .in_proj_z = {},
                    .in_proj_b = {},
                    .in_proj_a = {},
                    .conv1d = ops_.load(source_, {prefix + "conv1d.weight",
                                                  {c_.conv_dim(), 1, c_.linear_conv_kernel_dim},
                                                  segments,
                                                  {},
                                                  {},
                                                  0,
                                                  at_.tp_rank,
                                                  at_.tp_size}),
                    .A_log = rows(prefix + "A_log", {heads}),
                    .dt_bias = rows(prefix + "dt_bias", {heads}),
                    .norm = whole(prefix + "norm.weight", {c_.linear_value_head_dim}),
                    .out_proj = columns(prefix + "out_proj.weight", {h, value})};
    if (c_.model_type == ModelType::qwen3_next) {
      w.in_proj_qkvz = rows(prefix + "in_proj_qkvz.weight", {2 * key + 2 * value, h});
      w.in_proj_ba = rows(prefix + "in_proj_ba.weight", {2 * heads, h});
    } else {
      w.in_proj_qkv = ops_.load(source_, {prefix + "in_proj_qkv.weight",
                                          {c_.conv_dim(), h},
                                          segments,
                                          {},
                                          {},
                                          0,
                                          at_.tp_rank,
                                          at_.tp_size});
      w.in_proj_z = rows(prefix + "in_proj_z.weight", {value, h});
      w.in_proj_b = rows(prefix + "in_proj_b.weight", {heads, h});
      w.in_proj_a = rows(prefix + "in_proj_a.weight", {heads, h});
    }
    return w;
  }

  SwigluWeights<W> swiglu(const std::string& prefix, std::int64_t width, bool unsplit) const {
    const std::int64_t h = c_.hidden_size;
    if (this->is_whole(prefix + "gate_proj.weight", unsplit))
      return {.gate_proj = whole(prefix + "gate_proj.weight", {width, h}),
              .up_proj = whole(prefix + "up_proj.weight", {width, h}),
              .down_proj = whole(prefix + "down_proj.weight", {h, width})};
    return {.gate_proj = rows(prefix + "gate_proj.weight", {width, h}),
            .up_proj = rows(prefix + "up_proj.weight", {width, h}),
            .down_proj = columns(prefix + "down_proj.weight", {h, width})};
  }

  MoeWeights<W> moe(const std::string& prefix) const {
    const std::int64_t h = c_.hidden_size, e = c_.num_experts, i = c_.moe_intermediate_size;
    WeightBlock gate_up{prefix + "experts.gate_up_proj",
                        {e, 2 * i, h},
                        {},
                        {},
                        {},
                        0,
                        at_.expert_rank,
                        at_.expert_size};
    WeightBlock down{
        prefix + "experts.down_proj", {e, h, i}, {}, {}, {}, 0, at_.expert_rank, at_.expert_size};
    if (at_.expert_parallel) {
      const Range mine = expert_block(e, at_.expert_rank, at_.expert_size);
      gate_up.experts = down.experts = {mine};
    } else {
      const Range mine = block_of(i, at_.expert_rank, at_.expert_size);
      gate_up.out = {mine, {i + mine.begin, i + mine.end}};  // gate rows, then up rows
      down.in = {mine};
    }
    MoeWeights<W> w{.gate = whole(prefix + "gate.weight", {e, h}),
                    .experts_gate_up = ops_.load(source_, gate_up),
                    .experts_down = ops_.load(source_, down),
                    .first_expert = gate_up.experts.empty() ? 0 : gate_up.experts[0].begin,
                    .shared_expert = {},
                    .shared_expert_gate = {}};
    if (c_.shared_expert_intermediate_size > 0) {
      w.shared_expert = swiglu(prefix + "shared_expert.", c_.shared_expert_intermediate_size,
                               at_.shared_expert_whole);
      w.shared_expert_gate = whole(prefix + "shared_expert_gate.weight", {1, h});
    }
    return w;
  }

  MtpWeights<W> mtp() const {
    return {.pre_fc_norm_embedding = whole("mtp.pre_fc_norm_embedding.weight", {c_.hidden_size}),
            .pre_fc_norm_hidden = whole("mtp.pre_fc_norm_hidden.weight", {c_.hidden_size}),
            .fc = at_.fc_whole ? whole("mtp.fc.weight", {c_.hidden_size, 2 * c_.hidden_size})
                               : rows("mtp.fc.weight", {c_.hidden_size, 2 * c_.hidden_size}),
            .layer = layer("mtp.layers.0.", LayerType::full_attention,
                           c_.is_moe_layer(c_.first_mtp_layer())),
            .norm = whole("mtp.norm.weight", {c_.hidden_size})};
  }

  const Ops& ops_;
  const WeightSource& source_;
  const ModelConfig& c_;
  WeightPlacement at_;
};

}  // namespace tokenview
