// SPDX-License-Identifier: Apache-2.0
// Internal to verify/hdf5_*.cpp and their test: nothing else sees the HDF5 library.
#pragma once
// Later releases of the library then keep the calls of 1.10 as they were.
#define H5_USE_110_API
#include <hdf5.h>

#include <optional>
#include <string>
#include <utility>

#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// An HDF5 identifier, closed with its scope.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }

  bool is_open() const { return id_ >= 0; }
  operator hid_t() const { return id_; }

  /// Hands the identifier over: the caller closes it and sees whether that succeeded.
  hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// While one lives, the library does not print its errors; before and after, whatever the process
/// chose. Every public function that calls the library holds one, destructors included.
class Hdf5Quiet {
 public:
  Hdf5Quiet() {
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Quiet() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  Hdf5Quiet(const Hdf5Quiet&) = delete;
  Hdf5Quiet& operator=(const Hdf5Quiet&) = delete;

 private:
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

/// The cause that the library gives for its last failed call, e.g. "file read failed".
std::string hdf5_reason();

/// The element type of a data set or attribute, whatever its byte order.
struct Hdf5Type {
  std::optional<DType> dtype;  // absent for a type that no golden and no dump holds
  std::string name;            // "float32", "uint16", "compound", ...
};
Hdf5Type hdf5_type(hid_t type);

}  // namespace tokenview
