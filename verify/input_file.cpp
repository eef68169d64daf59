// SPDX-License-Identifier: Apache-2.0
#include "verify/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "reference/program/error.hpp"
#include "reference/program/strict_json.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

InputFile::InputFile(const std::string& path, const std::string& what) : path_(path) {
  const auto fail = [&](const std::string& problem) {
    throw FileError(text('\'', printable(path), "': ", problem, ", expected ", what));
  };
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    fail("cannot be opened: " + std::generic_category().message(errno));
  // Before it is opened: a pipe would wait for a writer.
  if (!S_ISREG(status.st_mode))
    fail(S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file");
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail("cannot be read: " + std::generic_category().message(errno));
  bytes_ = status.st_size;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void InputFile::require_whole() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || status.st_size < bytes_)
    throw FileError(text(printable(path_), ": has ", status.st_size, " bytes, but had ", bytes_,
                         " when it was opened"));
}

void InputFile::read(std::int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(descriptor_, to.data(), to.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw FileError(text(printable(path_), ": cannot be read at byte ", offset, ": ",
                           std::generic_category().message(errno)));
    if (got == 0)
      throw FileError(text(printable(path_), ": ends at byte ", offset, ", but had ", bytes_,
                           " bytes when it was opened"));
    offset += got;
    to = to.subspan(std::size_t(got));
  }
}

std::string read_json_file(const std::string& path, const std::string& what) {
  const InputFile file(path, what);
  if (file.bytes() > std::int64_t(max_json_bytes))
    throw FileError(text(printable(path), ": has ", file.bytes(), " bytes, expected ", what,
                         " of at most ", max_json_bytes));
  std::string content(std::size_t(file.bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(content)));
  return content;
}

}  // namespace tokenview
