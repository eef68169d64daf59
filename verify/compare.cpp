// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/compare_part.hpp"
#include "verify/parallel_for.hpp"

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

namespace {

/// Puts parts together, in order.
class Total {
 public:
  explicit Total(const CompareOptions& options) : options_(options) {}

  const Comparison& counts() const { return total_.counts; }

  void append(const PartMetrics& part) {
    total_.append(part);
    for (const RowMetrics& piece : part.rows) add_row_piece(piece);
  }

  Comparison finish() {
    close_row();
    Comparison result = std::move(total_.counts);
    result.error_l2 = root(total_.error_squares);
    result.golden_l2 = root(total_.golden_squares);
    result.value_l2 = root(total_.value_squares);
    result.cosine = double(total_.products / std::sqrt(total_.golden_squares) /
                           std::sqrt(total_.value_squares));
    return result;
  }

 private:
  void add_row_piece(const RowMetrics& piece) {
    if (piece.row != open_row_.row) {
      close_row();
      open_row_ = piece;
      return;
    }
    open_row_.max_abs_error = std::max(open_row_.max_abs_error, piece.max_abs_error);
    open_row_.max_golden = std::max(open_row_.max_golden, piece.max_golden);
    open_row_.error_squares += piece.error_squares;
    open_row_.golden_squares += piece.golden_squares;
    open_row_.mismatched += piece.mismatched;
  }

  void close_row() {
    if (open_row_.row < 0) return;
    const RowComparison row{open_row_.row,
                            open_row_.max_abs_error,
                            open_row_.max_golden,
                            root(open_row_.error_squares),
                            root(open_row_.golden_squares),
                            open_row_.mismatched};
    Comparison& c = total_.counts;
    const double relative_l2 = row.relative_l2();
    if (c.worst_row.row < 0 || relative_l2 > c.worst_row.relative_l2()) c.worst_row = row;
    if (relative_l2 > options_.row_limit && c.rows_over++ < std::int64_t(Comparison::max_over_rows))
      c.over_rows.push_back(row);
    if (options_.keep_rows) c.rows.push_back(row);
  }

  const CompareOptions& options_;
  PartMetrics total_;
  RowMetrics open_row_;
};

}  // namespace

struct MetricsAccumulator::Impl {
  explicit Impl(const CompareOptions& wanted) : options(wanted), total(options) {}

  const CompareOptions options;
  Total total;
  std::vector<std::byte> open_values, open_golden;  // of the part that is not whole yet

  std::int64_t value_bytes() const { return element_bytes(options.value_type); }
  std::int64_t golden_bytes() const { return element_bytes(options.golden_type); }

  /// Elements from the beginning of a part to the end of one, or of the tensor.
  void add_parts(const std::byte* values, const std::byte* golden, std::int64_t count) {
    const std::int64_t parts = (count + part_elements - 1) / part_elements;
    std::vector<PartMetrics> results(static_cast<std::size_t>(parts));
    const std::int64_t begin = total.counts().count;
    parallel_for(parts, options.threads, [&](std::int64_t part, int) {
      const std::int64_t at = part * part_elements;
      results[std::size_t(part)] =
          compare_part(options, values + at * value_bytes(), golden + at * golden_bytes(),
                       begin + at, std::min(part_elements, count - at), total.counts());
    });
    for (const PartMetrics& part : results) total.append(part);
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
  return impl.total.finish();
}

Comparison compare_blocks(std::int64_t elements, std::int64_t block_elements,
                          const CompareOptions& options, const BlockReader& read) {
  constexpr std::int64_t part_elements = MetricsAccumulator::part_elements;
  constexpr std::int64_t waiting_bytes = 16 << 20;  // of results that wait for their turn
  const std::int64_t rows = options.columns > 0 ? part_elements / options.columns + 2 : 0;
  const auto part_bytes =
      std::int64_t(sizeof(PartMetrics)) + rows * std::int64_t(sizeof(RowMetrics));
  const std::int64_t blocks_at_once = std::max<std::int64_t>(
      options.threads, waiting_bytes / part_bytes * part_elements / block_elements);
  const std::int64_t value_bytes = element_bytes(options.value_type);
  const std::int64_t golden_bytes = element_bytes(options.golden_type);
  std::vector<std::pair<std::vector<std::byte>, std::vector<std::byte>>> memory(
      static_cast<std::size_t>(options.threads));
  Total total(options);
  for (std::int64_t first = 0; first < elements; first += blocks_at_once * block_elements) {
    const std::int64_t end = std::min(elements, first + blocks_at_once * block_elements);
    const std::int64_t blocks = (end - first + block_elements - 1) / block_elements;
    std::vector<std::vector<PartMetrics>> results(static_cast<std::size_t>(blocks));
    parallel_for(blocks, options.threads, [&](std::int64_t block, int worker) {
      const std::int64_t begin = first + block * block_elements;
      const std::int64_t count = std::min(block_elements, end - begin);
      auto& [values, golden] = memory[std::size_t(worker)];
      values.resize(std::size_t(count * value_bytes));
      golden.resize(std::size_t(count * golden_bytes));
      read(begin, values, golden);
      for (std::int64_t at = 0; at < count; at += part_elements)
        results[std::size_t(block)].push_back(compare_part(
            options, values.data() + at * value_bytes, golden.data() + at * golden_bytes,
            begin + at, std::min(part_elements, count - at), total.counts()));
    });
    for (const std::vector<PartMetrics>& block : results)
      for (const PartMetrics& part : block) total.append(part);
  }
  return total.finish();
}

Comparison compare(std::span<const std::byte> values, std::span<const std::byte> golden,
                   const CompareOptions& options) {
  MetricsAccumulator metrics(options);
  metrics.add(values, golden);
  return metrics.finish();
}

namespace {

template <class S>
constexpr StorageType type_of = sizeof(S) == sizeof(float) ? StorageType::float32
                                                           : StorageType::float64;

}  // namespace

template <class S, class G>
Comparison compare(std::span<const S> values, std::span<const G> golden) {
  CompareOptions options;
  options.value_type = type_of<S>;
  options.golden_type = type_of<G>;
  options.grid = number_grid(StorageType::bfloat16);
  options.count_steps = true;
  return compare(std::as_bytes(values), std::as_bytes(golden), options);
}

template Comparison compare(std::span<const float>, std::span<const float>);
template Comparison compare(std::span<const double>, std::span<const float>);
template Comparison compare(std::span<const double>, std::span<const double>);

}  // namespace tokenview
