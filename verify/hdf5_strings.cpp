// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>

#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_string_bytes = 16 * mebibyte;

}  // namespace

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

// One string of fixed or variable length; `read(type, buffer)` reads it into that memory type.
std::string Hdf5File::Impl::read_string(hid_t type, const std::string& inside,
                                        const std::string& subject,
                                        const std::function<herr_t(hid_t, void*)>& read) const {
  if (H5Tget_class(type) != H5T_STRING)
    fail(inside, text(subject, "is ", hdf5_type(type).name, ", expected a string"));
  const Hdf5Handle memory_type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_cset(memory_type, H5Tget_cset(type));

  std::string result;
  if (H5Tis_variable_str(type) > 0) {
    H5Tset_size(memory_type, H5T_VARIABLE);
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    char* characters = nullptr;
    if (read(memory_type, &characters) < 0)
      fail_in_library(inside, text(subject, "is a damaged string").c_str());
    if (characters != nullptr) result = characters;
    H5Dvlen_reclaim(memory_type, space, H5P_DEFAULT, &characters);
  } else {
    const std::size_t size = H5Tget_size(type);
    if (std::int64_t(size) > std::min(max_string_bytes, bytes))
      fail(inside, text(subject, "is a string of ", size, " bytes, expected at most 16 MiB"));
    result.resize(size + 1);  // one more for the terminator
    H5Tset_size(memory_type, size + 1);
    if (read(memory_type, result.data()) < 0)
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
  return read_string(
      type, inside, text("its attribute '", printable(name), "' "),
      [&](hid_t memory_type, void* buffer) { return H5Aread(attribute, memory_type, buffer); });
}

std::string Hdf5File::Impl::read_string(const Hdf5Dataset& data) const {
  return read_string(data.type, data.inside, "", [&](hid_t memory_type, void* buffer) {
    return H5Dread(data.id, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer);
  });
}

}  // namespace tokenview
