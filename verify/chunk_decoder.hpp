// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "verify/dataset_storage.hpp"

namespace tokenview {

/// The elements of a chunk: its filters undone, the last one first. Any number of threads may.
/// Throws FileError, beginning with `where`, for a checksum that does not fit and for data that do
/// not expand to the chunk's `bytes`.
/// Sources: HDF5 1.10 H5Zshuffle.c, H5Zdeflate.c (RFC 1950), H5Zfletcher32.c, H5checksum.c.
std::vector<std::byte> decoded_chunk(StoredChunk chunk, const std::vector<ChunkFilter>& filters,
                                     std::int64_t element_bytes, std::int64_t bytes,
                                     const std::string& where);

}  // namespace tokenview
