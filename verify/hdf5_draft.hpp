// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "verify/hdf5_writer.hpp"

namespace tokenview {

/// An HDF5 file that takes the place of `path` in one step once it is whole: until then, and for
/// ever if this process is killed or anything fails, whatever was at `path` stays as it was. The
/// new file lies in the same folder and is removed with its scope unless it was moved away; only a
/// kill can leave it there, as `.NAME.tmp-*`.
class Hdf5Draft {
 public:
  /// Throws FileError when the folder is missing or read-only, or `path` is there and no regular
  /// file.
  explicit Hdf5Draft(const std::string& path);
  ~Hdf5Draft();
  Hdf5Draft(const Hdf5Draft&) = delete;
  Hdf5Draft& operator=(const Hdf5Draft&) = delete;

  Hdf5Writer& writer() { return *writer_; }

  /// Puts the file in its place, whole and on the disk.
  void move_into_place();

 private:
  int create();
  void remove();

  std::string path_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once it is in place
  std::optional<Hdf5Writer> writer_;
};

}  // namespace tokenview
