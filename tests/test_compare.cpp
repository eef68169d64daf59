// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "verify/compare.hpp"
#include "verify/tolerance_rules.hpp"

namespace tokenview {
namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
constexpr StorageType type_of() {
  if constexpr (std::is_same_v<T, float>) return StorageType::float32;
  if constexpr (std::is_same_v<T, double>) return StorageType::float64;
  if constexpr (std::is_same_v<T, std::int64_t>) return StorageType::int64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return StorageType::uint64;
  if constexpr (std::is_same_v<T, std::int32_t>) return StorageType::int32;
  return StorageType::uint8;
}

template <class T>
std::span<const std::byte> bytes(const std::vector<T>& x) {
  return std::as_bytes(std::span(x));
}

/// The comparison and the verdict of a rule; rows of `columns` elements.
struct Outcome {
  Comparison comparison;
  Judgement judgement;
  bool matches() const { return judgement.holds; }
  std::string metric() const { return judgement.bound.metric; }
};

template <class V, class G>
Outcome outcome(const std::vector<V>& values, const std::vector<G>& golden,
                const ToleranceRule& rule = {}, std::int64_t columns = 0) {
  const ToleranceRule limits = ToleranceRules(rule).rule_for("x", type_of<V>(), type_of<G>());
  const CompareOptions options = compare_options(limits, type_of<V>(), type_of<G>(), columns);
  Outcome result{compare(bytes(values), bytes(golden), options), {}};
  result.judgement = judge(result.comparison, limits);
  return result;
}

ToleranceRule like_torch() { return {.like_torch = true}; }
ToleranceRule bitwise() { return {.bitwise = true}; }
ToleranceRule rtol(double value) { return {.rtol = value}; }
ToleranceRule atol(double value) { return {.atol = value}; }

/// Rules under which nothing but an equal tensor should pass here.
std::vector<ToleranceRule> every_rule() {
  return {{},         like_torch(),     bitwise(),    rtol(1e-3),      {.atol = 1e-6, .rtol = 1e-3},
          {.ulp = 4}, {.of_max = 1e-3}, {.l2 = 1e-3}, {.row_l2 = 1e-3}};
}

std::vector<float> random_values(std::size_t count, unsigned seed = 1, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> result(count);
  for (float& x : result) x = scale * normal(random);
  return result;
}

void require_match(const std::vector<float>& values, const std::vector<float>& golden) {
  for (const ToleranceRule& rule : every_rule())
    BOOST_TEST(outcome(values, golden, rule, 32).matches());
}

void require_difference(const std::vector<float>& values, const std::vector<float>& golden) {
  for (const ToleranceRule& rule : every_rule()) {
    const Outcome found = outcome(values, golden, rule, 32);
    BOOST_TEST(!found.matches(), "passed with " << found.metric());
  }
}

template <class Change>
std::vector<float> changed(std::vector<float> x, const Change& change) {
  for (float& each : x) each = change(each);
  return x;
}

}  // namespace

BOOST_AUTO_TEST_CASE(equal_tensors_match_under_every_rule) {
  const std::vector<float> golden = random_values(320);
  require_match(golden, golden);
}

BOOST_AUTO_TEST_CASE(the_metrics_of_three_elements_are_those_computed_by_hand) {
  const std::vector<float> golden = {3, 0, -4}, values = {3.5f, 0, -2};
  CompareOptions options;
  options.absolute = 0.5;
  const Comparison c = compare(bytes(values), bytes(golden), options);
  BOOST_TEST(c.count == 3);
  BOOST_TEST(c.max_abs_error == 2);
  BOOST_TEST(c.worst_index == 2);
  BOOST_TEST(c.max_golden == 4);
  BOOST_TEST(c.max_relative_error == 0.5);
  BOOST_TEST(c.max_ulp == 2 * 0x1p21);  // steps of 2^(2 - 23) at 4
  BOOST_TEST(c.error_l2 == std::sqrt(4.25));
  BOOST_TEST(c.golden_l2 == 5);
  BOOST_TEST(c.value_l2 == std::sqrt(16.25));
  BOOST_TEST(c.relative_l2() == std::sqrt(4.25) / 5);
  BOOST_TEST(c.rms() == std::sqrt(4.25 / 3));
  BOOST_TEST(c.cosine == 18.5 / (5 * std::sqrt(16.25)), boost::test_tools::tolerance(1e-15));
  BOOST_TEST(c.differing == 2);
  BOOST_TEST(c.first_differing == 0);
  BOOST_TEST(c.over == 1);
  BOOST_TEST(c.first_over == 2);
  BOOST_TEST(c.tightest_error == 2);
  BOOST_TEST(c.tightest_limit == 0.5);
}

