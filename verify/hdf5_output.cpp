// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_output.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

namespace tokenview {
namespace {

/// What access() carries to open(): the library copies it byte by byte.
struct Target {
  int descriptor;
  int* error;
};

/// An open file as the library sees it; its own part comes first.
struct OutputFile {
  H5FD_t base{};
  Target target{};
  haddr_t allocated = 0;  // bytes that the library has given out
  haddr_t written = 0;    // bytes of the file
};

OutputFile& output(H5FD_t* file) { return *reinterpret_cast<OutputFile*>(file); }
const OutputFile& output(const H5FD_t* file) { return *reinterpret_cast<const OutputFile*>(file); }

H5FD_t* open_output(const char*, unsigned, hid_t access, haddr_t) {
  const auto* const target = static_cast<const Target*>(H5Pget_driver_info(access));
  auto* const file = target != nullptr ? new (std::nothrow) OutputFile : nullptr;
  if (file == nullptr) return nullptr;
  file->target = *target;
  return &file->base;
}

herr_t close_output(H5FD_t* file) {
  delete &output(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* features) {
  // Those of the library's own driver for plain files that concern writing in larger pieces.
  *features = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
              H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t allocated(const H5FD_t* file, H5FD_mem_t) { return output(file).allocated; }
haddr_t written(const H5FD_t* file, H5FD_mem_t) { return output(file).written; }

herr_t set_allocated(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  output(file).allocated = address;
  return 0;
}

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* buffer) {
  OutputFile& from = output(file);
  auto* const bytes = static_cast<char*>(buffer);
  std::memset(bytes, 0, size);  // what was never written reads as zero
  for (std::size_t done = 0; done < size && *from.target.error == 0;) {
    const ssize_t count =
        pread(from.target.descriptor, bytes + done, size - done, off_t(address + done));
    if (count == 0) break;
    if (count < 0 && errno != EINTR) *from.target.error = errno;
    if (count > 0) done += std::size_t(count);
  }
  return 0;
}

herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size,
             const void* buffer) {
  OutputFile& to = output(file);
  const auto* const bytes = static_cast<const char*>(buffer);
  for (std::size_t done = 0; done < size && *to.target.error == 0;) {
    const ssize_t count =
        pwrite(to.target.descriptor, bytes + done, size - done, off_t(address + done));
    if (count == 0) *to.target.error = ENOSPC;
    if (count < 0 && errno != EINTR) *to.target.error = errno;
    if (count > 0) done += std::size_t(count);
  }
  to.written = std::max(to.written, address + size);
  return 0;
}

herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
  OutputFile& to = output(file);
  if (to.written == to.allocated) return 0;
  if (*to.target.error == 0 && ftruncate(to.target.descriptor, off_t(to.allocated)) != 0)
    *to.target.error = errno;
  to.written = to.allocated;
  return 0;
}

H5FD_class_t driver_class() {
  H5FD_class_t driver{};
  driver.name = "tokenview_output";
  driver.maxaddr = haddr_t{1} << 62;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(Target);
  driver.open = open_output;
  driver.close = close_output;
  driver.query = query;
  driver.get_eoa = allocated;
  driver.set_eoa = set_allocated;
  driver.get_eof = written;
  driver.read = read;
  driver.write = write;
  driver.truncate = truncate;
  const H5FD_mem_t one_space_for_all[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(one_space_for_all), std::end(one_space_for_all), driver.fl_map);
  return driver;
}

}  // namespace

Hdf5Output::Hdf5Output(int descriptor) : error_(std::make_unique<int>(0)) {
  const H5FD_class_t driver = driver_class();
  driver_ = Hdf5Handle(H5FDregister(&driver), H5FDunregister);
  access_ = Hdf5Handle(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const Target target{descriptor, error_.get()};
  H5Pset_driver(access_, driver_, &target);
}

}  // namespace tokenview
