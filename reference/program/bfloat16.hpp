// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

namespace tokenview {

/// The nearest bfloat16, ties to even. NaN stays NaN, overflow becomes infinity.
inline float round_to_bf16(float value) {
  if (value != value) return value;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return std::bit_cast<float>(rounded & 0xffff0000u);
}

/// A bfloat16 in memory: the upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;

  Bfloat16() = default;
  explicit Bfloat16(float value)
      : bits(std::uint16_t(std::bit_cast<std::uint32_t>(round_to_bf16(value)) >> 16)) {}
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }
  bool operator==(const Bfloat16&) const = default;  // of the bits
  /// Added in float, rounded once: as NCCL adds.
  friend Bfloat16 operator+(Bfloat16 x, Bfloat16 y) { return Bfloat16(float(x) + float(y)); }
};

}  // namespace tokenview
