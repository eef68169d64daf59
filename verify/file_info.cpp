// SPDX-License-Identifier: Apache-2.0
#include "verify/file_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

void FileInfo::print(const std::string& path) const {
  const Hdf5File file = Hdf5File::open_read(path);
  const std::string schema =
      file.has_attribute("/", "schema") ? file.string_attribute("/", "schema") : "";
  if (schema == "tokenview.dump")
    print_dump(file);
  else if (schema == "tokenview.golden")
    print_golden(GoldenFile::open(path));
  else
    file.fail("/",
              schema.empty()
                  ? "has no attribute 'schema', expected 'tokenview.golden' or 'tokenview.dump'"
                  : text("schema is '", printable(schema),
                         "', expected 'tokenview.golden' or 'tokenview.dump'"));
}

void FileInfo::print_line(const char* name, const std::string& value) const {
  // Text that comes from the file may hold anything.
  const bool plain = std::all_of(value.begin(), value.end(),
                                 [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
  out_ << fmt::format("  {:<13}{}\n", name, plain ? value : printable(value));
}

void FileInfo::print_tap(const Hdf5File& file, ReportRecord record, const std::string& inside,
                         const std::string& title) const {
  const DatasetInfo info = file.info(inside);
  if (!as_records_) {
    out_ << fmt::format("    {}: {} {}, {}\n", printable(title), info.type_name,
                        to_string(info.shape), size_text(info.stored_bytes));
    return;
  }
  record.more = {{"dtype", info.type_name}, {"shape", info.shape}, {"bytes", info.stored_bytes}};
  print_record(record);
}

void FileInfo::print_record(const ReportRecord& record) const { out_ << json_line(record) << '\n'; }

std::string FileInfo::size_text(std::int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.1f} kB", double(bytes) / 1e3);
  return fmt::format("{:.1f} MB", double(bytes) / 1e6);
}

std::map<std::string, std::string> FileInfo::provenance(const Hdf5File& file) {
  std::map<std::string, std::string> found;
  for (const std::string& name : file.attribute_names("/")) {
    if (name == "schema" || name == "schema_version" || name == "model_type" || name == "dtype" ||
        name == "producer")
      continue;
    try {
      found[name] = file.string_attribute("/", name);
    } catch (const FileError&) {
      found[name] = std::to_string(file.int_attribute("/", name));
    }
  }
  return found;
}

}  // namespace tokenview
