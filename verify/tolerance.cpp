// SPDX-License-Identifier: Apache-2.0
#include "verify/tolerance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tokenview {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double limit = 1e-4;  // of float32

Bound nearer(const Bound& a, const Bound& b) { return a.ratio() >= b.ratio() ? a : b; }

}  // namespace

double float32_allowed(double max_golden) { return limit * std::max(1.0, max_golden); }

double bfloat16_allowed(double max_golden, int points) { return double(points) / 128 * max_golden; }

Bound float32_bound(const Comparison& c, std::int64_t columns) {
  if (c.not_finite > 0) return {infinity, limit, "not_finite"};
  const Bound absolute{c.max_abs_error, float32_allowed(c.max_golden), "max_abs"};
  if (columns == 1) {
    const double rows = std::sqrt(double(std::max<std::int64_t>(1, c.count)));
    return nearer(absolute, {c.error_l2 / rows, std::max(limit * c.golden_l2 / rows, 2e-5), "rms"});
  }
  return nearer(absolute, {c.relative_l2(), limit, "relative_l2"});
}

int rounding_points(const std::string& tap) {
  // The longest suffix first: `.mlp.shared_expert` before `.mlp`.
  static constexpr std::pair<const char*, int> points[] = {
      {"embed_tokens", 0},
      {".input_layernorm", 2},           // residual sum, norm
      {".post_attention_layernorm", 2},  // residual sum, norm
      {".self_attn", 11},  // frequency, table, products, sum, scores, scaled, probabilities, read,
                           // gate, gated, out
      {".self_attn.o_proj", 11},
      {".q_proj", 1},
      {".k_proj", 1},
      {".v_proj", 1},
      {".q_norm", 1},
      {".k_norm", 1},
      {".linear_attn.norm", 7},  // convolution, silu, beta, read, norm, weighted, gated
      {".linear_attn", 1},
      {".linear_attn.out_proj", 1},
      {".in_proj_qkvz", 1},
      {".in_proj_ba", 1},
      {".in_proj_qkv", 1},
      {".in_proj_z", 1},
      {".in_proj_b", 1},
      {".in_proj_a", 1},
      {".gate.logits", 1},
      {".gate.weights", 1},
      {".experts", 6},  // gate_up, silu, product, down, weighted, sum
      {".gate_proj", 1},
      {".up_proj", 1},
      {".down_proj", 3},  // silu, product, down
      {".shared_expert", 3},
      {".shared_expert_gate", 1},
      {".mlp", 3},  // sparse: sigmoid, product, sum; dense: as down_proj
      {"model.norm", 2},
      {"mtp.norm", 2},
      {"pre_fc_norm_embedding", 1},
      {"pre_fc_norm_hidden", 1},
      {"mtp.fc", 1},
      {"lm_head", 1},
      {"logits", 1},
  };
  if (tap == "model") return 2;  // the final norm
  std::size_t longest = 0;
  int found = 0;
  for (const auto& [suffix, count] : points) {
    const std::string_view name(suffix);
    if (name.size() > longest && tap.ends_with(name)) {
      longest = name.size();
      found = count;
    }
  }
  if (longest > 0) return found;
  return tap.find(".layers.") != std::string::npos ? 2 : 0;  // a layer: two residual sums
}

int rounding_points_of_layers(std::int64_t layers) {
  // Input norm 2, projections 1 to the rotation or convolution, mixer 11, sums 2, post norm 2,
  // router or gate 1, experts 6, shared and sum 3.
  return int(28 * layers);
}

bool reads_caches(const std::string& tap) {
  return tap.ends_with(".self_attn") || tap.ends_with(".self_attn.o_proj") ||
         tap.ends_with(".linear_attn.norm");
}

Bound bfloat16_bound(const Comparison& c, int points) {
  const double n = points;
  if (c.not_finite > 0) return {infinity, n / 128, "not_finite"};
  return nearer({c.max_abs_error, bfloat16_allowed(c.max_golden, points), "max_abs"},
                {c.relative_l2(), std::sqrt(n) / 256, "relative_l2"});
}

}  // namespace tokenview
