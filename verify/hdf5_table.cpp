// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_table.hpp"

#include <algorithm>
#include <cstring>

#include "verify/hdf5_impl.hpp"

namespace tokenview {
namespace {

using Texts = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

constexpr std::size_t max_text_bytes = 4096;  // of one entry
constexpr int max_columns = 64;

}  // namespace

const Hdf5Table::Column* Hdf5Table::find(const std::string& name) const {
  const auto found =
      std::ranges::find(columns, name, &std::pair<std::string, Hdf5Table::Column>::first);
  return found == columns.end() ? nullptr : &found->second;
}

Hdf5RecordLayout::Hdf5RecordLayout(std::vector<Field> fields) : fields_(std::move(fields)) {
  make_type();
}

Hdf5RecordLayout::Hdf5RecordLayout(const Hdf5Table& table) {
  for (const auto& [name, column] : table.columns) {
    Field& field = fields_.emplace_back(Field{name});
    if (const auto* const texts = std::get_if<Texts>(&column)) {
      field.text_bytes = 1;
      for (const std::string& entry : *texts)
        field.text_bytes = std::max(field.text_bytes, entry.size());
    }
    rows_ = std::visit([](const auto& entries) { return std::int64_t(entries.size()); }, column);
  }
  make_type();
}

void Hdf5RecordLayout::make_type() {
  for (const Field& field : fields_) record_bytes_ += field.bytes();
  type_ = Hdf5Handle(H5Tcreate(H5T_COMPOUND, record_bytes_), H5Tclose);
  std::size_t offset = 0;
  for (const Field& field : fields_) {
    Hdf5Handle text(H5Tcopy(H5T_C_S1), H5Tclose);
    if (field.text_bytes > 0) {
      H5Tset_size(text, field.text_bytes);
      H5Tset_strpad(text, H5T_STR_NULLPAD);
    }
    H5Tinsert(type_, field.name.c_str(), offset,
              field.text_bytes > 0 ? hid_t(text) : H5T_NATIVE_INT64);
    offset += field.bytes();
  }
}

std::vector<char> Hdf5RecordLayout::records(const Hdf5Table& table) const {
  std::vector<char> bytes(std::size_t(rows_) * record_bytes_, '\0');
  std::size_t offset = 0;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    for (std::size_t row = 0; row < std::size_t(rows_); ++row) {
      char* const to = bytes.data() + row * record_bytes_ + offset;
      if (const auto* const texts = std::get_if<Texts>(&table.columns[i].second))
        std::memcpy(to, (*texts)[row].data(), (*texts)[row].size());
      else
        std::memcpy(to, &std::get<Numbers>(table.columns[i].second)[row], sizeof(std::int64_t));
    }
    offset += fields_[i].bytes();
  }
  return bytes;
}

Hdf5Table Hdf5RecordLayout::table(const std::vector<char>& records) const {
  Hdf5Table table;
  std::size_t offset = 0;
  for (const Field& field : fields_) {
    Texts texts;
    Numbers numbers;
    for (std::size_t at = offset; at < records.size(); at += record_bytes_) {
      const char* const from = records.data() + at;
      if (field.text_bytes > 0)
        texts.emplace_back(from, strnlen(from, field.text_bytes));
      else
        std::memcpy(&numbers.emplace_back(), from, sizeof(std::int64_t));
    }
    table.columns.emplace_back(
        field.name, field.text_bytes > 0 ? Hdf5Table::Column(texts) : Hdf5Table::Column(numbers));
    offset += field.bytes();
  }
  return table;
}

Hdf5Table Hdf5File::table(const std::string& inside) const {
  const Hdf5Quiet quiet;
  const Hdf5Dataset data = impl_->open_dataset(inside);
  if (H5Tget_class(data.type) != H5T_COMPOUND || data.info.shape.size() != 1)
    fail(inside, text("is ", data.info.type_name, ' ', to_string(data.info.shape),
                      ", expected a list of compounds"));
  impl_->require_readable(data);

  std::vector<Hdf5RecordLayout::Field> fields;
  const int members = H5Tget_nmembers(data.type);
  if (members < 1 || members > max_columns)
    fail(inside, text("has ", members, " columns, expected 1 to ", max_columns));
  for (int i = 0; i < members; ++i) {
    char* const name = H5Tget_member_name(data.type, unsigned(i));
    if (name == nullptr) impl_->fail_in_library(inside, "its type is damaged");
    Hdf5RecordLayout::Field& field = fields.emplace_back(Hdf5RecordLayout::Field{name});
    H5free_memory(name);
    const Hdf5Handle type(H5Tget_member_type(data.type, unsigned(i)), H5Tclose);
    const std::size_t bytes = H5Tget_size(type);
    const bool is_text = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
    const bool is_number = H5Tget_class(type) == H5T_INTEGER && bytes <= sizeof(std::int64_t);
    if (!is_text && !is_number)
      fail(inside, text("its column '", printable(field.name), "' is ", hdf5_type(type).name,
                        ", expected integers or text of fixed length"));
    if (!is_text) continue;
    if (bytes > max_text_bytes)
      fail(inside, text("its column '", printable(field.name), "' is text of ", bytes,
                        " bytes, expected at most ", max_text_bytes));
    field.text_bytes = bytes;
  }
  const Hdf5RecordLayout layout(std::move(fields));
  std::vector<char> records(std::size_t(data.info.shape[0]) * layout.record_bytes());
  if (!records.empty())
    impl_->read_rows(data, layout.type(), 0, data.info.shape[0], records.data());
  Hdf5Table table = layout.table(records);
  for (const auto& [name, column] : table.columns)
    if (const auto* const texts = std::get_if<Texts>(&column))
      for (const std::string& entry : *texts)
        if (!is_utf8(entry))
          fail(inside,
               text("its column '", printable(name), "' is not UTF-8: '", printable(entry), "'"));
  return table;
}

}  // namespace tokenview
