// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "reference/program/host_tensor.hpp"
#include "verify/hdf5_file.hpp"

namespace tokenview {

/// A new HDF5 file. Paths inside are absolute; groups come into being with what is put into them.
/// The same calls give the same bytes: no time stamps. Every failure is a FileError that names the
/// file and the path inside.
class Hdf5Writer {
 public:
  /// Creates `path`, or empties it.
  explicit Hdf5Writer(const std::string& path);

  /// Writes into an empty file that is open for reading and writing, and owns the descriptor from
  /// now on. Messages call the file `name`.
  Hdf5Writer(int descriptor, const std::string& name);

  /// Closes without a word where close() was not called: the file is then not to be relied on.
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  /// Scalars on a group or data set that is there already.
  void attribute(const std::string& inside, const std::string& name, const std::string& value);
  void attribute(const std::string& inside, const std::string& name, std::int64_t value);

  void group(const std::string& inside);
  void string(const std::string& inside, const std::string& value);

  /// As `tensor.dtype` says: float32, or bfloat16 as uint16 with the attribute dtype = "bfloat16".
  /// Throws for another dtype, a shape that does not fit the values, and a value that bfloat16
  /// cannot hold exactly.
  void tensor(const std::string& inside, const HostTensor& tensor);

  /// As int32 or int64. Throws for another dtype and for a value that int32 cannot hold.
  void integers(const std::string& inside, const IntegerTensor& tensor, DType dtype);

  /// A list of compounds: int64, and text as long as its longest.
  void table(const std::string& inside, const Hdf5Table& table);

  /// Everything to the disk; nothing can be written afterwards.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenview
