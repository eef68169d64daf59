// SPDX-License-Identifier: Apache-2.0
// Internal to verify/hdf5_*.cpp: the inside of Hdf5File.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/program/error.hpp"
#include "verify/hdf5_file.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
constexpr std::int64_t max_chunk_bytes = 16 * mebibyte;

/// The library itself failed on the file, so that no part of it can be trusted.
struct DamagedHdf5 : FileError {
  using FileError::FileError;
};

/// An entry of a group.
struct Hdf5Link {
  std::string name;
  std::optional<haddr_t> address;  // of the object, where the link is a hard one
};

/// An open data set of which nothing has been read.
struct Hdf5Dataset {
  std::string inside;
  Hdf5Handle id;
  Hdf5Handle type;
  DatasetInfo info;

  /// What the elements take in the file uncompressed; the largest value where that overflows.
  std::int64_t bytes() const;
};

/// One number an axis.
using Hdf5Extents = std::array<hsize_t, H5S_MAX_RANK>;

/// The names of a path, without empty ones and '.'.
std::vector<std::string> path_components(const std::string& inside);

/// a * b, or the largest value where that overflows; both >= 0.
std::int64_t saturated_product(std::int64_t a, std::int64_t b);

struct Hdf5File::Impl {
  std::string path;
  std::int64_t bytes = 0;
  Hdf5Handle file;

  // The group that held the last object asked for: the next one is mostly its neighbour.
  mutable std::string last_group_path;
  mutable Hdf5Handle last_group;
  mutable std::optional<Hdf5Dataset> last_dataset;  // whose chunks are read one after the other

  ~Impl() {
    const Hdf5Quiet quiet;
    last_group = Hdf5Handle();
    last_dataset.reset();
    file = Hdf5Handle();
  }

  [[noreturn]] void fail(const std::string& inside, const std::string& problem) const {
    throw FileError(text(printable(path), ":", printable(inside), ": ", problem));
  }
  /// `problem` with what the library says of it; where it does not know the version of a part, that
  /// instead: a newer library wrote it, more likely than that it is damaged.
  static std::string with_reason(const char* problem) {
    const std::string reason = printable(hdf5_reason());
    if (reason.find("version") == std::string::npos) return text(problem, " (", reason, ")");
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    return text("was written with a newer version of the HDF5 library than ", major, '.', minor,
                '.', release, " of this program, or is damaged (", reason,
                "): expected h5py.File(..., libver='earliest') or ('earliest', 'v108')");
  }

  [[noreturn]] void fail_in_library(const std::string& inside, const char* problem) const {
    throw DamagedHdf5(text(printable(path), ":", printable(inside), ": ", with_reason(problem)));
  }

  /// What the child process does with the data of chunks: expands them, or finds where they lie.
  enum class Inspection { data, layout };

  static std::unique_ptr<Impl> open_sound(const std::string& path, Inspection inspection);
  static std::unique_ptr<Impl> open(const std::string& path, std::int64_t bytes);

  /// Throws FileError where a child process found the file damaged, or did not live to tell.
  static void require_sound(const std::string& path, std::int64_t bytes, Inspection inspection);

  // What the child does, so that it has been done once before anybody relies on it: opens every
  // object, reads every string and every chunk or where it lies. Throws DamagedHdf5.
  void inspect(Inspection inspection) const;
  void inspect_attribute(hid_t object, const std::string& inside, const std::string& name) const;
  void inspect_dataset(const std::string& inside, Inspection inspection) const;

  // Where `inside` leads.
  Hdf5Handle open_object(const std::string& inside) const;
  Hdf5Handle open_group(const std::string& inside) const;
  Hdf5Handle open_dataset_id(const std::string& inside) const;
  Hdf5Dataset open_dataset(const std::string& inside) const;
  std::string soft_link_target(hid_t group, const std::string& name, std::size_t bytes,
                               const std::string& inside) const;
  std::vector<Hdf5Link> links(const std::string& inside) const;

  std::vector<std::string> dataset_paths() const;

  // Attributes and strings.
  std::vector<std::string> attribute_names(hid_t object, const std::string& inside) const;
  bool has_attribute(hid_t object, const std::string& inside, const std::string& name) const;
  Hdf5Handle open_attribute(hid_t object, const std::string& inside, const std::string& name) const;
  std::string string_attribute(hid_t object, const std::string& inside,
                               const std::string& name) const;
  std::string read_string(const Hdf5Dataset& data) const;
  std::string read_string(hid_t type, const std::string& inside, const std::string& subject,
                          const std::function<herr_t(hid_t, void*)>& read) const;

  // Data.
  void require_readable(const Hdf5Dataset& data) const;
  void require_chunks(const Hdf5Dataset& data, hid_t properties) const;
  void require_filters(const Hdf5Dataset& data, hid_t properties) const;
  void read_rows(const Hdf5Dataset& data, hid_t memory_type, std::int64_t begin, std::int64_t count,
                 void* values) const;
  void read_block(const Hdf5Dataset& data, hid_t memory_type, const Hdf5Extents& start,
                  const Hdf5Extents& extents, void* values) const;
  DatasetStorage storage(const Hdf5Dataset& data) const;
  void describe_chunks(const Hdf5Dataset& data, hid_t properties, DatasetStorage& storage) const;
  std::int64_t stored_size(const Hdf5Dataset& data, const Hdf5Extents& start) const;
  StoredChunk chunk(const Hdf5Dataset& data, const std::vector<std::int64_t>& start) const;
  HostTensor read_tensor(const Hdf5Dataset& data, std::int64_t begin, std::int64_t count) const;
};

}  // namespace tokenview
