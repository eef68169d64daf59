// SPDX-License-Identifier: Apache-2.0
#include "verify/safetensors_folder.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "reference/program/error.hpp"
#include "reference/program/strict_json.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/input_file.hpp"

namespace tokenview {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

std::string in_folder(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

bool is_there(const std::string& folder, const char* name) {
  std::error_code error;
  return fs::exists(fs::symlink_status(in_folder(folder, name), error));
}

/// The shard of every tensor, as the index has it: names of files in the same folder.
std::map<std::string, std::string> shards_of_index(const std::string& path) {
  const std::string source = printable(path);
  const auto fail = [&](const std::string& problem) -> void {
    throw FileError(source + ": " + problem);
  };
  const json index = parse_strict_json(read_json_file(path, "an index of shards"), source);
  if (!index.is_object()) fail("holds " + shown(index) + ", expected an object");
  const auto map = index.find("weight_map");
  if (map == index.end()) fail("has no weight_map, expected tensors with their files");
  if (!map->is_object()) fail("weight_map is " + shown(*map) + ", expected an object");
  if (map->empty()) fail("weight_map is empty, expected tensors with their files");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      fail(text("weight_map: ", printable(tensor), " is in ", shown(shard),
                ", expected the name of a file in the same folder"));
    shards.emplace(tensor, name);
  }
  return shards;
}

}  // namespace

std::string FolderTensor::place() const {
  return printable(file->file().path()) + ":" + printable(entry.name);
}

bool SafetensorsFolder::is_one(const std::string& path) {
  return is_there(path, single_name) || is_there(path, index_name);
}

SafetensorsFolder::SafetensorsFolder(const std::string& path) {
  const auto add = [&](const std::string& name) {
    InputFile file(in_folder(path, name), "a safetensors file");
    SafetensorsHeader header = read_safetensors_header(file);
    const MappedFile& mapped = files_.emplace_back(std::move(file));
    for (SafetensorsEntry& entry : header.tensors) {
      FolderTensor tensor{std::move(entry), &mapped};
      const auto [there, is_new] = tensors_.emplace(tensor.entry.name, tensor);
      if (!is_new)
        throw FileError(text(tensor.place(), ": is in ", there->second.place(),
                             " as well, expected each tensor in one shard"));
    }
  };

  const bool has_index = is_there(path, index_name);
  if (has_index && is_there(path, single_name))
    throw FileError(text(printable(path), ": has both ", single_name, " and ", index_name,
                         ", expected one of them"));
  if (!has_index && !is_there(path, single_name))
    throw FileError(text(printable(path), ": has neither ", single_name, " nor ", index_name,
                         ", expected the weights of a checkpoint"));
  if (!has_index) {
    add(single_name);
    return;
  }

  const std::string index = in_folder(path, index_name);
  const std::map<std::string, std::string> shards = shards_of_index(index);
  std::set<std::string> opened;
  for (const auto& [tensor, shard] : shards)
    if (opened.insert(shard).second) add(shard);
  for (const auto& [tensor, shard] : shards) {
    const auto found = tensors_.find(tensor);
    const std::string expected = in_folder(path, shard);
    if (found == tensors_.end() || found->second.file->file().path() != expected)
      throw FileError(text(printable(expected), ":", printable(tensor), ": is missing, but ",
                           index_name, " has it there"));
  }
  for (const auto& [name, tensor] : tensors_)
    if (!shards.contains(name))
      throw FileError(text(tensor.place(), ": is not in the weight_map of ", index_name));
}

}  // namespace tokenview
