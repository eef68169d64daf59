// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/compare_part.hpp"

namespace tokenview {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double ratio_of_norms(double error, double golden) {
  if (error == 0) return 0;
  return golden == 0 ? infinity : error / golden;
}

double root(long double squares) { return double(std::sqrt(squares)); }

}  // namespace

double RowComparison::relative_l2() const {
  return mismatched > 0 ? infinity : ratio_of_norms(error_l2, golden_l2);
}

double Comparison::relative_l2() const { return ratio_of_norms(error_l2, golden_l2); }

double Comparison::rms() const {
  return count == not_finite ? 0 : error_l2 / std::sqrt(double(count - not_finite));
}

struct MetricsAccumulator::Impl {
  explicit Impl(const CompareOptions& wanted) : options(wanted) {}

  const CompareOptions options;
  PartMetrics total;
  std::vector<std::byte> open_values, open_golden;  // of the part that is not whole yet
  RowPiece open_row;

  std::int64_t value_bytes() const { return element_bytes(options.value_type); }
  std::int64_t golden_bytes() const { return element_bytes(options.golden_type); }

  /// Elements from the beginning of a part to the end of one, or of the tensor.
  void add_parts(const std::byte* values, const std::byte* golden, std::int64_t count) {
    const std::int64_t parts = (count + part_elements - 1) / part_elements;
    std::vector<PartMetrics> results(std::size_t(parts), PartMetrics{});
    const std::int64_t begin = total.counts.count;
    const Comparison& known = total.counts;
#pragma omp parallel for schedule(dynamic) num_threads(options.threads) if (parts > 1)
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t at = part * part_elements;
      results[std::size_t(part)] =
          compare_part(options, values + at * value_bytes(), golden + at * golden_bytes(),
                       begin + at, std::min(part_elements, count - at), known);
    }
    for (const PartMetrics& part : results) {
      total.append(part);
      for (const RowPiece& piece : part.rows) add_row_piece(piece);
    }
  }

  void add_row_piece(const RowPiece& piece) {
    if (piece.row != open_row.row) {
      close_row();
      open_row = piece;
      return;
    }
    open_row.max_abs_error = std::max(open_row.max_abs_error, piece.max_abs_error);
    open_row.max_golden = std::max(open_row.max_golden, piece.max_golden);
    open_row.error_squares += piece.error_squares;
    open_row.golden_squares += piece.golden_squares;
    open_row.mismatched += piece.mismatched;
  }

  void close_row() {
    if (open_row.row < 0) return;
    const RowComparison row{open_row.row,
                            open_row.max_abs_error,
                            open_row.max_golden,
                            root(open_row.error_squares),
                            root(open_row.golden_squares),
                            open_row.mismatched};
    Comparison& c = total.counts;
    if (c.worst_row.row < 0 || row.relative_l2() > c.worst_row.relative_l2()) c.worst_row = row;
    if (row.relative_l2() > options.row_limit &&
        c.rows_over++ < std::int64_t(Comparison::max_over_rows))
      c.over_rows.push_back(row);
    if (options.keep_rows) c.rows.push_back(row);
  }
};

MetricsAccumulator::MetricsAccumulator(const CompareOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
MetricsAccumulator::MetricsAccumulator(MetricsAccumulator&&) noexcept = default;
MetricsAccumulator& MetricsAccumulator::operator=(MetricsAccumulator&&) noexcept = default;
MetricsAccumulator::~MetricsAccumulator() = default;

void MetricsAccumulator::add(std::span<const std::byte> values, std::span<const std::byte> golden) {
  Impl& impl = *impl_;
  const std::int64_t value_bytes = impl.value_bytes(), golden_bytes = impl.golden_bytes();
  std::int64_t count = std::int64_t(values.size()) / value_bytes;
  if (std::int64_t(values.size()) != count * value_bytes ||
      std::int64_t(golden.size()) != count * golden_bytes)
    throw ShapeError(text(values.size(), " bytes of ", to_string(impl.options.value_type),
                          " cannot be compared with ", golden.size(), " bytes of ",
                          to_string(impl.options.golden_type)));
  const auto take = [&](std::int64_t elements, auto use) {
    use(values.data(), golden.data(), elements);
    values = values.subspan(std::size_t(elements * value_bytes));
    golden = golden.subspan(std::size_t(elements * golden_bytes));
    count -= elements;
  };
  const auto keep = [&](const std::byte* v, const std::byte* g, std::int64_t elements) {
    impl.open_values.insert(impl.open_values.end(), v, v + elements * value_bytes);
    impl.open_golden.insert(impl.open_golden.end(), g, g + elements * golden_bytes);
  };
  const std::int64_t kept = std::int64_t(impl.open_values.size()) / value_bytes;
  if (kept > 0) {
    take(std::min(count, part_elements - kept), keep);
    if (std::int64_t(impl.open_values.size()) < part_elements * value_bytes) return;
    impl.add_parts(impl.open_values.data(), impl.open_golden.data(), part_elements);
    impl.open_values.clear();
    impl.open_golden.clear();
  }
  take(count / part_elements * part_elements,
       [&](const std::byte* v, const std::byte* g, std::int64_t n) { impl.add_parts(v, g, n); });
  take(count, keep);
}

Comparison MetricsAccumulator::finish() {
  Impl& impl = *impl_;
  impl.add_parts(impl.open_values.data(), impl.open_golden.data(),
                 std::int64_t(impl.open_values.size()) / impl.value_bytes());
  impl.close_row();
  Comparison result = std::move(impl.total.counts);
  result.error_l2 = root(impl.total.error_squares);
  result.golden_l2 = root(impl.total.golden_squares);
  result.value_l2 = root(impl.total.value_squares);
  result.cosine = double(impl.total.products / std::sqrt(impl.total.golden_squares) /
                         std::sqrt(impl.total.value_squares));
  return result;
}

Comparison compare(std::span<const std::byte> values, std::span<const std::byte> golden,
                   const CompareOptions& options) {
  MetricsAccumulator metrics(options);
  metrics.add(values, golden);
  return metrics.finish();
}

template <class S>
Comparison compare(std::span<const S> values, std::span<const float> golden) {
  CompareOptions options;
  options.value_type = sizeof(S) == sizeof(float) ? StorageType::float32 : StorageType::float64;
  options.grid = number_grid(StorageType::bfloat16);
  return compare(std::as_bytes(values), std::as_bytes(golden), options);
}

template Comparison compare(std::span<const float>, std::span<const float>);
template Comparison compare(std::span<const double>, std::span<const float>);

}  // namespace tokenview
