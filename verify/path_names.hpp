// SPDX-License-Identifier: Apache-2.0
// What reports call files, the same from whichever folder they are named.
#pragma once
#include <filesystem>
#include <string>

namespace tokenview {

/// "dump.h5" of "runs/today/dump.h5".
inline std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

/// "today" of "runs/today/dump.h5", and of "dump.h5" named in that folder; empty for the root.
inline std::string folder_name(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().parent_path().filename().string();
}

}  // namespace tokenview