BOOST_AUTO_TEST_CASE(a_nan_where_the_golden_has_a_number_is_a_difference) {
  const std::vector<float> golden = random_values(100);
  std::vector<float> values = golden;
  values[70] = nan_value;
  require_difference(values, golden);
  ToleranceRule rule = atol(1e9);
  rule.equal_nan = true;
  const Outcome found = outcome(values, golden, rule);
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.metric() == "not_finite");
  BOOST_TEST(found.comparison.nan_value == 1);
  BOOST_TEST(found.comparison.first_over == 70);
  BOOST_TEST(found.comparison.max_abs_error == 0);
}

BOOST_AUTO_TEST_CASE(a_nan_of_the_golden_alone_is_a_difference_even_with_equal_nan) {
  const std::vector<float> values = random_values(100);
  std::vector<float> golden = values;
  golden[3] = nan_value;
  require_difference(values, golden);
  const Outcome found = outcome(values, golden, {.equal_nan = true});
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.comparison.nan_golden == 1);
}

BOOST_AUTO_TEST_CASE(nan_on_both_sides_matches_only_where_asked_for) {
  std::vector<float> golden = random_values(100);
  golden[3] = nan_value;
  BOOST_TEST(!outcome(golden, golden).matches());
  BOOST_TEST(!outcome(golden, golden, like_torch()).matches());
  BOOST_TEST(!outcome(golden, golden, atol(1e9)).matches());
  BOOST_TEST(outcome(golden, golden, bitwise()).matches());
  const Outcome found = outcome(golden, golden, {.equal_nan = true});
  BOOST_TEST(found.matches());
  BOOST_TEST(found.comparison.nan_both == 1);
  BOOST_TEST(found.comparison.differing == 0);
}

BOOST_AUTO_TEST_CASE(nan_of_other_bits_is_not_bitwise_equal) {
  const std::vector<float> golden = {std::bit_cast<float>(0x7fc00000u)};
  const std::vector<float> values = {std::bit_cast<float>(0x7fc00001u)};
  BOOST_TEST(outcome(golden, golden, bitwise()).matches());
  BOOST_TEST(!outcome(values, golden, bitwise()).matches());
}

BOOST_AUTO_TEST_CASE(infinities_of_one_sign_match_and_all_others_differ) {
  std::vector<float> golden = random_values(64), values = golden;
  golden[7] = values[7] = -infinity;
  require_match(values, golden);
  values[7] = infinity;
  require_difference(values, golden);
  BOOST_TEST(outcome(values, golden).comparison.infinity_signs == 1);
  values[7] = std::numeric_limits<float>::lowest();
  require_difference(values, golden);
  BOOST_TEST(outcome(values, golden).comparison.infinity_golden == 1);
  std::swap(values, golden);
  require_difference(values, golden);
  BOOST_TEST(outcome(values, golden).comparison.infinity_value == 1);
  values[7] = nan_value;
  golden[7] = infinity;
  require_difference(values, golden);
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_hides_no_error_beside_it) {
  std::vector<float> golden = random_values(1000), values = golden;
  golden[500] = values[500] = infinity;
  values[501] += 1;
  values[499] += 0.5f;
  require_difference(values, golden);
  const Comparison c = outcome(values, golden, rtol(0)).comparison;
  BOOST_TEST(c.worst_index == 501);
  BOOST_TEST(c.first_over == 499);
  BOOST_TEST(c.differing == 2);
  BOOST_TEST(c.not_finite == 1);
}

