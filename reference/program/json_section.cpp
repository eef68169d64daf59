// SPDX-License-Identifier: Apache-2.0
#include "reference/program/json_section.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {

using nlohmann::json;

JsonSection::JsonSection(const json& object, std::string path, const std::string& source)
    : object_(&object), path_(std::move(path)), source_(&source) {}

void JsonSection::refuse(const std::string& key, const std::string& found,
                         const std::string& expected) const {
  throw ConfigError(
      text(*source_, ": ", path_, shortened(key), ": is ", found, ", expected ", expected));
}

bool JsonSection::has(const std::string& key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

const json* JsonSection::find(const std::string& key) {
  read_.insert(key);
  const auto found = object_->find(key);
  return found == object_->end() ? nullptr : &*found;
}

const json* JsonSection::find_set(const std::string& key) {
  const json* const value = find(key);
  return value && value->is_null() ? nullptr : value;
}

const json& JsonSection::required(const std::string& key) {
  if (const json* const value = find(key)) return *value;
  throw ConfigError(text(*source_, ": ", path_, key, ": is missing, expected it: no default"));
}

std::int64_t JsonSection::integer(const std::string& key) { return to_integer(key, required(key)); }

std::int64_t JsonSection::integer(const std::string& key, std::int64_t otherwise) {
  const json* const value = find(key);
  return value ? to_integer(key, *value) : otherwise;
}

double JsonSection::number(const std::string& key, double otherwise) {
  const json* const value = find(key);
  if (!value) return otherwise;
  if (!value->is_number()) refuse(key, shown(*value), "a number");
  return value->get<double>();
}

bool JsonSection::boolean(const std::string& key, bool otherwise) {
  const json* const value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) refuse(key, shown(*value), "true or false");
  return value->get<bool>();
}

std::vector<std::int64_t> JsonSection::integers(const std::string& key) {
  std::vector<std::int64_t> list;
  if (const json* const value = find_set(key))
    for (const json& entry : to_array(key, *value))
      list.push_back(to_integer(text(key, "[", list.size(), "]"), entry));
  return list;
}

std::optional<JsonSection> JsonSection::section(const std::string& key) {
  const json* const value = find_set(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) refuse(key, shown(*value), "an object");
  return JsonSection(*value, path_ + key + ".", *source_);
}

std::int64_t JsonSection::to_integer(const std::string& key, const json& value) const {
  constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > largest))
    refuse(key, shown(value), "an integer below 2^63");
  return value.get<std::int64_t>();
}

const std::string& JsonSection::to_string(const std::string& key, const json& value) const {
  if (!value.is_string()) refuse(key, shown(value), "a string");
  return value.get_ref<const std::string&>();
}

const json& JsonSection::to_array(const std::string& key, const json& value) const {
  if (!value.is_array()) refuse(key, shown(value), "an array");
  return value;
}

void JsonSection::require_switch(const std::string& key, bool only) {
  if (boolean(key, only) != only)
    refuse(key, only ? "false" : "true",
           text(only ? "true" : "false", ": the program has no arithmetic for the other"));
}

void JsonSection::require_name(const std::string& key, const std::vector<std::string>& known) {
  const json* const value = find_set(key);
  if (!value) return;
  const std::string& name = to_string(key, *value);
  if (std::find(known.begin(), known.end(), name) == known.end())
    refuse(key, shown(*value), joined(known) + ": the program has no arithmetic for others");
}

void JsonSection::know(std::string_view keys) {
  std::istringstream words{std::string(keys)};
  for (std::string key; words >> key;) read_.insert(key);
}

void JsonSection::ignore(const std::string& key, std::vector<std::string>& ignored) const {
  ignored.push_back(path_ + shortened(key));
}

void JsonSection::ignore_unread(std::vector<std::string>& ignored) const {
  for (const auto& [key, value] : object_->items())
    if (!read_.count(key)) ignore(key, ignored);
}

}  // namespace tokenview
