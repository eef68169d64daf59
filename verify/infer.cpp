// SPDX-License-Identifier: Apache-2.0
#include "verify/infer.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/infer_pads.hpp"
#include "verify/infer_pieces.hpp"
#include "verify/infer_rows.hpp"
#include "verify/infer_sums.hpp"

namespace tokenview {
namespace {

template <class Tensor>
void require_spanned(const char* what, std::size_t index, const Tensor& x) {
  if (x.rows < 0 || x.columns < 0 || std::int64_t(x.values.size()) != x.rows * x.columns)
    throw UsageError(text(what, ' ', index, ": ", x.values.size(), " values, expected [", x.rows,
                          ", ", x.columns, ']'));
}

/// Where in its row's order a token stands: rows of a shard or of a full tensor have one in common.
std::tuple<std::int64_t, std::int16_t, std::int32_t, std::int16_t> offset_of(
    const RowExplanation& explanation, std::int64_t i) {
  return {explanation.row.first - i, explanation.row.dp, explanation.row.step,
          explanation.columns.begin};
}

class Placement {
 public:
  Placement(std::span<const RankRows> ranks, std::span<const TrustedRows> trusted,
            const InferOptions& options)
      : given_(ranks), trusted_(trusted), options_(options) {
    tap_.step = options.step;
    for (const RankRows& rank : ranks) {
      InferredRank& inferred = tap_.ranks.emplace_back();
      inferred.at = rank.at;
      rows_.emplace_back(std::size_t(rank.rows));
      for (InferredRow& row : rows_.back()) row.best.row.kind = RowKind::mix;
    }
  }

  InferredTap inferred() {
    read_ranks();
    for (std::size_t r = 0; r < given_.size(); ++r)
      if (held_[r] != nullptr) explain_equal_rows(*held_[r], rows_[r], options_.threads);
    SumSearch sums(held_, options_.threads);
    sums.find(rows_);
    sums.explain_rows(rows_);
    for (std::size_t r = 0; r < given_.size(); ++r)
      if (held_[r] != nullptr) explain_multiples(*held_[r], rows_[r], options_.threads);
    if (any_unknown()) {
      sums.find_multiples(rows_);
      sums.explain_rows(rows_);
    }
    if (options_.nearest > 0) {
      for (std::size_t r = 0; r < given_.size(); ++r)
        if (held_[r] != nullptr)
          explain_nearest(*held_[r], rows_[r], options_.nearest, options_.threads);
      sums.find_nearest(rows_, options_.nearest);
      sums.explain_rows(rows_);
    }
    explain_mixes(held_, trusted_, options_, rows_);
    if (any_unknown()) explain_token_sums(sums);
    settle();
    if (options_.nearest > 0) explain_suggested(held_, options_.nearest, rows_);
    name_pads(given_, trusted_, options_.step, rows_);
    find_likenesses();
    for (std::size_t r = 0; r < given_.size(); ++r) {
      tap_.ranks[r].view = view_of(std::int32_t(r), sums);
      tap_.ranks[r].rows = std::move(rows_[r]);
    }
    return std::move(tap_);
  }

 private:
  void read_ranks() {
    at_hand_.reserve(given_.size());
    for (const RankRows& rank : given_) {
      const RankAtHand* held = nullptr;
      if (rank.rows > 0 && rank.columns > 0) {
        TrustedPool& pool =
            pools_.try_emplace(rank.columns, trusted_, rank.columns, options_).first->second;
        if (!pool.is_empty()) held = &at_hand_.emplace_back(rank, pool, options_.threads);
      }
      held_.push_back(held);
    }
  }

  bool any_unknown() const {
    for (const auto& rows : rows_)
      for (const InferredRow& row : rows)
        if (row.best.reading == RowReading::unknown) return true;
    return false;
  }

