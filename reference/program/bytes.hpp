// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "reference/program/error.hpp"

namespace tokenview {

using Bytes = std::vector<std::byte>;

/// Numbers, arrays and words one behind the other, as one rank writes them for another of the same
/// program: no byte order, no version.
class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T> ByteWriter& add(const T& value) {
    return add(std::span<const T>(&value, 1));
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> ByteWriter& add(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteWriter& add(std::string_view word) {
    add(std::uint64_t(word.size()));
    return add(std::span<const char>(word));
  }
  /// A list with its length.
  template <class T>
  ByteWriter& add_list(std::span<const T> values) {
    add(std::uint64_t(values.size()));
    return add(values);
  }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Reads what a ByteWriter wrote, in the same order. Throws CommError where it ends too early.
class ByteReader {
 public:
  /// `bytes` outlive this.
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T read() {
    T value;
    read_into(std::span<T>(&value, 1));
    return value;
  }
  template <class T>
  void read_into(std::span<T> values) {
    if (values.size_bytes() > bytes_.size())
      throw CommError(text("a message of another rank: ", bytes_.size(), " bytes left, ",
                           values.size_bytes(), " expected"));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data(), values.size_bytes());
    bytes_ = bytes_.subspan(values.size_bytes());
  }
  template <class T>
  std::vector<T> read_list() {
    const auto count = read<std::uint64_t>();
    require(count, sizeof(T));
    std::vector<T> values(static_cast<std::size_t>(count));
    read_into(std::span<T>(values));
    return values;
  }
  std::string read_word() {
    const auto size = read<std::uint64_t>();
    require(size, 1);
    std::string word(static_cast<std::size_t>(size), '\0');
    read_into(std::span<char>(word));
    return word;
  }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  void require(std::uint64_t count, std::size_t size) const {
    if (count > bytes_.size() / size)
      throw CommError(text("a message of another rank: ", bytes_.size(), " bytes left, ", count,
                           " elements of ", size, " expected"));
  }

  std::span<const std::byte> bytes_;
};

}  // namespace tokenview
