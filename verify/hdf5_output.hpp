// SPDX-License-Identifier: Apache-2.0
// Internal to verify/hdf5_*.cpp.
#pragma once
#include <memory>

#include "verify/hdf5_handle.hpp"

namespace tokenview {

/// Lets the HDF5 library write into an open, empty file, and keeps a failure of the system to
/// itself: release 1.10 that is told of a full disk cannot close the file any more, and crashes
/// when the process ends. After a failure nothing more is written; the caller asks error().
class Hdf5Output {
 public:
  /// `descriptor` is open for reading and writing, and stays the caller's; it must outlive the HDF5
  /// file that was created with access().
  explicit Hdf5Output(int descriptor);

  /// File access properties for H5Fcreate, whose file name then means nothing.
  hid_t access() const { return access_; }

  /// The errno of the first read, write or truncation that failed; 0 while none has.
  int error() const { return *error_; }

 private:
  std::unique_ptr<int> error_;
  Hdf5Handle driver_;
  Hdf5Handle access_;
};

}  // namespace tokenview