BOOST_AUTO_TEST_CASE(zeros_of_either_sign_are_equal_and_counted) {
  const std::vector<float> golden = {0.0f, -0.0f, 0.0f, 1.0f}, values = {-0.0f, 0.0f, 0.0f, 1.0f};
  for (const ToleranceRule& rule : every_rule())
    BOOST_TEST(outcome(values, golden, rule).matches() == !rule.bitwise);
  const Comparison c = outcome(values, golden, bitwise()).comparison;
  BOOST_TEST(c.zero_signs == 2);
  BOOST_TEST(c.differing == 0);
  BOOST_TEST(c.different_bits == 2);
  BOOST_TEST(c.first_different_bits == 0);
}

BOOST_AUTO_TEST_CASE(denormal_numbers_are_compared_like_all_others) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const std::vector<float> golden(64, 3 * smallest), values(64, 4 * smallest);
  require_match(golden, golden);
  for (const ToleranceRule& rule :
       {ToleranceRule{}, bitwise(), rtol(0.3), ToleranceRule{.ulp = 0.5}})
    BOOST_TEST(!outcome(values, golden, rule, 32).matches());
  const Comparison c = outcome(values, golden).comparison;
  BOOST_TEST(c.max_ulp == 1);
  BOOST_TEST(c.relative_l2() == 1.0 / 3, boost::test_tools::tolerance(1e-15));

  const std::vector<double> tiny = {5e-324, 1e-320}, other = {1e-323, 1e-320};
  const Outcome found = outcome(other, tiny);
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.comparison.max_ulp == 1);
  BOOST_TEST(found.comparison.error_l2 == 5e-324);
}

BOOST_AUTO_TEST_CASE(a_value_beside_a_golden_of_zeros_is_a_difference) {
  const std::vector<float> zeros(64, 0), tiny(64, 1e-30f);
  require_match(zeros, zeros);
  for (const ToleranceRule& rule : every_rule())
    if (!rule.like_torch && !rule.atol) BOOST_TEST(!outcome(tiny, zeros, rule, 32).matches());
  const Comparison c = outcome(tiny, zeros).comparison;
  BOOST_TEST(std::isinf(c.relative_l2()));
  BOOST_TEST(std::isinf(c.max_relative_error));
  BOOST_TEST(std::isnan(c.cosine));
}

BOOST_AUTO_TEST_CASE(zeros_beside_a_golden_of_values_are_a_difference) {
  require_difference(std::vector<float>(320, 0), random_values(320));
}

BOOST_AUTO_TEST_CASE(a_row_that_should_be_zero_is_a_difference_beside_large_ones) {
  std::vector<float> golden = random_values(320), values;
  std::fill(golden.begin() + 32, golden.begin() + 64, 0.0f);
  values = golden;
  values[40] = 1e-9f;
  const Outcome found = outcome(values, golden, {}, 32);
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.metric() == "row_l2");
  BOOST_TEST(found.comparison.worst_row.row == 1);
}

BOOST_AUTO_TEST_CASE(constant_tensors_of_other_constants_differ) {
  const std::vector<float> golden(320, 0.5f);
  require_match(golden, golden);
  require_difference(std::vector<float>(320, 0.51f), golden);
  require_difference(std::vector<float>(320, -0.5f), golden);
  BOOST_TEST(outcome(std::vector<float>(320, 1.0f), golden).comparison.cosine == 1);  // no gate
}

BOOST_AUTO_TEST_CASE(an_empty_tensor_never_matches_by_itself) {
  const std::vector<float> none;
  for (const ToleranceRule& rule : every_rule()) {
    const Outcome found = outcome(none, none, rule);
    BOOST_TEST(!found.matches());
    BOOST_TEST(found.metric() == "empty");
  }
}

BOOST_AUTO_TEST_CASE(a_tensor_that_is_twice_or_a_share_of_the_golden_differs) {
  for (const float scale : {1.0f, 1e-30f, 1e30f}) {
    const std::vector<float> golden = random_values(320, 1, scale);
    for (const float factor : {2.0f, 0.5f, 0.25f, 0.125f, 1.0f / 3, 8.0f, -1.0f}) {
      const auto values = changed(golden, [&](float x) { return factor * x; });
      if (scale >= 1) require_difference(values, golden);
      BOOST_TEST(!outcome(values, golden, {}, 32).matches());
      BOOST_TEST(!outcome(values, golden, rtol(1e-2), 32).matches());
      BOOST_TEST(std::abs(outcome(values, golden).comparison.cosine) > 0.999999);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_offset_of_one_differs) {
  const std::vector<float> golden = random_values(320);
  require_difference(changed(golden, [](float x) { return x + 1; }), golden);
}

BOOST_AUTO_TEST_CASE(values_one_place_or_one_row_further_differ) {
  const std::vector<float> golden = random_values(320);
  for (const std::ptrdiff_t places : {1, 32}) {
    std::vector<float> values = golden;
    std::rotate(values.begin(), values.begin() + places, values.end());
    require_difference(values, golden);
  }
}

BOOST_AUTO_TEST_CASE(tiny_magnitudes_are_no_excuse_for_a_factor_of_two) {
  const std::vector<float> golden(64, 1e-30f), values(64, 2e-30f);
  for (const ToleranceRule& rule : every_rule())
    if (!rule.like_torch && !rule.atol) BOOST_TEST(!outcome(values, golden, rule, 32).matches());
  const std::vector<double> small(64, 1e-200), twice(64, 2e-200);
  BOOST_TEST(!outcome(twice, small).matches());
  BOOST_TEST(outcome(twice, small).comparison.relative_l2() == 1);
}

BOOST_AUTO_TEST_CASE(huge_doubles_have_norms) {
  const std::vector<double> golden(64, 1e300), values(64, -1e300);
  const Comparison c = outcome(values, golden).comparison;
  BOOST_TEST(c.golden_l2 == 8e300, boost::test_tools::tolerance(1e-15));
  BOOST_TEST(c.relative_l2() == 2, boost::test_tools::tolerance(1e-15));
  const double most = std::numeric_limits<double>::max();
  BOOST_TEST(!outcome(std::vector<double>{most}, std::vector<double>{-most}).matches());
}

BOOST_AUTO_TEST_CASE(rows_that_are_swapped_differ_unless_they_are_equal) {
  std::vector<float> golden = random_values(320);
  std::copy_n(golden.begin(), 32, golden.begin() + 64);  // rows 0 and 2
  const auto with_swapped = [&](std::ptrdiff_t a, std::ptrdiff_t b) {
    std::vector<float> values = golden;
    std::swap_ranges(values.begin() + a * 32, values.begin() + a * 32 + 32,
                     values.begin() + b * 32);
    return values;
  };
  require_match(with_swapped(0, 2), golden);
  require_difference(with_swapped(0, 1), golden);
}

BOOST_AUTO_TEST_CASE(rows_that_are_swapped_below_a_huge_one_differ) {
  std::vector<float> golden = random_values(320);
  for (int i = 0; i < 32; ++i) golden[std::size_t(i)] *= 1e7f;
  std::vector<float> values = golden;
  std::swap_ranges(values.begin() + 64, values.begin() + 96, values.begin() + 96);
  const Outcome found = outcome(values, golden, {}, 32);
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.metric() == "row_l2");
  BOOST_TEST(found.comparison.rows_over == 2);
  BOOST_TEST(found.comparison.over_rows.at(0).row == 2);
  BOOST_TEST(found.comparison.over_rows.at(1).row == 3);
}

BOOST_AUTO_TEST_CASE(every_row_has_its_own_metrics_where_asked_for) {
  const std::vector<float> golden = {3, 4, 0, 0, 1, 1, nan_value, 2};
  const std::vector<float> values = {3, 3, 0, 0, 1, 2, 5, 2};
  CompareOptions options;
  options.columns = 2;
  options.keep_rows = true;
  const Comparison c = compare(bytes(values), bytes(golden), options);
  BOOST_REQUIRE(c.rows.size() == 4);
  BOOST_TEST(c.rows[0].max_abs_error == 1);
  BOOST_TEST(c.rows[0].max_golden == 4);
  BOOST_TEST(c.rows[0].relative_l2() == 0.2);
  BOOST_TEST(c.rows[1].relative_l2() == 0);
  BOOST_TEST(c.rows[2].error_l2 == 1);
  BOOST_TEST(c.rows[3].mismatched == 1);
  BOOST_TEST(std::isinf(c.rows[3].relative_l2()));
  BOOST_TEST(c.worst_row.row == 3);
}

BOOST_AUTO_TEST_CASE(a_row_longer_than_a_part_is_one_row) {
  const std::int64_t columns = 2 * MetricsAccumulator::part_elements + 5;
  const std::vector<float> golden(std::size_t(3 * columns), 1.0f), values(golden.size(), 3.0f);
  CompareOptions options;
  options.columns = columns;
  options.keep_rows = true;
  const Comparison c = compare(bytes(values), bytes(golden), options);
  BOOST_REQUIRE(c.rows.size() == 3);
  for (std::int64_t row = 0; row < 3; ++row) {
    BOOST_TEST(c.rows[std::size_t(row)].row == row);
    BOOST_TEST(c.rows[std::size_t(row)].error_l2 == 2 * std::sqrt(double(columns)));
    BOOST_TEST(c.rows[std::size_t(row)].golden_l2 == std::sqrt(double(columns)));
  }
}

BOOST_AUTO_TEST_CASE(neighbours_among_64_bit_integers_differ) {
  const std::int64_t large = (std::int64_t{1} << 60) + 1;
  const std::vector<std::int64_t> golden = {large, -large}, values = {large, -large + 1};
  BOOST_TEST(outcome(golden, golden).matches());
  const Outcome found = outcome(values, golden);
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.comparison.max_abs_error == 1);
  BOOST_TEST(found.comparison.max_ulp == 1);
  BOOST_TEST(found.comparison.first_over == 1);
  const std::vector<std::uint64_t> huge = {~std::uint64_t{0}};
  BOOST_TEST(!outcome(huge, std::vector<std::int64_t>{-1}).matches());
}

