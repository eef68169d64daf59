// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/storage_type.hpp"

namespace tokenview {

/// What a file says of one of its tensors.
struct TensorInfo {
  std::string name;                 // HDF5: the path, without the first '/'
  std::vector<std::int64_t> shape;  // row-major; empty for a scalar
  std::optional<StorageType> type;  // absent where read() refuses: text, data outside, ...
  std::string type_name;            // for messages
  std::string refusal;              // and why, with the file and the path inside

  /// Of a type that is there: the file holds as many, or compressed what may well be as many.
  std::int64_t elements() const;
  /// Elements of a row: the product of all extents but the first; all where there is one axis.
  std::int64_t columns() const;
};

/// The tensors of a file of unknown origin, in blocks: any HDF5 file, or a safetensors file. What
/// Hdf5File and read_safetensors_header() refuse is refused here, with the same messages.
///
/// HDF5: one block or chunks, plain or filtered with shuffle, deflate or fletcher32; the library
/// finds the data, and they are read and expanded here. bfloat16 and 8-bit floats are integers of
/// their size with the attribute dtype = "bfloat16", "float8_e4m3fn" or "float8_e5m2"; a boolean is
/// h5py's enumeration. Big-endian data are converted.
///
/// Any number of threads may read() while none calls the HDF5 library in another way.
class TensorFile {
 public:
  /// Takes the format from the first bytes.
  static TensorFile open(const std::string& path);

  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;
  ~TensorFile();

  const std::string& path() const;
  std::int64_t file_bytes() const;

  /// In order of their names.
  const std::vector<TensorInfo>& tensors() const;
  const TensorInfo* find(const std::string& name) const;

  /// Fills `to` with the elements from number `begin` on, row-major, in the machine's byte order.
  /// `tensor` is one of tensors().
  void read(const TensorInfo& tensor, std::int64_t begin, std::span<std::byte> to) const;

  /// So many elements, or a multiple, from such a multiple on are read without expanding a chunk
  /// twice: a row of chunks.
  std::int64_t natural_block(const TensorInfo& tensor) const;

  /// "<file>:<tensor>", for messages.
  std::string place(const TensorInfo& tensor) const;

  class Format;

 private:
  explicit TensorFile(std::unique_ptr<Format> format);

  std::unique_ptr<Format> format_;
};

}  // namespace tokenview
