// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// Rounds to a type up or down at random, up with a probability of the distance from below, so that
/// the mean is the value itself and a number of the type stays as it is. One draw for each value
/// and seed: equal values round alike whatever the order of evaluation, as in nearest rounding.
/// The variance is twice that of nearest rounding: 1/6 of a squared step instead of 1/12.
///
/// A float is a float32 already. There every value moves by one step, up or down: what exp, rsqrt
/// and sums in another order do to it.
/// Source: Croci, Fasi, Higham, Mary & Mikaitis 2022, Stochastic rounding: implementation, error
/// analysis and applications, section 2.
struct RandomRounding {
  DType type = DType::bfloat16;  // or float16, float32
  std::uint64_t seed = 0;

  float operator()(float value) const {
    if (!std::isfinite(value) || value == 0) return value;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint64_t random = draw(bits);
    switch (type) {
      case DType::float16:
        return to_float16(value, random);
      case DType::float32:
        return std::bit_cast<float>(random % 2 == 0 ? bits + 1 : bits - 1);
      default:
        return std::bit_cast<float>((bits + std::uint32_t(random & 0xffffu)) & 0xffff0000u);
    }
  }

 private:
  /// Source: Steele, Lea & Flood 2014, SplitMix64, the finaliser.
  std::uint64_t draw(std::uint32_t bits) const {
    std::uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u ^ bits;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) >> 16;
  }

  static float to_float16(float value, std::uint64_t random) {
    constexpr float largest = 65504, least_normal = 0x1p-14f, least = 0x1p-24f;
    if (std::abs(value) < least_normal)  // subnormal: steps of 2^-24
      return std::copysign(
          std::floor(std::abs(value) / least + float(random & 0xffffu) / 0x1p16f) * least, value);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const float result =
        std::bit_cast<float>((bits + std::uint32_t(random & 0x1fffu)) & ~std::uint32_t{0x1fff});
    return std::abs(result) > largest ? std::copysign(std::numeric_limits<float>::infinity(), value)
                                      : result;
  }
};

}  // namespace tokenview
