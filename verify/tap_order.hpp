// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace tokenview {

/// A tap's place in the program, taken from its name alone ("step0/mtp.layers.0.mlp"): the pass,
/// the layer, and the module's place in a layer of the pre-norm families. It holds for models that
/// have no arithmetic here as well, as far as their modules have the usual names: a mixer is called
/// something with "attn", "attention", "mamba" or "mixer", a feed-forward with "mlp", "moe", "ffn"
/// or "feed_forward". Others stand between the two. Modules at one place are in the order of their
/// names, but what is inside a module comes before its output.
struct TapPlace {
  std::int64_t pass = -1;   // -1: the target; else the draft step
  std::int64_t layer = -1;  // -1: before the first; the largest value: after the last
  std::int64_t module = 0;  // within the layer
  std::string_view name;    // of the tap, with its pass: this refers to the text it was made from

  std::strong_ordering operator<=>(const TapPlace& other) const;
  bool operator==(const TapPlace&) const = default;
};
TapPlace tap_place(std::string_view tap);

/// Orders names as the program runs.
struct InProgramOrder {
  bool operator()(const std::string& a, const std::string& b) const {
    return tap_place(a) < tap_place(b);
  }
};

/// True for the output of a layer, after both residual sums.
bool is_layer_output(std::string_view tap);

/// True for what leaves the stack of layers: the last layer, the final norm, and what comes after.
bool is_exit(std::string_view tap);

/// "target", "step0": what comes before the first '/'; and what comes after it.
std::string pass_of(std::string_view tap);
std::string name_of(std::string_view tap);

}  // namespace tokenview