BOOST_AUTO_TEST_CASE(an_integer_beside_a_double_is_compared_exactly) {
  const std::vector<std::int64_t> values = {(std::int64_t{1} << 53) + 1};
  const std::vector<double> golden = {0x1p53};
  BOOST_TEST(outcome(values, golden, rtol(0)).comparison.max_abs_error == 1);
}

BOOST_AUTO_TEST_CASE(ids_are_exact_whatever_the_general_tolerance) {
  const std::vector<std::int32_t> golden = {151643, 7}, values = {151644, 7};
  BOOST_TEST(!outcome(values, golden, rtol(1e-2)).matches());
  BOOST_TEST(!outcome(values, golden, like_torch()).matches());
  ToleranceRules rules;
  rules.add("x: atol=1");
  const ToleranceRule named = rules.rule_for("x", StorageType::int32, StorageType::int32);
  const CompareOptions options = compare_options(named, StorageType::int32, StorageType::int32, 0);
  BOOST_TEST(judge(compare(bytes(values), bytes(golden), options), named).holds);
}

BOOST_AUTO_TEST_CASE(halves_and_bytes_are_the_numbers_that_their_standards_say) {
  const std::vector<std::uint16_t> half = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x0400, 0x7c00, 0x7e00};
  std::array<float, 7> numbers{};
  widen(StorageType::float16, bytes(half).data(), 7, numbers.data());
  BOOST_TEST(numbers[0] == 1);
  BOOST_TEST(numbers[1] == -2);
  BOOST_TEST(numbers[2] == 65504);
  BOOST_TEST(numbers[3] == 0x1p-24f);
  BOOST_TEST(numbers[4] == 0x1p-14f);
  BOOST_TEST(numbers[5] == infinity);
  BOOST_TEST(std::isnan(numbers[6]));

  const std::vector<std::uint8_t> e4m3 = {0x38, 0x7e, 0x01, 0x88, 0x7f, 0xff, 0x08};
  widen(StorageType::float8_e4m3fn, bytes(e4m3).data(), 7, numbers.data());
  BOOST_TEST(numbers[0] == 1);
  BOOST_TEST(numbers[1] == 448);
  BOOST_TEST(numbers[2] == 0x1p-9f);
  BOOST_TEST(numbers[3] == -0x1p-6f);
  BOOST_TEST(std::isnan(numbers[4]));
  BOOST_TEST(std::isnan(numbers[5]));
  BOOST_TEST(numbers[6] == 0x1p-6f);

  const std::vector<std::uint8_t> e5m2 = {0x3c, 0x7b, 0x01, 0x7c, 0xfc, 0x7d, 0x04};
  widen(StorageType::float8_e5m2, bytes(e5m2).data(), 7, numbers.data());
  BOOST_TEST(numbers[0] == 1);
  BOOST_TEST(numbers[1] == 57344);
  BOOST_TEST(numbers[2] == 0x1p-16f);
  BOOST_TEST(numbers[3] == infinity);
  BOOST_TEST(numbers[4] == -infinity);
  BOOST_TEST(std::isnan(numbers[5]));
  BOOST_TEST(numbers[6] == 0x1p-14f);
}

