// SPDX-License-Identifier: Apache-2.0
#include "verify/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

MappedFile::MappedFile(InputFile file) : file_(std::move(file)) {
  if (file_.bytes() == 0) return;
  void* const mapped = mmap(nullptr, std::size_t(file_.bytes()), PROT_READ, MAP_PRIVATE,
                            file_.descriptor_, /*offset=*/0);
  if (mapped == MAP_FAILED)
    throw FileError(text(printable(file_.path()),
                         ": cannot be mapped: ", std::generic_category().message(errno)));
  begin_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (begin_ != nullptr) munmap(const_cast<std::byte*>(begin_), std::size_t(file_.bytes()));
}

std::span<const std::byte> MappedFile::bytes(std::int64_t offset, std::int64_t count) const {
  if (offset < 0 || count < 0 || offset > file_.bytes() || count > file_.bytes() - offset)
    throw FileError(text(printable(file_.path()), ": has ", file_.bytes(), " bytes, asked for ",
                         count, " from byte ", offset));
  file_.require_whole();
  return {begin_ + offset, std::size_t(count)};
}

}  // namespace tokenview
