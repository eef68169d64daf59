// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

namespace tokenview {

/// Where values are rounded to bfloat16 while a bfloat16 model runs in fp32 arithmetic.
/// none: nowhere. hf, vllm: where those two implementations round; they differ (see the comments at
/// the operations of EigenOps).
enum class Rounding { none, hf, vllm };

/// The nearest bfloat16, ties to even. NaN stays NaN, overflow becomes infinity.
inline float round_to_bf16(float value) {
  if (value != value) return value;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return std::bit_cast<float>(rounded & 0xffff0000u);
}

}  // namespace tokenview
