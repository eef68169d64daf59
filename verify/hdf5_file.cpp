// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/child_process.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
constexpr std::int64_t max_string_bytes = 16 * mebibyte;
constexpr std::int64_t max_extent = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t free_expansion = 16 * mebibyte;  // small data sets compress at any ratio
constexpr std::int64_t max_ratio = 32;                  // beyond that; weights reach about 1.3
constexpr std::int64_t max_chunk_bytes = 16 * mebibyte;
constexpr int max_soft_links = 16;     // on one path; more is taken for a cycle
constexpr hsize_t min_link_bytes = 8;  // what a link takes in a file at the very least
constexpr std::int64_t inspection_memory = 128 * mebibyte;

/// The library itself failed on the file, so that no part of it can be trusted.
struct DamagedFile : FileError {
  using FileError::FileError;
};

/// The signature stands at byte 0, or after a user block of 512, 1024, 2048, ... bytes.
bool has_signature(int descriptor, std::int64_t file_bytes) {
  constexpr std::array<unsigned char, 8> signature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  for (std::int64_t at = 0; at + 8 <= file_bytes; at = at == 0 ? 512 : 2 * at) {
    std::array<unsigned char, 8> found{};
    if (pread(descriptor, found.data(), found.size(), at) == ssize_t(found.size()) &&
        found == signature)
      return true;
  }
  return false;
}

/// Refuses what the library would answer with a riddle, or wait for (a pipe). Returns the size in
/// bytes.
std::int64_t require_hdf5_signature(const std::string& path) {
  const auto fail = [&](const std::string& problem) {
    throw FileError(text(printable(path), ": ", problem));
  };
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    fail("cannot be opened: " + std::generic_category().message(errno));
  if (S_ISDIR(status.st_mode)) fail("is a directory, expected an HDF5 file");
  if (!S_ISREG(status.st_mode)) fail("is not a regular file, expected an HDF5 file");

  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot be read: " + std::generic_category().message(errno));
  const bool found = has_signature(descriptor, status.st_size);
  close(descriptor);
  if (status.st_size == 0) fail("is empty, expected an HDF5 file");
  if (!found) fail("is not an HDF5 file: no HDF5 signature");
  return status.st_size;
}

std::vector<std::string> components(const std::string& inside) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < inside.size();) {
    const std::size_t end = std::min(inside.find('/', begin), inside.size());
    const std::string name = inside.substr(begin, end - begin);
    if (!name.empty() && name != ".") result.push_back(name);
    begin = end + 1;
  }
  return result;
}

/// a * b, or the largest value where that overflows; both >= 0.
std::int64_t saturated_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

std::int64_t saturated_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent == 0) return 0;
    count = saturated_product(count, extent);
  }
  return count;
}

struct Link {
  std::string name;
  std::optional<haddr_t> address;  // of the object, where the link is a hard one
};

struct Dataset {
  std::string inside;
  Hdf5Handle id;
  Hdf5Handle type;
  DatasetInfo info;

  /// What the elements take in the file uncompressed.
  std::int64_t bytes() const {
    // A variable-length string is there as a reference, whose size only the file knows.
    if (H5Tis_variable_str(type) > 0) return std::max<std::int64_t>(info.stored_bytes, 1);
    return saturated_product(saturated_count(info.shape), std::int64_t(H5Tget_size(type)));
  }
};

}  // namespace

struct Hdf5File::Impl {
  std::string path;
  std::int64_t bytes = 0;
  Hdf5Handle file;

  // The group that held the last object asked for: the next one is mostly its neighbour.
  mutable std::string last_group_path;
  mutable Hdf5Handle last_group;

  ~Impl() {
    const Hdf5Quiet quiet;
    last_group = Hdf5Handle();
    file = Hdf5Handle();
  }

  [[noreturn]] void fail(const std::string& inside, const std::string& problem) const {
    throw FileError(text(printable(path), ":", printable(inside), ": ", problem));
  }
  [[noreturn]] void fail_in_library(const std::string& inside, const char* problem) const {
    throw DamagedFile(text(printable(path), ":", printable(inside), ": ", problem, " (",
                           printable(hdf5_reason()), ")"));
  }

  static std::unique_ptr<Impl> open(const std::string& path, std::int64_t bytes);

