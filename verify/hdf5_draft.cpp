// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_draft.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

[[noreturn]] void fail_in_system(const std::string& path, int error, const std::string& where) {
  throw FileError(text(printable(path),
                       ": cannot be written: ", std::generic_category().message(error), where));
}

/// Where the file really goes: through a symbolic link, so that the link stays one.
std::filesystem::path destination(const std::string& path) {
  std::error_code error;
  if (path.empty()) throw FileError("'': cannot be written: expected the name of a file");
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw FileError(text(printable(path), ": cannot be written: is there and no regular file"));
  if (!std::filesystem::exists(status)) return path;
  const std::filesystem::path resolved = std::filesystem::canonical(path, error);
  if (error) fail_in_system(path, error.value(), "");
  return resolved;
}

/// The names in a folder, to the disk. Some network mounts cannot: they have the names all the
/// same.
void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

Hdf5Draft::Hdf5Draft(const std::string& path) : path_(path), target_(destination(path)) {
  const int descriptor = create();
  try {
    writer_.emplace(descriptor, path);
  } catch (...) {
    remove();
    throw;
  }
}

Hdf5Draft::~Hdf5Draft() {
  writer_.reset();
  remove();
}

void Hdf5Draft::move_into_place() {
  writer_->close();
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail_in_system(path_, errno, "");
  temporary_.clear();
  sync_folder(folder_of(target_));
}

int Hdf5Draft::create() {
  const std::filesystem::path folder = folder_of(target_);
  for (int attempt = 0;; ++attempt) {
    temporary_ = folder / text(".", target_.filename().string(), ".tmp-", getpid(), "-", attempt);
    const int descriptor = open(temporary_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (descriptor >= 0) return descriptor;
    if (errno != EEXIST)
      fail_in_system(path_, errno, text(" (folder '", printable(folder.string()), "')"));
  }
}

void Hdf5Draft::remove() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
}

}  // namespace tokenview
