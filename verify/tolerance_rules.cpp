// SPDX-License-Identifier: Apache-2.0
#include "verify/tolerance_rules.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr std::pair<std::string_view, std::optional<double> ToleranceRule::*> limits[] = {
    {"atol", &ToleranceRule::atol}, {"rtol", &ToleranceRule::rtol},
    {"ulp", &ToleranceRule::ulp},   {"of_max", &ToleranceRule::of_max},
    {"l2", &ToleranceRule::l2},     {"row_l2", &ToleranceRule::row_l2},
};
constexpr std::pair<std::string_view, bool ToleranceRule::*> words[] = {
    {"bitwise", &ToleranceRule::bitwise},
    {"like-torch", &ToleranceRule::like_torch},
    {"equal-nan", &ToleranceRule::equal_nan},
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

/// Reads one limit or word into `rule`; false where there is none such.
bool read_item(std::string_view item, ToleranceRule& rule) {
  for (const auto& [name, member] : words)
    if (item == name) return rule.*member = true;
  const std::size_t sign = item.find('=');
  if (sign == std::string_view::npos) return false;
  const std::string_view key = trimmed(item.substr(0, sign));
  const std::string_view number = trimmed(item.substr(sign + 1));
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return false;
  if (!std::isfinite(value) || value < 0) return false;
  for (const auto& [name, member] : limits)
    if (key == name && !(rule.*member)) {
      rule.*member = value;
      return true;
    }
  return false;
}

/// rtol and atol.
std::pair<double, double> torch_tolerances(StorageType type) {
  switch (type) {
    case StorageType::float64:
      return {1e-7, 1e-7};
    case StorageType::float32:
      return {1.3e-6, 1e-5};
    case StorageType::float16:
      return {1e-3, 1e-5};
    case StorageType::bfloat16:
      return {1.6e-2, 1e-5};
    default:
      return {0, 0};
  }
}

ToleranceRule exact() {
  ToleranceRule rule;
  rule.atol = rule.rtol = 0;
  return rule;
}

}  // namespace

ToleranceRule default_limits(StorageType type) {
  if (!is_floating(type)) return exact();
  ToleranceRule rule;
  if (type == StorageType::float64) {
    rule.of_max = rule.l2 = 1e-12;
  } else if (type == StorageType::float32) {
    rule.of_max = rule.l2 = 1e-5;
  } else {
    const double step = std::ldexp(1.0, -number_grid(type).fraction_bits);
    rule.of_max = step;
    rule.l2 = step / 2;
  }
  rule.row_l2 = std::min(0.5, 32 * *rule.l2);
  rule.row_columns = 16;
  return rule;
}

ToleranceRule resolved(const ToleranceRule& rule, StorageType value_type, StorageType golden_type) {
  ToleranceRule result = rule;
  if (rule.like_torch) {
    const auto [value_rtol, value_atol] = torch_tolerances(value_type);
    const auto [golden_rtol, golden_atol] = torch_tolerances(golden_type);
    result.rtol = std::max(value_rtol, golden_rtol);
    result.atol = std::max(value_atol, golden_atol);
  } else if (!rule.has_limits() && !rule.bitwise) {
    result = default_limits(narrower(value_type, golden_type));
    result.equal_nan = rule.equal_nan;
  }
  return result;
}

CompareOptions compare_options(const ToleranceRule& rule, StorageType value_type,
                               StorageType golden_type, std::int64_t columns) {
  CompareOptions options;
  options.value_type = value_type;
  options.golden_type = golden_type;
  if (rule.atol || rule.rtol) {
    options.absolute = rule.atol.value_or(0);
    options.relative = rule.rtol.value_or(0);
  }
  options.equal_nan = rule.equal_nan;
  options.bits = rule.bitwise;
  const std::int64_t row = columns > 0 ? columns : std::numeric_limits<std::int64_t>::max();
  if (rule.row_l2 && row >= rule.row_columns) {
    options.columns = row;
    options.row_limit = *rule.row_l2;
  }
  return options;
}

