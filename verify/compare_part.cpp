// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction to fused multiply-adds: the vector loop and the scalar one that
// looks for its elements then see the same numbers.
#include "verify/compare_part.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace tokenview {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest_double = std::numeric_limits<double>::max();
constexpr std::int64_t leaf_elements = 1024;  // both sides as doubles: half a level-1 cache

// Sums of a leaf's squares in this range have lost nothing to overflow or underflow. Those of
// floats and 32-bit integers are always in it, or zero.
constexpr double smallest_sum = 0x1p-1000, largest_sum = 0x1p1000;

// A register's worth: two of them for one pack are slower, not faster.
#ifdef __AVX512F__
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif
using Pack = double __attribute__((vector_size(lanes * sizeof(double))));
using Mask = std::int64_t __attribute__((vector_size(lanes * sizeof(double))));
using FloatPack = float __attribute__((vector_size(lanes * sizeof(float))));

// By reference: passing vectors by value depends on the instruction set.
inline void load(const float* from, Pack& to) {
  FloatPack narrow;
  std::memcpy(&narrow, from, sizeof narrow);
  to = __builtin_convertvector(narrow, Pack);
}
inline void load(const double* from, Pack& to) { std::memcpy(&to, from, sizeof to); }

inline void fill(double value, Pack& to) { to = Pack{} + value; }

template <class Lanes>
auto sum(const Lanes& x) {
  auto result = x[0];
  for (int lane = 1; lane < lanes; ++lane) result += x[lane];
  return result;
}
double maximum(const Pack& x) {
  double result = x[0];
  for (int lane = 1; lane < lanes; ++lane) result = std::max(result, x[lane]);
  return result;
}
bool has_any(const Mask& x) {
  std::int64_t bits = 0;
  for (int lane = 0; lane < lanes; ++lane) bits |= x[lane];
  return bits != 0;
}
bool has_sign(const Mask& x) {
  std::int64_t bits = 0;
  for (int lane = 0; lane < lanes; ++lane) bits |= x[lane];
  return bits < 0;
}

constexpr std::int64_t exponent_bits = 0x7ff0'0000'0000'0000, magnitude_bits = INT64_MAX;

/// The largest power of two up to x, a positive number.
double power_of_two(double x) {
  return std::bit_cast<double>(std::bit_cast<std::int64_t>(x) & exponent_bits);
}

double tightest_ratio(const Comparison& c) {
  return c.tightest_error == 0 ? 0 : c.tightest_error / c.tightest_limit;
}

/// Metrics of a leaf that one vector loop yields.
struct LeafSums {
  double max_abs_error, max_golden;
  double error_squares, golden_squares, value_squares, products;
  std::int64_t over, outside_one_step, differing;
  bool has_other_signs;  // an element that has the other sign, were it that of a zero
  bool is_beyond;        // an element that may be beyond one of the maxima known before
};

class Part {
 public:
  Part(const CompareOptions& options, const Comparison& known)
      : options_(options),
        known_(known),
        grid_(options.grid ? *options.grid
                           : number_grid(narrower(options.value_type, options.golden_type))),
        step_(std::ldexp(1.0, -grid_.fraction_bits)),
        min_normal_(std::ldexp(1.0, grid_.min_exponent)),
        has_doubles_(options.value_type == StorageType::float64 ||
                     options.golden_type == StorageType::float64),
        has_wide_integers_(!fits_double(options.value_type) || !fits_double(options.golden_type)) {
    Comparison& c = metrics.counts;
    c.max_abs_error = known.max_abs_error;
    c.max_relative_error = known.max_relative_error;
    c.max_ulp = known.max_ulp;
    c.tightest_error = known.tightest_error;
    c.tightest_limit = known.tightest_limit;
  }

  PartMetrics metrics;

