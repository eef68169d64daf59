// SPDX-License-Identifier: Apache-2.0
#include "verify/chunk_decoder.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

constexpr std::size_t checksum_bytes = 4;

std::uint32_t fold(std::uint32_t sum) { return (sum & 0xffffu) + (sum >> 16); }

/// Fletcher's checksum of 16-bit words, the upper byte first; a last odd byte is an upper one.
std::uint32_t fletcher32(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0, sum_of_sums = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    // The sums of so many words do not overflow: 360 * 361 / 2 * 0xffff < 2^32.
    const std::size_t end = std::min(bytes.size(), at + 720);
    for (; at < end; at += 2) {
      sum += std::uint32_t(bytes[at]) << 8;
      if (at + 1 < bytes.size()) sum += std::uint32_t(bytes[at + 1]);
      sum_of_sums += sum;
    }
    sum = fold(sum);
    sum_of_sums = fold(sum_of_sums);
  }
  return fold(sum_of_sums) << 16 | fold(sum);
}

/// Byte b of element i lies at b * count + i; bytes that make no element stay at the end.
void unshuffle(std::vector<std::byte>& bytes, std::size_t element_bytes) {
  const std::size_t count = bytes.size() / element_bytes;
  if (element_bytes == 1 || count <= 1) return;
  std::vector<std::byte> result(bytes.size());
  for (std::size_t b = 0; b < element_bytes; ++b)
    for (std::size_t i = 0; i < count; ++i) result[i * element_bytes + b] = bytes[b * count + i];
  const auto rest = std::ptrdiff_t(count * element_bytes);
  std::copy(bytes.begin() + rest, bytes.end(), result.begin() + rest);
  bytes = std::move(result);
}

}  // namespace

std::vector<std::byte> decoded_chunk(StoredChunk chunk, const std::vector<ChunkFilter>& filters,
                                     std::int64_t element_bytes, std::int64_t expected_bytes,
                                     const std::string& where) {
  std::vector<std::byte>& bytes = chunk.bytes;
  const auto is_applied = [&](std::size_t i) { return (chunk.skipped_filters >> i & 1u) == 0; };
  for (std::size_t i = filters.size(); i-- > 0;) {
    if (!is_applied(i)) continue;
    switch (filters[i]) {
      case ChunkFilter::fletcher32: {
        if (bytes.size() < checksum_bytes)
          throw FileError(text(where, "has a chunk of ", bytes.size(), " bytes without checksum"));
        const std::size_t size = bytes.size() - checksum_bytes;
        std::uint32_t said = 0;
        std::memcpy(&said, bytes.data() + size, checksum_bytes);
        bytes.resize(size);
        if (said != fletcher32(bytes))
          throw FileError(text(where, "has a chunk with a wrong checksum: it is damaged"));
        break;
      }
      case ChunkFilter::deflate: {
        auto size = std::size_t(expected_bytes);
        for (std::size_t before = 0; before < i; ++before)
          if (is_applied(before) && filters[before] == ChunkFilter::fletcher32)
            size += checksum_bytes;
        std::vector<std::byte> expanded(size);
        uLongf found = size;
        const int status =
            uncompress(reinterpret_cast<Bytef*>(expanded.data()), &found,
                       reinterpret_cast<const Bytef*>(bytes.data()), uLong(bytes.size()));
        if (status == Z_MEM_ERROR) throw std::bad_alloc();
        if (status != Z_OK || found != size)
          throw FileError(text(where, "has a chunk of ", bytes.size(),
                               " compressed bytes that do not expand to ", size,
                               ": it is damaged"));
        bytes = std::move(expanded);
        break;
      }
      case ChunkFilter::shuffle:
        unshuffle(bytes, std::size_t(element_bytes));
        break;
    }
  }
  if (std::int64_t(bytes.size()) != expected_bytes)
    throw FileError(
        text(where, "has a chunk of ", bytes.size(), " bytes, expected ", expected_bytes));
  return std::move(bytes);
}

}  // namespace tokenview
