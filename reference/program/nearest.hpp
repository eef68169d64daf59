// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tokenview {

/// The candidate that fewest single-letter edits turn `name` into (the first of equals), or an
/// empty string when none is closer than half of its own length: the end of a "did you mean".
/// Source: Levenshtein distance, Wagner & Fischer 1974.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

/// ", did you mean X?" for the nearest candidate, or an empty string.
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

/// "a, b, c"
std::string joined(const std::vector<std::string>& names);

}  // namespace tokenview
