// SPDX-License-Identifier: Apache-2.0
// What holds of a comparison for all tensors, blocks and threads; a counterexample is shrunk.
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/boost_test.hpp"
#include "verify/compare.hpp"

namespace tokenview {
namespace {

constexpr StorageType types[] = {
    StorageType::float64,  StorageType::float32,       StorageType::float16,
    StorageType::bfloat16, StorageType::float8_e4m3fn, StorageType::float8_e5m2,
    StorageType::int64,    StorageType::int32,         StorageType::int16,
    StorageType::int8,     StorageType::uint64,        StorageType::uint32,
    StorageType::uint16,   StorageType::uint8,         StorageType::boolean};

StorageType any_type() {
  return *rc::gen::elementOf(std::vector(std::begin(types), std::end(types)));
}

using Bytes = std::vector<std::byte>;

/// Elements of any bits, NaN and infinities among them; many equal ones where `other` has the same
/// type.
Bytes any_bytes(std::int64_t size) {
  const auto raw = *rc::gen::container<std::vector<std::uint8_t>>(
      std::size_t(size), rc::gen::arbitrary<std::uint8_t>());
  Bytes result(raw.size());
  std::memcpy(result.data(), raw.data(), raw.size());
  return result;
}

/// Long tensors, which cannot be drawn byte by byte in time.
Bytes repeated(const Bytes& pattern, std::int64_t size, unsigned seed) {
  Bytes result(static_cast<std::size_t>(size));
  std::uint64_t state = seed;
  for (std::byte& each : result) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    each = pattern[std::size_t(state >> 33) % pattern.size()];
  }
  return result;
}

/// The same by the formulas, one element after the other.
struct Naive {
  std::int64_t not_finite = 0, mismatched = 0, differing = 0, over = 0, zero_signs = 0;
  std::int64_t first_over = -1, worst = -1, first_not_finite = -1;
  long double max_error = 0, max_golden = 0, max_relative = 0, max_ulp = 0;
  long double errors = 0, goldens = 0, values = 0, products = 0;

  Naive(const CompareOptions& options, const Bytes& v, const Bytes& g) {
    const auto count = std::int64_t(v.size()) / element_bytes(options.value_type);
    std::vector<long double> value(static_cast<std::size_t>(count)), golden(value.size());
    widen(options.value_type, v.data(), count, value.data());
    widen(options.golden_type, g.data(), count, golden.data());
    for (std::size_t i = 0; i < value.size(); ++i)
      add(options, value[i], golden[i], std::int64_t(i));
  }

  void add(const CompareOptions& options, long double v, long double g, std::int64_t i) {
    const auto note_over = [&] {
      if (over++ == 0) first_over = i;
    };
    if (!std::isfinite(v) || !std::isfinite(g)) {
      if (not_finite++ == 0) first_not_finite = i;
      if (v == g || (options.equal_nan && std::isnan(v) && std::isnan(g))) return;
      ++mismatched;
      ++differing;
      return note_over();
    }
    const long double error = std::abs(v - g);
    errors += error * error;
    goldens += g * g;
    values += v * v;
    products += v * g;
    max_golden = std::max(max_golden, std::abs(g));
    zero_signs += v == g && std::signbit(v) != std::signbit(g);
    differing += v != g;
    // As the engine rounds: to double before the comparison.
    if (double(error) > options.absolute + options.relative * double(std::abs(g))) note_over();
    if (error > 0) max_relative = std::max(max_relative, g == 0 ? INFINITY : error / std::abs(g));
    const NumberGrid grid = number_grid(narrower(options.value_type, options.golden_type));
    if (error > 0) {
      const int exponent =
          std::max(std::ilogb(std::max(std::abs(v), std::abs(g))), grid.min_exponent);
      max_ulp = std::max(max_ulp, std::ldexp(error, grid.fraction_bits - exponent));
    }
    if (double(error) > double(max_error)) {
      max_error = error;
      worst = i;
    }
  }
};

bool is_near(double a, long double b) {
  if (std::isinf(a) || std::isinf(double(b))) return a == double(b);
  return std::abs(a - b) <= 1e-12L * std::abs(b) + std::numeric_limits<double>::denorm_min();
}

void require_same(const Comparison& a, const Comparison& b) {
  RC_ASSERT(a.error_l2 == b.error_l2);
  RC_ASSERT(a.golden_l2 == b.golden_l2);
  RC_ASSERT(a.value_l2 == b.value_l2);
  RC_ASSERT((a.cosine == b.cosine || (std::isnan(a.cosine) && std::isnan(b.cosine))));
  RC_ASSERT(a.max_abs_error == b.max_abs_error);
  RC_ASSERT(a.worst_index == b.worst_index);
  RC_ASSERT(a.max_relative_error == b.max_relative_error);
  RC_ASSERT(a.max_ulp == b.max_ulp);
  RC_ASSERT(a.tightest_error == b.tightest_error);
  RC_ASSERT(a.tightest_limit == b.tightest_limit);
  RC_ASSERT(a.over == b.over);
  RC_ASSERT(a.first_over == b.first_over);
  RC_ASSERT(a.differing == b.differing);
  RC_ASSERT(a.first_differing == b.first_differing);
  RC_ASSERT(a.first_not_finite == b.first_not_finite);
  RC_ASSERT(a.mismatched == b.mismatched);
  RC_ASSERT(a.different_bits == b.different_bits);
  RC_ASSERT(a.rows.size() == b.rows.size());
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    RC_ASSERT(a.rows[i].error_l2 == b.rows[i].error_l2);
    RC_ASSERT(a.rows[i].max_abs_error == b.rows[i].max_abs_error);
    RC_ASSERT(a.rows[i].mismatched == b.rows[i].mismatched);
  }
}

