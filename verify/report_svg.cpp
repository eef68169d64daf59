// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <map>

#include "reference/program/error.hpp"
#include "verify/report_formats.hpp"
#include "verify/report_layer.hpp"
#include "verify/xml_element.hpp"

namespace tokenview {
namespace {

// Units of the picture, which are pixels where it is not scaled.
constexpr int letter = 7;  // of a monospaced font of 12
constexpr int line = 22;
constexpr int margin = 12;

std::string px(std::size_t value) { return std::to_string(value); }

XmlElement label(std::size_t x, std::size_t y, const std::string& words, const char* style) {
  return {
      .name = "text", .attributes = {{"x", px(x)}, {"y", px(y)}, {"class", style}}, .text = words};
}

XmlElement box(std::size_t x, std::size_t y, std::size_t width, std::size_t height,
               const std::string& fill, const std::string& stroke = "none") {
  return {.name = "rect",
          .attributes = {{"x", px(x)},
                         {"y", px(y)},
                         {"width", px(width)},
                         {"height", px(height)},
                         {"rx", "3"},
                         {"fill", fill},
                         {"stroke", stroke}}};
}

/// "[0,1,PAD]" or "0-9,PAD*2" at its commas.
std::vector<std::string> runs_of(const std::string& map) {
  std::vector<std::string> runs;
  std::string run;
  for (const char c : map)
    if (c == ',') {
      runs.push_back(std::move(run));
      run.clear();
    } else if (c != '[' && c != ']') {
      run += c;
    }
  if (!run.empty()) runs.push_back(run);
  return runs;
}

/// Neighbouring tokens differ in colour, and a token has the same one everywhere: in "9", "1/2x9"
/// and "step0:9". What is no token is as MIX.
std::string fill_of(const std::string& run) {
  if (run.find("PAD") != std::string::npos) return "#dfe3ea";
  const auto number_at = [&](std::size_t at) {
    std::size_t number = 0;
    for (; at < run.size() && std::isdigit(static_cast<unsigned char>(run[at])) != 0; ++at)
      number = (number * 10 + std::size_t(run[at] - '0')) % 360'000;
    return number;
  };
  const std::size_t prefix = run.find_last_of(":x");
  const std::size_t token = prefix == std::string::npos ? 0 : prefix + 1;
  if (token == run.size() || std::isdigit(static_cast<unsigned char>(run[token])) == 0)
    return "#f2a3ad";
  const std::size_t colon = run.find(':'), d = run.rfind('d', colon);
  const std::size_t dp =
      colon == std::string::npos || d == std::string::npos ? 0 : number_at(d + 1);
  return text("hsl(", (number_at(token) * 47 + 180 * dp) % 360, ",55%,86%)");
}

std::size_t width_of(const std::string& words) { return words.size() * letter; }

std::size_t width_of_map(const std::string& map) {
  std::size_t width = 0;
  for (const std::string& run : runs_of(map)) width += width_of(run) + 10;
  return width;
}

std::string note_of(const ResultTap& tap, std::size_t rank) {
  std::string note;
  if (rank < tap.sums.size() && tap.sums[rank] != "complete") note = tap.sums[rank];
  if (rank < tap.columns.size() && tap.columns[rank] != "all")
    note += (note.empty() ? "columns " : ", columns ") + tap.columns[rank];
  return note;
}

}  // namespace

std::string layer_svg(const ResultCase& result, const std::string& module) {
  const std::vector<LayerStep> steps = layer_steps(result, module);
  const ResultTap* const bad = first_bad_tap(result);
  std::size_t name_width = 0;
  std::map<std::int64_t, std::size_t> widths;  // of each rank that has a tap
  for (const LayerStep& step : steps) {
    const auto* const tap = std::get_if<const ResultTap*>(&step);
    if (tap == nullptr) continue;
    name_width = std::max(name_width, width_of((*tap)->place()));
    for (std::size_t i = 0; i < (*tap)->rows.size(); ++i) {
      std::size_t& width = widths[(*tap)->rank_of(i)];
      width = std::max(
          {width, width_of_map((*tap)->rows[i]), width_of(note_of(**tap, i)), width_of("rank 00")});
    }
  }
  std::map<std::int64_t, std::size_t> lefts;
  std::size_t right = margin + name_width + 24;
  for (const auto& [rank, width] : widths) {
    lefts[rank] = right;
    right += width + 18;
  }

  XmlElement svg{.name = "svg"};
  svg.children.push_back(
      {.name = "style",
       .text = "text{font:12px ui-monospace,monospace;fill:#14181f}.note{fill:#8a5a00}"
               ".call{fill:#5a6373;font-style:italic}.title{font-weight:bold}"});
  std::size_t y = margin + 14;
  svg.children.push_back(label(margin, y, result.name + ", " + module, "title"));
  y += line;
  for (const auto& [rank, left] : lefts)
    svg.children.push_back(label(left, y, text("rank ", rank), "title"));
  y += line;
  std::size_t widest = std::max(right, margin + width_of(result.name + module) + 40);
  for (const LayerStep& step : steps) {
    const auto* const found = std::get_if<const ResultTap*>(&step);
    if (found == nullptr) {
      const std::string words = in_words(*std::get<const ResultCall*>(step));
      svg.children.push_back(label(margin + 16, y, words, "call"));
      widest = std::max(widest, margin + 16 + width_of(words));
      y += line;
      continue;
    }
    const ResultTap& tap = **found;
    bool has_note = false;
    for (std::size_t i = 0; i < tap.rows.size(); ++i)
      has_note = has_note || !note_of(tap, i).empty();
    const std::size_t height = has_note ? 2 * line - 6 : line;
    if (&tap == bad)
      svg.children.push_back(box(margin / 2, y - 16, right - margin, height, "#fde6e8", "#c0182b"));
    svg.children.push_back(label(margin, y, tap.place(), ""));
    for (std::size_t i = 0; i < tap.rows.size(); ++i) {
      const std::size_t left = lefts.at(tap.rank_of(i));
      std::size_t x = left;
      for (const std::string& run : runs_of(tap.rows[i])) {
        svg.children.push_back(box(x, y - 12, width_of(run) + 8, 16, fill_of(run)));
        svg.children.push_back(label(x + 4, y, run, ""));
        x += width_of(run) + 10;
      }
      if (has_note) svg.children.push_back(label(left, y + 16, note_of(tap, i), "note"));
    }
    y += height;
  }
  svg.attributes = {{"xmlns", "http://www.w3.org/2000/svg"},
                    {"width", px(widest + margin)},
                    {"height", px(y)},
                    {"viewBox", text("0 0 ", widest + margin, ' ', y)},
                    {"role", "img"}};
  svg.children.insert(svg.children.begin(), {{.name = "title", .text = result.name + ", " + module},
                                             box(0, 0, widest + margin, y, "#fff")});
  return xml_document(svg);
}

}  // namespace tokenview
