// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

constexpr std::size_t max_names = 1'000'000;

haddr_t address_of(hid_t object) {
  H5O_info_t info{};
  return H5Oget_info2(object, &info, H5O_INFO_BASIC) < 0 ? HADDR_UNDEF : info.addr;
}

}  // namespace

std::vector<std::string> Hdf5File::Impl::dataset_paths() const {
  std::vector<std::string> result;
  std::vector<haddr_t> above;
  const auto visit = [&](const auto& again, const std::string& group) -> void {
    const haddr_t address = address_of(open_group(group));
    if (std::ranges::find(above, address) != above.end())
      fail(group, "is a link to a group above it, expected none");
    above.push_back(address);
    for (const Hdf5Link& link : links(group)) {
      if (!is_utf8(link.name) || link.name.empty())
        fail(group, text("has an entry '", printable(link.name), "', expected a name in UTF-8"));
      const std::string inside = text(group, group.ends_with('/') ? "" : "/", link.name);
      const H5I_type_t kind = H5Iget_type(open_object(inside));
      if (kind == H5I_GROUP) again(again, inside);
      if (kind == H5I_DATASET) result.push_back(inside);
      if (result.size() > max_names)
        fail(group, text("is one of the groups that name more than ", max_names, " data sets"));
    }
    above.pop_back();
  };
  visit(visit, "/");
  std::ranges::sort(result);
  return result;
}

DatasetStorage Hdf5File::Impl::storage(const Hdf5Dataset& data) const {
  require_readable(data);
  DatasetStorage result;
  result.shape = data.info.shape;
  result.type_name = data.info.type_name;
  result.type = storage_type(data.info.type_name);
  result.is_big_endian = H5Tget_order(data.type) == H5T_ORDER_BE;
  if (!result.type || data.bytes() == 0) return result;

  const Hdf5Handle properties(H5Dget_create_plist(data.id), H5Pclose);
  switch (H5Pget_layout(properties)) {
    case H5D_COMPACT:
      result.elements.resize(std::size_t(data.bytes()));
      read_rows(data, data.type, 0, data.info.shape.empty() ? 1 : data.info.shape[0],
                result.elements.data());
      return result;
    case H5D_CONTIGUOUS: {
      const haddr_t offset = H5Dget_offset(data.id);
      if (offset > haddr_t(bytes) || data.bytes() > bytes - std::int64_t(offset))
        fail(data.inside, text("lies at bytes ", offset, " + ", data.bytes(), " of a file of ",
                               bytes, " bytes"));
      result.offset = std::int64_t(offset);
      return result;
    }
    default:
      describe_chunks(data, properties, result);
      return result;
  }
}

void Hdf5File::Impl::describe_chunks(const Hdf5Dataset& data, hid_t properties,
                                     DatasetStorage& storage) const {
  const std::size_t rank = data.info.shape.size();
  Hdf5Extents extents{};
  H5Pget_chunk(properties, int(rank), extents.data());
  storage.chunk.assign(extents.begin(), extents.begin() + std::ptrdiff_t(rank));
  unsigned options = 0;
  H5Pget_chunk_opts(properties, &options);
  if ((options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0)
    fail(data.inside, "leaves its last chunks without filters, expected the same for all chunks");
  for (int i = 0; i < H5Pget_nfilters(properties); ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(properties, unsigned(i), &flags, &values, nullptr, 0, nullptr, &config);
    storage.filters.push_back(filter == H5Z_FILTER_SHUFFLE   ? ChunkFilter::shuffle
                              : filter == H5Z_FILTER_DEFLATE ? ChunkFilter::deflate
                                                             : ChunkFilter::fletcher32);
  }
  if (std::ranges::count(storage.filters, ChunkFilter::deflate) > 1)
    fail(data.inside, "is compressed more than once, expected once");
}

std::int64_t Hdf5File::Impl::stored_size(const Hdf5Dataset& data, const Hdf5Extents& start) const {
  hsize_t size = 0;
  if (H5Dget_chunk_storage_size(data.id, start.data(), &size) < 0)
    fail_in_library(data.inside, "its index of chunks is damaged");
  // What filters add at most: deflate 5 bytes for 16 KiB and 11 more, a checksum 4.
  if (size == 0 || size > hsize_t(max_chunk_bytes + mebibyte) || size > hsize_t(bytes))
    fail(data.inside,
         text("has a chunk of ", size, " stored bytes, expected at least 1 and at most 17 MiB"));
  return std::int64_t(size);
}

StoredChunk Hdf5File::Impl::chunk(const Hdf5Dataset& data,
                                  const std::vector<std::int64_t>& start) const {
  Hdf5Extents at{};
  std::copy(start.begin(), start.end(), at.begin());
  StoredChunk result;
  result.bytes.resize(std::size_t(stored_size(data, at)));
  if (H5Dread_chunk(data.id, H5P_DEFAULT, at.data(), &result.skipped_filters, result.bytes.data()) <
      0)
    fail_in_library(data.inside, "a chunk cannot be read");
  return result;
}

}  // namespace tokenview