  // What the child process does before any other function here is called: all that they may do.
  void inspect() const;
  void inspect_attributes(hid_t object, const std::string& inside) const;
  void inspect_dataset(const std::string& inside) const;

  // Where `inside` leads.
  Hdf5Handle open_object(const std::string& inside) const;
  Hdf5Handle open_group(const std::string& inside) const;
  Hdf5Handle open_dataset_id(const std::string& inside) const;
  Dataset open_dataset(const std::string& inside) const;
  std::string soft_link_target(hid_t group, const std::string& name, std::size_t bytes,
                               const std::string& inside) const;
  std::vector<Link> links(const std::string& inside) const;

  // Attributes and strings.
  std::vector<std::string> attribute_names(hid_t object, const std::string& inside) const;
  bool has_attribute(hid_t object, const std::string& inside, const std::string& name) const;
  Hdf5Handle open_attribute(hid_t object, const std::string& inside, const std::string& name) const;
  std::string string_attribute(hid_t object, const std::string& inside,
                               const std::string& name) const;
  std::string read_string(const Dataset& data) const;
  template <class Read>
  std::string read_string(hid_t type, const std::string& inside, const std::string& subject,
                          const Read& read) const;

  // Data.
  void require_readable(const Dataset& data) const;
  void require_chunks(const Dataset& data, hid_t properties) const;
  void require_filters(const Dataset& data, hid_t properties) const;
  void read(const Dataset& data, hid_t memory_type, std::int64_t begin, std::int64_t count,
            void* values) const;
  HostTensor read_tensor(const Dataset& data, std::int64_t begin, std::int64_t count) const;
};

// Walks link by link, because a plain H5Oopen would follow an external link into another file.
Hdf5Handle Hdf5File::Impl::open_object(const std::string& inside) const {
  std::vector<std::string> todo = components(inside);
  std::reverse(todo.begin(), todo.end());
  std::string parent;
  for (std::size_t i = todo.size(); i > 1; --i) parent += "/" + todo[i - 1];

  Hdf5Handle at;
  if (last_group.is_open() && last_group_path == parent && !todo.empty()) {
    todo.resize(1);
    H5Iinc_ref(last_group);
    at = Hdf5Handle(last_group, H5Oclose);
  } else {
    at = Hdf5Handle(H5Oopen(file, "/", H5P_DEFAULT), H5Oclose);
    if (!at.is_open()) fail_in_library("/", "the root group cannot be opened");
  }

  std::string soft_link;  // the last one followed
  for (int soft_links = 0; !todo.empty();) {
    const std::string name = todo.back();
    todo.pop_back();
    if (todo.empty() && soft_links == 0) {
      H5Iinc_ref(at);
      last_group = Hdf5Handle(at, H5Oclose);
      last_group_path = parent;
    }
    const std::string via = soft_link.empty() ? "" : text(" (by the soft link to '", soft_link, "')");
    if (H5Iget_type(at) != H5I_GROUP)
      fail(inside, text("leads through a data set, expected a group above '", printable(name), "'",
                        via));
    const htri_t exists = H5Lexists(at, name.c_str(), H5P_DEFAULT);
    if (exists < 0) fail_in_library(inside, "the group that should hold it is damaged");
    if (exists == 0) {
      if (!soft_link.empty())
        fail(inside, text("is a dangling soft link to '", soft_link, "', expected data"));
      fail(inside, todo.empty() ? "is missing"
                                : text("is missing, for want of a group '", printable(name), "'"));
    }
    H5L_info_t link{};
    if (H5Lget_info(at, name.c_str(), &link, H5P_DEFAULT) < 0)
      fail_in_library(inside, "its link is damaged");

    if (link.type == H5L_TYPE_SOFT) {
      const std::string target = soft_link_target(at, name, link.u.val_size, inside);
      soft_link = printable(target);
      if (++soft_links > max_soft_links)
        fail(inside, text("leads through more than ", max_soft_links, " soft links, one to '",
                          soft_link, "'"));
      std::vector<std::string> next = components(target);
      todo.insert(todo.end(), next.rbegin(), next.rend());
      if (target.starts_with('/')) at = Hdf5Handle(H5Oopen(file, "/", H5P_DEFAULT), H5Oclose);
    } else if (link.type == H5L_TYPE_HARD) {
      Hdf5Handle next(H5Oopen(at, name.c_str(), H5P_DEFAULT), H5Oclose);
      if (!next.is_open()) fail_in_library(inside, "is damaged");
      at = std::move(next);
    } else if (link.type == H5L_TYPE_EXTERNAL) {
      fail(inside, "is a link into another file, expected the data in this file");
    } else {
      fail(inside, text("is a user-defined link (class ", int(link.type), "), expected data"));
    }
  }
  return at;
}

std::string Hdf5File::Impl::soft_link_target(hid_t group, const std::string& name,
                                             std::size_t size, const std::string& inside) const {
  if (size == 0 || std::int64_t(size) > mebibyte)
    fail(inside, text("is a soft link of ", size, " bytes, expected at most 1 MiB"));
  std::string target(size, '\0');
  if (H5Lget_val(group, name.c_str(), target.data(), size, H5P_DEFAULT) < 0)
    fail_in_library(inside, "is a damaged soft link");
  target.resize(std::min(target.find('\0'), size));
  return target;
}

Hdf5Handle Hdf5File::Impl::open_group(const std::string& inside) const {
  Hdf5Handle object = open_object(inside);
  if (H5Iget_type(object) != H5I_GROUP) fail(inside, "is not a group, expected a group");
  return object;
}

Hdf5Handle Hdf5File::Impl::open_dataset_id(const std::string& inside) const {
  Hdf5Handle object = open_object(inside);
  const H5I_type_t kind = H5Iget_type(object);
  if (kind == H5I_GROUP) fail(inside, "is a group, expected a data set");
  if (kind != H5I_DATASET) fail(inside, "is neither group nor data set, expected a data set");
  return object;
}

Dataset Hdf5File::Impl::open_dataset(const std::string& inside) const {
  Dataset data{inside, open_dataset_id(inside), {}, {}};
  data.type = Hdf5Handle(H5Dget_type(data.id), H5Tclose);
  const Hdf5Handle space(H5Dget_space(data.id), H5Sclose);
  const int rank = space.is_open() ? H5Sget_simple_extent_ndims(space) : -1;
  if (!data.type.is_open() || rank < 0 || rank > H5S_MAX_RANK)
    fail_in_library(inside, "its header is damaged");
  if (H5Sget_simple_extent_type(space) == H5S_NULL)
    fail(inside, "has a null data space, expected a tensor");

  std::array<hsize_t, H5S_MAX_RANK> extents{};
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  for (int axis = 0; axis < rank; ++axis)
    data.info.shape.push_back(
        std::int64_t(std::min<hsize_t>(extents[std::size_t(axis)], INT64_MAX)));
  data.info.stored_bytes = std::int64_t(std::min<hsize_t>(H5Dget_storage_size(data.id), INT64_MAX));

  const Hdf5Type type = hdf5_type(data.type);
  data.info.dtype = type.dtype;
  data.info.type_name = type.name;
  if (!has_attribute(data.id, inside, "dtype")) return data;
  const std::string said = string_attribute(data.id, inside, "dtype");
  if (said == "bfloat16" && type.name == "uint16") {
    data.info.dtype = DType::bfloat16;
    data.info.type_name = said;
  } else if (said != type.name) {
    fail(inside, text("is ", type.name, " with the attribute dtype = '", printable(said),
                      "', expected uint16 with 'bfloat16', or none"));
  }
  return data;
}

std::vector<Link> Hdf5File::Impl::links(const std::string& inside) const {
  struct Links {
    std::vector<Link> found;
    hsize_t limit;
    bool out_of_memory = false;
  } links{{}, hsize_t(bytes) / min_link_bytes};
  // No exception may cross the C library; a damaged index that runs in a circle meets the limit.
  const auto collect = [](hid_t, const char* name, const H5L_info_t* info, void* data) -> herr_t {
    auto& result = *static_cast<Links*>(data);
    try {
      result.found.push_back({name, std::nullopt});
      if (info->type == H5L_TYPE_HARD) result.found.back().address = info->u.address;
    } catch (const std::bad_alloc&) {
      result.out_of_memory = true;
    }
    return result.out_of_memory || result.found.size() > result.limit ? 1 : 0;
  };

  const Hdf5Handle group = open_group(inside);
  hsize_t at = 0;
  const herr_t status = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &at, collect, &links);
  if (links.out_of_memory) throw std::bad_alloc();
  if (status < 0) fail_in_library(inside, "its list of entries is damaged");
  if (status > 0) fail(inside, "lists more entries than the file has room for");
  std::sort(links.found.begin(), links.found.end(),
            [](const Link& a, const Link& b) { return a.name < b.name; });
  return std::move(links.found);
}

