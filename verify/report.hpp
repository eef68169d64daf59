// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tokenview {

using ReportValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

/// One line of a report in JSON Lines, schema "tokenview.report", version 1. Every record has the
/// keys below, null where one has no meaning; a kind adds keys of its own and never changes these.
struct ReportRecord {
  std::string kind;                      // "tap", "case", "finding", "summary", ...
  std::optional<std::string> file = {};  // as given on the command line
  std::optional<std::string> case_name = {};
  std::optional<std::string> step = {};  // "target", "step0", ...
  std::optional<std::string> tap = {};
  std::optional<std::int64_t> rank = {};
  std::optional<double> observed = {};
  std::optional<double> allowed = {};
  std::optional<std::string> verdict = {};
  std::vector<std::pair<std::string, ReportValue>> more = {};  // further keys, in this order
};

/// "1 tap", "3 taps"
std::string plural(std::int64_t count, const std::string& noun);

/// Each number to two significant digits, for records that have many.
std::vector<double> rounded(std::vector<double> numbers);

/// A file that cannot be read, or is not what it should be: kind "finding", verdict "error".
ReportRecord error_record(const std::string& file, const std::string& problem);

/// The record as one line of JSON in UTF-8, without the newline. A number that JSON does not have
/// is the string "nan", "inf" or "-inf"; bytes that are not UTF-8 become U+FFFD.
std::string json_line(const ReportRecord& record);

/// What json_line() wrote. Throws FileError, without the place, for a line that is no record of
/// this schema and version: a common key is missing or of another type, or a value is nested.
ReportRecord parse_record(const std::string& line);

/// What a further key of the record holds; empty, false or `otherwise` where it has none, or
/// another type. Numbers are read from "nan", "inf" and "-inf" too.
std::string text_in(const ReportRecord& record, const std::string& key);
std::int64_t whole_in(const ReportRecord& record, const std::string& key,
                      std::int64_t otherwise = 0);
bool flag_in(const ReportRecord& record, const std::string& key);
std::optional<double> number_in(const ReportRecord& record, const std::string& key);
std::vector<double> numbers_in(const ReportRecord& record, const std::string& key);
std::vector<std::int64_t> wholes_in(const ReportRecord& record, const std::string& key);
std::vector<std::string> texts_in(const ReportRecord& record, const std::string& key);

}  // namespace tokenview
