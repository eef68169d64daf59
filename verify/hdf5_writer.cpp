// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "reference/program/error.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/hdf5_output.hpp"
#include "verify/hdf5_table.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

Hdf5Handle utf8_type() {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

Hdf5Handle scalar_space() { return {H5Screate(H5S_SCALAR), H5Sclose}; }

Hdf5Handle space_of(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return scalar_space();
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(int(extents.size()), extents.data(), nullptr), H5Sclose};
}

// Handles are named below, never temporaries: closing one wipes out the reason of a failed call.

/// Makes the groups on the way to a new object.
Hdf5Handle link_properties() {
  Hdf5Handle properties(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(properties, 1);
  H5Pset_char_encoding(properties, H5T_CSET_UTF8);
  return properties;
}

/// A file descriptor, closed with its scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return value_; }
  bool close() { return value_ < 0 || ::close(std::exchange(value_, -1)) == 0; }

 private:
  int value_;
};

int create(const std::string& path) {
  const int descriptor = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor < 0)
    throw FileError(
        text(printable(path), ": cannot be written: ", std::generic_category().message(errno)));
  return descriptor;
}

}  // namespace

struct Hdf5Writer::Impl {
  Impl(int file_descriptor, std::string name)
      : path(std::move(name)), descriptor(file_descriptor), output(file_descriptor) {}

  std::string path;
  Descriptor descriptor;
  Hdf5Output output;
  Hdf5Handle file;  // last: it writes to the others when it closes

  [[noreturn]] void fail(const std::string& inside, const std::string& problem) const {
    throw FileError(text(printable(path), ":", printable(inside), ": ", problem));
  }
  [[noreturn]] void fail_in_system(const std::string& inside, int error) const {
    fail(inside, text("cannot be written: ", std::generic_category().message(error)));
  }
  void require(bool done, const std::string& inside) const {
    if (output.error() != 0) fail_in_system(inside, output.error());
    if (!done) fail(inside, text("cannot be written (", printable(hdf5_reason()), ")"));
  }
  void require_size(const std::string& inside, const std::vector<std::int64_t>& shape,
                    std::size_t values) const;
  void attribute(const std::string& inside, const std::string& name, hid_t file_type,
                 hid_t memory_type, const void* value) const;
  void dataset(const std::string& inside, const std::vector<std::int64_t>& shape, hid_t file_type,
               hid_t memory_type, const void* values) const;
};

void Hdf5Writer::Impl::require_size(const std::string& inside,
                                    const std::vector<std::int64_t>& shape,
                                    std::size_t values) const {
  if (element_count(shape) != std::int64_t(values))
    fail(inside, text("shape is ", to_string(shape), " for ", values, " values"));
}

void Hdf5Writer::Impl::attribute(const std::string& inside, const std::string& name,
                                 hid_t file_type, hid_t memory_type, const void* value) const {
  const Hdf5Handle object(H5Oopen(file, inside.c_str(), H5P_DEFAULT), H5Oclose);
  require(object.is_open(), inside);
  const Hdf5Handle properties(H5Pcreate(H5P_ATTRIBUTE_CREATE), H5Pclose);
  H5Pset_char_encoding(properties, H5T_CSET_UTF8);
  const Hdf5Handle space = scalar_space();
  Hdf5Handle created(H5Acreate2(object, name.c_str(), file_type, space, properties, H5P_DEFAULT),
                     H5Aclose);
  require(created.is_open(), inside);
  require(H5Awrite(created, memory_type, value) >= 0, inside);
  require(H5Aclose(created.release()) >= 0, inside);
}

void Hdf5Writer::Impl::dataset(const std::string& inside, const std::vector<std::int64_t>& shape,
                               hid_t file_type, hid_t memory_type, const void* values) const {
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false);
  const Hdf5Handle links = link_properties();
  const Hdf5Handle space = space_of(shape);
  Hdf5Handle created(
      H5Dcreate2(file, inside.c_str(), file_type, space, links, properties, H5P_DEFAULT), H5Dclose);
  require(created.is_open(), inside);
  if (element_count(shape) > 0)
    require(H5Dwrite(created, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0, inside);
  require(H5Dclose(created.release()) >= 0, inside);
}