std::vector<std::string> Hdf5File::Impl::attribute_names(hid_t object,
                                                         const std::string& inside) const {
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    try {
      static_cast<std::vector<std::string>*>(data)->emplace_back(name);
      return 0;
    } catch (const std::bad_alloc&) {
      return 1;
    }
  };
  std::vector<std::string> names;
  hsize_t at = 0;
  const herr_t status = H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, &at, collect, &names);
  if (status < 0) fail_in_library(inside, "its attributes are damaged");
  if (status > 0) throw std::bad_alloc();
  return names;
}

bool Hdf5File::Impl::has_attribute(hid_t object, const std::string& inside,
                                   const std::string& name) const {
  const htri_t exists = H5Aexists(object, name.c_str());
  if (exists < 0) fail_in_library(inside, "its attributes are damaged");
  return exists > 0;
}

Hdf5Handle Hdf5File::Impl::open_attribute(hid_t object, const std::string& inside,
                                          const std::string& name) const {
  if (!has_attribute(object, inside, name))
    fail(inside, text("has no attribute '", printable(name), "'"));
  Hdf5Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  const Hdf5Handle space(attribute.is_open() ? H5Aget_space(attribute) : -1, H5Sclose);
  if (!space.is_open())
    fail_in_library(inside, text("its attribute '", printable(name), "' is damaged").c_str());
  if (H5Sget_simple_extent_type(space) != H5S_SCALAR)
    fail(inside, text("its attribute '", printable(name), "' is a list, expected one value"));
  return attribute;
}

/// One string of fixed or variable length; `read(type, buffer)` reads it into that memory type.
template <class Read>
std::string Hdf5File::Impl::read_string(hid_t type, const std::string& inside,
                                        const std::string& subject, const Read& read) const {
  if (H5Tget_class(type) != H5T_STRING)
    fail(inside, text(subject, "is ", hdf5_type(type).name, ", expected a string"));
  const Hdf5Handle memory_type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_cset(memory_type, H5Tget_cset(type));

  std::string result;
  if (H5Tis_variable_str(type) > 0) {
    H5Tset_size(memory_type, H5T_VARIABLE);
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    char* characters = nullptr;
    if (read(hid_t(memory_type), static_cast<void*>(&characters)) < 0)
      fail_in_library(inside, text(subject, "is a damaged string").c_str());
    if (characters != nullptr) result = characters;
    H5Dvlen_reclaim(memory_type, space, H5P_DEFAULT, &characters);
  } else {
    const std::size_t size = H5Tget_size(type);
    if (std::int64_t(size) > std::min(max_string_bytes, bytes))
      fail(inside, text(subject, "is a string of ", size, " bytes, expected at most 16 MiB"));
    result.resize(size + 1);  // one more for the terminator
    H5Tset_size(memory_type, size + 1);
    if (read(hid_t(memory_type), static_cast<void*>(result.data())) < 0)
      fail_in_library(inside, text(subject, "is a damaged string").c_str());
    result.resize(std::min(result.find('\0'), size));
  }
  if (!is_utf8(result)) fail(inside, text(subject, "is not UTF-8: '", printable(result), "'"));
  return result;
}

std::string Hdf5File::Impl::string_attribute(hid_t object, const std::string& inside,
                                             const std::string& name) const {
  const Hdf5Handle attribute = open_attribute(object, inside, name);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  return read_string(type, inside, text("its attribute '", printable(name), "' "),
                     [&](hid_t memory_type, void* buffer) {
                       return H5Aread(attribute, memory_type, buffer);
                     });
}

