// SPDX-License-Identifier: Apache-2.0
#include "verify/infer_sums.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "verify/parallel_for.hpp"

namespace tokenview {
namespace {

bool is_near_rows(const SketchedRow& a, const SketchedRow& b, std::int64_t width,
                  double tolerance) {
  const double allowed = tolerance * std::max(a.largest, b.largest);
  for (std::int64_t c = 0; c < width; ++c)
    if (!(std::abs(double(a.values[c]) - b.values[c]) <= allowed)) return false;
  return true;
}

}  // namespace

void SumSearch::list_groups(const RowsOfRanks& rows) {
  // Only tensors of one width add up.
  std::map<std::int64_t, RankSet> by_width;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r] != nullptr) by_width[ranks_[r]->pool().width()].push_back(std::int32_t(r));
  for (const auto& [width, members] : by_width) {
    if (members.size() < 2) continue;
    const bool are_known =
        std::ranges::all_of(members, [&](std::int32_t r) { return at(r).given().at.has_value(); });
    auto sets = are_known ? groups_by_coordinates(ranks_, members)
                          : groups_by_values(ranks_, members, rows);
    if (!are_known && std::ranges::find(sets, members) == sets.end()) sets.push_back(members);
    for (RankSet& set : sets) groups_.push_back({.members = std::move(set)});
  }
}

std::int64_t SumSearch::num_rows(const SumGroup& group) const {
  std::int64_t count = std::numeric_limits<std::int64_t>::max();
  for (const std::int32_t r : group.members) count = std::min(count, at(r).num_rows());
  return count;
}

SketchedRow SumSearch::sum(const SumGroup& group, std::int64_t i,
                           std::vector<float>& values) const {
  const std::int64_t width = at(group.members.front()).pool().width();
  values.assign(std::size_t(width), 0);
  SketchedRow total{values.data(), {}, 0};
  for (const std::int32_t r : group.members) {
    const SketchedRow row = at(r).row(i);
    for (std::int64_t c = 0; c < width; ++c) values[std::size_t(c)] += row.values[c];
    for (std::size_t j = 0; j < total.sketch.size(); ++j) total.sketch[j] += row.sketch[j];
    total.largest = std::max(total.largest, row.largest);
  }
  return total;
}

void SumSearch::look_at(SumGroup& group, std::int64_t i, const RowsOfRanks& rows) const {
  const TrustedPool& pool = at(group.members.front()).pool();
  RowSketch sketch{};
  double largest = 0;
  std::int64_t not_zero = 0, tokens = 0;
  for (const std::int32_t r : group.members) {
    const SketchedRow row = at(r).row(i);
    for (std::size_t j = 0; j < sketch.size(); ++j) sketch[j] += row.sketch[j];
    largest = std::max(largest, row.largest);
    if (row.largest == 0) continue;
    ++not_zero;
    const RowExplanation& alone = rows[std::size_t(r)][std::size_t(i)].best;
    tokens += alone.reading == RowReading::token && alone.factor == 1;
  }
  SumGroup::Sum& found = group.sums[std::size_t(i)];
  if (not_zero == 0 || !std::isfinite(largest)) return;
  if (not_zero == 1) {
    if (tokens == 0) return;
    found = SumGroup::Sum::lone;
    for (const std::int32_t r : group.members)
      if (!at(r).is_zero(i)) group.matches[std::size_t(i)] = pool.equals(at(r).row(i));
    return;
  }
  if (tokens == not_zero) {
    found = SumGroup::Sum::against;
    return;
  }
  if (!pool.may_equal(sketch, largest)) return;
  thread_local std::vector<float> values;
  auto matches = pool.equals(sum(group, i, values), largest);
  // Rows that are multiples of the token by themselves are explained by that.
  std::erase_if(matches, [&](const PoolMatch& match) {
    return std::ranges::all_of(group.members, [&](std::int32_t r) {
      const SketchedRow row = at(r).row(i);
      PoolMatch multiple = match;
      multiple.factor = pool.factor_of(row, match.token, match.block);
      return pool.is_near(row, row.largest, multiple);
    });
  });
  if (matches.empty() || pool.chance(matches.front(), double(groups_.size())) > 0.5) return;
  found = SumGroup::Sum::token;
  group.matches[std::size_t(i)] = std::move(matches);
}

