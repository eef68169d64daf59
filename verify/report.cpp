// SPDX-License-Identifier: Apache-2.0
#include "verify/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* schema = "tokenview.report";
constexpr std::int64_t version = 1;

Json as_json(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

Json as_json(const ReportValue& value) {
  if (const double* const number = std::get_if<double>(&value)) return as_json(*number);
  if (const auto* const numbers = std::get_if<std::vector<double>>(&value)) {
    Json list = Json::array();
    for (const double number : *numbers) list.push_back(as_json(number));
    return list;
  }
  return std::visit([](const auto& held) { return Json(held); }, value);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? as_json(ReportValue(*value)) : Json(nullptr);
}

std::optional<double> number_of(const std::string& word) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf") return infinity;
  if (word == "-inf") return -infinity;
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& key, const Json& found, const char* expected) {
  const std::string shown = found.is_object() ? "an object"
                            : found.is_array()
                                ? "a list"  // as deep as it may be
                                : found.dump(-1, ' ', false, Json::error_handler_t::replace);
  throw FileError(text(printable(key), ": found ", printable(shown), ", expected ", expected));
}

std::optional<std::string> text_or_null(const Json& record, const char* key) {
  const Json& value = record.at(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) refuse(key, value, "a string or null");
  return value.get<std::string>();
}

std::optional<double> number_or_null(const Json& record, const char* key) {
  const Json& value = record.at(key);
  if (value.is_null()) return std::nullopt;
  if (value.is_number()) return value.get<double>();
  const std::optional<double> word =
      value.is_string() ? number_of(value.get<std::string>()) : std::nullopt;
  if (!word) refuse(key, value, "a number, \"nan\", \"inf\", \"-inf\" or null");
  return word;
}

std::optional<std::int64_t> rank_or_null(const Json& value) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
    refuse("rank", value, "a rank or null");
  return value.get<std::int64_t>();
}

ReportValue list_of(const std::string& key, const Json& list) {
  const auto all = [&](auto holds) { return std::ranges::all_of(list, holds); };
  if (all([](const Json& x) { return x.is_string(); })) return list.get<std::vector<std::string>>();
  if (all([](const Json& x) { return x.is_number_integer(); }))
    return list.get<std::vector<std::int64_t>>();
  std::vector<double> numbers;
  for (const Json& element : list) {
    const auto word = element.is_string() ? number_of(element.get<std::string>()) : std::nullopt;
    if (!element.is_number() && !word) refuse(key, list, "a list of numbers or one of strings");
    numbers.push_back(word ? *word : element.get<double>());
  }
  return numbers;
}

ReportValue value_of(const std::string& key, const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return list_of(key, value);
  refuse(key, value, "a number, a string, true, false or a list of numbers or strings");
}

template <class T>
const T* held(const ReportRecord& record, const std::string& key) {
  for (const auto& [name, value] : record.more)
    if (name == key) return std::get_if<T>(&value);
  return nullptr;
}

}  // namespace

std::string plural(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

std::vector<double> rounded(std::vector<double> numbers) {
  for (double& number : numbers)
    number = std::strtod(fmt::format("{:.1e}", number).c_str(), nullptr);
  return numbers;
}

ReportRecord error_record(const std::string& file, const std::string& problem) {
  return {.kind = "finding", .file = file, .verdict = "error", .more = {{"detail", problem}}};
}

std::string json_line(const ReportRecord& record) {
  Json json;
  json["schema"] = schema;
  json["version"] = version;
  json["kind"] = record.kind;
  json["file"] = or_null(record.file);
  json["case"] = or_null(record.case_name);
  json["step"] = or_null(record.step);
  json["tap"] = or_null(record.tap);
  json["rank"] = or_null(record.rank);
  json["observed"] = or_null(record.observed);
  json["allowed"] = or_null(record.allowed);
  json["verdict"] = or_null(record.verdict);
  for (const auto& [name, value] : record.more) json[name] = as_json(value);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ReportRecord parse_record(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object())
    throw FileError(text("found ", printable(line.substr(0, 80)), ", expected a JSON object"));
  static constexpr const char* common[] = {"schema",   "version", "kind",   "file",
                                           "case",     "step",    "tap",    "rank",
                                           "observed", "allowed", "verdict"};
  for (const char* key : common)
    if (!json.contains(key)) throw FileError(text("has no \"", key, "\": is no line of a report"));
  if (json["schema"] != schema) refuse("schema", json["schema"], "\"tokenview.report\"");
  if (json["version"] != version) refuse("version", json["version"], "1");
  if (!json["kind"].is_string()) refuse("kind", json["kind"], "a string");

  ReportRecord record{.kind = json["kind"].get<std::string>(),
                      .file = text_or_null(json, "file"),
                      .case_name = text_or_null(json, "case"),
                      .step = text_or_null(json, "step"),
                      .tap = text_or_null(json, "tap"),
                      .rank = rank_or_null(json["rank"]),
                      .observed = number_or_null(json, "observed"),
                      .allowed = number_or_null(json, "allowed"),
                      .verdict = text_or_null(json, "verdict")};
  for (const auto& [key, value] : json.items())
    if (std::ranges::find(common, key) == std::end(common) && !value.is_null())
      record.more.emplace_back(key, value_of(key, value));
  return record;
}

std::string text_in(const ReportRecord& record, const std::string& key) {
  const auto* const value = held<std::string>(record, key);
  return value == nullptr ? "" : *value;
}

std::int64_t whole_in(const ReportRecord& record, const std::string& key, std::int64_t otherwise) {
  const auto* const value = held<std::int64_t>(record, key);
  return value == nullptr ? otherwise : *value;
}

bool flag_in(const ReportRecord& record, const std::string& key) {
  const auto* const value = held<bool>(record, key);
  return value != nullptr && *value;
}

std::optional<double> number_in(const ReportRecord& record, const std::string& key) {
  if (const auto* const value = held<double>(record, key)) return *value;
  if (const auto* const value = held<std::int64_t>(record, key)) return double(*value);
  if (const auto* const value = held<std::string>(record, key)) return number_of(*value);
  return std::nullopt;
}

std::vector<double> numbers_in(const ReportRecord& record, const std::string& key) {
  if (const auto* const list = held<std::vector<double>>(record, key)) return *list;
  std::vector<double> numbers;
  if (const auto* const list = held<std::vector<std::int64_t>>(record, key))
    numbers.assign(list->begin(), list->end());
  if (const auto* const list = held<std::vector<std::string>>(record, key))
    for (const std::string& word : *list)
      if (const auto number = number_of(word)) numbers.push_back(*number);
  return numbers;
}

std::vector<std::int64_t> wholes_in(const ReportRecord& record, const std::string& key) {
  std::vector<std::int64_t> wholes;
  for (const double number : numbers_in(record, key)) wholes.push_back(std::int64_t(number));
  return wholes;
}

std::vector<std::string> texts_in(const ReportRecord& record, const std::string& key) {
  const auto* const list = held<std::vector<std::string>>(record, key);
  return list == nullptr ? std::vector<std::string>() : *list;
}

}  // namespace tokenview
