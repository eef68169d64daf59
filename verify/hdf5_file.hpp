// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/program/host_tensor.hpp"
#include "verify/dataset_storage.hpp"

namespace tokenview {

/// Token ids, expert ids, positions: whole numbers in host memory, row-major.
struct IntegerTensor {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> values;
};

/// A list of records, column by column, in the order of the file.
struct Hdf5Table {
  using Column = std::variant<std::vector<std::string>, std::vector<std::int64_t>>;
  std::vector<std::pair<std::string, Column>> columns;  // equally long

  /// Null where there is no such column.
  const Column* find(const std::string& name) const;
};

/// What a data set says of itself before any of it is read; nothing here has been believed yet.
struct DatasetInfo {
  std::vector<std::int64_t> shape;  // row-major; empty for a scalar
  std::optional<DType> dtype;       // absent for a type that no golden and no dump holds
  std::string type_name;            // "bfloat16", "uint8", "compound", ...: for messages
  std::int64_t stored_bytes = 0;    // as they lie in the file, after compression
};

/// An HDF5 file of unknown origin, open for reading. Paths are absolute, `/cases/one/taps/model`.
///
/// Every failure is a FileError that names the file, the path inside it, what was found and what
/// was expected. Only this file is read: soft links are followed within it; external links,
/// external storage and virtual data sets are refused. No data set is given memory before its
/// claimed size has been held against the bytes that the file stores for it:
///  - contiguous, or chunked without filters: the file must store every element;
///  - with filters (deflate, shuffle, fletcher32; no others): every chunk must be there, and the
///    expanded data may take at most 16 MiB + 32 times the stored bytes;
///  - a chunk and a string: at most 16 MiB; an axis: fewer than 2^31 entries.
///
/// One thread at a time, as for the HDF5 library unless it was built thread-safe.
class Hdf5File {
 public:
  /// Throws FileError when `path` is missing, unreadable, no regular file, empty, truncated, not
  /// HDF5, or damaged: a child process opens every object first, because the library crashes on
  /// some damaged files. That costs as much again as opening every object does.
  static Hdf5File open_read(const std::string& path);

  /// The same for a caller who expands chunks himself, with storage() and chunk(): the child
  /// process has not, so that tensor(), rows() and integers() of chunked data sets are not safe.
  static Hdf5File open_layout(const std::string& path);

  Hdf5File(Hdf5File&& other) noexcept;
  Hdf5File& operator=(Hdf5File&& other) noexcept;
  ~Hdf5File();

  const std::string& path() const;
  std::int64_t file_bytes() const;

  /// True when the parent group has an entry of this name, even a link that leads nowhere: opening
  /// that is an error, not an absence. Throws where the parent itself cannot be opened.
  bool contains(const std::string& inside) const;

  /// Names of the groups and of the data sets directly below a group, in order of their bytes.
  /// Throws for an entry that is neither, for a broken link, and for a name that is not UTF-8.
  struct Children {
    std::vector<std::string> groups;
    std::vector<std::string> datasets;
  };
  Children children(const std::string& inside) const;

  /// Attributes of a group or data set; each getter throws when it is absent, not a scalar, or of
  /// another type. An integer may have any width and byte order that fits into 64 bits.
  std::vector<std::string> attribute_names(const std::string& inside) const;
  bool has_attribute(const std::string& inside, const std::string& name) const;
  std::string string_attribute(const std::string& inside, const std::string& name) const;
  std::int64_t int_attribute(const std::string& inside, const std::string& name) const;

  DatasetInfo info(const std::string& inside) const;

  /// The paths of all data sets, in order of their bytes; one that has two names is there twice.
  /// Throws for a broken link, a name that is not UTF-8, a link to a group above it, and more than
  /// a million names.
  std::vector<std::string> dataset_paths() const;

  /// Where the elements of a data set lie. Throws as tensor() does for its size and chunks, and for
  /// what leads outside of the file.
  DatasetStorage storage(const std::string& inside) const;

  /// The chunk that begins at element `start`, an extent of chunks' multiple on every axis, as it
  /// lies in the file.
  StoredChunk chunk(const std::string& inside, const std::vector<std::int64_t>& start) const;

  /// A whole tensor of float32, float16 or bfloat16 (uint16 with attribute dtype = "bfloat16").
  /// NaN and infinity are values like any other here.
  HostTensor tensor(const std::string& inside) const;

  /// Rows begin .. begin+count-1 of a tensor: what a caller with little memory reads in turn.
  HostTensor rows(const std::string& inside, std::int64_t begin, std::int64_t count) const;

  /// A whole data set of integers, of any width and byte order that fits into 64 bits.
  IntegerTensor integers(const std::string& inside) const;

  /// A list of compounds of integers, of any width and byte order that fits into 64 bits, and of
  /// text of fixed length in UTF-8.
  Hdf5Table table(const std::string& inside) const;

  /// A scalar string, of fixed or variable length; UTF-8.
  std::string string(const std::string& inside) const;

  /// Throws FileError "<file>:<inside>: <problem>": for readers that expect more than HDF5 does.
  [[noreturn]] void fail(const std::string& inside, const std::string& problem) const;

 private:
  struct Impl;
  explicit Hdf5File(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenview
