// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_extent = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t free_expansion = 16 * mebibyte;  // small data sets compress at any ratio
constexpr std::int64_t max_ratio = 32;                  // beyond that; weights reach about 1.3

std::int64_t saturated_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent == 0) return 0;
    count = saturated_product(count, extent);
  }
  return count;
}

}  // namespace

std::int64_t saturated_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

std::int64_t Hdf5Dataset::bytes() const {
  // A variable-length string is there as a reference, whose size only the file knows.
  if (H5Tis_variable_str(type) > 0) return std::max<std::int64_t>(info.stored_bytes, 1);
  return saturated_product(saturated_count(info.shape), std::int64_t(H5Tget_size(type)));
}

// Nothing has been allocated for the data yet, and nothing is where this throws.
void Hdf5File::Impl::require_readable(const Hdf5Dataset& data) const {
  for (const std::int64_t extent : data.info.shape)
    if (extent > max_extent)
      fail(data.inside,
           text("shape is ", to_string(data.info.shape), ", expected every extent below 2^31"));
  if (data.bytes() == 0) return;

  const Hdf5Handle properties(H5Dget_create_plist(data.id), H5Pclose);
  const H5D_layout_t layout = properties.is_open() ? H5Pget_layout(properties) : H5D_LAYOUT_ERROR;
  if (layout == H5D_CHUNKED) return require_chunks(data, properties);
  if (layout == H5D_VIRTUAL)
    fail(data.inside, "is a virtual data set over other files, expected the data in this file");
  if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS)
    fail_in_library(data.inside, "its storage layout is damaged");
  if (H5Pget_external_count(properties) != 0)
    fail(data.inside, "stores its data in another file, expected them in this file");
  if (data.info.stored_bytes != data.bytes() || data.info.stored_bytes > bytes)
    fail(data.inside,
         text("shape is ", to_string(data.info.shape), " of ", data.info.type_name, ", but ",
              data.info.stored_bytes, " bytes are stored for it in a file of ", bytes, " bytes"));
}

void Hdf5File::Impl::require_chunks(const Hdf5Dataset& data, hid_t properties) const {
  const std::string subject =
      text("shape is ", to_string(data.info.shape), " of ", data.info.type_name, ", ");
  Hdf5Extents extents{};
  const int rank = H5Pget_chunk(properties, H5S_MAX_RANK, extents.data());
  if (rank != int(data.info.shape.size())) fail_in_library(data.inside, "its chunks are damaged");

  std::int64_t chunks = 1;
  std::int64_t chunk_bytes = std::int64_t(H5Tget_size(data.type));
  for (std::size_t axis = 0; axis < data.info.shape.size(); ++axis) {
    const std::int64_t extent = std::int64_t(std::min<hsize_t>(extents[axis], max_extent));
    if (extent == 0) fail(data.inside, subject + "but its chunks are empty");
    chunks = saturated_product(chunks, (data.info.shape[axis] + extent - 1) / extent);
    chunk_bytes = saturated_product(chunk_bytes, extent);
  }
  const std::int64_t stored = data.info.stored_bytes;
  if (chunk_bytes > max_chunk_bytes)
    fail(data.inside,
         text(subject, "in chunks of ", chunk_bytes, " bytes, expected at most ", max_chunk_bytes));
  if (stored > bytes)
    fail(data.inside, text(subject, "but claims ", stored, " stored bytes in a file of ", bytes));

  if (H5Pget_nfilters(properties) == 0) {
    if (stored != saturated_product(chunks, chunk_bytes))
      fail(data.inside, text(subject, "but ", stored, " bytes are stored for it, expected ", chunks,
                             " chunks of ", chunk_bytes, " bytes"));
    return;
  }
  require_filters(data, properties);
  const std::int64_t allowed = free_expansion + saturated_product(max_ratio, stored);
  if (data.bytes() > allowed)
    fail(data.inside, text(subject, "but ", stored, " compressed bytes are stored for it, too few ",
                           "(limit: ", max_ratio, " to 1, and 16 MiB)"));
  hsize_t found = 0;
  const Hdf5Handle space(H5Dget_space(data.id), H5Sclose);
  if (H5Dget_num_chunks(data.id, space, &found) < 0)
    fail_in_library(data.inside, "its index of chunks is damaged");
  if (found != hsize_t(chunks))
    fail(data.inside, text(subject, "but ", found, " chunks are stored, expected ", chunks));
}