  /// Unknown rows, or their sums over a group, that are sums over different tokens.
  void explain_token_sums(const SumSearch& search) {
    std::map<const TrustedPool*, TokenSums> sums_of;
    std::vector<float> values;
    const auto sums_in = [&](const RankAtHand& rank) -> const TokenSums& {
      return sums_of
          .try_emplace(&rank.pool(), rank.pool(), std::max<std::int64_t>(8, std::ssize(given_)),
                       options_.tolerance)
          .first->second;
    };
    const auto note = [](InferredRow& row, InferredRow found) {
      row.best = std::move(found.best);
      row.confidence = found.confidence;
    };
    const bool are_known =
        std::ranges::all_of(given_, [](const RankRows& rank) { return rank.at.has_value(); });
    std::map<const TokenSums*, std::int64_t> rows_left;
    const auto left_for = [&](const TokenSums& sums) -> std::int64_t& {
      return rows_left.try_emplace(&sums, sums.is_able() ? sums.affordable_rows() : 0)
          .first->second;
    };
    for (std::size_t r = 0; r < given_.size(); ++r) {
      if (held_[r] == nullptr) continue;
      const TokenSums& sums = sums_in(*held_[r]);
      std::int64_t& left = left_for(sums);
      for (std::int64_t i = 0; i < given_[r].rows && left > 0; ++i) {
        InferredRow& row = rows_[r][std::size_t(i)];
        if (row.best.reading != RowReading::unknown) continue;
        --left;
        if (InferredRow sum = sums.explain(held_[r]->row(i)); sum.confidence > 0.5)
          note(row, std::move(sum));
      }
    }
    for (const SumGroup& group : search.groups()) {
      const RankAtHand& first = *held_[std::size_t(group.members.front())];
      const TokenSums& sums = sums_in(first);
      std::int64_t& left = left_for(sums);
      for (std::int64_t i = 0; i < std::ssize(group.sums) && left > 0; ++i) {
        const bool are_unknown = std::ranges::all_of(group.members, [&](std::int32_t r) {
          return held_[std::size_t(r)]->is_zero(i) ||
                 rows_[std::size_t(r)][std::size_t(i)].best.reading == RowReading::unknown;
        });
        if (!are_unknown) continue;
        const SketchedRow total = search.sum(group, i, values);
        if (total.largest == 0 || !std::isfinite(total.largest)) continue;
        --left;
        InferredRow sum = sums.explain(total);
        if (sum.confidence <= 0.5) continue;
        sum.best.partners = group.members;
        // Of ranks that nobody has named, some may sum to one token, and others to another.
        if (!are_known) sum.confidence = 0.5;
        for (const std::int32_t r : group.members) note(rows_[std::size_t(r)][std::size_t(i)], sum);
      }
    }
  }

  /// Among explanations that fit equally well, that which goes on with the rank's other rows.
  void settle() {
    for (std::size_t r = 0; r < given_.size(); ++r) {
      std::map<decltype(offset_of({}, 0)), std::int64_t> votes;
      std::int64_t i = -1;
      for (const InferredRow& row : rows_[r])
        if (++i; is_token(row.best)) {
          votes[offset_of(row.best, i)] += row.is_ambiguous() ? 1 : 1'000'000;
          for (const RowExplanation& other : row.others)
            if (is_token(other)) ++votes[offset_of(other, i)];
        }
      i = -1;
      const RowExplanation* before = nullptr;
      for (InferredRow& row : rows_[r]) {
        ++i;
        const auto rank_of = [&](const RowExplanation& e) {
          const bool goes_on = before != nullptr && e.row.first == before->row.first + 1 &&
                               e.row.dp == before->row.dp && e.row.step == before->row.step;
          const auto& at = given_[r].at;
          return std::tuple(e.row.step == options_.step, votes[offset_of(e, i)], goes_on,
                            at && at->dp == e.row.dp, -std::abs(e.row.first - i));
        };
        if (is_token(row.best)) {
          for (RowExplanation& other : row.others)
            if (other.reading == row.best.reading && rank_of(other) > rank_of(row.best))
              std::swap(other, row.best);
          before = &row.best;
        }
      }
    }
  }

