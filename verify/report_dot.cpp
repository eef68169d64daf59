// SPDX-License-Identifier: Apache-2.0
#include "reference/program/error.hpp"
#include "verify/report_formats.hpp"
#include "verify/report_layer.hpp"

namespace tokenview {
namespace {

/// Inside a quoted string of the DOT language that is the label of a record. Source: Graphviz,
/// "The DOT Language" and "Node Shapes": these characters divide a record.
std::string escaped(const std::string& raw) {
  std::string out;
  for (const char c : raw) {
    if (std::string_view("\"\\{}|<> ").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string label_of(const ResultTap& tap) {
  std::string label = escaped(tap.place());
  for (std::size_t rank = 0; rank < tap.rows.size(); ++rank) {
    label += text("|{rank\\ ", tap.rank_of(rank), '|', escaped(tap.rows[rank]));
    if (rank < tap.sums.size() && tap.sums[rank] != "complete")
      label += '|' + escaped(tap.sums[rank]);
    if (rank < tap.columns.size() && tap.columns[rank] != "all")
      label += "|columns\\ " + escaped(tap.columns[rank]);
    label += '}';
  }
  return label;
}

}  // namespace

std::string layer_dot(const ResultCase& result, const std::string& module) {
  const std::vector<LayerStep> steps = layer_steps(result, module);
  const ResultTap* const bad = first_bad_tap(result);
  std::string out = text("digraph \"", escaped(result.name), "\" {\n  rankdir=TB;\n",
                         "  node [fontname=\"monospace\", fontsize=10];\n");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (const auto* const tap = std::get_if<const ResultTap*>(&steps[i]))
      out += text("  n", i, " [shape=record, label=\"{", label_of(**tap), "}\"",
                  *tap == bad ? ", color=red, penwidth=2" : "", "];\n");
    else
      out += text("  n", i, " [shape=cds, style=filled, fillcolor=lightgrey, label=\"",
                  escaped(in_words(*std::get<const ResultCall*>(steps[i]))), "\"];\n");
    if (i > 0) out += text("  n", i - 1, " -> n", i, ";\n");
  }
  return out + "}\n";
}

}  // namespace tokenview
