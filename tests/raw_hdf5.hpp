// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "tests/boost_test.hpp"
#include "verify/hdf5_handle.hpp"

namespace tokenview {

/// A file made by the library alone, so that it may be as odd as the library allows.
class RawHdf5 {
 public:
  using Shape = std::vector<hsize_t>;

  explicit RawHdf5(const std::string& path, hid_t creation = H5P_DEFAULT)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT), H5Fclose) {}

  operator hid_t() const { return file_; }

  /// Nothing is written where `values` is null.
  void add(const char* name, hid_t type, const Shape& shape, const void* values,
           hid_t properties = H5P_DEFAULT, hid_t memory_type = H5I_INVALID_HID) const {
    const Hdf5Handle space(shape.empty()
                               ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(int(shape.size()), shape.data(), nullptr),
                           H5Sclose);
    const Hdf5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(links, 1);
    const Hdf5Handle data(H5Dcreate2(file_, name, type, space, links, properties, H5P_DEFAULT),
                          H5Dclose);
    BOOST_REQUIRE(data.is_open());
    if (values == nullptr) return;
    const hid_t from = memory_type == H5I_INVALID_HID ? type : memory_type;
    BOOST_REQUIRE(H5Dwrite(data, from, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
  }

  void say_dtype(const char* name, const char* dtype) const {
    const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type, std::char_traits<char>::length(dtype));
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle data(H5Dopen2(file_, name, H5P_DEFAULT), H5Dclose);
    const Hdf5Handle attribute(H5Acreate2(data, "dtype", type, space, H5P_DEFAULT, H5P_DEFAULT),
                               H5Aclose);
    BOOST_REQUIRE(H5Awrite(attribute, type, dtype) >= 0);
  }

 private:
  Hdf5Handle file_;
};

inline Hdf5Handle chunked(const RawHdf5::Shape& chunk) {
  Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(properties, int(chunk.size()), chunk.data());
  return properties;
}

}  // namespace tokenview
