// SPDX-License-Identifier: Apache-2.0
#include "verify/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "reference/program/error.hpp"
#include "reference/program/host_tensor.hpp"
#include "reference/program/strict_json.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

using nlohmann::json;

constexpr std::int64_t length_bytes = 8;
constexpr std::int64_t max_elements = std::int64_t{1} << 60;

constexpr std::pair<const char*, StorageType> types[] = {
    {"F64", StorageType::float64},
    {"F32", StorageType::float32},
    {"F16", StorageType::float16},
    {"BF16", StorageType::bfloat16},
    {"F8_E4M3", StorageType::float8_e4m3fn},
    {"F8_E5M2", StorageType::float8_e5m2},
    {"I64", StorageType::int64},
    {"I32", StorageType::int32},
    {"I16", StorageType::int16},
    {"I8", StorageType::int8},
    {"U64", StorageType::uint64},
    {"U32", StorageType::uint32},
    {"U16", StorageType::uint16},
    {"U8", StorageType::uint8},
    {"BOOL", StorageType::boolean},
};

class HeaderReader {
 public:
  explicit HeaderReader(const InputFile& file) : file_(file) {}

  SafetensorsHeader read() {
    const json header = parsed_header();
    SafetensorsHeader result;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__")
        result.metadata = metadata(value);
      else
        result.tensors.push_back(entry(name, value));
    }
    require_cover(result.tensors);
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw FileError(text(printable(file_.path()), ": ", problem));
  }
  [[noreturn]] void fail(const std::string& name, const std::string& problem) const {
    throw FileError(text(printable(file_.path()), ":", printable(name), ": ", problem));
  }

  json parsed_header() {
    if (file_.bytes() < length_bytes)
      fail(text("has ", file_.bytes(), " bytes, expected a safetensors file of at least 8"));
    std::array<std::byte, length_bytes> first{};
    file_.read(0, first);
    std::uint64_t length = 0;
    std::memcpy(&length, first.data(), first.size());
    if (length > std::uint64_t(file_.bytes() - length_bytes))
      fail(text("announces a header of ", length, " bytes in a file of ", file_.bytes(),
                ": it is truncated or no safetensors file"));
    if (length > max_json_bytes)
      fail(text("announces a header of ", length, " bytes, expected at most ", max_json_bytes));
    std::string document(std::size_t(length), '\0');
    file_.read(length_bytes, std::as_writable_bytes(std::span(document)));
    if (!document.starts_with('{')) fail("has a header that does not begin with '{'");
    data_begin_ = length_bytes + std::int64_t(length);
    data_bytes_ = file_.bytes() - data_begin_;
    return parse_strict_json(document, printable(file_.path()));
  }

  std::map<std::string, std::string> metadata(const json& value) const {
    std::map<std::string, std::string> result;
    if (!value.is_object()) fail("__metadata__", "is " + shown(value) + ", expected an object");
    for (const auto& [key, each] : value.items()) {
      if (!each.is_string())
        fail("__metadata__", text(key, " is ", shown(each), ", expected a string"));
      result[key] = each.get<std::string>();
    }
    return result;
  }

  SafetensorsEntry entry(const std::string& name, const json& value) const {
    if (!value.is_object()) fail(name, "is " + shown(value) + ", expected an object");
    for (const auto& [key, unused] : value.items())
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        fail(name, text("has a key '", printable(key), "', expected dtype, shape, data_offsets"));
    SafetensorsEntry result{name, type_of(name, value), {}, 0, 0};
    result.shape = whole_numbers(name, value, "shape");
    const std::vector<std::int64_t> place = whole_numbers(name, value, "data_offsets");
    if (place.size() != 2)
      fail(name, text("data_offsets is ", to_string(place), ", expected [begin, end]"));
    if (place[0] > place[1] || place[1] > data_bytes_)
      fail(name, text("data_offsets is ", to_string(place),
                      ", expected begin <= end <= ", data_bytes_, ", the bytes after the header"));
    result.offset = data_begin_ + place[0];
    result.bytes = place[1] - place[0];
    const std::int64_t expected = element_bytes(result.type) * elements(name, result.shape);
    if (result.bytes != expected)
      fail(name, text("data_offsets is ", to_string(place), ", ", result.bytes, " bytes, expected ",
                      expected, " for ", to_string(result.shape), " of ",
                      value["dtype"].get<std::string>()));
    return result;
  }

  StorageType type_of(const std::string& name, const json& value) const {
    const auto found = value.find("dtype");
    if (found == value.end()) fail(name, "has no dtype");
    if (found->is_string())
      for (const auto& [said, type] : types)
        if (*found == said) return type;
    fail(name, "dtype is " + shown(*found) +
                   ", expected F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL, or I or U with 8, 16, "
                   "32 or 64");
  }

  std::vector<std::int64_t> whole_numbers(const std::string& name, const json& value,
                                          const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail(name, text("has no ", key));
    if (!found->is_array()) fail(name, text(key, " is ", shown(*found), ", expected a list"));
    std::vector<std::int64_t> result;
    for (const json& each : *found) {
      if (!each.is_number_unsigned() || each.get<std::uint64_t>() > std::uint64_t(max_elements))
        fail(name, text(key, " has ", shown(each), ", expected whole numbers from 0 to 2^60"));
      result.push_back(each.get<std::int64_t>());
    }
    return result;
  }

  /// Checked without the zeros as well: the other extents are not to be nonsense beside one.
  std::int64_t elements(const std::string& name, const std::vector<std::int64_t>& shape) const {
    std::int64_t product = 1;
    bool is_empty = false;
    for (const std::int64_t extent : shape) {
      is_empty |= extent == 0;
      if (__builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product) ||
          product > max_elements)
        fail(name, text("shape is ", to_string(shape), ", expected at most 2^60 elements"));
    }
    return is_empty ? 0 : product;
  }

  /// The tensors follow each other without gap or overlap, to the end of the file.
  void require_cover(const std::vector<SafetensorsEntry>& tensors) const {
    std::vector<const SafetensorsEntry*> by_place;
    for (const SafetensorsEntry& tensor : tensors) by_place.push_back(&tensor);
    std::ranges::sort(by_place, {}, [](const SafetensorsEntry* tensor) {
      return std::pair(tensor->offset, tensor->offset + tensor->bytes);
    });
    std::int64_t end = data_begin_;
    const SafetensorsEntry* before = nullptr;
    for (const SafetensorsEntry* tensor : by_place) {
      if (tensor->offset < end)
        fail(tensor->name,
             text("overlaps ", printable(before->name), " by ", end - tensor->offset, " bytes"));
      if (tensor->offset > end)
        fail(tensor->name, text("begins ", tensor->offset - end,
                                " bytes after the end of the tensor before it, expected no gap"));
      end = tensor->offset + tensor->bytes;
      before = tensor;
    }
    if (end != file_.bytes())
      fail(text("has ", file_.bytes() - end, " bytes after the last tensor, expected none"));
  }

  const InputFile& file_;
  std::int64_t data_begin_ = 0;
  std::int64_t data_bytes_ = 0;
};

}  // namespace

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  return HeaderReader(file).read();
}

}  // namespace tokenview