BOOST_AUTO_TEST_CASE(a_step_of_the_narrower_type_is_one_ulp) {
  const std::vector<std::uint16_t> values = {0x3f80, 0x3f81, 0x4000};  // bfloat16: 1, 1 + 2^-7, 2
  const std::vector<float> golden = {1, 1, 2};
  CompareOptions options;
  options.value_type = StorageType::bfloat16;
  const Comparison c = compare(bytes(values), bytes(golden), options);
  BOOST_TEST(c.max_ulp == 1);
  BOOST_TEST(c.outside_one_step == 0);
  BOOST_TEST(c.max_abs_error == 0x1p-7);
}

BOOST_AUTO_TEST_CASE(two_types_are_never_bitwise_equal) {
  const Outcome found = outcome(std::vector<double>{1, 2}, std::vector<float>{1, 2}, bitwise());
  BOOST_TEST(!found.matches());
  BOOST_TEST(found.comparison.different_bits == 2);
}

BOOST_AUTO_TEST_CASE(the_tolerances_of_torch_are_those_of_assert_close) {
  const auto tolerances = [](StorageType a, StorageType b) {
    const ToleranceRule rule = resolved(like_torch(), a, b);
    return std::pair(rule.rtol.value(), rule.atol.value());
  };
  using enum StorageType;
  BOOST_TEST((tolerances(float32, float32) == std::pair(1.3e-6, 1e-5)));
  BOOST_TEST((tolerances(float64, float64) == std::pair(1e-7, 1e-7)));
  BOOST_TEST((tolerances(float16, float16) == std::pair(1e-3, 1e-5)));
  BOOST_TEST((tolerances(bfloat16, bfloat16) == std::pair(1.6e-2, 1e-5)));
  BOOST_TEST((tolerances(float8_e4m3fn, float8_e4m3fn) == std::pair(0.0, 0.0)));
  BOOST_TEST((tolerances(float32, bfloat16) == std::pair(1.6e-2, 1e-5)));
  // |1.00002 - 1| is over 1e-5 + 1.3e-6, and 1.00001 is not.
  BOOST_TEST(!outcome(std::vector<float>{1.00002f}, std::vector<float>{1}, like_torch()).matches());
  BOOST_TEST(outcome(std::vector<float>{1.00001f}, std::vector<float>{1}, like_torch()).matches());
}

