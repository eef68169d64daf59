// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace tokenview {

/// A folder of its own for one test, removed with its scope.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "tokenview-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp fails");
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// How many entries there are, hidden ones included.
  std::size_t count() const {
    const std::filesystem::directory_iterator entries(path_);
    return std::size_t(std::distance(begin(entries), end(entries)));
  }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// While one lives, a process of the superuser has nobody's rights: permissions mean something.
class OrdinaryUser {
 public:
  OrdinaryUser() : is_root_(geteuid() == 0) {
    if (is_root_ && seteuid(65534) != 0) throw std::runtime_error("seteuid fails");
  }
  ~OrdinaryUser() {
    if (is_root_ && seteuid(0) != 0) std::abort();
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  bool is_root_;
};

}  // namespace tokenview