void SumSearch::count(SumGroup& group) const {
  group.num_tokens = std::ranges::count(group.sums, SumGroup::Sum::token);
  group.num_lone = std::ranges::count(group.sums, SumGroup::Sum::lone);
  group.num_against = std::ranges::count(group.sums, SumGroup::Sum::against);
  // Ranks that sum have every token among their rows; a shard and ranks of pads have not.
  const TrustedPool& pool = at(group.members.front()).pool();
  std::map<std::pair<std::int16_t, std::int32_t>, std::set<std::int32_t>> tokens;
  for (const auto& matches : group.matches)
    for (const PoolMatch& match : matches) {
      const RowRun token = pool.run_of(match.token);
      tokens[{token.dp, token.step}].insert(token.first);
    }
  group.has_all_tokens = std::ranges::any_of(tokens, [&](const auto& of_dp) {
    return std::ssize(of_dp.second) == pool.num_tokens(of_dp.first.first, of_dp.first.second);
  });
}

void SumSearch::find(const RowsOfRanks& rows) {
  list_groups(rows);
  parallel_for(std::int64_t(groups_.size()), threads_, [&](std::int64_t g, int) {
    SumGroup& group = groups_[std::size_t(g)];
    const std::int64_t count_of_rows = num_rows(group);
    group.sums.assign(std::size_t(count_of_rows), SumGroup::Sum::nothing);
    group.matches.assign(std::size_t(count_of_rows), {});
    for (std::int64_t i = 0; i < count_of_rows; ++i) look_at(group, i, rows);
    count(group);
  });
}

template <class MatchesOf>
void SumSearch::find_further(const RowsOfRanks& rows, double hypotheses,
                             const MatchesOf& matches_of) {
  std::vector<float> values;
  for (SumGroup& group : groups_) {
    TrustedPool& pool = at(group.members.front()).pool();
    for (std::int64_t i = 0; i < std::int64_t(group.sums.size()); ++i) {
      if (group.sums[std::size_t(i)] != SumGroup::Sum::nothing) continue;
      bool are_unknown = true;
      for (const std::int32_t r : group.members)
        are_unknown &= at(r).is_zero(i) ||
                       rows[std::size_t(r)][std::size_t(i)].best.reading == RowReading::unknown;
      if (!are_unknown) continue;
      const SketchedRow total = sum(group, i, values);
      if (total.largest == 0 || !std::isfinite(total.largest)) continue;
      std::vector<PoolMatch> matches = matches_of(pool, total);
      if (matches.empty() ||
          pool.chance(matches.front(), hypotheses * double(groups_.size())) > 0.5)
        continue;
      group.sums[std::size_t(i)] = SumGroup::Sum::token;
      group.matches[std::size_t(i)] = std::move(matches);
    }
    count(group);
  }
}

void SumSearch::find_multiples(const RowsOfRanks& rows) {
  find_further(rows, usual_factors, [](TrustedPool& pool, const SketchedRow& total) {
    pool.index_directions();
    return pool.multiples(total, total.largest);
  });
}

void SumSearch::find_nearest(const RowsOfRanks& rows, double nearest) {
  find_further(rows, 1, [nearest](TrustedPool& pool, const SketchedRow& total) {
    return pool.nearest(total, nearest);
  });
}

namespace {

bool has(const SumGroup& group, std::int32_t rank) {
  return std::ranges::find(group.members, rank) != group.members.end();
}

/// Of the rows that this group explains, how many it alone does.
std::pair<std::int64_t, std::int64_t> weight_of(const SumGroup& group) {
  return {group.num_tokens, group.num_lone};
}

/// A token and zeros are summands only as long as no other rows say that the ranks hold tokens.
bool explains_any(const SumGroup& group) {
  return group.num_tokens > 0 ||
         (group.num_lone > 0 && group.num_against == 0 && group.has_all_tokens);
}

bool is_summand(const InferredRow& row) {
  const auto is_partial = [](const RowExplanation& e) { return e.reading == RowReading::partial; };
  return is_partial(row.best) || std::ranges::any_of(row.others, is_partial);
}

}  // namespace

const SumGroup* SumSearch::group_of(std::int32_t rank) const {
  const SumGroup* best = nullptr;
  for (const SumGroup& group : groups_)
    if (has(group, rank) && explains_any(group) &&
        (best == nullptr || weight_of(group) > weight_of(*best)))
      best = &group;
  return best;
}

InferredRow SumSearch::as_summand(const SumGroup& group, std::int64_t i) const {
  InferredRow row;
  if (i >= std::ssize(group.sums)) return row;
  const TrustedPool& pool = at(group.members.front()).pool();
  const auto hypotheses = double(groups_.size());
  explain(row, pool, group.matches[std::size_t(i)], RowReading::partial, hypotheses);
  if (row.best.reading != RowReading::partial) return row;
  row.best.partners = group.members;
  for (RowExplanation& other : row.others) other.partners = group.members;
  return row;
}

