// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <system_error>
#include <unordered_set>

#include "verify/child_process.hpp"
#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t inspection_memory = 128 * mebibyte;

/// Refusals are left to whoever asks for the part in question: only damage concerns the whole file.
template <class Body>
void pass_over_refusal(const Body& body) {
  try {
    body();
  } catch (const DamagedHdf5&) {
    throw;
  } catch (const FileError&) {
  }
}

}  // namespace

void Hdf5File::Impl::inspect(Inspection inspection) const {
  std::vector<std::string> todo = {"/"};
  std::unordered_set<haddr_t> seen;
  const auto inspect_group = [&](const std::string& inside) {
    for (const Hdf5Link& link : links(inside))
      if (link.address && seen.insert(*link.address).second)
        todo.push_back(text(inside, inside == "/" ? "" : "/", link.name));
  };
  while (!todo.empty()) {
    const std::string inside = todo.back();
    todo.pop_back();
    pass_over_refusal([&] {
      const Hdf5Handle object = open_object(inside);
      for (const std::string& name : attribute_names(object, inside))
        pass_over_refusal([&] { inspect_attribute(object, inside, name); });
      const H5I_type_t kind = H5Iget_type(object);
      if (kind == H5I_DATASET) inspect_dataset(inside, inspection);
      if (kind == H5I_GROUP) inspect_group(inside);
    });
  }
}

void Hdf5File::Impl::inspect_attribute(hid_t object, const std::string& inside,
                                       const std::string& name) const {
  const Hdf5Handle attribute = open_attribute(object, inside, name);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  if (H5Tget_class(type) == H5T_STRING) string_attribute(object, inside, name);
}

void Hdf5File::Impl::inspect_dataset(const std::string& inside, Inspection inspection) const {
  const Hdf5Dataset data = open_dataset(inside);
  require_readable(data);
  if (H5Tget_class(data.type) == H5T_STRING && data.info.shape.empty()) read_string(data);

  const Hdf5Handle properties(H5Dget_create_plist(data.id), H5Pclose);
  if (!storage_type(data.info.type_name) || data.bytes() == 0 ||
      H5Pget_layout(properties) != H5D_CHUNKED)
    return;
  Hdf5Extents chunk{}, start{}, extents{};
  H5Pget_chunk(properties, H5S_MAX_RANK, chunk.data());
  const std::size_t rank = data.info.shape.size();
  std::size_t chunk_bytes = H5Tget_size(data.type);  // at most 16 MiB: it is readable
  for (std::size_t axis = 0; axis < rank; ++axis) chunk_bytes *= chunk[axis];
  if (inspection == Inspection::layout) storage(data);
  std::vector<char> buffer(inspection == Inspection::data ? chunk_bytes : 0);
  for (std::size_t axis = 0; axis != rank;) {
    for (std::size_t i = 0; i < rank; ++i)
      extents[i] = std::min(chunk[i], hsize_t(data.info.shape[i]) - start[i]);
    if (inspection == Inspection::data)
      read_block(data, data.type, start, extents, buffer.data());
    else
      stored_size(data, start);
    // On to the next chunk: the axis that moves is the first one that is not at its end.
    for (axis = 0; axis < rank; ++axis) {
      start[axis] += chunk[axis];
      if (start[axis] < hsize_t(data.info.shape[axis])) break;
      start[axis] = 0;
    }
  }
}

// Release 1.10 of the library crashes on some damaged files, and on others fills the memory or runs
// in a circle (about 1 of 500 with a few random bytes). A child process has this first.
void Hdf5File::Impl::require_sound(const std::string& path, std::int64_t bytes,
                                   Inspection inspection) {
  // Sound files take about 50 ms a MiB of small data sets, 10 ms a MiB of compressed ones.
  const ChildLimits limits{inspection_memory, 5 + bytes / (16 * mebibyte)};
  std::optional<std::string> damage;
  try {
    damage = child_result(limits, [&]() -> std::string {
      try {
        Impl::open(path, bytes)->inspect(inspection);
        return {};
      } catch (const DamagedHdf5& error) {
        return error.what();
      }
    });
  } catch (const std::system_error& error) {
    throw FileError(
        text(printable(path), ": cannot be inspected in a child process: ", error.what()));
  }
  if (!damage)
    throw FileError(text(printable(path), ": is damaged: the HDF5 library crashes on it, or needs ",
                         "more than ", limits.memory_bytes / mebibyte, " MiB or ",
                         limits.cpu_seconds, " s to list it"));
  if (!damage->empty()) throw FileError(*damage);
}

}  // namespace tokenview
