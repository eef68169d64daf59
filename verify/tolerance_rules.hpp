// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verify/compare.hpp"
#include "verify/name_pattern.hpp"
#include "verify/tolerance.hpp"

namespace tokenview {

/// What a tensor is held to. Every limit that is set must hold; where none is, and neither of
/// `bitwise` and `like_torch`, the type decides (default_limits()). NaN and infinities are no
/// matter of tolerance: one that the other side has not is a difference, infinities of one sign are
/// equal, and NaN on both sides, where there is nothing to hold a value to, is a difference unless
/// `equal_nan`.
struct ToleranceRule {
  // Element by element: |error| <= atol + rtol |golden|, an absent one being 0.
  std::optional<double> atol = {};
  std::optional<double> rtol = {};
  std::optional<double> ulp = {};  // errors in steps of the narrower type

  std::optional<double> of_max = {};  // max|error| <= of_max max|golden|
  std::optional<double> l2 = {};      // relative L2 error of the tensor
  std::optional<double> row_l2 = {};  // the same of every row of at least row_columns elements
  std::int64_t row_columns = 1;

  bool bitwise = false;     // the same type, and the same bytes
  bool like_torch = false;  // atol and rtol of torch.testing.assert_close for the types
  bool equal_nan = false;

  bool has_limits() const { return atol || rtol || ulp || of_max || l2 || row_l2; }
};

/// The limits for numbers of the narrower of two types that were computed in two ways, without
/// knowledge of what they are:
///   type          of_max   l2       row_l2
///   float64       1e-12    1e-12    32 l2
///   float32       1e-5     1e-5     32 l2
///   float16       2^-10    2^-11    32 l2
///   bfloat16      2^-7     2^-8     32 l2
///   float8_e4m3fn 2^-3     2^-4     1/2
///   float8_e5m2   2^-2     2^-3     1/2
/// (16 bits and fewer: every value may be off by one step). The rows are there for tensors with a
/// few very large rows, below whose maximum any confusion of the other rows would go unseen; a row
/// of fewer than 16 elements, a gate's logit say, may cancel to any small number and is not held.
/// Integers and booleans are equal.
ToleranceRule default_limits(StorageType narrower_type);

/// The rule with the limits that it means for these types: `like_torch` and absent ones filled in.
/// Source of the former: torch/testing/_comparison.py, _DTYPE_PRECISIONS and default_tolerances
/// (rtol: float16 1e-3, bfloat16 1.6e-2, float32 1.3e-6, float64 1e-7; atol: 1e-5, float64 1e-7;
/// all other types 0; of two types the larger).
ToleranceRule resolved(const ToleranceRule& rule, StorageType value_type, StorageType golden_type);

/// How to compare for a resolved rule. `columns`: of a row of the tensor; 0: it is one row.
CompareOptions compare_options(const ToleranceRule& rule, StorageType value_type,
                               StorageType golden_type, std::int64_t columns);

struct Judgement {
  bool holds;
  Bound bound;  // the limit that is nearest, or first of those that do not hold
};

/// Holds a comparison made with compare_options() to its rule. Metrics: "empty" (nothing was
/// compared: never a match), "not_finite", "bits", "element", "ulp", "max_abs", "relative_l2",
/// "row_l2".
Judgement judge(const Comparison& comparison, const ToleranceRule& rule);

/// The rules of a command line.
class ToleranceRules {
 public:
  /// For tensors that no pattern names; there, integers and booleans are held to equality whatever
  /// `rule` allows, since an id beside the right one is another id.
  explicit ToleranceRules(const ToleranceRule& rule = {}) : general_(rule) {}

  /// 'pattern: limit, limit, ...' with limits atol=X, rtol=X, ulp=X, of_max=X, l2=X, row_l2=X and
  /// the words bitwise, like-torch, equal-nan, e.g. 'model.layers.*.mlp: atol=1e-3, rtol=0'. Of the
  /// patterns that match a name the last decides, alone, but that equal-nan of the general rule
  /// holds everywhere. Throws UsageError, with the text and the part that cannot be read.
  void add(const std::string& text);

  /// The rule for a tensor, resolved.
  ToleranceRule rule_for(std::string_view name, StorageType value_type,
                         StorageType golden_type) const;

  /// The texts of those patterns that match none of `names`: mistyped, most likely.
  std::vector<std::string> without_match(const std::vector<std::string>& names) const;

 private:
  struct Entry {
    std::string text;
    NamePattern pattern;
    ToleranceRule rule;
  };
  ToleranceRule general_;
  std::vector<Entry> entries_;
};

}  // namespace tokenview
