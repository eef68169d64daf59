// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/program/host_tensor.hpp"
#include "verify/hdf5_file.hpp"

namespace tokenview {

/// What one step of the model was given: T new tokens of S sequences, after C tokens of context.
struct GoldenInputs {
  std::vector<std::int64_t> input_ids;          // [T] all sequences one after the other
  std::vector<std::int64_t> positions;          // [T]
  std::vector<std::int32_t> query_start_loc;    // [S+1] first row of each sequence, then T
  std::vector<std::int64_t> context_ids;        // [C] tokens processed before this step
  std::vector<std::int32_t> context_start_loc;  // [S+1] as query_start_loc, of context_ids

  std::int64_t num_tokens() const { return std::int64_t(input_ids.size()); }
  std::int64_t num_sequences() const { return std::int64_t(query_start_loc.size()) - 1; }
};

/// Throws FileError "<where>/<input>: ..." unless lengths agree, both start lists begin at 0, never
/// fall and end at their count, every id is in [0, vocab_size), and row i of sequence s has the
/// position (context of s) + i.
void require_valid(const GoldenInputs& inputs, std::int64_t vocab_size, const std::string& where);

/// A golden file, schema version 1: weights (none where it refers to a checkpoint), inputs, and the
/// trusted value of every tap of one unsharded model. Tensors are read when asked for, one by one.
///
/// Everything here throws FileError, with file, path inside, found and expected, for a file that
/// is not as described. NaN and infinity are refused in weights; in a tap they are values, and
/// whoever compares them judges.
class GoldenFile : public WeightSource {
 public:
  static constexpr std::int64_t schema_version = 1;

  /// Also checks the schema, the entries of `/`, the type of every weight and the inputs' shapes.
  static GoldenFile open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::string& model_type() const { return model_type_; }
  DType dtype() const { return dtype_; }
  const std::string& producer() const { return producer_; }

  /// The text of the Hugging Face config.json.
  std::string config_json() const;

  /// Library names with shapes, in order of names.
  const std::map<std::string, std::vector<std::int64_t>>& weight_shapes() const {
    return weight_shapes_;
  }
  bool contains(const std::string& name) const override;
  HostTensor weight(const std::string& name, const std::vector<std::int64_t>& shape) const override;

  /// In order of names.
  std::vector<std::string> case_names() const;
  std::int64_t num_tokens(const std::string& case_name) const;     // T
  std::int64_t num_sequences(const std::string& case_name) const;  // S
  GoldenInputs inputs(const std::string& case_name, std::int64_t vocab_size) const;

  /// True for the names that hold int64: `*.ids`, and `input_ids`, `positions` of an MTP step.
  static bool holds_ids(const std::string& tap_name);

  /// The taps of the target model, those that hold ids included, in order of names.
  std::vector<std::string> tap_names(const std::string& case_name) const;
  HostTensor tap(const std::string& case_name, const std::string& name) const;         // [T, cols]
  IntegerTensor tap_ids(const std::string& case_name, const std::string& name) const;  // [T, k]

  /// Draft steps, numbered from 0 without a gap; 0 for a case without MTP. Step 0 has T rows, every
  /// later one S rows.
  std::int64_t mtp_step_count(const std::string& case_name) const;
  std::vector<std::string> mtp_tap_names(const std::string& case_name, std::int64_t step) const;
  HostTensor mtp_tap(const std::string& case_name, std::int64_t step,
                     const std::string& name) const;  // [rows, cols]
  IntegerTensor mtp_ids(const std::string& case_name, std::int64_t step,
                        const std::string& name) const;         // [rows] or [rows, k]
  IntegerTensor draft_ids(const std::string& case_name) const;  // [S, steps]

  /// The file beneath, for what a tool shows of it: sizes, attributes, provenance.
  const Hdf5File& file() const { return file_; }
  static std::string weight_path(const std::string& name);
  static std::string inputs_path(const std::string& case_name);
  static std::string tap_path(const std::string& case_name, const std::string& name);
  static std::string mtp_path(const std::string& case_name, std::int64_t step,
                              const std::string& name);
  static std::string draft_ids_path(const std::string& case_name);

 private:
  struct CaseSize {
    std::int64_t tokens = 0;     // T
    std::int64_t sequences = 0;  // S
  };

  explicit GoldenFile(Hdf5File file) : file_(std::move(file)) {}
  void read_schema();
  void read_weight_names();
  void read_case_names();
  const CaseSize& size_of(const std::string& case_name) const;
  std::int64_t mtp_rows(const std::string& case_name, std::int64_t step) const;

  Hdf5File file_;
  std::string model_type_;
  std::string producer_;
  DType dtype_ = DType::float32;
  std::map<std::string, std::vector<std::int64_t>> weight_shapes_;
  std::map<std::string, CaseSize> cases_;
};

}  // namespace tokenview
