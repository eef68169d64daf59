// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/compare.hpp"
#include "verify/name_pattern.hpp"
#include "verify/tensor_file.hpp"
#include "verify/tolerance_rules.hpp"

namespace tokenview {

struct PlainDiffOptions {
  /// Names of the second file, and what the first one calls them: the first map that matches.
  std::vector<NameMap> maps;
  ToleranceRules rules;
  /// Asked with names of the first file, and of the second after the maps; false leaves a tensor
  /// out. Absent: all are wanted.
  std::function<bool(const std::string&)> wanted;
  /// Asked with names of the first file: whether a tensor is to be without elements. Absent: none.
  std::function<bool(const std::string&)> may_be_empty;
  int threads = 1;  // at least 1
};

/// Two tensors of one name.
struct PlainDiffResult {
  std::string name;         // in the first file
  std::string second_name;  // in the second one
  std::vector<std::int64_t> shape, second_shape;
  std::string type, second_type;
  bool matches = false;
  Bound bound;            // the limit that is nearest, or that does not hold
  Comparison comparison;  // of nothing where types or shapes forbid one
  std::string detail;     // why it does not match, and where
};

class PlainDiffListener {
 public:
  virtual ~PlainDiffListener() = default;
  /// In order of the names.
  virtual void tensor(const PlainDiffResult& result) = 0;
};

struct PlainDiffTotals {
  std::int64_t compared = 0;  // tensors of both files
  std::int64_t values = 0;
  std::int64_t differing = 0;                        // of the compared ones
  std::int64_t left_out = 0;                         // by `wanted`
  std::vector<std::string> only_first, only_second;  // failures as well
  std::vector<std::string> unused;  // rules and maps that fit no tensor, as they were given

  bool nothing_compared() const { return compared == 0; }
  /// Never true where nothing was compared.
  bool matches() const {
    return compared > 0 && differing == 0 && only_first.empty() && only_second.empty();
  }
};

/// Compares the tensors of two HDF5 or safetensors files by name; `first` is the trusted one. What
/// has no numbers, differs in shape, or is empty without may_be_empty does not match; types may
/// differ but for `bitwise`.
///
/// A tensor is read once, in blocks; once more where it does not match for its tensor as a whole,
/// to say which elements are over. Memory: blocks of either file, 64 MiB for all threads together
/// or, with over 100 threads, 512 KiB for each; and for each thread a chunk, at most 17 MiB, as
/// stored and expanded. A row of chunks that is larger than a thread's block is expanded several
/// times.
///
/// Throws FileError for a file that cannot be read, and UsageError where two names of the second
/// file become one.
PlainDiffTotals diff_files(const std::string& first, const std::string& second,
                           const PlainDiffOptions& options, PlainDiffListener& listener);

/// Compares one tensor of two files; the types are known and the shapes equal.
Comparison compare_tensors(const TensorFile& golden_file, const TensorInfo& golden,
                           const TensorFile& value_file, const TensorInfo& values,
                           CompareOptions options);

}  // namespace tokenview
