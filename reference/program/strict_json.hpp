// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tokenview {

/// The largest JSON text that is read, in bytes.
inline constexpr std::size_t max_json_bytes = std::size_t{16} << 20;

/// Parses text that came from elsewhere. `source` stands in front of every error. Throws FileError,
/// with key, line and column, for text that is empty, over max_json_bytes, not one JSON value in
/// UTF-8, nested over 64 levels deep, or that repeats a key or holds a NaN, an infinity or a number
/// out of range.
nlohmann::json parse_strict_json(std::string_view document, const std::string& source);

/// `value` for one line of an error: at most 60 printable characters.
std::string shown(const nlohmann::json& value);

/// At most 60 characters of `name`, the unprintable ones replaced by '?'.
std::string shortened(std::string name);

}  // namespace tokenview