Hdf5Writer::Hdf5Writer(const std::string& path) : Hdf5Writer(create(path), path) {}

Hdf5Writer::Hdf5Writer(int descriptor, const std::string& name) {
  const Hdf5Quiet quiet;
  impl_ = std::make_unique<Impl>(descriptor, name);
  impl_->file = Hdf5Handle(
      H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, impl_->output.access()), H5Fclose);
  impl_->require(impl_->file.is_open(), "/");
}

Hdf5Writer::~Hdf5Writer() {
  const Hdf5Quiet quiet;
  impl_.reset();
}

void Hdf5Writer::attribute(const std::string& inside, const std::string& name,
                           const std::string& value) {
  const Hdf5Quiet quiet;
  const char* const characters = value.c_str();
  const Hdf5Handle type = utf8_type();
  impl_->attribute(inside, name, type, type, &characters);
}

void Hdf5Writer::attribute(const std::string& inside, const std::string& name, std::int64_t value) {
  const Hdf5Quiet quiet;
  impl_->attribute(inside, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void Hdf5Writer::group(const std::string& inside) {
  const Hdf5Quiet quiet;
  const Hdf5Handle links = link_properties();
  const Hdf5Handle created(H5Gcreate2(impl_->file, inside.c_str(), links, H5P_DEFAULT, H5P_DEFAULT),
                           H5Gclose);
  impl_->require(created.is_open(), inside);
}

void Hdf5Writer::string(const std::string& inside, const std::string& value) {
  const Hdf5Quiet quiet;
  const char* const characters = value.c_str();
  const Hdf5Handle type = utf8_type();
  impl_->dataset(inside, {}, type, type, &characters);
}

void Hdf5Writer::tensor(const std::string& inside, const HostTensor& tensor) {
  const Hdf5Quiet quiet;
  impl_->require_size(inside, tensor.shape, tensor.values.size());
  if (tensor.dtype == DType::float32)
    return impl_->dataset(inside, tensor.shape, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
                          tensor.values.data());
  if (tensor.dtype != DType::bfloat16)
    impl_->fail(inside, text("is ", to_string(tensor.dtype), ", expected float32 or bfloat16"));

  std::vector<std::uint16_t> words(tensor.values.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(tensor.values[i]);
    if ((bits & 0xffff) != 0)
      impl_->fail(inside, text("element ", i, " of ", to_string(tensor.shape), " is ",
                               tensor.values[i], ", expected a value that bfloat16 holds exactly"));
    words[i] = std::uint16_t(bits >> 16);
  }
  impl_->dataset(inside, tensor.shape, H5T_STD_U16LE, H5T_NATIVE_UINT16, words.data());
  attribute(inside, "dtype", "bfloat16");
}

void Hdf5Writer::integers(const std::string& inside, const IntegerTensor& tensor, DType dtype) {
  const Hdf5Quiet quiet;
  impl_->require_size(inside, tensor.shape, tensor.values.size());
  if (dtype != DType::int32 && dtype != DType::int64)
    impl_->fail(inside, text("is ", to_string(dtype), ", expected int32 or int64"));
  if (dtype == DType::int32)
    for (const std::int64_t value : tensor.values)
      if (value < INT32_MIN || value > INT32_MAX)
        impl_->fail(inside, text("holds ", value, ", expected values that int32 holds"));
  impl_->dataset(inside, tensor.shape, dtype == DType::int32 ? H5T_STD_I32LE : H5T_STD_I64LE,
                 H5T_NATIVE_INT64, tensor.values.data());
}

void Hdf5Writer::table(const std::string& inside, const Hdf5Table& table) {
  const Hdf5Quiet quiet;
  const Hdf5RecordLayout layout(table);
  impl_->dataset(inside, {layout.rows()}, layout.type(), layout.type(),
                 layout.records(table).data());
}

void Hdf5Writer::close() {
  const Hdf5Quiet quiet;
  impl_->require(H5Fclose(impl_->file.release()) >= 0, "/");
  if (fsync(impl_->descriptor) != 0) impl_->fail_in_system("/", errno);
  if (!impl_->descriptor.close()) impl_->fail_in_system("/", errno);
}

}  // namespace tokenview
