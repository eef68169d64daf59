// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_text.hpp"

#include <cstddef>
#include <cstdint>

namespace tokenview {
namespace {

/// Bytes of the UTF-8 character at `at`; 0 where there is none.
std::size_t character_bytes(const std::string& bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return std::uint32_t(static_cast<unsigned char>(bytes[i]));
  };
  const std::uint32_t lead = byte(at);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() - at < length) return 0;

  std::uint32_t code = lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3f);
  }
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

std::string printable(const std::string& raw) {
  constexpr std::size_t limit = 200;
  constexpr char digits[] = "0123456789abcdef";
  std::string result;
  for (std::size_t at = 0; at < raw.size();) {
    if (result.size() > limit) return result + "...";
    const std::size_t length = character_bytes(raw, at);
    const auto first = static_cast<unsigned char>(raw[at]);
    if (length == 0 || first < 0x20 || first == 0x7f) {
      result += {'\\', 'x', digits[first >> 4], digits[first & 15]};
      ++at;
    } else {
      result.append(raw, at, length);
      at += length;
    }
  }
  return result;
}

}  // namespace tokenview