std::string Hdf5File::Impl::read_string(const Dataset& data) const {
  return read_string(data.type, data.inside, "", [&](hid_t memory_type, void* buffer) {
    return H5Dread(data.id, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer);
  });
}

// Nothing has been allocated for the data yet, and nothing is where this throws.
void Hdf5File::Impl::require_readable(const Dataset& data) const {
  for (const std::int64_t extent : data.info.shape)
    if (extent > max_extent)
      fail(data.inside, text("shape is ", to_string(data.info.shape),
                             ", expected every extent below 2^31"));
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
    fail(data.inside, text("shape is ", to_string(data.info.shape), " of ", data.info.type_name,
                           ", but ", data.info.stored_bytes, " bytes are stored for it in a file of ",
                           bytes, " bytes"));
}

void Hdf5File::Impl::require_chunks(const Dataset& data, hid_t properties) const {
  const std::string subject =
      text("shape is ", to_string(data.info.shape), " of ", data.info.type_name, ", ");
  std::array<hsize_t, H5S_MAX_RANK> extents{};
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
    fail(data.inside, text(subject, "in chunks of ", chunk_bytes, " bytes, expected at most ",
                           max_chunk_bytes));
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

void Hdf5File::Impl::require_filters(const Dataset& data, hid_t properties) const {
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
      fail(data.inside, text("is stored with the HDF5 filter ", int(filter), " '",
                             printable(name.data()), "', ",
                             is_known ? "which this HDF5 library was built without"
                                      : "expected none, deflate, shuffle or fletcher32"));
  }
}

void Hdf5File::Impl::read(const Dataset& data, hid_t memory_type, std::int64_t begin,
                          std::int64_t count, void* values) const {
  const Hdf5Handle file_space(H5Dget_space(data.id), H5Sclose);
  Hdf5Handle memory_space;
  if (!data.info.shape.empty()) {
    std::array<hsize_t, H5S_MAX_RANK> start{}, extents{};
    std::copy(data.info.shape.begin(), data.info.shape.end(), extents.begin());
    start[0] = hsize_t(begin);
    extents[0] = hsize_t(count);
    memory_space = Hdf5Handle(
        H5Screate_simple(int(data.info.shape.size()), extents.data(), nullptr), H5Sclose);
    H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr);
  } else {
    memory_space = Hdf5Handle(H5Screate(H5S_SCALAR), H5Sclose);
  }
  if (H5Dread(data.id, memory_type, memory_space, file_space, H5P_DEFAULT, values) < 0)
    fail_in_library(data.inside, "its data cannot be read");
}

HostTensor Hdf5File::Impl::read_tensor(const Dataset& data, std::int64_t begin,
                                       std::int64_t count) const {
  const std::optional<DType> dtype = data.info.dtype;
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16)
    fail(data.inside,
         text("is ", data.info.type_name, ", expected float32, float16 or bfloat16"));
  require_readable(data);

  HostTensor tensor{data.info.shape, {}, *dtype};
  if (!tensor.shape.empty()) tensor.shape[0] = count;
  const auto size = std::size_t(element_count(tensor.shape));
  tensor.values.resize(size);
  if (size == 0) return tensor;
  if (dtype != DType::bfloat16) {
    read(data, H5T_NATIVE_FLOAT, begin, count, tensor.values.data());
    return tensor;
  }
  // The 16-bit words go into the upper half of the values and are widened from the front: value i
  // overwrites only words whose index is at most i.
  auto* const memory = reinterpret_cast<unsigned char*>(tensor.values.data());
  unsigned char* const words = memory + 2 * size;
  read(data, H5T_NATIVE_UINT16, begin, count, words);
  for (std::size_t i = 0; i < size; ++i) {
    std::uint16_t word = 0;
    std::memcpy(&word, words + 2 * i, sizeof word);
    tensor.values[i] = std::bit_cast<float>(std::uint32_t(word) << 16);
  }
  return tensor;
}

Hdf5File::Hdf5File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Hdf5File::Hdf5File(Hdf5File&& other) noexcept = default;
Hdf5File& Hdf5File::operator=(Hdf5File&& other) noexcept = default;
Hdf5File::~Hdf5File() = default;

