// SPDX-License-Identifier: Apache-2.0
#include "reference/program/strict_json.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

using nlohmann::json;

constexpr int max_depth = 64;

std::string line_and_column(std::string_view document, std::size_t offset) {
  const std::string_view before = document.substr(0, offset);
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return text("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
              offset - line_start + 1);
}

/// The word of letters and signs that `offset` lies in; empty when it lies in none.
std::string_view word_at(std::string_view document, std::size_t offset) {
  const auto is_part = [&](std::size_t at) {
    const char letter = document[at];
    return std::isalpha(static_cast<unsigned char>(letter)) || letter == '-' || letter == '+';
  };
  if (offset >= document.size() || !is_part(offset)) return {};
  std::size_t begin = offset;
  std::size_t end = offset;
  while (begin > 0 && is_part(begin - 1)) --begin;
  while (end < document.size() && is_part(end)) ++end;
  return document.substr(begin, end - begin);
}

/// Whether Python or JavaScript would read this word as NaN or as an infinity.
bool is_non_finite(std::string_view word) {
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.remove_prefix(1);
  std::string lower(word.substr(0, 9));
  for (char& letter : lower) letter = char(std::tolower(static_cast<unsigned char>(letter)));
  return lower == "nan" || lower == "inf" || lower == "infinity";
}

/// Follows the parser through objects and arrays: refuses what the JSON library lets through.
class Nesting {
 public:
  explicit Nesting(const std::string& source) : source_(source) {}

  void follow(int depth, json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth)
      throw FileError(text(source_, ": ", key(), ": is nested deeper than ", max_depth,
                           " levels, expected a config.json"));
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key) {
      open_.back().last = parsed.get_ref<const std::string&>();
      if (!open_.back().keys.insert(open_.back().last).second)
        throw FileError(text(source_, ": ", key(), ": appears twice in one object, expected once"));
    }
  }

  /// The dotted path of the last key read.
  std::string key() const {
    std::string path;
    for (const Object& object : open_) path += (path.empty() ? "" : ".") + object.last;
    return shortened(path);
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string last;
  };
  const std::string& source_;
  std::vector<Object> open_;
};

}  // namespace

json parse_strict_json(std::string_view document, const std::string& source) {
  if (document.size() > max_json_bytes)
    throw FileError(text(source, ": has ", document.size(), " bytes, expected a config.json of at ",
                         "most ", max_json_bytes));
  if (document.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw FileError(text(source, ": is empty, expected a JSON object"));
  // The library takes a zero byte for the end of its input.
  if (const std::size_t zero = document.find('\0'); zero != std::string_view::npos)
    throw FileError(text(source, ": malformed JSON at ", line_and_column(document, zero),
                         ": a zero byte, expected UTF-8 text"));
  Nesting nesting(source);
  try {
    return json::parse(document.begin(), document.end(),
                       [&](int depth, json::parse_event_t event, json& parsed) {
                         nesting.follow(depth, event, parsed);
                         return true;
                       });
  } catch (const json::parse_error& error) {
    const std::size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    if (const std::string_view word = word_at(document, offset); is_non_finite(word))
      throw FileError(text(source, ": ", nesting.key(), ": is ", word, " (",
                           line_and_column(document, std::size_t(word.data() - document.data())),
                           "), expected a finite number"));
    const std::string place = line_and_column(document, offset);
    if (offset >= document.size())
      throw FileError(
          text(source, ": malformed JSON at ", place, ": the text ends early, expected more"));
    const char found = document[offset];
    const std::string letter = std::isprint(static_cast<unsigned char>(found))
                                   ? text("'", found, "'")
                                   : text("byte ", int(static_cast<unsigned char>(found)));
    const std::string last_key = nesting.key();
    throw FileError(text(source, ": malformed JSON at ", place, ": unexpected ", letter,
                         last_key.empty() ? "" : " after key " + last_key,
                         ", expected valid JSON in UTF-8"));
  } catch (const json::out_of_range&) {
    throw FileError(text(source, ": ", nesting.key(),
                         ": is a number out of range, expected at most 1.8e308 in magnitude"));
  }
}

/// At most 60 printable ASCII characters of `value`, for one line of an error.
std::string shortened(std::string value) {
  constexpr std::size_t longest = 60;
  if (value.size() > longest) value = value.substr(0, longest) + "...";
  for (char& letter : value)
    if (!std::isprint(static_cast<unsigned char>(letter))) letter = '?';
  return value;
}

std::string shown(const json& value) {
  if (value.is_array()) return text("an array of ", value.size());
  if (value.is_object()) return "an object";
  return shortened(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace tokenview
