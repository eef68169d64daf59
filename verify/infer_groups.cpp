// SPDX-License-Identifier: Apache-2.0
#include "verify/infer_groups.hpp"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "reference/matrix.hpp"
#include "verify/token_view.hpp"

namespace tokenview {
namespace {

constexpr std::size_t most_probes = 16;
constexpr std::size_t enough_probes = 3;  // when every rank has been seen to sum
constexpr double near_a_number = 0.02;    // factors of rows that noise has changed

using Set = std::set<std::int32_t>;

/// What one row index says of a group: these ranks sum, and those of zeros may be with them.
struct Evidence {
  Set sum, zeros;

  bool allows(const Set& ranks) const {
    return std::ranges::all_of(
        ranks, [&](std::int32_t r) { return sum.contains(r) || zeros.contains(r); });
  }
};

/// Adds a row's evidence to that which it agrees with.
void merge(std::vector<Evidence>& groups, const Evidence& found) {
  for (Evidence& group : groups) {
    if (!group.allows(found.sum) || !found.allows(group.sum)) continue;
    Set zeros;
    for (const std::int32_t r : group.zeros)
      if (found.zeros.contains(r)) zeros.insert(r);
    group.sum.insert(found.sum.begin(), found.sum.end());
    group.zeros = std::move(zeros);
    return;
  }
  groups.push_back(found);
}

/// The sets of rows, one or more, that add up to a token.
std::vector<Set> sums_to_tokens(const TrustedPool& pool,
                                const std::vector<std::pair<std::int32_t, SketchedRow>>& rows) {
  const auto n = std::ssize(rows);
  const std::int64_t width = pool.width();
  Matrix<float> values(n, width);
  for (Eigen::Index k = 0; k < n; ++k)
    values.row(k) = Eigen::Map<const Eigen::RowVectorXf>(rows[std::size_t(k)].second.values, width);
  const float largest = values.cwiseAbs().maxCoeff();
  const Eigen::MatrixXd wide = values.cast<double>();
  const Eigen::LDLT<Eigen::MatrixXd> gram(wide * wide.transpose());
  std::vector<Set> sets;
  if (gram.info() != Eigen::Success || !(gram.rcond() > 1e-10)) return sets;
  Eigen::RowVectorXf token(width), sum(width);
  for (std::int16_t b = 0; b < std::int16_t(pool.blocks().size()); ++b)
    for (std::int32_t t = 0; t < pool.num_tokens(); ++t) {
      pool.copy(t, b, token.data());
      const Eigen::VectorXd factors =
          gram.solve(Eigen::VectorXd((values * token.transpose()).cast<double>()));
      Set set;
      bool are_whole = true;
      for (Eigen::Index k = 0; k < n && are_whole; ++k) {
        const bool is_one = std::abs(factors[k] - 1) < near_a_number;
        are_whole = is_one || std::abs(factors[k]) < near_a_number;
        if (is_one) set.insert(rows[std::size_t(k)].first);
      }
      if (!are_whole || set.empty()) continue;
      sum.setZero();
      for (Eigen::Index k = 0; k < n; ++k)
        if (set.contains(rows[std::size_t(k)].first)) sum += values.row(k);
      PoolMatch match{t, b};
      if (pool.is_near({sum.data(), {}, largest}, largest, match) && pool.chance(match, 1) < 0.5)
        sets.push_back(std::move(set));
    }
  return sets;
}

bool is_equal(const SketchedRow& a, const SketchedRow& b, std::int64_t width) {
  for (std::int64_t c = 0; c < width; ++c)
    if (!(std::abs(a.values[c] - b.values[c]) <= 1e-5 * a.largest)) return false;
  return true;
}

}  // namespace

std::vector<RankSet> groups_by_coordinates(std::span<const RankAtHand* const> ranks,
                                           const RankSet& members) {
  std::map<std::tuple<int, std::int64_t, std::int64_t>, RankSet> lines;
  const auto at = [&](std::int32_t r) { return ranks[std::size_t(r)]->given().at; };
  for (const std::int32_t r : members) {
    if (!at(r)) continue;
    lines[{0, at(r)->pp, at(r)->dp}].push_back(r);
    lines[{1, 0, 0}].push_back(r);
    lines[{2, at(r)->pp, at(r)->tp}].push_back(r);
  }
  std::vector<RankSet> groups;
  for (auto& [axis, line] : lines) {
    std::ranges::sort(line, {},
                      [&](std::int32_t r) { return std::tuple(at(r)->dp, at(r)->pp, at(r)->tp); });
    if (line.size() > 1 && std::ranges::find(groups, line) == groups.end())
      groups.push_back(std::move(line));
  }
  return groups;
}

std::vector<RankSet> groups_by_values(std::span<const RankAtHand* const> ranks,
                                      const RankSet& members,
                                      const std::vector<std::vector<InferredRow>>& rows) {
  const TrustedPool& pool = ranks[std::size_t(members.front())]->pool();
  std::int64_t num_rows = 0;
  for (const std::int32_t r : members)
    num_rows = std::max(num_rows, ranks[std::size_t(r)]->num_rows());
  std::vector<Evidence> groups;
  std::vector<std::int64_t> open;  // rows that are not tokens by themselves
  for (std::int64_t i = 0; i < num_rows; ++i) {
    Set tokens, zeros;
    bool is_open = false;
    for (const std::int32_t r : members) {
      if (i >= ranks[std::size_t(r)]->num_rows()) continue;
      const RowExplanation& alone = rows[std::size_t(r)][std::size_t(i)].best;
      if (ranks[std::size_t(r)]->is_zero(i))
        zeros.insert(r);
      else if (alone.reading == RowReading::token)
        tokens.insert(r);
      else
        is_open = true;
    }
    if (is_open)
      open.push_back(i);
    else if (!zeros.empty())
      for (const std::int32_t r : tokens) merge(groups, {{r}, zeros});
  }
  const std::size_t stride = (open.size() + most_probes - 1) / most_probes;
  std::size_t probes = 0;
  Set seen;  // to be summands
  for (std::size_t o = 0; o < open.size(); o += std::max<std::size_t>(stride, 1)) {
    if (++probes > enough_probes && seen.size() == members.size()) break;
    std::vector<std::pair<std::int32_t, SketchedRow>> distinct;
    Evidence found;
    for (const std::int32_t r : members) {
      if (open[o] >= ranks[std::size_t(r)]->num_rows()) continue;
      const SketchedRow row = ranks[std::size_t(r)]->row(open[o]);
      if (row.largest == 0) found.zeros.insert(r);
      if (row.largest == 0 || !std::isfinite(row.largest)) continue;
      if (std::ranges::none_of(distinct, [&](const auto& other) {
            return is_equal(row, other.second, pool.width());
          }))
        distinct.emplace_back(r, row);
    }
    // Fewer columns than twice the ranks would let some factors fit anything.
    if (distinct.size() < 2 || pool.width() < 2 * std::ssize(distinct) ||
        distinct.size() > Completeness::max_summands)
      continue;
    for (Set& set : sums_to_tokens(pool, distinct))
      if (set.size() > 1 || !found.zeros.empty()) {
        seen.insert(set.begin(), set.end());
        found.sum = std::move(set);
        merge(groups, found);
      }
  }
  std::vector<RankSet> sets;
  for (Evidence& group : groups) {
    group.sum.insert(group.zeros.begin(), group.zeros.end());
    if (group.sum.size() > 1) sets.emplace_back(group.sum.begin(), group.sum.end());
  }
  return sets;
}

}  // namespace tokenview
