// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_text.hpp"

#include <cstddef>
#include <cstdint>

namespace tokenview {
namespace {

/// The code of the character of `length` bytes at `at`, before it is known to be one.
std::uint32_t code_point(const std::string& bytes, std::size_t at, std::size_t length) {
  const auto byte = [&](std::size_t i) {
    return std::uint32_t(static_cast<unsigned char>(bytes[i]));
  };
  if (length == 1) return byte(at);
  std::uint32_t code = byte(at) & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(at + i) & 0x3f);
  return code;
}

/// Controls of Unicode beyond ASCII that break a line or turn its direction.
/// Source: Unicode 15, C1 controls, and UAX 9, explicit directional formatting.
bool misleads(std::uint32_t code) {
  return (code >= 0x80 && code <= 0x9f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

/// Bytes of the UTF-8 character at `at`; 0 where there is none.
std::size_t character_bytes(const std::string& bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return std::uint32_t(static_cast<unsigned char>(bytes[i]));
  };
  const std::uint32_t lead = byte(at);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() - at < length) return 0;

  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  const std::uint32_t code = code_point(bytes, at, length);
  const std::uint32_t smallest = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= smallest && code <= 0x10ffff && !is_surrogate ? length : 0;
}

}  // namespace

bool is_utf8(const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = character_bytes(bytes, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

namespace {

/// escaped(), with "..." for what is behind `limit` bytes.
std::string escaped_to(const std::string& raw, std::size_t limit) {
  constexpr char digits[] = "0123456789abcdef";
  std::string result;
  for (std::size_t at = 0; at < raw.size();) {
    if (result.size() > limit) return result + "...";
    const std::size_t length = character_bytes(raw, at);
    const auto first = static_cast<unsigned char>(raw[at]);
    const std::uint32_t code = length == 0 ? first : code_point(raw, at, length);
    if (length == 0 || code < 0x20 || code == 0x7f) {
      result += {'\\', 'x', digits[first >> 4], digits[first & 15]};
      ++at;
      continue;
    }
    if (misleads(code))
      result += {'\\',
                 'u',
                 digits[code >> 12],
                 digits[code >> 8 & 15],
                 digits[code >> 4 & 15],
                 digits[code & 15]};
    else
      result.append(raw, at, length);
    at += length;
  }
  return result;
}

}  // namespace

std::string escaped(const std::string& raw) { return escaped_to(raw, std::string::npos); }

std::string printable(const std::string& raw) { return escaped_to(raw, 200); }

}  // namespace tokenview
