// SPDX-License-Identifier: Apache-2.0
// How much a match says, and what a row that matches nothing resembles.
#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "verify/trusted_pool.hpp"

namespace tokenview {
namespace {

/// Tokens that are all but equal in a column are taken to spread by this part of it.
constexpr double least_spread = 1e-3;

/// As like its token as this, what is missing is no summand.
constexpr double is_whole = 0.9;

}  // namespace

void TrustedPool::find_spreads() {
  constexpr std::int64_t most_columns = 64, most_tokens = 256;
  const std::int64_t column_stride = std::max<std::int64_t>(1, width() / most_columns);
  const std::int32_t token_stride =
      std::max<std::int32_t>(1, num_tokens() / std::int32_t(most_tokens));
  const bool is_few = num_tokens() < 3;
  std::vector<float> buffer;
  const auto middle_of = [](std::vector<double>& values) {
    const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
    std::ranges::nth_element(values, middle);
    return *middle;
  };
  for (std::int16_t b = 0; b < std::int16_t(blocks_.size()); ++b) {
    std::vector<std::vector<double>> columns(
        std::size_t((width() + column_stride - 1) / column_stride));
    for (std::int32_t t = 0; t < num_tokens(); t += token_stride) {
      const float* const values = values_of(t, b, buffer);
      double mean = 0;
      for (std::int64_t c = 0; c < width(); ++c) mean += values[c] / double(width());
      const double from = is_few && width() > 1 ? mean : 0;
      for (std::size_t c = 0; c < columns.size(); ++c)
        if (const float value = values[std::int64_t(c) * column_stride]; std::isfinite(value))
          columns[c].push_back(value - from);
    }
    // The median distance from the median, which a token of massive activations does not move. Of
    // one or two tokens: from their own mean. Equal tokens still tell a token from what is none.
    std::vector<double>& spreads = spreads_.emplace_back();
    for (std::vector<double>& values : columns) {
      double size = 0;
      for (const double value : values) size = std::max(size, std::abs(value));
      if (values.empty() || size == 0) continue;
      const double middle = is_few ? 0 : middle_of(values);
      for (double& value : values) value = std::abs(value - middle);
      spreads.push_back(std::max(middle_of(values), least_spread * std::abs(middle)));
    }
  }
}

std::optional<RowLikeness> TrustedPool::likeness(const SketchedRow& row) const {
  using Row = Eigen::Map<const Eigen::VectorXf>;
  if (!std::isfinite(row.largest) || row.largest == 0) return std::nullopt;
  std::vector<float> buffer;
  const Row found(row.values, width());
  const double own = found.squaredNorm();
  std::optional<RowLikeness> most;
  double second = -1;
  for (const Candidate& candidate : order_) {
    const Row block(values_of(candidate.token, candidate.block, buffer), width());
    const double product = found.dot(block), squares = block.squaredNorm();
    const double cosine = squares > 0 ? product / std::sqrt(own * squares) : 0;
    if (most && cosine <= most->cosine) {
      second = std::max(second, cosine);
      continue;
    }
    if (most) second = most->cosine;
    // A summand's product with the sum is that with itself; with a token that something was added
    // to, it is the token's.
    most = {run_of(candidate.token), blocks_[std::size_t(candidate.block)], cosine,
            cosine < is_whole && std::abs(product - own) < std::abs(product - squares)};
  }
  // Noise comes as close as sqrt(2 ln(blocks) / columns), and seldom closer.
  const double noise = (2 * std::log(double(order_.size()) + 1) + 12) / double(width());
  if (!most || most->cosine < std::sqrt(noise)) return std::nullopt;
  // Two tokens' chance likenesses to a row differ by sqrt(2 / columns).
  if (most->cosine < second + 2 * std::sqrt(2 / double(width()))) return std::nullopt;
  return most;
}

double TrustedPool::distance(const SketchedRow& row, const Candidate& candidate) const {
  thread_local std::vector<float> buffer;
  const float* const block = values_of(candidate.token, candidate.block, buffer);
  double squares = 0;
  for (std::int64_t c = 0; c < width(); ++c) {
    const double difference = double(row.values[c]) - block[c];
    squares += difference * difference;
  }
  return std::sqrt(squares);
}

PoolMatch TrustedPool::measured(const Candidate& candidate, const SketchedRow& row) const {
  thread_local std::vector<float> buffer;
  const float* const block = values_of(candidate.token, candidate.block, buffer);
  PoolMatch match{.token = candidate.token, .block = candidate.block, .is_near = true};
  for (std::int64_t c = 0; c < width(); ++c)
    match.difference = std::max(match.difference, std::abs(double(row.values[c]) - block[c]));
  match.error = match.difference / scale(row.largest);
  return match;
}

std::vector<PoolMatch> TrustedPool::nearest(const SketchedRow& row, double factor) const {
  /// Noise comes as near to some token as rarely as this, at most, where nearness explains.
  constexpr double rare = 0.05;
  if (!std::isfinite(row.largest) || row.largest == 0 || order_.empty()) return {};
  std::vector<double> distances;
  for (const Candidate& candidate : order_) distances.push_back(distance(row, candidate));
  const auto best = std::ranges::min_element(distances) - distances.begin();
  const double least = distances[std::size_t(best)];
  std::vector<float> zeros(std::size_t(width()), 0), buffer;
  const Candidate& first = order_[std::size_t(best)];
  if (factor * least > distance({zeros.data(), {}, 0}, first)) return {};
  std::vector<PoolMatch> matches = {measured(first, row)};
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (std::ptrdiff_t(i) == best || distances[i] >= factor * least) continue;
    // As near to the best as that to the row: not to be told from it.
    if (distance({values_of(order_[i].token, order_[i].block, buffer), {}, 0}, first) > least)
      return {};
    if (matches.size() < most_matches) matches.push_back(measured(order_[i], row));
  }
  if (chance(matches.front(), 1) > rare) return {};
  return matches;
}

std::optional<PoolMatch> TrustedPool::nearest_of(std::int16_t block, const SketchedRow& row,
                                                 double factor) const {
  const std::vector<float> zeros(std::size_t(width()), 0);
  const Candidate* best = nullptr;
  double least = 0;
  for (const Candidate& candidate : order_) {
    if (candidate.block != block) continue;
    const double found = distance(row, candidate);
    if (best != nullptr && !(found < least)) continue;
    best = &candidate;
    least = found;
  }
  if (best == nullptr || !(factor * least <= distance({zeros.data(), {}, 0}, *best)))
    return std::nullopt;
  return measured(*best, row);
}

std::int64_t TrustedPool::affordable_rows() const {
  return std::max<std::int64_t>(8, 2'000'000'000 / (std::int64_t(order_.size()) * width() + 1));
}

double TrustedPool::chance(const PoolMatch& match, double hypotheses) const {
  const double difference = match.difference / std::abs(match.factor);
  double logarithm = std::log(hypotheses * double(order_.size())), least = 0;
  for (const double spread : spreads_[std::size_t(match.block)]) {
    const double part = spread > 0 ? std::max(2 * difference / spread, 1e-7) : 1;
    const double column = std::log(std::min(1.0, part));
    logarithm += column;
    least = std::min(least, column);
  }
  // A factor that may be anything fits one column by itself.
  if (match.factor != usual_factor(match.factor)) logarithm -= least;
  return std::min(1.0, std::exp(logarithm));
}

}  // namespace tokenview