std::unique_ptr<Hdf5File::Impl> Hdf5File::Impl::open(const std::string& path, std::int64_t bytes) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->bytes = bytes;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // No lock: a golden may lie on a read-only mount, where taking one fails.
  H5Pset_file_locking(access, false, true);
  impl->file = Hdf5Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!impl->file.is_open())
    throw DamagedFile(text(printable(path), ": is a damaged or truncated HDF5 file (",
                           printable(hdf5_reason()), ")"));
  return impl;
}

// Refusals are left to whoever asks for the part in question; only damage concerns all of the file.
void Hdf5File::Impl::inspect() const {
  std::vector<std::string> todo = {"/"};
  std::unordered_set<haddr_t> seen;
  while (!todo.empty()) {
    const std::string inside = todo.back();
    todo.pop_back();
    try {
      const Hdf5Handle object = open_object(inside);
      inspect_attributes(object, inside);
      if (H5Iget_type(object) == H5I_DATASET) inspect_dataset(inside);
      if (H5Iget_type(object) != H5I_GROUP) continue;
      for (const Link& link : links(inside))
        if (link.address && seen.insert(*link.address).second)
          todo.push_back(text(inside, inside == "/" ? "" : "/", link.name));
    } catch (const DamagedFile&) {
      throw;
    } catch (const FileError&) {
    }
  }
}

void Hdf5File::Impl::inspect_attributes(hid_t object, const std::string& inside) const {
  for (const std::string& name : attribute_names(object, inside)) {
    const Hdf5Handle attribute = open_attribute(object, inside, name);
    const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
    if (H5Tget_class(type) == H5T_STRING) string_attribute(object, inside, name);
  }
}

void Hdf5File::Impl::inspect_dataset(const std::string& inside) const {
  const Dataset data = open_dataset(inside);
  require_readable(data);
  if (H5Tget_class(data.type) == H5T_STRING && data.info.shape.empty()) read_string(data);

  const Hdf5Handle properties(H5Dget_create_plist(data.id), H5Pclose);
  const std::int64_t rows = data.info.shape.empty() ? 0 : data.info.shape[0];
  if (data.bytes() == 0 || H5Pget_layout(properties) != H5D_CHUNKED) return;
  const std::int64_t row_bytes = data.bytes() / rows;
  if (!data.info.dtype || row_bytes > max_chunk_bytes) return;
  std::vector<char> block(static_cast<std::size_t>(row_bytes));
  for (std::int64_t row = 0; row < rows; ++row) read(data, data.type, row, 1, block.data());
}

Hdf5File Hdf5File::open_read(const std::string& path) {
  const Hdf5Quiet quiet;
  const std::int64_t bytes = require_hdf5_signature(path);
  // Sound files take about 50 ms a MiB of small data sets, 10 ms a MiB of compressed ones.
  const ChildLimits limits{inspection_memory, 5 + bytes / (16 * mebibyte)};
  std::optional<std::string> damage;
  try {
    damage = child_result(limits, [&]() -> std::string {
      try {
        Impl::open(path, bytes)->inspect();
        return {};
      } catch (const DamagedFile& error) {
        return error.what();
      }
    });
  } catch (const std::system_error& error) {
    throw FileError(text(printable(path), ": cannot be inspected in a child process: ",
                         error.what()));
  }
  if (!damage)
    throw FileError(text(printable(path), ": is damaged: the HDF5 library crashes on it, or needs ",
                         "more than ", limits.memory_bytes / mebibyte, " MiB or ",
                         limits.cpu_seconds, " s to list it"));
  if (!damage->empty()) throw FileError(*damage);
  return Hdf5File(Impl::open(path, bytes));
}

const std::string& Hdf5File::path() const { return impl_->path; }
std::int64_t Hdf5File::file_bytes() const { return impl_->bytes; }

bool Hdf5File::contains(const std::string& inside) const {
  const Hdf5Quiet quiet;
  std::vector<std::string> names = components(inside);
  if (names.empty()) return true;
  std::string parent = "/";
  for (std::size_t i = 0; i + 1 < names.size(); ++i) parent += names[i] + "/";
  const htri_t exists = H5Lexists(impl_->open_group(parent), names.back().c_str(), H5P_DEFAULT);
  if (exists < 0) impl_->fail_in_library(inside, "the group that should hold it is damaged");
  return exists > 0;
}

