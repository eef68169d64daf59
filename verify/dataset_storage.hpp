// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/storage_type.hpp"

namespace tokenview {

/// What a chunk went through on its way into the file.
enum class ChunkFilter { shuffle, deflate, fletcher32 };

/// A chunk as it lies in the file.
struct StoredChunk {
  std::vector<std::byte> bytes;
  unsigned skipped_filters = 0;  // bit i: without filter i
};

/// How the elements of a tensor lie in its file: in one block of bytes; in chunks of equal extents
/// that cover it, those at its ends in part; or, small ones, in tables of the file's own.
struct DatasetStorage {
  std::vector<std::int64_t> shape;  // row-major; empty for a scalar
  std::optional<StorageType> type;  // absent: no numbers that can be compared
  std::string type_name;            // for messages
  bool is_big_endian = false;
  std::int64_t offset = -1;          // of the block, in bytes; -1: there is none
  std::vector<std::byte> elements;   // from a table
  std::vector<std::int64_t> chunk;   // extents; empty: no chunks
  std::vector<ChunkFilter> filters;  // of the chunks, in the order of writing
};

}  // namespace tokenview
