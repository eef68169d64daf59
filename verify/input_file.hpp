// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tokenview {

/// A regular file, open for reading. It is read, not mapped: a mapped file that shrinks meanwhile,
/// or lies on a failing disk, ends the program with a signal. (MappedFile is for what may be larger
/// than memory.)
class InputFile {
 public:
  /// Throws FileError where `path` is missing, unreadable or not a regular file. `what` it should
  /// be stands in the message: "a safetensors file".
  InputFile(const std::string& path, const std::string& what);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }  // when it was opened

  /// Throws FileError where the file has become shorter since.
  void require_whole() const;

  /// Fills `to` with what begins at byte `offset`; any number of threads may. Throws FileError
  /// where the file has become shorter or the system fails.
  void read(std::int64_t offset, std::span<std::byte> to) const;

 private:
  friend class MappedFile;

  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

/// All of a text file of at most max_json_bytes. Throws FileError where it cannot be read, is no
/// regular file, or is longer. `what` it should be stands in the message.
std::string read_json_file(const std::string& path, const std::string& what);

}  // namespace tokenview
