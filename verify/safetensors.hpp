// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "verify/input_file.hpp"
#include "verify/storage_type.hpp"

namespace tokenview {

/// A tensor of a safetensors file.
struct SafetensorsEntry {
  std::string name;
  StorageType type;
  std::vector<std::int64_t> shape;  // row-major; empty for a scalar
  std::int64_t offset = 0;          // of its first byte in the file
  std::int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;        // in order of their names
  std::map<std::string, std::string> metadata;  // of the producer's own
};

/// Reads and checks the header; every tensor then lies within the file, has the bytes that its type
/// and shape ask for, and shares none of them. Throws FileError, with the tensor's name, for a
/// header that is longer than the file or 16 MiB, is no such JSON, or repeats a name; for an
/// unknown type, a shape or place that is not of whole numbers, overflows or does not fit; for
/// tensors that overlap, bytes that belong to none, and bytes after the last one.
/// Source: huggingface/safetensors README.md, "Format".
SafetensorsHeader read_safetensors_header(const InputFile& file);

}  // namespace tokenview
