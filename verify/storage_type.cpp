// SPDX-License-Identifier: Apache-2.0
#include "verify/storage_type.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

namespace tokenview {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(std::numeric_limits<long double>::digits >= 64, "holds every 64-bit integer");

struct TypeRow {
  StorageType type;
  const char* name;
  int bytes;
  NumberGrid grid;
};

// Integers: |x| < 2^64 lies below the smallest exponent, where the step is 2^(64 - 64).
constexpr NumberGrid whole = {64, 64};
constexpr TypeRow types[] = {
    {StorageType::float64, "float64", 8, {52, -1022}},
    {StorageType::float32, "float32", 4, {23, -126}},
    {StorageType::float16, "float16", 2, {10, -14}},
    {StorageType::bfloat16, "bfloat16", 2, {7, -126}},
    {StorageType::float8_e4m3fn, "float8_e4m3fn", 1, {3, -6}},
    {StorageType::float8_e5m2, "float8_e5m2", 1, {2, -14}},
    {StorageType::int64, "int64", 8, whole},
    {StorageType::int32, "int32", 4, whole},
    {StorageType::int16, "int16", 2, whole},
    {StorageType::int8, "int8", 1, whole},
    {StorageType::uint64, "uint64", 8, whole},
    {StorageType::uint32, "uint32", 4, whole},
    {StorageType::uint16, "uint16", 2, whole},
    {StorageType::uint8, "uint8", 1, whole},
    {StorageType::boolean, "bool", 1, whole},
};

constexpr const TypeRow& row(StorageType type) { return types[std::size_t(type)]; }

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < std::size(types); ++i)
    if (types[i].type != StorageType(i)) return false;
  return true;
}
static_assert(rows_are_in_order());

// The fraction and exponent of a half, moved to a float's place, are 2^112 too small; denormal
// ones as well. Infinity and NaN need all bits of the exponent.
constexpr float from_half(std::uint16_t half) {
  const std::uint32_t magnitude = std::uint32_t(half & 0x7fffu) << 13;
  auto bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  bits |= magnitude >= 0x7c00u << 13 ? 0x7f800000u : 0u;
  return std::bit_cast<float>(bits | std::uint32_t(half & 0x8000u) << 16);
}

/// No infinity; all bits of exponent and fraction set is NaN.
constexpr float from_e4m3fn(std::uint8_t byte) {
  const std::uint32_t magnitude = byte & 0x7fu;
  const std::uint32_t sign = std::uint32_t(byte & 0x80u) << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

template <class Convert>
constexpr std::array<float, 256> table_of(Convert convert) {
  std::array<float, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = convert(std::uint8_t(i));
  return table;
}
constexpr auto e4m3fn = table_of(from_e4m3fn);
constexpr auto e5m2 =
    table_of([](std::uint8_t byte) { return from_half(std::uint16_t(byte << 8)); });

template <class From, class To, class Convert>
void convert_all(const std::byte* from, std::int64_t count, To* to, Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, from + i * std::int64_t(sizeof element), sizeof element);
    to[i] = To(convert(element));
  }
}

template <class To>
void widen_all(StorageType type, const std::byte* from, std::int64_t count, To* to) {
  const auto same = [](auto x) { return x; };
  switch (type) {
    case StorageType::float64:
      return convert_all<double>(from, count, to, same);
    case StorageType::float32:
      return convert_all<float>(from, count, to, same);
    case StorageType::float16:
      return convert_all<std::uint16_t>(from, count, to, from_half);
    case StorageType::bfloat16:
      return convert_all<std::uint16_t>(from, count, to, [](std::uint16_t x) {
        return std::bit_cast<float>(std::uint32_t(x) << 16);
      });
    case StorageType::float8_e4m3fn:
      return convert_all<std::uint8_t>(from, count, to, [](std::uint8_t x) { return e4m3fn[x]; });
    case StorageType::float8_e5m2:
      return convert_all<std::uint8_t>(from, count, to, [](std::uint8_t x) { return e5m2[x]; });
    case StorageType::int64:
      return convert_all<std::int64_t>(from, count, to, same);
    case StorageType::int32:
      return convert_all<std::int32_t>(from, count, to, same);
    case StorageType::int16:
      return convert_all<std::int16_t>(from, count, to, same);
    case StorageType::int8:
      return convert_all<std::int8_t>(from, count, to, same);
    case StorageType::uint64:
      return convert_all<std::uint64_t>(from, count, to, same);
    case StorageType::uint32:
      return convert_all<std::uint32_t>(from, count, to, same);
    case StorageType::uint16:
      return convert_all<std::uint16_t>(from, count, to, same);
    case StorageType::uint8:
    case StorageType::boolean:
      return convert_all<std::uint8_t>(from, count, to, same);
  }
}

}  // namespace

const char* to_string(StorageType type) { return row(type).name; }

std::optional<StorageType> storage_type(std::string_view name) {
  for (const TypeRow& each : types)
    if (name == each.name) return each.type;
  return std::nullopt;
}

StorageType storage_type(DType type) {
  switch (type) {
    case DType::float32:
      return StorageType::float32;
    case DType::float64:
      return StorageType::float64;
    case DType::float16:
      return StorageType::float16;
    case DType::bfloat16:
      return StorageType::bfloat16;
    case DType::int32:
      return StorageType::int32;
    case DType::int64:
      return StorageType::int64;
  }
  return StorageType::float32;
}

std::int64_t element_bytes(StorageType type) { return row(type).bytes; }
bool is_floating(StorageType type) { return type <= StorageType::float8_e5m2; }
NumberGrid number_grid(StorageType type) { return row(type).grid; }

StorageType narrower(StorageType a, StorageType b) {
  return number_grid(a).fraction_bits <= number_grid(b).fraction_bits ? a : b;
}

bool fits_float(StorageType type) {
  return is_floating(type) ? type != StorageType::float64 : row(type).bytes <= 2;
}
bool fits_double(StorageType type) { return is_floating(type) || row(type).bytes <= 4; }

void widen(StorageType type, const std::byte* from, std::int64_t count, float* to) {
  widen_all(type, from, count, to);
}
void widen(StorageType type, const std::byte* from, std::int64_t count, double* to) {
  widen_all(type, from, count, to);
}
void widen(StorageType type, const std::byte* from, std::int64_t count, long double* to) {
  widen_all(type, from, count, to);
}

}  // namespace tokenview
