// SPDX-License-Identifier: Apache-2.0
#include "verify/report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

Json as_json(const ReportValue& value) {
  const double* const number = std::get_if<double>(&value);
  if (number == nullptr || std::isfinite(*number))
    return std::visit([](const auto& held) { return Json(held); }, value);
  return std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf";
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? as_json(ReportValue(*value)) : Json(nullptr);
}

}  // namespace

std::string plural(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

std::string json_line(const ReportRecord& record) {
  Json json;
  json["schema"] = "tokenview.report";
  json["version"] = 1;
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

}  // namespace tokenview
