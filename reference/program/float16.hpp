// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tokenview {

/// The nearest float16, ties to even. NaN stays NaN, from 65520 on it is infinity.
/// Source: IEEE 754-2008, binary16: 10 fraction bits, subnormal below 2^-14.
inline float round_to_float16(float value) {
  if (!std::isfinite(value)) return value;
  if (std::abs(value) < 0x1p-14f) return std::nearbyint(value * 0x1p24f) * 0x1p-24f;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float rounded =
      std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~std::uint32_t{0x1fff});
  return std::abs(rounded) > 65504.0f ? std::copysign(std::numeric_limits<float>::infinity(), value)
                                      : rounded;
}

}  // namespace tokenview
