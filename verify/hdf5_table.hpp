// SPDX-License-Identifier: Apache-2.0
// Internal to verify/hdf5_*.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "verify/hdf5_file.hpp"
#include "verify/hdf5_handle.hpp"

namespace tokenview {

/// How the records of a table lie in memory, and in a file that is written: the columns one after
/// the other, numbers as int64, text of fixed length padded with zeros.
class Hdf5RecordLayout {
 public:
  struct Field {
    std::string name;
    std::size_t text_bytes = 0;  // 0: an int64

    std::size_t bytes() const { return text_bytes == 0 ? sizeof(std::int64_t) : text_bytes; }
  };

  explicit Hdf5RecordLayout(std::vector<Field> fields);

  /// That of a table to be written.
  explicit Hdf5RecordLayout(const Hdf5Table& table);

  hid_t type() const { return type_; }
  std::size_t record_bytes() const { return record_bytes_; }
  std::int64_t rows() const { return rows_; }  // of the table to be written

  std::vector<char> records(const Hdf5Table& table) const;
  Hdf5Table table(const std::vector<char>& records) const;

 private:
  void make_type();

  std::vector<Field> fields_;
  std::size_t record_bytes_ = 0;
  std::int64_t rows_ = 0;
  Hdf5Handle type_;
};

}  // namespace tokenview
