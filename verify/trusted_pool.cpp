// SPDX-License-Identifier: Apache-2.0
#include "verify/trusted_pool.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tokenview {
namespace {

/// Rows smaller than this part of the usual one are measured against that.
constexpr double floor_of_usual = 1e-2;

/// What float32 sums of a sketch may be off by, of the largest value.
constexpr double sketch_rounding = 1e-6;

/// Whether max|row - factor * block| stays within `allowed`, and what it is.
bool is_within(const float* row, const float* block, std::int64_t width, double factor,
               double allowed, double& largest) {
  constexpr std::int64_t step = 256;
  const auto bound = float(allowed), times = float(factor);
  float most = 0;
  for (std::int64_t begin = 0; begin < width; begin += step) {
    const std::int64_t end = std::min(width, begin + step);
    for (std::int64_t c = begin; c < end; ++c)
      most = std::max(most, std::abs(row[c] - times * block[c]));
    if (!(most <= bound)) return false;
  }
  largest = most;
  return true;
}

/// Calls body(candidate) for those of a list in order whose sketch is `reach` or less away from
/// `sketch`; stops where it returns false.
template <class Candidates, class Body>
void for_each_near(const Candidates& order, const RowSketch& sketch, double reach,
                   const Body& body) {
  const double low = sketch[0] - reach, high = sketch[0] + reach;
  auto at = std::lower_bound(
      order.begin(), order.end(), low,
      [](const auto& candidate, double first) { return candidate.sketch[0] < first; });
  for (; at != order.end() && at->sketch[0] <= high; ++at) {
    bool near = true;
    for (std::size_t j = 1; j < std::size_t(sketch_size) && near; ++j)
      near = std::abs(double(at->sketch[j]) - sketch[j]) <= reach;
    if (near && !body(*at)) return;
  }
}

}  // namespace

double usual_factor(double factor) {
  const double size = std::abs(factor);
  double best = 1;
  const auto consider = [&](double usual) {
    if (std::abs(usual - size) < std::abs(best - size) * (1 - 1e-12)) best = usual;
  };
  for (int k = 2; k <= 64; ++k) consider(k);
  for (int k = 2; k <= 64; ++k) consider(1.0 / k);
  for (int m = 2; m <= 8; ++m)
    for (int k = 2; k <= 8; ++k) consider(double(k) / m);
  return factor < 0 ? -best : best;
}

TrustedPool::TrustedPool(std::span<const TrustedRows> trusted, std::int64_t width,
                         const InferOptions& options)
    : tolerance_(options.tolerance), trusted_(trusted), plan_(width) {
  std::vector<double> row_sizes;
  std::int64_t total = 0;
  for (const TrustedRows& of_rank : trusted)
    for (std::int64_t r = 0; r < of_rank.rows; ++r) {
      total = of_rank.columns;
      const float* const values = of_rank.values.data() + r * total;
      tokens_.push_back({{.first = std::int32_t(r),
                          .count = 1,
                          .dp = of_rank.dp,
                          .kind = RowKind::token,
                          .content = PadContent::zero,
                          .step = of_rank.step},
                         values});
      double largest = 0;
      for (std::int64_t c = 0; c < of_rank.columns; ++c)
        largest = std::max(largest, double(std::abs(values[c])));
      if (largest > 0 && std::isfinite(largest)) row_sizes.push_back(largest);
    }
  if (!row_sizes.empty()) {
    const auto middle = row_sizes.begin() + std::ptrdiff_t(row_sizes.size() / 2);
    std::ranges::nth_element(row_sizes, middle);
    floor_ = floor_of_usual * *middle;
  }
  if (tokens_.empty()) return;
  find_blocks(total, options);
  sketch_all();
  find_spreads();
}

void TrustedPool::find_blocks(std::int64_t total, const InferOptions& options) {
  const std::int64_t width = plan_.width();
  const auto add = [&](std::int64_t of, const auto& columns_of_block) {
    for (std::int64_t b = 0; b < of; ++b) {
      blocks_.push_back({std::int16_t(b), std::int16_t(b + 1), std::int16_t(of)});
      columns_.push_back(columns_of_block(blocks_.back()));
    }
  };
  if (!options.columns_of) {
    if (width > 0 && total % width == 0 && total / width <= std::int64_t(most_blocks))
      add(total / width, [&](const ColumnBlock& b) { return Columns{b.begin * width, {}}; });
    return;
  }
  const auto fits = [&](std::int64_t of) {
    return std::int64_t(options.columns_of({0, 1, std::int16_t(of)}).size()) == width;
  };
  // Blocks that are all columns together, before those that some ranks have copies of.
  std::int64_t of = width > 0 && total % width == 0 ? total / width : 0;
  if (of < 1 || of > std::int64_t(most_blocks) || !fits(of))
    for (of = 1; of <= std::int64_t(most_blocks) && !fits(of);) ++of;
  if (of <= std::int64_t(most_blocks))
    add(of, [&](const ColumnBlock& b) { return Columns{0, options.columns_of(b)}; });
}

