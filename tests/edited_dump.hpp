// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/boost_test.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/hdf5_handle.hpp"

namespace tokenview {

/// Copies of the files of a dump, rank r in file r, to be made wrong.
class EditedDump {
 public:
  explicit EditedDump(const std::vector<std::string>& originals) {
    for (const std::string& original : originals) {
      paths_.push_back(folder_.file("dump.rank" + std::to_string(paths_.size()) + ".h5"));
      std::filesystem::copy(original, paths_.back());
    }
  }

  const std::vector<std::string>& paths() const { return paths_; }

  /// All values of a data set of a rank: "steps/0/taps/model.norm". T: float, or std::int64_t.
  template <class T = float>
  std::vector<T> values(std::size_t rank, const std::string& name) const {
    const Hdf5Handle file(H5Fopen(paths_[rank].c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle set(H5Dopen2(file, inside(rank, name).c_str(), H5P_DEFAULT), H5Dclose);
    const Hdf5Handle space(H5Dget_space(set), H5Sclose);
    std::vector<T> found(std::size_t(H5Sget_simple_extent_npoints(space)));
    BOOST_REQUIRE(H5Dread(set, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, found.data()) >= 0);
    return found;
  }

  template <class T>
  void set(std::size_t rank, const std::string& name, const std::vector<T>& values) {
    const Hdf5Handle file(H5Fopen(paths_[rank].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle set(H5Dopen2(file, inside(rank, name).c_str(), H5P_DEFAULT), H5Dclose);
    BOOST_REQUIRE(H5Dwrite(set, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  }

  /// A data set of another number of rows, [rows, values.size() / rows], in place of a rank's.
  void replace(std::size_t rank, const std::string& name, const std::vector<float>& values,
               std::size_t rows) {
    const Hdf5Handle file(H5Fopen(paths_[rank].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    BOOST_REQUIRE(H5Ldelete(file, inside(rank, name).c_str(), H5P_DEFAULT) >= 0);
    const hsize_t shape[] = {rows, values.size() / rows};
    const Hdf5Handle space(H5Screate_simple(2, shape, nullptr), H5Sclose);
    const Hdf5Handle set(H5Dcreate2(file, inside(rank, name).c_str(), H5T_NATIVE_FLOAT, space,
                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                         H5Dclose);
    BOOST_REQUIRE(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >=
                  0);
  }

  /// `change(values, rank)` of every rank's data set.
  template <class T = float, class Change>
  void change(const std::string& name, Change change) {
    for (std::size_t rank = 0; rank < paths_.size(); ++rank) {
      std::vector<T> found = values<T>(rank, name);
      change(found, rank);
      set(rank, name, found);
    }
  }

  /// Another name for a data set.
  void link(std::size_t rank, const std::string& name, const std::string& other) {
    const Hdf5Handle file(H5Fopen(paths_[rank].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    BOOST_REQUIRE(H5Lcreate_hard(file, inside(rank, name).c_str(), file,
                                 inside(rank, other).c_str(), H5P_DEFAULT, H5P_DEFAULT) >= 0);
  }

  /// Marks a rank's step as the pass of an idle one.
  void say_dummy(std::size_t rank, const std::string& step) {
    const Hdf5Handle file(H5Fopen(paths_[rank].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle group(H5Gopen2(file, inside(rank, step).c_str(), H5P_DEFAULT), H5Gclose);
    if (H5Aexists(group, "dummy") > 0) H5Adelete(group, "dummy");
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle said(
        H5Acreate2(group, "dummy", H5T_NATIVE_INT64, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    const std::int64_t yes = 1;
    BOOST_REQUIRE(H5Awrite(said, H5T_NATIVE_INT64, &yes) >= 0);
  }

  /// Annotates a tap, in place of what was said of it.
  void say_view(std::size_t rank, const std::string& name, const std::string& view) {
    const Hdf5Handle file(H5Fopen(paths_[rank].c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle set(H5Dopen2(file, inside(rank, name).c_str(), H5P_DEFAULT), H5Dclose);
    if (H5Aexists(set, "view") > 0) H5Adelete(set, "view");
    const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type, view.size());
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle said(H5Acreate2(set, "view", type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    BOOST_REQUIRE(H5Awrite(said, type, view.c_str()) >= 0);
  }

 private:
  static std::string inside(std::size_t rank, const std::string& name) {
    return "/ranks/" + std::to_string(rank) + "/" + name;
  }
  template <class T>
  static hid_t native() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int64_t>);
    return std::is_same_v<T, float> ? H5T_NATIVE_FLOAT : H5T_NATIVE_INT64;
  }

  TemporaryFolder folder_;
  std::vector<std::string> paths_;
};

}  // namespace tokenview
