// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>

#include "reference/program/config.hpp"
#include "verify/golden_file.hpp"
#include "verify/report.hpp"

namespace tokenview {

/// Says what a file is: in lines for people, or in records (report.hpp). verbosity 1 lists every
/// tap with its type and shape, 2 the weights as well.
///
/// Records: a `file` with `type` ("golden" or "dump") and what it is as a whole, a `step` for each
/// case of a golden or step of a rank of a dump, a `dataset` for each of these.
class FileInfo {
 public:
  FileInfo(std::ostream& out, bool as_records, int verbosity)
      : out_(out), as_records_(as_records), verbosity_(verbosity) {}

  /// Throws FileError for a file that is neither a golden nor a dump, ConfigError for a golden
  /// whose configuration cannot be.
  void print(const std::string& path) const;

 private:
  void print_golden(const GoldenFile& golden) const;
  void print_config(const ModelConfig& config) const;
  void print_case(const GoldenFile& golden, const ModelConfig& config,
                  const std::string& name) const;
  void print_dump(const Hdf5File& file) const;
  void print_rank(const Hdf5File& file, const std::string& rank) const;
  void print_step(const Hdf5File& file, const std::string& inside, std::int64_t rank,
                  const std::string& step) const;

  void print_line(const char* name, const std::string& value) const;
  void print_tap(const Hdf5File& file, ReportRecord record, const std::string& inside,
                 const std::string& title) const;
  void print_record(const ReportRecord& record) const;

  static std::string size_text(std::int64_t bytes);

  /// Attributes of `/` beyond those of every file.
  static std::map<std::string, std::string> provenance(const Hdf5File& file);

  std::ostream& out_;
  bool as_records_;
  int verbosity_;
};

}  // namespace tokenview
