// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// What tensors of files are made of.
enum class StorageType {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
  boolean,  // a byte; compared as a number
};

/// PyTorch's names: "float32", "float8_e4m3fn", "bool".
const char* to_string(StorageType type);
std::optional<StorageType> storage_type(std::string_view name);
StorageType storage_type(DType type);

std::int64_t element_bytes(StorageType type);
bool is_floating(StorageType type);

/// The numbers that a type holds: neighbours of 2^e <= |x| < 2^(e+1) are 2^(e - fraction_bits)
/// apart, and below 2^min_exponent as far apart as there. Integers are 1 apart everywhere.
/// Sources: IEEE 754-2008 table 3.5; OCP 8-bit floating point specification 1.0, table 1.
struct NumberGrid {
  int fraction_bits;
  int min_exponent;
};
NumberGrid number_grid(StorageType type);

/// Of two types the one with the coarser grid; a floating one beside an integer.
StorageType narrower(StorageType a, StorageType b);

/// True for the types all of whose values a float holds exactly, and a double.
bool fits_float(StorageType type);
bool fits_double(StorageType type);

/// `count` elements at `from`, in the machine's byte order and with any alignment, as numbers. The
/// type fits; a long double holds all of them.
void widen(StorageType type, const std::byte* from, std::int64_t count, float* to);
void widen(StorageType type, const std::byte* from, std::int64_t count, double* to);
void widen(StorageType type, const std::byte* from, std::int64_t count, long double* to);

}  // namespace tokenview
