// SPDX-License-Identifier: Apache-2.0
#include "verify/trusted_step.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"

namespace tokenview {
namespace {

std::string without_end(const std::string& name, std::string_view end) {
  return name.substr(0, name.size() - end.size());
}

/// sigmoid(gate) x, gate [T, 1].
HostTensor gated(const HostTensor& gate, HostTensor x) {
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    const double factor = 1 / (1 + std::exp(-double(gate.values[std::size_t(row)])));
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      float& value = x.values[std::size_t(row * x.cols() + c)];
      value = float(factor * double(value));
    }
  }
  return x;
}

/// The columns of q, k and v of a Gated DeltaNet, as Qwen3.5 packs them.
std::vector<std::int64_t> qkv_segments(const ModelConfig& config) {
  return {config.key_dim(), config.key_dim(), config.value_dim()};
}

class Finder {
 public:
  Finder(const std::string& tap, const std::set<std::string>& dump_taps, const TrustedStep& trusted,
         const ModelConfig* config)
      : tap_(tap), dump_taps_(dump_taps), trusted_(trusted), config_(config) {}

  std::optional<Counterpart> find() const {
    if (GoldenFile::holds_ids(name_of(tap_))) return std::nullopt;
    if (trusted_.has(tap_)) return same(tap_);
    if (tap_.ends_with(".input.hidden_states")) return layer_input();
    if (tap_.ends_with("norm.residual")) return norm_input(without_end(tap_, ".residual"));
    if (tap_.ends_with(".hidden")) return hidden(without_end(tap_, ".hidden"));
    if (tap_.ends_with(".mlp.experts_and_shared"))
      return same(without_end(tap_, ".experts_and_shared"));
    if (tap_.ends_with(".shared_expert.gated")) return gated_shared(without_end(tap_, ".gated"));
    if (tap_.ends_with("/mtp.out")) return mtp_output(without_end(tap_, "mtp.out"));
    if (tap_.ends_with("/model")) return same(tap_ + ".norm");
    const std::pair<std::string_view, std::vector<std::string>> packed[] = {
        {"self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
        {"gate_up_proj", {"gate_proj", "up_proj"}},
        {"linear_attn.in_proj_qkvz", {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"}},
        {"linear_attn.in_proj_ba", {"linear_attn.in_proj_b", "linear_attn.in_proj_a"}}};
    for (const auto& [end, parts] : packed)
      if (tap_.ends_with(end)) return side_by_side_of(without_end(tap_, end), parts);
    return std::nullopt;
  }

 private:
  std::optional<Counterpart> same(const std::string& trusted_tap) const {
    if (!trusted_.has(trusted_tap)) return std::nullopt;
    Counterpart found{trusted_tap, name_of(trusted_tap), trusted_tap, {tap_}};
    std::vector<HostTensor> ways = trusted_.ways(trusted_tap);
    found.values = std::move(ways.front());
    found.other_ways.assign(std::make_move_iterator(ways.begin() + 1),
                            std::make_move_iterator(ways.end()));
    found.segments = segments_of(trusted_tap, found.values.cols());
    return found;
  }

  /// What the sampler takes: the final norm's values, and the rows of the logits.
  std::optional<Counterpart> mtp_output(const std::string& pass) const {
    std::optional<Counterpart> found = same(pass + "mtp.norm");
    if (found) found->layout_tap = pass + "logits";
    return found;
  }

  std::vector<std::int64_t> segments_of(const std::string& trusted_tap, std::int64_t cols) const {
    if (trusted_tap.ends_with("linear_attn.in_proj_qkv") && config_ != nullptr)
      return qkv_segments(*config_);
    return {cols};
  }

  /// The sum of the tap, the hidden part, and its residual.
  std::optional<Counterpart> sum_with(const std::string& residual,
                                      const std::string& trusted_tap) const {
    std::optional<Counterpart> found = same(trusted_tap);
    if (!found || !dump_taps_.contains(residual)) return std::nullopt;
    found->summands.push_back(residual);
    found->in_words += " as hidden + residual";
    return found;
  }

  std::optional<Counterpart> hidden(const std::string& module) const {
    if (module.ends_with("norm")) return same(module);
    return sum_with(module + ".residual", module);
  }

  /// A layer's input. The first one has no residual yet.
  std::optional<Counterpart> layer_input() const {
    const std::string layer = without_end(tap_, ".input.hidden_states");
    if (layer.rfind("layers.") == std::string::npos) return std::nullopt;
    const std::string before = layer_before(layer);
    std::optional<Counterpart> found = dump_taps_.contains(layer + ".input.residual")
                                           ? sum_with(layer + ".input.residual", before)
                                           : same(before);
    // The first layer of a stack may take another part of the rows than the module before gave,
    // and its norm has the same ones.
    if (found && before.find("layers.") == std::string::npos)
      found->layout_tap = layer + ".input_layernorm";
    return found;
  }

  /// What an engine's fused norm adds up before it: the layer before, on the rows of the norm.
  std::optional<Counterpart> norm_input(const std::string& norm) const {
    std::string before;
    if (norm.ends_with(".input_layernorm")) {
      before = layer_before(without_end(norm, ".input_layernorm"));
    } else if (norm.ends_with("/model.norm") || norm.ends_with("/mtp.norm")) {
      const std::string layers = without_end(norm, "norm") + "layers.";
      for (const std::string& tap : trusted_.taps())  // in program order: the last one stays
        if (tap.starts_with(layers) && tap.find('.', layers.size()) == std::string::npos)
          before = tap;
    }
    std::optional<Counterpart> found = before.empty() ? std::nullopt : same(before);
    if (found) found->layout_tap = norm;
    return found;
  }

  std::optional<Counterpart> gated_shared(const std::string& expert) const {
    if (!trusted_.has(expert) || !trusted_.has(expert + "_gate")) return std::nullopt;
    Counterpart found{expert, name_of(expert) + " times its gate", expert, {tap_}};
    found.values = gated(trusted_.values(expert + "_gate"), trusted_.values(expert));
    found.segments = {found.values.cols()};
    return found;
  }

  std::optional<Counterpart> side_by_side_of(const std::string& module,
                                             const std::vector<std::string>& parts) const {
    std::vector<HostTensor> tensors;
    Counterpart found{module + parts.front(), "", module + parts.front(), {tap_}};
    std::vector<std::string> names;
    for (const std::string& part : parts) {
      if (!trusted_.has(module + part)) return std::nullopt;
      tensors.push_back(trusted_.values(module + part));
      names.push_back(name_of(module + part));
      if (names.size() > 1) found.beside.push_back(module + part);
      for (const std::int64_t segment : segments_of(module + part, tensors.back().cols()))
        found.segments.push_back(segment);
    }
    found.in_words = joined(names);
    found.values = side_by_side(tensors);
    return found;
  }

  const std::string& tap_;
  const std::set<std::string>& dump_taps_;
  const TrustedStep& trusted_;
  const ModelConfig* config_;
};

}  // namespace

HostTensor side_by_side(const std::vector<HostTensor>& parts) {
  HostTensor joined{{parts.front().rows(), 0}, {}, parts.front().dtype};
  for (const HostTensor& part : parts) joined.shape[1] += part.cols();
  joined.values.reserve(std::size_t(joined.rows() * joined.cols()));
  for (std::int64_t row = 0; row < joined.rows(); ++row)
    for (const HostTensor& part : parts) {
      const auto begin = part.values.begin() + row * part.cols();
      joined.values.insert(joined.values.end(), begin, begin + part.cols());
    }
  return joined;
}

GoldenStep::GoldenStep(const GoldenFile& golden, std::string case_name, GoldenInputs inputs)
    : golden_(golden), case_name_(std::move(case_name)), inputs_(std::move(inputs)) {
  for (const std::string& tap : golden_.tap_names(case_name_)) taps_.insert("target/" + tap);
  const std::int64_t steps = golden_.mtp_step_count(case_name_);
  for (std::int64_t step = 0; step < steps; ++step)
    for (const std::string& tap : golden_.mtp_tap_names(case_name_, step))
      taps_.insert(text("step", step, '/', tap));
  if (steps > 0) taps_.insert("draft_ids");
}

std::vector<HostTensor> GoldenStep::ways(const std::string& tap) const {
  const std::int64_t pass = tap_place(tap).pass;
  return {pass < 0 ? golden_.tap(case_name_, name_of(tap))
                   : golden_.mtp_tap(case_name_, pass, name_of(tap))};
}

IntegerTensor GoldenStep::ids(const std::string& tap) const {
  if (tap == "draft_ids") return golden_.draft_ids(case_name_);
  const std::int64_t pass = tap_place(tap).pass;
  return pass < 0 ? golden_.tap_ids(case_name_, name_of(tap))
                  : golden_.mtp_ids(case_name_, pass, name_of(tap));
}

bool may_be_sampled(const std::string& tap) {
  return tap.ends_with("/lm_head") || tap.ends_with("/logits");
}

std::string layer_before(const std::string& layer) {
  const std::size_t at = layer.rfind("layers.") + std::string_view("layers.").size();
  const std::int64_t number = std::stoll(layer.substr(at));
  if (number > 0) return text(layer.substr(0, at), number - 1);
  return pass_of(layer) + (name_of(layer).starts_with("mtp.") ? "/mtp.fc" : "/model.embed_tokens");
}

std::optional<Counterpart> counterpart_of(const std::string& tap,
                                          const std::set<std::string>& dump_taps,
                                          const TrustedStep& trusted, const ModelConfig* config) {
  return Finder(tap, dump_taps, trusted, config).find();
}

}  // namespace tokenview
