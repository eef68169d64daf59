// SPDX-License-Identifier: Apache-2.0
#include "verify/tap_terms.hpp"

namespace tokenview {
namespace {

constexpr std::string_view layers = "layers.", residual = ".residual";

/// "target/model.layers.1" of what is in that layer, and of its output; empty for anything else.
std::string layer_of(const std::string& tap) {
  const std::size_t at = tap.rfind(layers);
  return at == std::string::npos ? "" : tap.substr(0, tap.find('.', at + layers.size()));
}

/// The last layer of the pass of a norm that comes after all layers.
std::string last_layer(const std::string& norm, const TrustedStep& trusted) {
  std::string last;
  for (const std::string& tap : trusted.taps())  // in program order
    if (tap_place(tap).pass == tap_place(norm).pass && !layer_of(tap).empty()) last = layer_of(tap);
  return last;
}

/// Modules right inside `module` that come before `end`, and are neither a norm nor the stream.
std::vector<std::string> modules_of(const std::string& module, const std::string& end,
                                    const TrustedStep& trusted) {
  std::vector<std::string> found;
  for (const std::string& tap : trusted.taps()) {
    if (!tap.starts_with(module + ".")) continue;
    const std::string name = tap.substr(module.size() + 1);
    const bool is_stream = name == "hidden" || name == "residual";
    if (name.find('.') != std::string::npos || name.find("norm") != std::string::npos ||
        is_stream || tap == end || !InProgramOrder()(tap, end))
      continue;
    found.push_back(tap);
  }
  return found;
}

}  // namespace

std::vector<std::string> terms_beside(const std::string& tap, const TrustedStep& trusted) {
  const std::string layer = layer_of(tap);
  if (tap.ends_with(residual) || tap == layer) {
    const std::string norm =
        tap.ends_with(residual) ? tap.substr(0, tap.size() - residual.size()) : tap;
    std::string of = layer;
    if (norm.ends_with(".input_layernorm")) of = layer_before(layer);
    if (layer.empty()) of = last_layer(norm, trusted);
    return layer_of(of).empty() ? std::vector<std::string>() : modules_of(of, tap, trusted);
  }
  if (layer.empty()) return {};
  const std::size_t block = tap.find('.', layer.size() + 1);
  return modules_of(tap.substr(0, block), tap, trusted);
}

}  // namespace tokenview