  void find_likenesses() {
    std::map<const TrustedPool*, std::int64_t> rows_left;
    for (std::size_t r = 0; r < given_.size(); ++r) {
      if (held_[r] == nullptr) continue;
      const TrustedPool& pool = held_[r]->pool();
      std::int64_t& left = rows_left.try_emplace(&pool, pool.affordable_rows()).first->second;
      for (std::int64_t i = 0; i < given_[r].rows && left > 0; ++i) {
        InferredRow& row = rows_[r][std::size_t(i)];
        if (row.best.reading != RowReading::unknown) continue;
        --left;
        row.likeness = pool.likeness(held_[r]->row(i));
      }
    }
  }

  /// What most of the rank's token rows are. The others, and what is unknown, stand as MIX: a view
  /// has one multiple, one set of summands and one block for all of its rows.
  TokenView view_of(std::int32_t r, const SumSearch& sums) const {
    using Kind = std::tuple<bool, double, std::int16_t, std::int16_t>;
    const auto kind_of = [](const RowExplanation& e) {
      return Kind{e.reading == RowReading::partial, e.factor, e.columns.begin, e.columns.of};
    };
    std::map<Kind, std::int64_t> votes;
    for (const InferredRow& row : rows_[std::size_t(r)])
      if (is_token(row.best)) ++votes[kind_of(row.best)];
    TokenView view;
    Kind usual{};
    if (!votes.empty()) {
      usual = std::ranges::max_element(votes, {}, [](const auto& v) { return v.second; })->first;
      const auto& [is_partial, factor, begin, of] = usual;
      view.columns = {begin, std::int16_t(begin + 1), of};
      if (is_partial)
        if (const SumGroup* const group = sums.group_of(r)) view.sum = sums.completeness(r, *group);
      if (!multiply(view.sum, factor)) usual = {};  // of a multiple that no view can say
    }
    const RowRun mix{.count = 1, .kind = RowKind::mix};
    for (const InferredRow& row : rows_[std::size_t(r)])
      view.rows.append(is_token(row.best) && kind_of(row.best) != usual ? mix : row.best.row);
    return view;
  }

  /// By k/m; false where it is none.
  static bool multiply(Completeness& sum, double factor) {
    for (int divisor = 1; divisor <= 64; ++divisor) {
      const double times = factor * divisor;
      if (times < 0.5 || std::abs(times - std::round(times)) > 1e-9 || times > 255) continue;
      sum.multiply(std::int32_t(std::lround(times)), divisor);
      return true;
    }
    return false;
  }

  std::span<const RankRows> given_;
  std::span<const TrustedRows> trusted_;
  const InferOptions& options_;
  std::map<std::int64_t, TrustedPool> pools_;  // by width
  std::vector<RankAtHand> at_hand_;
  std::vector<const RankAtHand*> held_;  // [ranks]; null: nothing is known of its rows
  std::vector<std::vector<InferredRow>> rows_;
  InferredTap tap_;
};

}  // namespace

std::int64_t InferredTap::count(RowReading reading) const {
  std::int64_t total = 0;
  for (const InferredRank& rank : ranks)
    for (const InferredRow& row : rank.rows) total += row.best.reading == reading;
  return total;
}

InferredTap infer_placement(std::span<const RankRows> ranks, std::span<const TrustedRows> trusted,
                            const InferOptions& options) {
  for (std::size_t i = 0; i < ranks.size(); ++i) require_spanned("rank", i, ranks[i]);
  const TrustedRows* first = nullptr;  // that has rows
  for (std::size_t i = 0; i < trusted.size(); ++i) {
    require_spanned("trusted tensor", i, trusted[i]);
    if (trusted[i].rows == 0) continue;
    if (first == nullptr) first = &trusted[i];
    if (trusted[i].columns != first->columns)
      throw UsageError(text("trusted tensor ", i, ": ", trusted[i].columns, " columns, expected ",
                            first->columns, " as the first one has"));
  }
  return Placement(ranks, trusted, options).inferred();
}

}  // namespace tokenview