const float* TrustedPool::values_of(std::int32_t token, std::int16_t block,
                                    std::vector<float>& buffer) const {
  const Columns& columns = columns_[std::size_t(block)];
  const float* const values = tokens_[std::size_t(token)].values;
  if (columns.list.empty()) return values + columns.begin;
  buffer.resize(columns.list.size());
  for (std::size_t c = 0; c < buffer.size(); ++c) buffer[c] = values[columns.list[c]];
  return buffer.data();
}

void TrustedPool::copy(std::int32_t token, std::int16_t block, float* out) const {
  std::vector<float> buffer;
  std::copy_n(values_of(token, block, buffer), width(), out);
}

void TrustedPool::sketch_all() {
  std::vector<float> buffer;
  for (std::int16_t b = 0; b < std::int16_t(blocks_.size()); ++b) {
    const Columns& columns = columns_[std::size_t(b)];
    std::int32_t t = 0;
    for (const TrustedRows& of_rank : trusted_) {
      // All rows at once, where the columns lie side by side.
      std::vector<RowSketch> sketches;
      if (columns.list.empty())
        sketches =
            plan_.sketches(of_rank.values.data() + columns.begin, of_rank.rows, of_rank.columns);
      for (std::int64_t r = 0; r < of_rank.rows; ++r, ++t)
        order_.push_back({columns.list.empty()
                              ? sketches[std::size_t(r)]
                              : plan_.sketches(values_of(t, b, buffer), 1, width()).front(),
                          t, b});
    }
  }
  std::erase_if(order_, [](const Candidate& c) { return !std::isfinite(c.sketch[0]); });
  std::ranges::sort(order_, {}, [](const Candidate& c) { return c.sketch[0]; });
}

void TrustedPool::index_directions() {
  if (!directions_.empty()) return;
  std::vector<float> buffer;
  for (const Candidate& candidate : order_) {
    const float* const values = values_of(candidate.token, candidate.block, buffer);
    double squares = 0;
    for (std::int64_t c = 0; c < width(); ++c) squares += double(values[c]) * values[c];
    if (!(squares > 0)) continue;
    Candidate& direction = directions_.emplace_back(candidate);
    for (float& each : direction.sketch) each = float(each / std::sqrt(squares));
  }
  std::ranges::sort(directions_, {}, [](const Candidate& c) { return c.sketch[0]; });
}

std::int64_t TrustedPool::num_tokens(std::int16_t dp, std::int32_t step) const {
  return std::ranges::count_if(
      tokens_, [&](const Token& t) { return t.run.dp == dp && t.run.step == step; });
}

bool TrustedPool::is_near(const SketchedRow& row, double largest, PoolMatch& match) const {
  thread_local std::vector<float> buffer;
  const double measure = std::max(largest, std::abs(match.factor) * floor_);
  double difference = 0;
  if (!is_within(row.values, values_of(match.token, match.block, buffer), width(), match.factor,
                 tolerance_ * measure, difference))
    return false;
  match.difference = difference;
  match.error = measure > 0 ? difference / measure : 0;
  return true;
}

std::vector<PoolMatch> TrustedPool::equals(const SketchedRow& row, double largest) const {
  std::vector<PoolMatch> matches;
  if (!std::isfinite(largest)) return matches;
  const double reach = plan_.reach((tolerance_ + sketch_rounding) * scale(largest));
  for_each_near(order_, row.sketch, reach, [&](const Candidate& candidate) {
    PoolMatch match{candidate.token, candidate.block};
    if (is_near(row, largest, match)) matches.push_back(match);
    return matches.size() < most_matches;
  });
  return matches;
}

bool TrustedPool::may_equal(const RowSketch& sketch, double largest) const {
  bool found = false;
  const double reach = plan_.reach((tolerance_ + sketch_rounding) * scale(largest));
  for_each_near(order_, sketch, reach, [&](const Candidate&) { return !(found = true); });
  return found;
}

double TrustedPool::factor_of(const SketchedRow& row, std::int32_t token,
                              std::int16_t block) const {
  thread_local std::vector<float> buffer;
  const float* const values = values_of(token, block, buffer);
  double product = 0, own = 0;
  for (std::int64_t c = 0; c < width(); ++c) {
    product += double(row.values[c]) * values[c];
    own += double(values[c]) * values[c];
  }
  return own > 0 ? product / own : 0;
}

std::vector<PoolMatch> TrustedPool::multiples(const SketchedRow& row, double largest) const {
  std::vector<PoolMatch> matches;
  double squares = 0;
  for (std::int64_t c = 0; c < width(); ++c) squares += double(row.values[c]) * row.values[c];
  if (!std::isfinite(squares) || !(squares > 0)) return matches;
  const double length = std::sqrt(squares);
  const double reach = plan_.reach((tolerance_ + sketch_rounding) * largest / length);
  for (const double sign : {1.0, -1.0}) {
    RowSketch direction = row.sketch;
    for (float& each : direction) each = float(sign * each / length);
    for_each_near(directions_, direction, reach, [&](const Candidate& candidate) {
      PoolMatch exact{candidate.token, candidate.block,
                      factor_of(row, candidate.token, candidate.block)};
      PoolMatch usual{candidate.token, candidate.block, usual_factor(exact.factor)};
      if (is_near(row, largest, usual))
        matches.push_back(usual);
      else if (is_near(row, largest, exact))
        matches.push_back(exact);
      return matches.size() < most_matches;
    });
  }
  return matches;
}

}  // namespace tokenview
