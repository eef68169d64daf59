// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_search.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

namespace fs = std::filesystem;

/// Names of the `*.h5` in a folder, hidden ones (files being written) apart.
std::vector<std::string> h5_files(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    std::error_code ignored;
    if (path.extension() == ".h5" && path.filename().string().front() != '.' &&
        !entry->is_directory(ignored))
      files.push_back(path.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool has_golden_files(const fs::path& folder) {
  std::error_code error;
  return !h5_files(folder, error).empty();
}

/// data/golden of `start` or of the nearest folder above it.
std::optional<std::string> above(fs::path start) {
  for (;; start = start.parent_path()) {
    const fs::path folder = start / "data" / "golden";
    if (has_golden_files(folder)) return folder.string();
    if (start == start.parent_path()) return {};
  }
}

}  // namespace

std::vector<std::string> golden_files(const std::string& argument) {
  std::error_code error;
  if (!fs::is_directory(argument, error)) return {argument};
  std::vector<std::string> files = h5_files(argument, error);
  if (error)
    throw FileError(text(printable(argument), ": the folder cannot be listed: ", error.message()));
  if (files.empty())
    throw FileError(
        text(printable(argument), ": the folder has no file *.h5, expected golden files"));
  return files;
}

std::string default_golden_folder(const std::string& installed) {
  std::error_code error;
  const fs::path current = fs::current_path(error);
  if (!error)
    if (const auto found = above(current)) return fs::proximate(*found, error).string();
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (!program.empty())
    if (const auto found = above(program)) return *found;

  std::vector<fs::path> folders = {fs::path(installed) / "golden"};
  if (!program.empty()) folders.push_back(program.parent_path() / "share" / "tokenview" / "golden");
  if (const char* const variable = std::getenv("TOKENVIEW_DATA");
      variable != nullptr && *variable != '\0') {
    folders.push_back(variable);
    folders.push_back(fs::path(variable) / "golden");
  }
  for (const fs::path& folder : folders)
    if (has_golden_files(folder)) return folder.string();
  throw UsageError(
      text("no golden file is named, and there is none in data/golden of the current folder or "
           "above it, "
           "in ",
           installed, "/golden, or in $TOKENVIEW_DATA: name a file or a folder"));
}

}  // namespace tokenview
