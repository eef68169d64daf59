// SPDX-License-Identifier: Apache-2.0
#include "reference/program/seeded_weights.hpp"

#include <bit>
#include <cmath>
#include <string_view>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

// ---- names and shapes

/// Collects the parameters of one model. E experts, H hidden, I width of an expert.
class ShapeList {
 public:
  explicit ShapeList(const ModelConfig& config) : c_(config) {}

  void add(const std::string& name, std::vector<std::int64_t> shape) {
    list_.push_back({name, std::move(shape)});
  }

  void layer(const std::string& prefix, LayerType type, bool is_moe) {
    add(prefix + "input_layernorm.weight", {c_.hidden_size});
    if (type == LayerType::full_attention)
      attention(prefix + "self_attn.");
    else
      gated_delta_net(prefix + "linear_attn.");
    add(prefix + "post_attention_layernorm.weight", {c_.hidden_size});
    if (is_moe)
      moe(prefix + "mlp.");
    else
      swiglu(prefix + "mlp.", c_.intermediate_size);
  }

  std::vector<WeightShape> take() { return std::move(list_); }

 private:
  void attention(const std::string& prefix) {
    const std::int64_t width = c_.num_attention_heads * c_.head_dim;
    const std::int64_t kv_width = c_.num_key_value_heads * c_.head_dim;
    add(prefix + "q_proj.weight", {2 * width, c_.hidden_size});  // each head: query, then gate
    add(prefix + "k_proj.weight", {kv_width, c_.hidden_size});
    add(prefix + "v_proj.weight", {kv_width, c_.hidden_size});
    add(prefix + "o_proj.weight", {c_.hidden_size, width});
    add(prefix + "q_norm.weight", {c_.head_dim});
    add(prefix + "k_norm.weight", {c_.head_dim});
  }

  void gated_delta_net(const std::string& prefix) {
    const std::int64_t value_heads = c_.linear_num_value_heads;
    if (c_.model_type == ModelType::qwen3_next) {
      add(prefix + "in_proj_qkvz.weight", {c_.conv_dim() + c_.value_dim(), c_.hidden_size});
      add(prefix + "in_proj_ba.weight", {2 * value_heads, c_.hidden_size});
    } else {
      add(prefix + "in_proj_qkv.weight", {c_.conv_dim(), c_.hidden_size});
      add(prefix + "in_proj_z.weight", {c_.value_dim(), c_.hidden_size});
      add(prefix + "in_proj_b.weight", {value_heads, c_.hidden_size});
      add(prefix + "in_proj_a.weight", {value_heads, c_.hidden_size});
    }
    add(prefix + "conv1d.weight", {c_.conv_dim(), 1, c_.linear_conv_kernel_dim});
    add(prefix + "A_log", {value_heads});
    add(prefix + "dt_bias", {value_heads});
    add(prefix + "norm.weight", {c_.linear_value_head_dim});
    add(prefix + "out_proj.weight", {c_.hidden_size, c_.value_dim()});
  }

  void moe(const std::string& prefix) {
    add(prefix + "gate.weight", {c_.num_experts, c_.hidden_size});
    add(prefix + "experts.gate_up_proj",
        {c_.num_experts, 2 * c_.moe_intermediate_size, c_.hidden_size});
    add(prefix + "experts.down_proj", {c_.num_experts, c_.hidden_size, c_.moe_intermediate_size});
    if (c_.shared_expert_intermediate_size == 0) return;
    swiglu(prefix + "shared_expert.", c_.shared_expert_intermediate_size);
    add(prefix + "shared_expert_gate.weight", {1, c_.hidden_size});
  }

  void swiglu(const std::string& prefix, std::int64_t width) {
    add(prefix + "gate_proj.weight", {width, c_.hidden_size});
    add(prefix + "up_proj.weight", {width, c_.hidden_size});
    add(prefix + "down_proj.weight", {c_.hidden_size, width});
  }

  const ModelConfig& c_;
  std::vector<WeightShape> list_;
};

// ---- values

/// One step of a bijection of 64 bits that passes for random.
/// Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", splitmix64.
constexpr std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

/// FNV-1a, 64 bits.
constexpr std::uint64_t hashed(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name)
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return hash;
}

/// The random numbers of one weight, by index.
class Numbers {
 public:
  Numbers(std::uint64_t seed, std::string_view name)
      : key_(mixed(mixed(seed + golden_ratio) ^ hashed(name))) {}

  /// In [low, high).
  double uniform(std::int64_t index, double low, double high) const {
    return low + (high - low) * double(bits(index) >> 11) * 0x1p-53;
  }

  /// Mean 0, variance 1: the sum of four uniform 16-bit numbers. Its tails end at 3.46, and it
  /// takes no function that differs between math libraries.
  double normal(std::int64_t index) const {
    const std::uint64_t word = bits(index);
    const std::uint64_t sum =
        (word & 0xffff) + ((word >> 16) & 0xffff) + ((word >> 32) & 0xffff) + (word >> 48);
    // Each number has mean 65535 / 2 and variance (65536^2 - 1) / 12.
    constexpr double inverse_deviation = 1.7320508075688772 / 65536;  // sqrt(12 / 4) / 65536
    return (double(sum) - 2 * 65535.0) * inverse_deviation;
  }

 private:
  static constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15u;

