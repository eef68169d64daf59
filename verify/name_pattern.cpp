// SPDX-License-Identifier: Apache-2.0
#include "verify/name_pattern.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

std::optional<std::vector<std::string_view>> NamePattern::stars_of(std::string_view name) const {
  std::vector<std::string_view> stars;
  std::size_t in_pattern = 0, in_name = 0;
  std::size_t after_star = 0, star_begin = 0;  // of the last star
  while (in_name < name.size()) {
    const char wanted = in_pattern < pattern_.size() ? pattern_[in_pattern] : '\0';
    if (wanted == '*') {
      stars.push_back(name.substr(in_name, 0));
      after_star = ++in_pattern;
      star_begin = in_name;
    } else if (in_pattern < pattern_.size() && (wanted == '?' || wanted == name[in_name])) {
      ++in_pattern;
      ++in_name;
    } else if (!stars.empty()) {  // the last star takes one byte more, and what follows begins anew
      stars.back() = name.substr(star_begin, stars.back().size() + 1);
      in_name = star_begin + stars.back().size();
      in_pattern = after_star;
    } else {
      return std::nullopt;
    }
  }
  for (; in_pattern < pattern_.size(); ++in_pattern) {
    if (pattern_[in_pattern] != '*') return std::nullopt;
    stars.push_back(name.substr(name.size()));
  }
  return stars;
}

NameMap::NameMap(const std::string& text)
    : text_(text),
      pattern_(text.substr(0, text.find('='))),
      replacement_(text.substr(std::min(text.find('='), text.size() - 1) + 1)) {
  const auto fail = [&](const char* problem) {
    throw UsageError(
        tokenview::text("'", printable(text_), "': ", problem, ", expected pattern=replacement"));
  };
  if (text.find('=') == std::string::npos) fail("has no '='");
  if (pattern_.text().empty()) fail("has no pattern");
  if (replacement_.empty()) fail("has no replacement");
  if (std::ranges::count(replacement_, '*') > std::ranges::count(pattern_.text(), '*'))
    fail("has more stars in the replacement than in the pattern");
}

std::optional<std::string> NameMap::renamed(std::string_view name) const {
  const auto stars = pattern_.stars_of(name);
  if (!stars) return std::nullopt;
  std::string result;
  std::size_t next = 0;
  for (const char letter : replacement_)
    if (letter == '*')
      result += (*stars)[next++];
    else
      result += letter;
  return result;
}

}  // namespace tokenview
