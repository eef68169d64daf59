// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "reference/program/host_tensor.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_draft.hpp"

namespace tokenview {

/// The attributes of a golden's `/`, and its configuration.
struct GoldenHeader {
  std::string model_type;
  DType dtype = DType::float32;  // float32 or bfloat16
  std::string producer;
  std::string config_json;
  std::map<std::string, std::string> provenance =
      {};  // further attributes: commit, seed, host, ...
};

/// Writes a golden file of schema version 1, which takes the place of `path` at commit(), as
/// Hdf5Draft says.
///
/// Every failure is a FileError that names file, path inside, found and expected.
class GoldenWriter {
 public:
  /// Throws when the folder is missing or read-only, or `path` is there and no regular file.
  GoldenWriter(const std::string& path, const GoldenHeader& header);
  ~GoldenWriter();
  GoldenWriter(const GoldenWriter&) = delete;
  GoldenWriter& operator=(const GoldenWriter&) = delete;

  /// Of the whole file.
  void write_attribute(const std::string& name, const std::string& value);

  /// Stored as its dtype says. Throws for NaN, infinity, and a value that bfloat16 would round.
  void write_weight(const std::string& name, const HostTensor& tensor);

  /// Begins a case; its taps come afterwards, and their rows are held against these inputs.
  void write_inputs(const std::string& case_name, const GoldenInputs& inputs);

  /// [T, cols]; trailing axes are flattened.
  void write_tap(const std::string& case_name, const std::string& name, const HostTensor& tensor);
  void write_tap_ids(const std::string& case_name, const std::string& name,
                     const IntegerTensor& ids);  // [T, k]

  /// [rows, cols]: T rows in step 0, S in every later one.
  void write_mtp_tap(const std::string& case_name, std::int64_t step, const std::string& name,
                     const HostTensor& tensor);
  void write_mtp_ids(const std::string& case_name, std::int64_t step, const std::string& name,
                     const IntegerTensor& ids);  // [rows], or [rows, k]
  void write_draft_ids(const std::string& case_name, const IntegerTensor& ids);  // [S, steps]

  /// Puts the file in its place once it is whole and on the disk. Throws when a case has a gap in
  /// its draft steps or draft ids of another number of steps.
  void commit();

 private:
  struct Case {
    std::int64_t tokens = 0;     // T
    std::int64_t sequences = 0;  // S
    std::set<std::int64_t> steps;
    std::optional<std::int64_t> draft_columns;
  };

  [[noreturn]] void fail(const std::string& inside, const std::string& problem) const;
  void require_name(const std::string& inside, const std::string& name) const;
  Case& case_of(const std::string& case_name);
  std::int64_t begin_step(const std::string& case_name, std::int64_t step);
  void write_rows(const std::string& inside, const HostTensor& tensor, std::int64_t rows);
  void write_ids(const std::string& inside, const IntegerTensor& ids, std::int64_t rows,
                 std::size_t axes);

  std::string path_;
  std::unique_ptr<Hdf5Draft> draft_;
  std::map<std::string, Case> cases_;
};

}  // namespace tokenview