  void add(const std::byte* values, const std::byte* golden, std::int64_t begin,
           std::int64_t count) {
    const std::int64_t value_bytes = element_bytes(options_.value_type);
    const std::int64_t golden_bytes = element_bytes(options_.golden_type);
    for (std::int64_t at = 0; at < count;) {
      std::int64_t length = std::min(count - at, leaf_elements);
      if (options_.columns > 0) {  // a leaf lies in one row
        const std::int64_t index = begin + at;
        const std::int64_t row = index / options_.columns;
        length = std::min(length, (row + 1) * options_.columns - index);
        if (metrics.rows.empty() || metrics.rows.back().row != row) metrics.rows.push_back({row});
      }
      add_leaf(values + at * value_bytes, golden + at * golden_bytes, begin + at, length);
      at += length;
    }
  }

 private:
  void add_leaf(const std::byte* values, const std::byte* golden, std::int64_t begin,
                std::int64_t count) {
    metrics.counts.count += count;
    if (options_.bits) count_bits(values, golden, begin, count);
    if (has_wide_integers_) return add_exact(values, golden, begin, count);
    alignas(64) std::array<double, leaf_elements> value_memory, golden_memory;
    with_numbers(options_.value_type, values, count, value_memory.data(), [&](auto* v) {
      with_numbers(options_.golden_type, golden, count, golden_memory.data(), [&](auto* g) {
        LeafSums sums = vector_sums(v, g, count);
        if (!std::isfinite(sums.error_squares)) {  // or, of doubles, an error has no square
          take_out_not_finite(v, g, begin, count);
          sums = vector_sums(v, g, count);
        }
        if (has_doubles_ && !are_in_range(sums))
          add_exact(v, g, begin, count);
        else
          add_sums(v, g, sums, begin, count);
      });
    });
  }

  static bool are_in_range(const LeafSums& sums) {
    const auto is_in_range = [](double sum) { return sum > smallest_sum && sum < largest_sum; };
    return (sums.max_abs_error == 0 || is_in_range(sums.error_squares)) &&
           (sums.max_golden == 0 || is_in_range(sums.golden_squares)) &&
           is_in_range(sums.value_squares);
  }

  /// Calls `use` with the elements in `memory`, as floats where those hold them.
  template <class Use>
  static void with_numbers(StorageType type, const std::byte* from, std::int64_t count,
                           double* memory, const Use& use) {
    if (fits_float(type)) {
      auto* const floats = reinterpret_cast<float*>(memory);
      widen(type, from, count, floats);
      use(floats);
    } else {
      widen(type, from, count, memory);
      use(memory);
    }
  }

  template <class V, class G>
  LeafSums vector_sums(const V* values, const G* golden, std::int64_t count) const {
    const bool has_limit = options_.absolute < infinity;
    if (options_.count_steps || grid_.min_exponent > 0)
      return has_limit ? vector_sums<true, true>(values, golden, count)
                       : vector_sums<true, false>(values, golden, count);
    return has_limit ? vector_sums<false, true>(values, golden, count)
                     : vector_sums<false, false>(values, golden, count);
  }

