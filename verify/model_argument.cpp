// SPDX-License-Identifier: Apache-2.0
#include "verify/model_argument.hpp"

#include <filesystem>
#include <fstream>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/presets.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/input_file.hpp"
#include "verify/path_names.hpp"

namespace tokenview {
namespace {

namespace fs = std::filesystem;

/// An HDF5 file is known by its first bytes, not by its name.
bool is_hdf5(const std::string& path) {
  constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";
  std::string begin(signature.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), std::streamsize(begin.size())) && begin == signature;
}

}  // namespace

ModelArgument model_argument(const std::string& name) {
  if (const auto known = preset(name)) return {{*known, {}}, write_config_json(*known)};

  std::error_code error;
  const fs::file_status status = fs::status(name, error);
  if (!fs::exists(status))
    throw UsageError(text("'", printable(name), "' is neither a file nor a preset",
                          suggestion(name, preset_names()), " (presets: ", joined(preset_names()),
                          ")"));
  const std::string file =
      fs::is_directory(status) ? (fs::path(name) / "config.json").string() : name;
  if (is_hdf5(file)) {
    const GoldenFile golden = GoldenFile::open(file);
    std::string json = golden.config_json();
    ConfigReading reading = read_config_json(json, printable(file) + ":/config");
    return {std::move(reading), std::move(json)};
  }
  std::string json = read_json_file(file, "a config.json or a golden file");
  ConfigReading reading = read_config_json(json, printable(file));
  return {std::move(reading), std::move(json)};
}

std::string model_name(const std::string& name) {
  if (preset(name)) return name;
  const bool is_of_folder = file_name(name).empty() || file_name(name) == "config.json";
  return is_of_folder ? folder_name(name)
                      : file_name((fs::absolute(name).lexically_normal()).string());
}

}  // namespace tokenview
