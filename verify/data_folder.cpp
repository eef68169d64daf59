// SPDX-License-Identifier: Apache-2.0
#include "verify/data_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const fs::path& folder, const std::string& extension,
                                  std::error_code& error) {
  std::vector<std::string> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    std::error_code ignored;
    if (path.extension() == extension && path.filename().string().front() != '.' &&
        !entry->is_directory(ignored))
      files.push_back(path.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool has_files(const fs::path& folder, const std::string& extension) {
  std::error_code error;
  return !files_in(folder, extension, error).empty();
}

/// data/NAME of `start` or of the nearest folder above it.
std::optional<std::string> above(fs::path start, const std::string& name,
                                 const std::string& extension) {
  for (;; start = start.parent_path()) {
    const fs::path folder = start / "data" / name;
    if (has_files(folder, extension)) return folder.string();
    if (start == start.parent_path()) return {};
  }
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  if (fs::is_other(a, none)) return false;
  const fs::path whole = fs::weakly_canonical(fs::absolute(a, none), none);
  return (!whole.empty() && whole == fs::weakly_canonical(fs::absolute(b, none), none)) ||
         fs::equivalent(a, b, none);
}

std::vector<std::string> files_of(const std::string& folder, const std::string& extension) {
  std::error_code error;
  const std::vector<std::string> files = files_in(folder, extension, error);
  if (error)
    throw FileError(text(printable(folder), ": the folder cannot be listed: ", error.message()));
  return files;
}

std::vector<std::string> golden_files(const std::string& argument) {
  std::error_code error;
  if (!fs::is_directory(argument, error)) return {argument};
  const std::vector<std::string> files = files_of(argument, ".h5");
  if (files.empty())
    throw FileError(
        text(printable(argument), ": the folder has no file *.h5, expected golden files"));
  return files;
}

std::string default_data_folder(const std::string& name, const std::string& extension,
                                const std::string& installed) {
  if (const char* const variable = std::getenv("TOKENVIEW_DATA");
      variable != nullptr && *variable != '\0') {
    for (const fs::path& folder : {fs::path(variable) / name, fs::path(variable)})
      if (has_files(folder, extension)) return folder.string();
    throw UsageError(text("TOKENVIEW_DATA: neither ", printable(variable), " nor ", name,
                          " in it has files *", extension));
  }
  std::error_code error;
  const fs::path current = fs::current_path(error);
  if (!error)
    if (const auto found = above(current, name, extension))
      return fs::proximate(*found, error).string();
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (!program.empty())
    if (const auto found = above(program, name, extension)) return *found;

  std::vector<fs::path> folders = {fs::path(installed) / name};
  if (!program.empty()) folders.push_back(program.parent_path() / "share" / "tokenview" / name);
  for (const fs::path& folder : folders)
    if (has_files(folder, extension)) return folder.string();
  throw UsageError(text("no ", name, " file is named, and there is none in data/", name,
                        " of the current folder or above it, or in ", installed, "/", name,
                        ": name a file or a folder, or set TOKENVIEW_DATA"));
}

}  // namespace tokenview