Hdf5File::Children Hdf5File::children(const std::string& inside) const {
  const Hdf5Quiet quiet;
  Children result;
  for (const Link& link : impl_->links(inside)) {
    const std::string& name = link.name;
    if (!is_utf8(name) || name.empty())
      impl_->fail(inside, text("has an entry '", printable(name), "', expected a name in UTF-8"));
    const std::string child = text(inside, inside.ends_with('/') ? "" : "/", name);
    const H5I_type_t kind = H5Iget_type(impl_->open_object(child));
    if (kind == H5I_GROUP)
      result.groups.push_back(name);
    else if (kind == H5I_DATASET)
      result.datasets.push_back(name);
    else
      impl_->fail(child, "is a named type, expected a group or a data set");
  }
  return result;
}

std::vector<std::string> Hdf5File::attribute_names(const std::string& inside) const {
  const Hdf5Quiet quiet;
  return impl_->attribute_names(impl_->open_object(inside), inside);
}

bool Hdf5File::has_attribute(const std::string& inside, const std::string& name) const {
  const Hdf5Quiet quiet;
  return impl_->has_attribute(impl_->open_object(inside), inside, name);
}

std::string Hdf5File::string_attribute(const std::string& inside, const std::string& name) const {
  const Hdf5Quiet quiet;
  return impl_->string_attribute(impl_->open_object(inside), inside, name);
}

std::int64_t Hdf5File::int_attribute(const std::string& inside, const std::string& name) const {
  const Hdf5Quiet quiet;
  const Hdf5Handle object = impl_->open_object(inside);
  const Hdf5Handle attribute = impl_->open_attribute(object, inside, name);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  if (H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) > sizeof(std::int64_t))
    impl_->fail(inside, text("its attribute '", printable(name), "' is ", hdf5_type(type).name,
                             ", expected an integer"));
  std::int64_t value = 0;
  if (H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0)
    impl_->fail_in_library(inside,
                           text("its attribute '", printable(name), "' is damaged").c_str());
  return value;
}

DatasetInfo Hdf5File::info(const std::string& inside) const {
  const Hdf5Quiet quiet;
  return impl_->open_dataset(inside).info;
}

HostTensor Hdf5File::tensor(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Dataset data = impl_->open_dataset(inside);
  return impl_->read_tensor(data, 0, data.info.shape.empty() ? 1 : data.info.shape[0]);
}

HostTensor Hdf5File::rows(const std::string& inside, std::int64_t begin, std::int64_t count) const {
  const Hdf5Quiet quiet;
  const Dataset data = impl_->open_dataset(inside);
  const std::int64_t rows = data.info.shape.empty() ? 0 : data.info.shape[0];
  if (begin < 0 || count < 0 || begin > rows || count > rows - begin)
    impl_->fail(inside, text("shape is ", to_string(data.info.shape), ", expected rows ", begin,
                             " to ", begin, " + ", count));
  return impl_->read_tensor(data, begin, count);
}

IntegerTensor Hdf5File::integers(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Dataset data = impl_->open_dataset(inside);
  const bool is_integer = H5Tget_class(data.type) == H5T_INTEGER &&
                          data.info.dtype != DType::bfloat16 &&
                          H5Tget_size(data.type) <= sizeof(std::int64_t) &&
                          data.info.type_name != "uint64";
  if (!is_integer)
    impl_->fail(inside, text("is ", data.info.type_name, ", expected integers"));
  impl_->require_readable(data);
  IntegerTensor tensor{data.info.shape, {}};
  tensor.values.resize(std::size_t(element_count(tensor.shape)));
  if (!tensor.values.empty())
    impl_->read(data, H5T_NATIVE_INT64, 0, tensor.shape.empty() ? 1 : tensor.shape[0],
                tensor.values.data());
  return tensor;
}

std::string Hdf5File::string(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Dataset data = impl_->open_dataset(inside);
  if (!data.info.shape.empty())
    impl_->fail(inside, text("shape is ", to_string(data.info.shape), ", expected a scalar string"));
  impl_->require_readable(data);
  return impl_->read_string(data);
}

void Hdf5File::fail(const std::string& inside, const std::string& problem) const {
  impl_->fail(inside, problem);
}

}  // namespace tokenview
