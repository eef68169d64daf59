// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>
#include <utility>

#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

constexpr int max_soft_links = 16;     // on one path; more is taken for a cycle
constexpr hsize_t min_link_bytes = 8;  // what a link takes in a file at the very least

}  // namespace

std::vector<std::string> path_components(const std::string& inside) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < inside.size();) {
    const std::size_t end = std::min(inside.find('/', begin), inside.size());
    const std::string name = inside.substr(begin, end - begin);
    if (!name.empty() && name != ".") result.push_back(name);
    begin = end + 1;
  }
  return result;
}

// Walks link by link, because a plain H5Oopen would follow an external link into another file.
Hdf5Handle Hdf5File::Impl::open_object(const std::string& inside) const {
  std::vector<std::string> todo = path_components(inside);
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
    if (H5Iget_type(at) != H5I_GROUP)
      fail(inside,
           text("leads through a data set, expected a group above '", printable(name), "'"));
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
      std::vector<std::string> next = path_components(target);
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

std::string Hdf5File::Impl::soft_link_target(hid_t group, const std::string& name, std::size_t size,
                                             const std::string& inside) const {
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

Hdf5Dataset Hdf5File::Impl::open_dataset(const std::string& inside) const {
  Hdf5Dataset data{inside, open_dataset_id(inside), {}, {}};
  data.type = Hdf5Handle(H5Dget_type(data.id), H5Tclose);
  const Hdf5Handle space(H5Dget_space(data.id), H5Sclose);
  const int rank = space.is_open() ? H5Sget_simple_extent_ndims(space) : -1;
  if (!data.type.is_open() || rank < 0 || rank > H5S_MAX_RANK)
    fail_in_library(inside, "its header is damaged");
  if (H5Sget_simple_extent_type(space) == H5S_NULL)
    fail(inside, "has a null data space, expected a tensor");

  Hdf5Extents extents{};
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
  } else if ((said == "float8_e4m3fn" || said == "float8_e5m2") && type.name == "uint8") {
    data.info.type_name = said;
  } else if (said != type.name) {
    fail(inside, text("is ", type.name, " with the attribute dtype = '", printable(said),
                      "', expected uint16 with 'bfloat16', uint8 with 'float8_e4m3fn' or "
                      "'float8_e5m2', or none"));
  }
  return data;
}

std::vector<Hdf5Link> Hdf5File::Impl::links(const std::string& inside) const {
  struct Links {
    std::vector<Hdf5Link> found;
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
            [](const Hdf5Link& a, const Hdf5Link& b) { return a.name < b.name; });
  return std::move(links.found);
}

}  // namespace tokenview