  /// Without `has_steps` the steps of numbers below the grid's smallest exponent are taken for
  /// smaller than they are: whoever then looks closer finds nothing.
  template <bool has_steps, bool has_limit, class V, class G>
  LeafSums vector_sums(const V* values, const G* golden, std::int64_t count) const {
    const Comparison& before = metrics.counts;
    Pack max_error{}, max_size{}, error_squares{}, golden_squares{}, value_squares{}, products{};
    Mask over{}, outside{}, equal{}, other_signs{}, beyond{};
    Pack known_relative, known_ulp, known_ratio, absolute, relative, step, min_normal;
    fill(before.max_relative_error, known_relative);
    fill(before.max_ulp * step_, known_ulp);
    fill(tightest_ratio(before), known_ratio);
    fill(options_.absolute, absolute);
    fill(options_.relative, relative);
    fill(step_, step);
    fill(min_normal_, min_normal);
    const Mask magnitude = Mask{} + magnitude_bits, exponent = Mask{} + exponent_bits;

    const auto add_lanes = [&](const V* values_at, const G* golden_at) {
      Pack v, g;
      load(values_at, v);
      load(golden_at, g);
      const Pack difference = v - g;
      const Pack error = reinterpret_cast<Pack>(reinterpret_cast<Mask>(difference) & magnitude);
      const Pack size = reinterpret_cast<Pack>(reinterpret_cast<Mask>(g) & magnitude);
      Pack larger = reinterpret_cast<Pack>(reinterpret_cast<Mask>(v) & magnitude);
      larger = larger > size ? larger : size;
      max_error = error > max_error ? error : max_error;
      max_size = size > max_size ? size : max_size;
      error_squares += difference * difference;
      golden_squares += g * g;
      value_squares += v * v;
      products += v * g;
      equal += v == g;
      other_signs |= reinterpret_cast<Mask>(v) ^ reinterpret_cast<Mask>(g);

      if constexpr (has_steps) larger = larger > min_normal ? larger : min_normal;
      const Pack power = reinterpret_cast<Pack>(reinterpret_cast<Mask>(larger) & exponent);
      beyond |= (error > known_relative * size) | (error > known_ulp * power);
      if constexpr (has_steps) outside += error > step * power;
      if constexpr (has_limit) {
        const Pack limit = absolute + relative * size;
        over += error > limit;
        beyond |= error > known_ratio * limit;
      }
    };
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) add_lanes(values + i, golden + i);
    if (i < count) {  // zeros beside zeros change nothing
      V last_values[lanes] = {};
      G last_golden[lanes] = {};
      std::copy(values + i, values + count, last_values);
      std::copy(golden + i, golden + count, last_golden);
      add_lanes(last_values, last_golden);
    }
    LeafSums sums{};
    sums.max_abs_error = maximum(max_error);
    sums.max_golden = maximum(max_size);
    sums.error_squares = sum(error_squares);
    sums.golden_squares = sum(golden_squares);
    sums.value_squares = sum(value_squares);
    sums.products = sum(products);
    sums.over = -sum(over);
    sums.outside_one_step = -sum(outside);
    sums.differing = (count + lanes - 1) / lanes * lanes + sum(equal);
    sums.has_other_signs = has_sign(other_signs);
    sums.is_beyond = has_any(beyond) || sums.max_abs_error > before.max_abs_error;
    return sums;
  }

  template <class V, class G>
  void add_sums(const V* values, const G* golden, const LeafSums& sums, std::int64_t begin,
                std::int64_t count) {
    metrics.error_squares += sums.error_squares;
    metrics.golden_squares += sums.golden_squares;
    metrics.value_squares += sums.value_squares;
    metrics.products += sums.products;
    Comparison& c = metrics.counts;
    c.max_golden = std::max(c.max_golden, sums.max_golden);
    c.over += sums.over;
    c.outside_one_step += sums.outside_one_step;
    c.differing += sums.differing;
    if (sums.has_other_signs)
      for (std::int64_t i = 0; i < count; ++i)
        c.zero_signs +=
            values[i] == golden[i] && std::signbit(values[i]) != std::signbit(golden[i]);
    const auto may_be_first = [&](std::int64_t elements, std::int64_t Comparison::*first) {
      return elements > 0 && known_.*first < 0 && (c.*first < 0 || c.*first >= begin);
    };
    if (sums.is_beyond || may_be_first(sums.over, &Comparison::first_over) ||
        may_be_first(sums.differing, &Comparison::first_differing))
      for (std::int64_t i = 0; i < count; ++i)
        if (values[i] != golden[i]) note_different(double(values[i]), double(golden[i]), begin + i);
    if (metrics.rows.empty()) return;
    RowMetrics& row = metrics.rows.back();
    row.max_abs_error = std::max(row.max_abs_error, sums.max_abs_error);
    row.max_golden = std::max(row.max_golden, sums.max_golden);
    row.error_squares += sums.error_squares;
    row.golden_squares += sums.golden_squares;
  }

  /// Maxima and first indices, of an element that is finite on both sides and not equal.
  void note_different(double value, double golden, std::int64_t index) {
    note_different(std::abs(value - golden), std::abs(golden),
                   std::max(std::abs(value), std::abs(golden)), index);
  }
  void note_different(double error, double size, double larger, std::int64_t index) {
    Comparison& c = metrics.counts;
    if (error > c.max_abs_error) {
      c.max_abs_error = error;
      c.worst_index = index;
    }
    c.max_relative_error = std::max(c.max_relative_error, error / size);
    c.max_ulp = std::max(c.max_ulp, error / power_of_two(std::max(larger, min_normal_)) / step_);
    const double limit = options_.absolute + options_.relative * size;
    if (error > tightest_ratio(c) * limit) {
      c.tightest_error = error;
      c.tightest_limit = limit;
    }
    if (error > limit) note_first(&Comparison::first_over, index);
    note_first(&Comparison::first_differing, index);
  }

  void note_first(std::int64_t Comparison::*first, std::int64_t index) {
    std::int64_t& noted = metrics.counts.*first;
    if (known_.*first < 0 && (noted < 0 || index < noted)) noted = index;
  }

  /// Counts what is NaN or infinite on either side, and puts zeros there.
  template <class V, class G>
  void take_out_not_finite(V* values, G* golden, std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::isfinite(values[i]) && std::isfinite(golden[i])) continue;
      add_not_finite(double(values[i]), double(golden[i]), begin + i);
      values[i] = 0;
      golden[i] = 0;
    }
  }

  void add_not_finite(double value, double golden, std::int64_t index) {
    Comparison& c = metrics.counts;
    if (c.not_finite++ == 0) c.first_not_finite = index;
    bool is_match = false;
    if (std::isnan(value) && std::isnan(golden)) {
      ++c.nan_both;
      is_match = options_.equal_nan;
    } else if (std::isnan(value)) {
      ++c.nan_value;
    } else if (std::isnan(golden)) {
      ++c.nan_golden;
    } else if (value == golden) {
      ++c.infinity_equal;
      is_match = true;
    } else if (!std::isinf(golden)) {
      ++c.infinity_value;
    } else if (!std::isinf(value)) {
      ++c.infinity_golden;
    } else {
      ++c.infinity_signs;
    }
    if (is_match) return;
    ++c.mismatched;
    ++c.differing;
    ++c.over;
    note_first(&Comparison::first_differing, index);
    note_first(&Comparison::first_over, index);
    if (!metrics.rows.empty()) ++metrics.rows.back().mismatched;
  }

  /// One by one in long double: 64-bit integers, and numbers whose squares a double cannot hold.
  void add_exact(const std::byte* values, const std::byte* golden, std::int64_t begin,
                 std::int64_t count) {
    std::array<long double, leaf_elements> v, g;
    widen(options_.value_type, values, count, v.data());
    widen(options_.golden_type, golden, count, g.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = std::size_t(i);
      if (!std::isfinite(v[at]) || !std::isfinite(g[at])) {
        add_not_finite(double(v[at]), double(g[at]), begin + i);
        v[at] = g[at] = 0;
      }
    }
    add_exact(v.data(), g.data(), begin, count);
  }

  template <class V, class G>
  void add_exact(const V* values, const G* golden, std::int64_t begin, std::int64_t count) {
    Comparison& c = metrics.counts;
    RowMetrics none;
    RowMetrics& row = metrics.rows.empty() ? none : metrics.rows.back();
    for (std::int64_t i = 0; i < count; ++i) {
      const long double v = values[i], g = golden[i];
      const long double difference = std::abs(v - g);
      // The difference of a double's extremes is out of its range.
      const double error = double(std::min<long double>(difference, largest_double));
      const double size = double(std::abs(g));
      metrics.error_squares += difference * difference;
      metrics.golden_squares += g * g;
      metrics.value_squares += v * v;
      metrics.products += v * g;
      c.max_golden = std::max(c.max_golden, size);
      row.max_abs_error = std::max(row.max_abs_error, error);
      row.max_golden = std::max(row.max_golden, size);
      row.error_squares += difference * difference;
      row.golden_squares += g * g;
      if (v == g) {
        c.zero_signs += std::signbit(v) != std::signbit(g);
        continue;
      }
      const double larger = double(std::max(std::abs(v), std::abs(g)));
      ++c.differing;
      c.over += error > options_.absolute + options_.relative * size;
      c.outside_one_step += error > step_ * power_of_two(std::max(larger, min_normal_));
      note_different(error, size, larger, begin + i);
    }
  }

  void count_bits(const std::byte* values, const std::byte* golden, std::int64_t begin,
                  std::int64_t count) {
    Comparison& c = metrics.counts;
    const auto note = [&](std::int64_t elements, std::int64_t first) {
      if (c.different_bits == 0) c.first_different_bits = first;
      c.different_bits += elements;
    };
    if (options_.value_type != options_.golden_type) return note(count, begin);
    const auto bytes = std::size_t(element_bytes(options_.value_type));
    if (std::memcmp(values, golden, std::size_t(count) * bytes) == 0) return;
    for (std::int64_t i = 0; i < count; ++i)
      if (std::memcmp(values + std::size_t(i) * bytes, golden + std::size_t(i) * bytes, bytes) != 0)
        note(1, begin + i);
  }

  const CompareOptions& options_;
  const Comparison& known_;  // of earlier parts
  const NumberGrid grid_;
  const double step_;        // the grid's, of numbers in [1, 2)
  const double min_normal_;  // of the grid
  const bool has_doubles_;
  const bool has_wide_integers_;
};

}  // namespace

