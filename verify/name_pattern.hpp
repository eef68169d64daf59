// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokenview {

/// A pattern for names: `*` stands for any text, `/` and `.` included, `?` for one byte, all else
/// for itself.
class NamePattern {
 public:
  explicit NamePattern(std::string pattern) : pattern_(std::move(pattern)) {}

  const std::string& text() const { return pattern_; }
  bool matches(std::string_view name) const { return stars_of(name).has_value(); }

  /// What each `*` stands for in `name`, all but the last as short as can be; nothing where the
  /// name does not match. Time: at most the product of the two lengths.
  std::optional<std::vector<std::string_view>> stars_of(std::string_view name) const;

 private:
  std::string pattern_;
};

/// A renaming: names that match the pattern become the replacement, whose n-th `*` is the text of
/// the pattern's n-th.
class NameMap {
 public:
  /// Reads 'pattern=replacement', cut at the first '='. Throws UsageError where a side is missing
  /// or the replacement has more stars than the pattern.
  explicit NameMap(const std::string& text);

  const std::string& text() const { return text_; }
  std::optional<std::string> renamed(std::string_view name) const;

 private:
  std::string text_;
  NamePattern pattern_;
  std::string replacement_;
};

}  // namespace tokenview
