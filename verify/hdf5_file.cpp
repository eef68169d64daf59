// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

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

}  // namespace

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
  // A chunk stays in memory while its rows are read one after the other.
  H5Pset_cache(access, 0, 521, 2 * std::size_t(max_chunk_bytes), 1.0);
  impl->file = Hdf5Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!impl->file.is_open())
    throw DamagedHdf5(
        text(printable(path), ": ", with_reason("is a damaged or truncated HDF5 file")));
  return impl;
}

std::unique_ptr<Hdf5File::Impl> Hdf5File::Impl::open_sound(const std::string& path,
                                                           Inspection inspection) {
  if (path.empty()) throw FileError("'': an empty name, expected that of a file");
  const std::int64_t bytes = require_hdf5_signature(path);
  require_sound(path, bytes, inspection);
  return open(path, bytes);
}

Hdf5File Hdf5File::open_read(const std::string& path) {
  const Hdf5Quiet quiet;
  return Hdf5File(Impl::open_sound(path, Impl::Inspection::data));
}

Hdf5File Hdf5File::open_layout(const std::string& path) {
  const Hdf5Quiet quiet;
  return Hdf5File(Impl::open_sound(path, Impl::Inspection::layout));
}

const std::string& Hdf5File::path() const { return impl_->path; }
std::int64_t Hdf5File::file_bytes() const { return impl_->bytes; }

bool Hdf5File::contains(const std::string& inside) const {
  const Hdf5Quiet quiet;
  std::vector<std::string> names = path_components(inside);
  if (names.empty()) return true;
  std::string parent = "/";
  for (std::size_t i = 0; i + 1 < names.size(); ++i) parent += names[i] + "/";
  const Hdf5Handle group = impl_->open_group(parent);
  const htri_t exists = H5Lexists(group, names.back().c_str(), H5P_DEFAULT);
  if (exists < 0) impl_->fail_in_library(inside, "the group that should hold it is damaged");
  return exists > 0;
}

Hdf5File::Children Hdf5File::children(const std::string& inside) const {
  const Hdf5Quiet quiet;
  Children result;
  for (const Hdf5Link& link : impl_->links(inside)) {
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

std::vector<std::string> Hdf5File::dataset_paths() const {
  const Hdf5Quiet quiet;
  return impl_->dataset_paths();
}

DatasetStorage Hdf5File::storage(const std::string& inside) const {
  const Hdf5Quiet quiet;
  return impl_->storage(impl_->open_dataset(inside));
}

StoredChunk Hdf5File::chunk(const std::string& inside,
                            const std::vector<std::int64_t>& start) const {
  const Hdf5Quiet quiet;
  std::optional<Hdf5Dataset>& data = impl_->last_dataset;
  if (!data || data->inside != inside) data = impl_->open_dataset(inside);
  return impl_->chunk(*data, start);
}

HostTensor Hdf5File::tensor(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Hdf5Dataset data = impl_->open_dataset(inside);
  return impl_->read_tensor(data, 0, data.info.shape.empty() ? 1 : data.info.shape[0]);
}

HostTensor Hdf5File::rows(const std::string& inside, std::int64_t begin, std::int64_t count) const {
  const Hdf5Quiet quiet;
  const Hdf5Dataset data = impl_->open_dataset(inside);
  const std::int64_t rows = data.info.shape.empty() ? 0 : data.info.shape[0];
  if (begin < 0 || count < 0 || begin > rows || count > rows - begin)
    impl_->fail(inside, text("shape is ", to_string(data.info.shape), ", expected rows ", begin,
                             " to ", begin, " + ", count));
  return impl_->read_tensor(data, begin, count);
}

IntegerTensor Hdf5File::integers(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Hdf5Dataset data = impl_->open_dataset(inside);
  const bool is_integer =
      H5Tget_class(data.type) == H5T_INTEGER && data.info.dtype != DType::bfloat16 &&
      H5Tget_size(data.type) <= sizeof(std::int64_t) && data.info.type_name != "uint64";
  if (!is_integer) impl_->fail(inside, text("is ", data.info.type_name, ", expected integers"));
  impl_->require_readable(data);
  IntegerTensor tensor{data.info.shape, {}};
  tensor.values.resize(std::size_t(element_count(tensor.shape)));
  if (!tensor.values.empty())
    impl_->read_rows(data, H5T_NATIVE_INT64, 0, tensor.shape.empty() ? 1 : tensor.shape[0],
                     tensor.values.data());
  return tensor;
}

std::string Hdf5File::string(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Hdf5Dataset data = impl_->open_dataset(inside);
  if (!data.info.shape.empty())
    impl_->fail(inside,
                text("shape is ", to_string(data.info.shape), ", expected a scalar string"));
  impl_->require_readable(data);
  return impl_->read_string(data);
}

void Hdf5File::fail(const std::string& inside, const std::string& problem) const {
  impl_->fail(inside, problem);
}

}  // namespace tokenview