void PartMetrics::append(const PartMetrics& next) {
  error_squares += next.error_squares;
  golden_squares += next.golden_squares;
  value_squares += next.value_squares;
  products += next.products;

  Comparison& a = counts;
  const Comparison& b = next.counts;
  a.count += b.count;
  a.max_golden = std::max(a.max_golden, b.max_golden);
  a.max_relative_error = std::max(a.max_relative_error, b.max_relative_error);
  a.max_ulp = std::max(a.max_ulp, b.max_ulp);
  if (b.max_abs_error > a.max_abs_error) {
    a.max_abs_error = b.max_abs_error;
    a.worst_index = b.worst_index;
  }
  if (tightest_ratio(b) > tightest_ratio(a)) {
    a.tightest_error = b.tightest_error;
    a.tightest_limit = b.tightest_limit;
  }
  const auto keep_first = [](std::int64_t& first, std::int64_t other) {
    if (first < 0) first = other;
  };
  keep_first(a.first_differing, b.first_differing);
  keep_first(a.first_over, b.first_over);
  keep_first(a.first_not_finite, b.first_not_finite);
  keep_first(a.first_different_bits, b.first_different_bits);
  for (const auto count :
       {&Comparison::outside_one_step, &Comparison::differing, &Comparison::zero_signs,
        &Comparison::over, &Comparison::not_finite, &Comparison::nan_value, &Comparison::nan_golden,
        &Comparison::nan_both, &Comparison::infinity_equal, &Comparison::infinity_value,
        &Comparison::infinity_golden, &Comparison::infinity_signs, &Comparison::mismatched,
        &Comparison::different_bits})
    a.*count += b.*count;
}

PartMetrics compare_part(const CompareOptions& options, const std::byte* values,
                         const std::byte* golden, std::int64_t begin, std::int64_t count,
                         const Comparison& known) {
  Part part(options, known);
  part.add(values, golden, begin, count);
  return std::move(part.metrics);
}

}  // namespace tokenview
