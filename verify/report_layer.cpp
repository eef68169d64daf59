// SPDX-License-Identifier: Apache-2.0
#include "verify/report_layer.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/report_formats.hpp"

namespace tokenview {
namespace {

bool is_in(const std::string& name, const std::string& module) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

/// "mtp.layers.0" of "mtp.layers.0.mlp"; empty: in no layer.
std::string layer_in(const std::string& name) {
  const std::size_t layers = name.find("layers.");
  if (layers == std::string::npos) return "";
  return name.substr(0, name.find_first_not_of("0123456789", layers + 7));
}

}  // namespace

std::vector<LayerStep> layer_steps(const ResultCase& result, const std::string& module) {
  std::vector<LayerStep> steps;
  const std::string* pass = nullptr;
  auto call = result.calls.begin();
  for (std::size_t i = 0; i < result.taps.size(); ++i) {
    const ResultTap& tap = result.taps[i];
    std::vector<LayerStep> on_the_way;
    for (; call != result.calls.end() && call->before <= i; ++call) on_the_way.push_back(&*call);
    if (tap.rows.empty() || !is_in(tap.name, module) || (pass != nullptr && *pass != tap.step))
      continue;
    if (pass == nullptr)  // before it, what led to the layer
      std::erase_if(on_the_way, [&](const LayerStep& step) {
        return !is_in(std::get<const ResultCall*>(step)->module, module);
      });
    pass = &tap.step;
    steps.insert(steps.end(), on_the_way.begin(), on_the_way.end());
    steps.push_back(&tap);
  }
  if (steps.empty())
    throw UsageError(text("report: --module ", printable(module), ": ", printable(result.name),
                          " has no view of it"));
  return steps;
}

const ResultTap* first_bad_tap(const ResultCase& result) {
  if (result.problems.empty()) return nullptr;
  const auto tap = result.tap_of(result.problems.front());
  return tap ? &result.taps[*tap] : nullptr;
}

std::string in_words(const ResultCall& call) {
  std::string words = call.operation + " over " + call.group + ", ranks";
  for (const std::int64_t rank : call.ranks) words += ' ' + std::to_string(rank);
  return words;
}

std::string layer_of_first_problem(const ResultCase& result) {
  if (const ResultTap* bad = first_bad_tap(result); bad != nullptr && !bad->rows.empty()) {
    const std::string layer = layer_in(bad->name);
    return layer.empty() ? bad->name.substr(0, bad->name.find('.')) : layer;
  }
  for (const ResultTap& tap : result.taps)
    if (const std::string layer = layer_in(tap.name); !layer.empty() && !tap.rows.empty())
      return layer;
  return result.taps.front().name;
}

}  // namespace tokenview