bool SumSearch::is_all_zero(std::int32_t rank, const SumGroup& group) const {
  for (std::size_t i = 0; i < group.sums.size(); ++i)
    if ((group.sums[i] == SumGroup::Sum::token || group.sums[i] == SumGroup::Sum::lone) &&
        !at(rank).is_zero(std::int64_t(i)))
      return false;
  return true;
}

void SumSearch::explain_rows(RowsOfRanks& rows) const {
  for (std::int32_t r = 0; r < std::int32_t(ranks_.size()); ++r) {
    const SumGroup* const group = group_of(r);
    if (group == nullptr) continue;
    const bool sums_decide = group->num_tokens > group->num_against;
    const bool is_zero_rank = is_all_zero(r, *group);
    for (std::int64_t i = 0; i < at(r).num_rows(); ++i) {
      InferredRow& row = rows[std::size_t(r)][std::size_t(i)];
      if (is_summand(row)) continue;
      InferredRow summand = as_summand(*group, i);
      if (is_zero_rank)  // of this group, or of another
        for (const SumGroup& another : groups_)
          if (&another != group && has(another, r) && explains_any(another)) {
            const InferredRow also = as_summand(another, i);
            if (also.best.reading != RowReading::partial) continue;
            if (summand.best.reading == RowReading::partial)
              summand.others.push_back(also.best);
            else
              summand = also;
          }
      if (summand.best.reading != RowReading::partial) continue;
      const bool is_lone = i < std::ssize(group->sums) &&
                           group->sums[std::size_t(i)] == SumGroup::Sum::lone && !sums_decide;
      // A token by itself, among rows of so few columns that their sum is another by accident.
      const bool is_by_itself = row.best.reading == RowReading::token &&
                                i < std::ssize(group->sums) &&
                                group->sums[std::size_t(i)] == SumGroup::Sum::token &&
                                row.confidence >= summand.confidence;
      if (!is_lone && !is_zero_rank && !is_by_itself) {
        row = std::move(summand);
        continue;
      }
      // One row that is a token while the others are zeros is a shard's, rather; several are not.
      if (is_lone ? group->num_lone > 1 : is_zero_rank) std::swap(row, summand);
      row.others.push_back(summand.best);
      std::ranges::move(summand.others, std::back_inserter(row.others));
      row.confidence = 1.0 / double(1 + row.others.size());
    }
  }
}

Completeness SumSearch::completeness(std::int32_t rank, const SumGroup& group) const {
  const auto place = [](const std::vector<std::int32_t>& members, std::int32_t r) {
    return std::int64_t(std::ranges::find(members, r) - members.begin());
  };
  const auto size = std::int64_t(group.members.size());
  if (size > std::int64_t(Completeness::max_summands)) return Completeness::complete();
  // Ranks outside of the group with the rows of a member: the members are sums themselves.
  const std::int64_t width = at(rank).pool().width();
  std::vector<std::int32_t> all, same;
  const auto sample = std::ranges::find(group.sums, SumGroup::Sum::token) - group.sums.begin();
  for (std::int32_t r = 0; r < std::int32_t(ranks_.size()); ++r) {
    if (ranks_[std::size_t(r)] == nullptr || sample == std::ssize(group.sums)) continue;
    if (at(r).pool().width() != width || at(r).num_rows() <= sample) continue;
    for (const std::int32_t member : group.members)
      if (r == member ||
          (std::ranges::find(group.members, r) == group.members.end() && !at(r).is_zero(sample) &&
           is_near_rows(at(r).row(sample), at(member).row(sample), width, 1e-6))) {
        all.push_back(r);
        if (member == rank) same.push_back(r);
        break;
      }
  }
  const auto present = std::ranges::count_if(ranks_, [](const auto* r) { return r != nullptr; });
  if (std::ssize(all) <= size || std::ssize(all) != present ||
      std::ssize(all) > std::int64_t(Completeness::max_summands))
    return Completeness::summand(place(group.members, rank), size);
  const auto order = [&](std::int32_t r) {
    const auto& known = at(r).given().at;
    return known ? std::tuple(known->dp, known->pp, known->tp, std::int64_t(r))
                 : std::tuple(std::int64_t(0), std::int64_t(0), std::int64_t(0), std::int64_t(r));
  };
  std::ranges::sort(all, {}, order);
  // Counted in before it is made as short as it can be: all over one size.
  Completeness counts = Completeness::summand(place(all, same.front()), std::ssize(all));
  for (std::size_t s = 1; s < same.size(); ++s)
    counts.count_in(Completeness::summand(place(all, same[s]), std::ssize(all)));
  counts.normalise();
  return counts;
}

}  // namespace tokenview
