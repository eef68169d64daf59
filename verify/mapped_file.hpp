// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "verify/input_file.hpp"

namespace tokenview {

/// A file in the address space: a page is read when somebody looks at it, and dropped again when
/// memory is short.
class MappedFile {
 public:
  /// Takes over an open file. Throws FileError where the system does not map it.
  explicit MappedFile(InputFile file);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const InputFile& file() const { return file_; }

  /// The bytes offset .. offset + count - 1; valid as long as this lives. Throws FileError where
  /// the file has become shorter: a page behind its end would end the program with a signal. It
  /// still does where the file shrinks while the bytes are in use, or its disk fails.
  std::span<const std::byte> bytes(std::int64_t offset, std::int64_t count) const;

 private:
  InputFile file_;
  const std::byte* begin_ = nullptr;  // null: an empty file
};

}  // namespace tokenview
