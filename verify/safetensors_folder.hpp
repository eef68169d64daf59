// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>

#include "verify/mapped_file.hpp"
#include "verify/safetensors.hpp"

namespace tokenview {

/// A tensor of a safetensors folder.
struct FolderTensor {
  SafetensorsEntry entry;
  const MappedFile* file = nullptr;

  /// All of it, in the machine's byte order and at any alignment.
  std::span<const std::byte> bytes() const { return file->bytes(entry.offset, entry.bytes); }

  /// "<file>:<tensor>", for messages.
  std::string place() const;
};

/// The tensors of a folder that `save_pretrained` of the Hugging Face library wrote: of its
/// model.safetensors, or of the shards that its model.safetensors.index.json names. Headers are
/// read at once, and as read_safetensors_header() says; the rest of a file when it is looked at.
class SafetensorsFolder {
 public:
  /// Throws FileError, besides, for a folder with neither of the two or both; for an index that is
  /// no JSON object with a weight_map of strings, or names a file outside the folder or none of
  /// it; for a shard that lacks a tensor of the index or has one that the index does not give it.
  explicit SafetensorsFolder(const std::string& path);

  /// By name.
  const std::map<std::string, FolderTensor>& tensors() const { return tensors_; }

  /// Whether a folder has tensors at all: one of the two files is there.
  static bool is_one(const std::string& path);

 private:
  std::deque<MappedFile> files_;  // tensors point to them
  std::map<std::string, FolderTensor> tensors_;
};

}  // namespace tokenview