  std::uint64_t bits(std::int64_t index) const {
    return mixed(key_ + (std::uint64_t(index) + 1) * golden_ratio);
  }

  std::uint64_t key_;
};

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}

/// Calls `value(index)` for every element.
template <class Value>
void fill(HostTensor& tensor, Value&& value) {
  for (std::size_t i = 0; i < tensor.values.size(); ++i)
    tensor.values[i] = float(value(std::int64_t(i)));
}

void fill_by_name(HostTensor& tensor, const std::string& name, const Numbers& numbers) {
  if (ends_with(name, "linear_attn.A_log")) {
    fill(tensor, [&](std::int64_t i) { return std::log(numbers.uniform(i, 0.5, 8.0)); });
  } else if (ends_with(name, "linear_attn.dt_bias")) {
    // softplus of it spans a state that lasts for hundreds of tokens and one that is gone at once.
    fill(tensor, [&](std::int64_t i) { return numbers.uniform(i, -5.0, 1.0); });
  } else if (ends_with(name, "linear_attn.conv1d.weight")) {
    fill(tensor, [&](std::int64_t i) { return numbers.uniform(i, -0.5, 0.5); });
  } else if (ends_with(name, "linear_attn.norm.weight")) {
    fill(tensor, [&](std::int64_t i) { return 1 + 0.1 * numbers.normal(i); });
  } else if (tensor.shape.size() == 1) {  // a zero-centred norm: the program adds 1
    fill(tensor, [&](std::int64_t i) { return 0.1 * numbers.normal(i); });
  } else {
    const bool is_embedding = ends_with(name, "embed_tokens.weight");
    const double scale = is_embedding ? 1 : 1 / std::sqrt(double(tensor.shape.back()));
    fill(tensor, [&](std::int64_t i) { return scale * numbers.normal(i); });
  }
}

/// Round to nearest, ties to even. `value` is finite and far from the largest float.
float rounded_to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half = 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>((bits + half) & 0xffff0000u);
}

}  // namespace

std::vector<WeightShape> weight_shapes(const ModelConfig& config) {
  require_arithmetic(config);
  const std::int64_t H = config.hidden_size;
  ShapeList list(config);
  list.add("model.embed_tokens.weight", {config.vocab_size, H});
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    list.layer(text("model.layers.", layer, "."), config.layer_types[std::size_t(layer)],
               config.is_moe_layer(layer));
  list.add("model.norm.weight", {H});
  if (!config.tie_word_embeddings) list.add("lm_head.weight", {config.vocab_size, H});
  if (config.num_mtp_layers == 0) return list.take();

  list.add("mtp.pre_fc_norm_embedding.weight", {H});
  list.add("mtp.pre_fc_norm_hidden.weight", {H});
  list.add("mtp.fc.weight", {H, 2 * H});
  for (std::int64_t layer = 0; layer < config.num_mtp_layers; ++layer)
    list.layer(text("mtp.layers.", layer, "."), LayerType::full_attention,
               config.is_moe_layer(layer));
  list.add("mtp.norm.weight", {H});
  return list.take();
}

ParameterCount parameter_count(const ModelConfig& config) {
  constexpr std::int64_t limit = std::int64_t{1} << 62;
  ParameterCount count;
  for (const auto& [name, shape] : weight_shapes(config)) {
    std::int64_t& part = name.rfind("mtp.", 0) == 0 ? count.mtp : count.model;
    const std::int64_t size = element_count(shape);
    if (size > limit - part)
      throw ConfigError("num_hidden_layers: the model has over 2^62 parameters, expected fewer");
    part += size;
  }
  return count;
}

SeededWeights::SeededWeights(const ModelConfig& config, std::uint64_t seed, DType dtype)
    : seed_(seed), dtype_(dtype) {
  if (dtype != DType::float32 && dtype != DType::bfloat16)
    throw ConfigError(
        text("seeded weights: dtype is ", to_string(dtype), ", expected float32 or bfloat16"));
  for (WeightShape& weight : weight_shapes(config))
    shapes_.emplace(std::move(weight.name), std::move(weight.shape));
}

bool SeededWeights::contains(const std::string& name) const { return shapes_.count(name) != 0; }

const std::vector<std::int64_t>& SeededWeights::shape_of(const std::string& name) const {
  const auto found = shapes_.find(name);
  if (found == shapes_.end())
    throw FileError(text("weights of seed ", seed_, ": ", name, ": no such weight in this model"));
  return found->second;
}

HostTensor SeededWeights::weight(const std::string& name,
                                 const std::vector<std::int64_t>& shape) const {
  if (shape != shape_of(name))
    throw FileError(text("weights of seed ", seed_, ": ", name, ": shape is ",
                         to_string(shape_of(name)), ", expected ", to_string(shape)));
  return weight(name);
}

HostTensor SeededWeights::weight(const std::string& name) const {
  HostTensor tensor;
  tensor.shape = shape_of(name);
  tensor.dtype = dtype_;
  tensor.values.resize(std::size_t(element_count(tensor.shape)));
  fill_by_name(tensor, name, Numbers(seed_, name));
  if (dtype_ == DType::bfloat16)
    for (float& value : tensor.values) value = rounded_to_bfloat16(value);
  return tensor;
}

}  // namespace tokenview