Judgement judge(const Comparison& c, const ToleranceRule& rule) {
  if (c.count == 0) return {false, {infinity, 0, "empty"}};
  Judgement result{true, {}};
  const auto hold = [&](bool holds, const Bound& bound) {
    if (!result.holds) return;
    if (!holds || bound.ratio() >= result.bound.ratio()) result.bound = bound;
    result.holds = holds;
  };
  // NaN of the same bits are the same bits.
  if (!rule.bitwise) hold(c.mismatched == 0, {double(c.mismatched), 0, "not_finite"});
  const auto hold_limit = [&](std::optional<double> limit, double observed, double scale,
                              const char* metric) {
    if (!limit) return;
    const Bound bound{observed, *limit * scale, metric};
    hold(bound.holds(), bound);
  };
  hold_limit(rule.of_max, c.max_abs_error, c.max_golden, "max_abs");
  hold_limit(rule.l2, c.relative_l2(), 1, "relative_l2");
  hold_limit(rule.row_l2, c.worst_row.relative_l2(), 1, "row_l2");
  hold_limit(rule.ulp, c.max_ulp, 1, "ulp");
  if (rule.atol || rule.rtol) hold(c.over == 0, {c.tightest_error, c.tightest_limit, "element"});
  if (rule.bitwise) hold(c.different_bits == 0, {double(c.different_bits), 0, "bits"});
  return result;
}

void ToleranceRules::add(const std::string& text) {
  const auto fail = [&](std::string_view part, const char* expected) {
    throw UsageError(tokenview::text("'", printable(text), "': '", printable(std::string(part)),
                                     "' cannot be read, expected ", expected));
  };
  // At the last colon: a name may have one, a limit never.
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) fail(text, "pattern: limit, limit, ...");
  const std::string_view pattern = trimmed(std::string_view(text).substr(0, colon));
  if (pattern.empty()) fail(text, "a pattern before the colon");

  ToleranceRule rule;
  std::string_view rest = std::string_view(text).substr(colon + 1);
  for (bool is_last = false; !is_last;) {
    const std::size_t comma = rest.find(',');
    is_last = comma == std::string_view::npos;
    const std::string_view item = trimmed(rest.substr(0, comma));
    if (!read_item(item, rule))
      fail(item,
           "once each: atol=X, rtol=X, ulp=X, of_max=X, l2=X, row_l2=X (numbers of at least 0), "
           "bitwise, like-torch, equal-nan");
    rest = is_last ? std::string_view() : rest.substr(comma + 1);
  }
  if ((rule.like_torch || rule.bitwise) && (rule.has_limits() || rule.like_torch == rule.bitwise))
    fail(trimmed(std::string_view(text).substr(colon + 1)),
         "bitwise, like-torch or limits: one of the three");
  entries_.push_back({text, NamePattern(std::string(pattern)), rule});
}

ToleranceRule ToleranceRules::rule_for(std::string_view name, StorageType value_type,
                                       StorageType golden_type) const {
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                                  [&](const Entry& entry) { return entry.pattern.matches(name); });
  if (found != entries_.rend()) {
    ToleranceRule rule = found->rule;
    rule.equal_nan |= general_.equal_nan;
    return resolved(rule, value_type, golden_type);
  }
  const bool is_whole = !is_floating(value_type) && !is_floating(golden_type);
  if (is_whole && !general_.bitwise) return exact();
  return resolved(general_, value_type, golden_type);
}

std::vector<std::string> ToleranceRules::without_match(
    const std::vector<std::string>& names) const {
  std::vector<std::string> result;
  for (const Entry& entry : entries_)
    if (std::ranges::none_of(names,
                             [&](const std::string& name) { return entry.pattern.matches(name); }))
      result.push_back(entry.text);
  return result;
}

}  // namespace tokenview