void Hdf5File::Impl::require_filters(const Hdf5Dataset& data, hid_t properties) const {
  const int filters = H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    std::array<char, 64> name{};
    const H5Z_filter_t filter = H5Pget_filter2(properties, unsigned(i), &flags, &values, nullptr,
                                               name.size(), name.data(), &config);
    if (filter < 0) fail_in_library(data.inside, "its filters are damaged");
    // The rest of the library's own have a record of overruns on damaged data.
    const bool is_known = filter == H5Z_FILTER_DEFLATE || filter == H5Z_FILTER_SHUFFLE ||
                          filter == H5Z_FILTER_FLETCHER32;
    if (!is_known || H5Zfilter_avail(filter) <= 0)
      fail(data.inside,
           text("is stored with the HDF5 filter ", int(filter), " '", printable(name.data()), "', ",
                is_known ? "which this HDF5 library was built without"
                         : "expected none, deflate, shuffle or fletcher32"));
  }
}

void Hdf5File::Impl::read_rows(const Hdf5Dataset& data, hid_t memory_type, std::int64_t begin,
                               std::int64_t count, void* values) const {
  Hdf5Extents start{}, extents{};
  std::copy(data.info.shape.begin(), data.info.shape.end(), extents.begin());
  if (!data.info.shape.empty()) {
    start[0] = hsize_t(begin);
    extents[0] = hsize_t(count);
  }
  read_block(data, memory_type, start, extents, values);
}

void Hdf5File::Impl::read_block(const Hdf5Dataset& data, hid_t memory_type,
                                const Hdf5Extents& start, const Hdf5Extents& extents,
                                void* values) const {
  const int rank = int(data.info.shape.size());
  const Hdf5Handle file_space(H5Dget_space(data.id), H5Sclose);
  const Hdf5Handle memory_space(
      rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, extents.data(), nullptr),
      H5Sclose);
  if (rank > 0)
    H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr);
  if (H5Dread(data.id, memory_type, memory_space, file_space, H5P_DEFAULT, values) < 0)
    fail_in_library(data.inside, "its data cannot be read");
}

HostTensor Hdf5File::Impl::read_tensor(const Hdf5Dataset& data, std::int64_t begin,
                                       std::int64_t count) const {
  const std::optional<DType> dtype = data.info.dtype;
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16)
    fail(data.inside, text("is ", data.info.type_name, ", expected float32, float16 or bfloat16"));
  require_readable(data);

  HostTensor tensor{data.info.shape, {}, *dtype};
  if (!tensor.shape.empty()) tensor.shape[0] = count;
  const auto size = std::size_t(element_count(tensor.shape));
  tensor.values.resize(size);
  if (size == 0) return tensor;
  if (dtype != DType::bfloat16) {
    read_rows(data, H5T_NATIVE_FLOAT, begin, count, tensor.values.data());
    return tensor;
  }
  // The 16-bit words go into the upper half of the values and are widened from the front: value i
  // overwrites only words whose index is at most i.
  auto* const memory = reinterpret_cast<unsigned char*>(tensor.values.data());
  unsigned char* const words = memory + 2 * size;
  read_rows(data, H5T_NATIVE_UINT16, begin, count, words);
  for (std::size_t i = 0; i < size; ++i) {
    std::uint16_t word = 0;
    std::memcpy(&word, words + 2 * i, sizeof word);
    tensor.values[i] = std::bit_cast<float>(std::uint32_t(word) << 16);
  }
  return tensor;
}

}  // namespace tokenview
