// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "verify/storage_type.hpp"

namespace tokenview {

/// One row of a comparison.
struct RowComparison {
  std::int64_t row = -1;
  double max_abs_error = 0;  // NaN and infinities apart, as in the norms
  double max_golden = 0;
  double error_l2 = 0;
  double golden_l2 = 0;
  std::int64_t mismatched = 0;  // NaN or infinite on one side, or not alike

  /// error_l2 / golden_l2; 0 where both are zero, infinite where only the trusted side is, or
  /// where anything is mismatched.
  double relative_l2() const;
};

/// How far values are from the trusted ones, all metrics in one pass. What is NaN or infinite on
/// either side is counted below and is in no other metric, but for `differing` and `over`.
struct Comparison {
  std::int64_t count = 0;
  double max_abs_error = 0;
  double max_golden = 0;  // largest magnitude of the trusted values
  double error_l2 = 0;    // root of the sum of squared errors
  double golden_l2 = 0;
  double value_l2 = 0;
  double cosine = 0;                  // of values and golden; NaN where either is all zero
  double max_relative_error = 0;      // |error| / |golden|; infinite where only golden is zero
  double max_ulp = 0;                 // errors in steps of the grid at the larger of the two
  std::int64_t worst_index = -1;      // of max_abs_error, the first; -1 where nothing differs
  std::int64_t outside_one_step = 0;  // further off than one step of the grid, where asked for
  std::int64_t differing = 0;         // unequal numbers, and mismatches as below
  std::int64_t first_differing = -1;
  std::int64_t zero_signs = 0;  // 0 against -0: equal

  // Against the limit of each element; a mismatch is over every limit.
  std::int64_t over = 0;
  std::int64_t first_over = -1;
  double tightest_error = 0;  // of the element with the largest error / limit
  double tightest_limit = 0;

  std::int64_t not_finite = 0;  // elements that are NaN or infinite on either side
  std::int64_t first_not_finite = -1;
  std::int64_t nan_value = 0;   // NaN where the golden is not: a mismatch
  std::int64_t nan_golden = 0;  // the reverse: a mismatch
  std::int64_t nan_both = 0;    // a mismatch but for CompareOptions::equal_nan
  std::int64_t infinity_equal = 0;
  std::int64_t infinity_value = 0;   // infinite where the golden is finite: a mismatch
  std::int64_t infinity_golden = 0;  // the reverse: a mismatch
  std::int64_t infinity_signs = 0;   // infinities of opposite signs: a mismatch
  std::int64_t mismatched = 0;

  std::int64_t different_bits = 0;  // elements stored differently, where asked for
  std::int64_t first_different_bits = -1;

  std::int64_t rows_over = 0;            // rows with relative_l2() over CompareOptions::row_limit
  std::vector<RowComparison> over_rows;  // the first of them, at most max_over_rows
  RowComparison worst_row;               // largest relative_l2(), the first
  std::vector<RowComparison> rows;       // all, where asked for

  static constexpr std::size_t max_over_rows = 64;

  /// error_l2 / golden_l2; 0 where both are zero, infinite where only the trusted side is.
  double relative_l2() const;
  /// error_l2 / sqrt(elements that are finite on both sides)
  double rms() const;
};

struct CompareOptions {
  StorageType value_type = StorageType::float32;
  StorageType golden_type = StorageType::float32;
  std::optional<NumberGrid> grid = {};  // of max_ulp; absent: that of the narrower type

  // limit of an element: absolute + relative |golden|
  double absolute = std::numeric_limits<double>::infinity();
  double relative = 0;
  bool equal_nan = false;  // NaN on both sides is equal

  bool count_steps = false;  // count outside_one_step
  bool bits = false;         // count different_bits; elements of two types are all different
  std::int64_t columns = 0;  // elements of a row; 0: no rows
  double row_limit = std::numeric_limits<double>::infinity();
  bool keep_rows = false;  // fill Comparison::rows

  int threads = 1;  // at least 1
};

/// Compares tensors that come in blocks, row-major. Elements are numbers in double (64-bit integers
/// in long double), and sums of squares are kept in parts of part_elements whatever the blocks and
/// the threads, so that neither changes a digit of the result. Memory: one part of either side, and
/// for each part of a block some 500 bytes, and 100 more for each of its rows where rows are
/// compared.
class MetricsAccumulator {
 public:
  static constexpr std::int64_t part_elements = 1 << 16;

  explicit MetricsAccumulator(const CompareOptions& options);
  MetricsAccumulator(MetricsAccumulator&&) noexcept;
  MetricsAccumulator& operator=(MetricsAccumulator&&) noexcept;
  ~MetricsAccumulator();

  /// The next elements of both sides, as many of one as of the other, as they are in memory and
  /// with any alignment.
  void add(std::span<const std::byte> values, std::span<const std::byte> golden);

  /// The comparison of all that was added; nothing is added afterwards.
  Comparison finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Fills both spans with equally many elements from number `begin` on. Any number of threads call
/// it at once.
using BlockReader = std::function<void(std::int64_t begin, std::span<std::byte> values,
                                       std::span<std::byte> golden)>;

/// Compares tensors of `elements` elements that are read in blocks of `block_elements`, each thread
/// with a block of either side; besides, some 16 MiB. `block_elements` is a multiple of
/// MetricsAccumulator::part_elements. Rethrows what `read` throws.
Comparison compare_blocks(std::int64_t elements, std::int64_t block_elements,
                          const CompareOptions& options, const BlockReader& read);

/// The spans are equally many elements of options.value_type and options.golden_type.
Comparison compare(std::span<const std::byte> values, std::span<const std::byte> golden,
                   const CompareOptions& options);

/// The same for computed values beside trusted ones, a golden file's above all; steps are
/// bfloat16's. The spans have the same length. S and G are float or double.
template <class S, class G>
Comparison compare(std::span<const S> values, std::span<const G> golden);

}  // namespace tokenview
