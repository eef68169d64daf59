// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_handle.hpp"

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

herr_t keep_cause(unsigned index, const H5E_error2_t* error, void* result) {
  // Walked upward, entry 0 is where the failure was noticed; the others say who had called.
  if (index == 0 && error->desc != nullptr) *static_cast<const char**>(result) = error->desc;
  return 0;
}

bool has_plain_byte_order(hid_t type) {
  const H5T_order_t order = H5Tget_order(type);
  return order == H5T_ORDER_LE || order == H5T_ORDER_BE;
}

Hdf5Type integer_type(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  const bool is_plain =
      H5Tget_precision(type) == 8 * bytes && H5Tget_offset(type) == 0 && has_plain_byte_order(type);
  if (!is_plain) return {std::nullopt, text("a packed integer of ", bytes, " bytes")};

  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  const std::string name = text(is_signed ? "int" : "uint", 8 * bytes);
  if (is_signed && bytes == 4) return {DType::int32, name};
  if (is_signed && bytes == 8) return {DType::int64, name};
  return {std::nullopt, name};
}

/// From the top: sign, exponent, fraction, and nothing else. IEEE 754-2008, table 3.5.
bool is_ieee(hid_t type, std::size_t bits, std::size_t exponent_bits) {
  std::size_t sign = 0, exponent = 0, exponent_size = 0, fraction = 0, fraction_size = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_size, &fraction, &fraction_size) < 0)
    return false;
  const std::size_t fraction_bits = bits - 1 - exponent_bits;
  return H5Tget_size(type) * 8 == bits && sign == bits - 1 && exponent == fraction_bits &&
         exponent_size == exponent_bits && fraction == 0 && fraction_size == fraction_bits &&
         H5Tget_ebias(type) == (std::size_t{1} << (exponent_bits - 1)) - 1 &&
         H5Tget_norm(type) == H5T_NORM_IMPLIED && has_plain_byte_order(type);
}

Hdf5Type float_type(hid_t type) {
  if (is_ieee(type, 32, 8)) return {DType::float32, "float32"};
  if (is_ieee(type, 64, 11)) return {DType::float64, "float64"};
  if (is_ieee(type, 16, 5)) return {DType::float16, "float16"};
  return {std::nullopt, text("a non-IEEE float of ", H5Tget_size(type), " bytes")};
}

/// As h5py writes it: a byte, FALSE = 0 and TRUE = 1.
bool is_boolean(hid_t type) {
  signed char no = -1, yes = -1;
  return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 &&
         H5Tenum_valueof(type, "FALSE", &no) >= 0 && H5Tenum_valueof(type, "TRUE", &yes) >= 0 &&
         no == 0 && yes == 1;
}

}  // namespace

std::string hdf5_reason() {
  const char* cause = nullptr;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_cause, &cause);
  return cause != nullptr && *cause != '\0' ? cause : "the HDF5 library gives no reason";
}

Hdf5Type hdf5_type(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return integer_type(type);
    case H5T_FLOAT:
      return float_type(type);
    case H5T_STRING:
      return {std::nullopt, "string"};
    case H5T_BITFIELD:
      return {std::nullopt, "bitfield"};
    case H5T_OPAQUE:
      return {std::nullopt, "opaque"};
    case H5T_COMPOUND:
      return {std::nullopt, "compound"};
    case H5T_REFERENCE:
      return {std::nullopt, "reference"};
    case H5T_ENUM:
      return {std::nullopt, is_boolean(type) ? "bool" : "enum"};
    case H5T_VLEN:
      return {std::nullopt, "variable-length list"};
    case H5T_ARRAY:
      return {std::nullopt, "array"};
    default:
      return {std::nullopt, "an unknown type"};
  }
}

}  // namespace tokenview