CompareOptions any_options() {
  CompareOptions options;
  options.value_type = any_type();
  options.golden_type = *rc::gen::element(options.value_type, any_type());
  options.equal_nan = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) {
    options.absolute = *rc::gen::element(0.0, 1e-3, 10.0);
    options.relative = *rc::gen::element(0.0, 1e-3, 1.0);
  }
  options.columns = *rc::gen::element<std::int64_t>(0, 1, 3, 64, 1500);
  options.keep_rows = options.columns > 0;
  options.bits = true;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_CASE(metrics_are_those_of_the_formulas) {
  BOOST_TEST(rc::check([] {
    const CompareOptions options = any_options();
    const auto count = *rc::gen::inRange<std::int64_t>(0, 200);
    const Bytes golden = any_bytes(count * element_bytes(options.golden_type));
    Bytes values = any_bytes(count * element_bytes(options.value_type));
    if (options.value_type == options.golden_type) {  // mostly equal elements as well
      const auto equal = *rc::gen::inRange<std::int64_t>(0, count + 1);
      std::copy_n(golden.begin(), equal * element_bytes(options.golden_type), values.begin());
    }
    const Comparison c = compare(values, golden, options);
    const Naive naive(options, values, golden);
    RC_ASSERT(c.count == count);
    RC_ASSERT(c.not_finite == naive.not_finite);
    RC_ASSERT(c.first_not_finite == naive.first_not_finite);
    RC_ASSERT(c.mismatched == naive.mismatched);
    RC_ASSERT(c.differing == naive.differing);
    RC_ASSERT(c.zero_signs == naive.zero_signs);
    RC_ASSERT(c.over == naive.over);
    RC_ASSERT(c.first_over == naive.first_over);
    RC_ASSERT(c.worst_index == naive.worst);
    RC_ASSERT(is_near(c.max_abs_error,
                      std::min<long double>(naive.max_error, std::numeric_limits<double>::max())));
    RC_ASSERT(is_near(c.max_golden, naive.max_golden));
    RC_ASSERT(is_near(c.max_relative_error, naive.max_relative));
    RC_ASSERT(is_near(c.max_ulp, naive.max_ulp));
    RC_ASSERT(is_near(c.error_l2, std::sqrt(naive.errors)));
    RC_ASSERT(is_near(c.golden_l2, std::sqrt(naive.goldens)));
    RC_ASSERT(is_near(c.value_l2, std::sqrt(naive.values)));
  }));
}

BOOST_AUTO_TEST_CASE(neither_blocks_nor_threads_change_a_digit) {
  BOOST_TEST(rc::check([] {
    CompareOptions options = any_options();
    const auto count = *rc::gen::inRange<std::int64_t>(0, 200'000);
    const Bytes pattern = any_bytes(64);
    const Bytes golden = repeated(pattern, count * element_bytes(options.golden_type), 1);
    Bytes values = repeated(pattern, count * element_bytes(options.value_type), 2);
    if (options.value_type == options.golden_type && *rc::gen::arbitrary<bool>())
      std::copy_n(golden.begin(), count / 2, values.begin());
    const Comparison whole = compare(values, golden, options);

    const auto part = [](const Bytes& all, StorageType type, std::int64_t begin,
                         std::int64_t length) {
      return std::span(all).subspan(std::size_t(begin * element_bytes(type)),
                                    std::size_t(length * element_bytes(type)));
    };
    options.threads = *rc::gen::inRange(1, 5);
    MetricsAccumulator metrics(options);
    for (std::int64_t begin = 0; begin < count;) {
      const auto length = std::min(count - begin, *rc::gen::inRange<std::int64_t>(1, 150'000));
      metrics.add(part(values, options.value_type, begin, length),
                  part(golden, options.golden_type, begin, length));
      begin += length;
    }
    require_same(metrics.finish(), whole);

    const auto read = [&](std::int64_t begin, std::span<std::byte> v, std::span<std::byte> g) {
      const auto length = std::int64_t(v.size()) / element_bytes(options.value_type);
      std::ranges::copy(part(values, options.value_type, begin, length), v.begin());
      std::ranges::copy(part(golden, options.golden_type, begin, length), g.begin());
    };
    const auto block = MetricsAccumulator::part_elements * *rc::gen::inRange(1, 4);
    require_same(compare_blocks(count, block, options, read), whole);
  }));
}

}  // namespace tokenview