BOOST_AUTO_TEST_CASE(the_last_pattern_that_fits_decides) {
  ToleranceRules rules(rtol(1e-3));
  rules.add("model.layers.*.mlp: atol=1e-3, rtol=0");
  rules.add(" model.layers.1?.mlp :bitwise");
  const auto rule = [&](const char* name) {
    return rules.rule_for(name, StorageType::float32, StorageType::float32);
  };
  BOOST_TEST(rule("model.layers.3.mlp").atol.value() == 1e-3);
  BOOST_TEST(rule("model.layers.3.mlp").rtol.value() == 0);
  BOOST_TEST(rule("model.layers.12.mlp").bitwise);
  BOOST_TEST(rule("model.layers.3.mlp.gate").rtol.value() == 1e-3);
  BOOST_TEST(!rule("model.layers.3.mlp.gate").atol.has_value());
  BOOST_TEST(rules.without_match({"model.layers.3.mlp"}).size() == 1);
}

BOOST_AUTO_TEST_CASE(a_rule_that_cannot_be_read_is_refused) {
  for (const char* text : {"", "x", ": atol=1", "x:", "x: atol", "x: atol=", "x: atol=-1",
                           "x: atol=nan", "x: atol=inf", "x: atol=1 rtol=2", "x: atol=1,",
                           "x: atol=1, atol=2", "x: tol=1", "x: atol=1e999", "x: bitwise, atol=1",
                           "x: bitwise, like-torch", "x: atol=0x1", "x: Bitwise"}) {
    ToleranceRules rules;
    BOOST_CHECK_THROW(rules.add(text), UsageError);
  }
  ToleranceRules rules;
  rules.add("a:b: atol=1e-3 , equal-nan");
  BOOST_TEST(rules.rule_for("a:b", StorageType::float32, StorageType::float32).equal_nan);
}

BOOST_AUTO_TEST_CASE(a_star_stands_for_any_text_and_brackets_for_themselves) {
  const auto fits = [](const char* pattern, const char* name) {
    return NamePattern(pattern).matches(name);
  };
  BOOST_TEST(fits("*", ""));
  BOOST_TEST(fits("a*b*c", "a/x.b/y/c"));
  BOOST_TEST(fits("a*bc", "abcbbc"));
  BOOST_TEST(!fits("a*bc", "abcb"));
  BOOST_TEST(!fits("a?c", "ac"));
  BOOST_TEST(fits("x[0]", "x[0]"));
  BOOST_TEST(!fits("x[0]", "x0"));
  BOOST_TEST(!fits("", "a"));
  BOOST_TEST(!fits("*a", std::string(100, 'b').c_str()));
}

BOOST_AUTO_TEST_CASE(a_map_moves_what_its_stars_stand_for) {
  BOOST_TEST(NameMap("model.layers.*.mlp.*=l*/*").renamed("model.layers.3.mlp.up").value() ==
             "l3/up");
  BOOST_TEST(NameMap("a=b=c").renamed("a").value() == "b=c");
  BOOST_TEST(!NameMap("a*=b").renamed("ca").has_value());
  for (const char* text : {"", "a", "=b", "a=", "a=*", "a*=**"})
    BOOST_CHECK_THROW(NameMap{text}, UsageError);
}

BOOST_AUTO_TEST_CASE(blocks_that_do_not_fit_each_other_are_refused) {
  MetricsAccumulator metrics(CompareOptions{});
  const std::vector<float> two(2), three(3);
  BOOST_CHECK_THROW(metrics.add(bytes(two), bytes(three)), ShapeError);
  BOOST_CHECK_THROW(metrics.add(bytes(two).first(7), bytes(two).first(7)), ShapeError);
}

}  // namespace tokenview
