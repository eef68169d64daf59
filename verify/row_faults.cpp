// SPDX-License-Identifier: Apache-2.0
#include "verify/row_faults.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/held_words.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t most_rows = 16;  // that are listed one by one

std::int32_t pass_of_step(std::int32_t step) { return -1 - step; }

std::string row_in_words(const RowExplanation& row, std::int16_t dp, std::int32_t step) {
  switch (row.reading) {
    case RowReading::token:
    case RowReading::partial: {
      std::string words = row.factor == 1 ? "" : factor_as_number(row.factor) + "x";
      if (row.row.step < 0)
        words += text("draft", pass_of_step(row.row.step), ':');
      else if (row.row.step != step)
        words += text("step", row.row.step, ':');
      if (row.row.dp != dp) words += text('d', row.row.dp, ':');
      return words + (row.is_near ? "~" : "") + std::to_string(row.row.first);
    }
    case RowReading::pad:
      return row.row.content == PadContent::other ? "?" : "PAD";
    case RowReading::mix:
      return "MIX";
    case RowReading::sum:
      return "SUM";
    case RowReading::unknown:
      return "?";
  }
  return "?";
}

/// What the rows of the ranks are, counted.
struct Findings {
  std::int64_t right = 0, moved = 0, lost = 0, garbage_in_pads = 0, mixed = 0, unknown = 0,
               parts = 0, stale = 0, other_sum = 0, not_finite = 0;
  std::int64_t moved_surely = 0;         // of those moved
  std::int64_t near = 0;                 // nearest to the token that is due, and not equal to it
  std::optional<std::int16_t> other_dp;  // whose rows are here
  std::optional<std::int32_t> other_pass;
  std::map<double, std::int64_t> factors, faint_factors;
  std::int64_t partial = 0;

  void add(const InferredRow& row, const RowRun* required, std::int16_t dp, std::int32_t step) {
    const RowExplanation& e = row.best;
    const bool pad_is_due = required != nullptr && required->kind == RowKind::pad;
    const bool is_of_here = e.reading == RowReading::token && e.row.step == step && e.row.dp == dp;
    const bool is_zero = e.reading == RowReading::pad && e.row.content == PadContent::zero;
    // Another error as large as the row's own might have made the factor.
    const bool is_faint = e.factor != 1 && std::abs(e.factor - 1) < 4 * e.error;
    if (pad_is_due && !is_of_here && !is_zero) {
      ++garbage_in_pads;
      return;
    }
    not_finite += !row.is_finite;
    switch (e.reading) {
      case RowReading::token:
      case RowReading::partial:
        if (e.row.step != step && row.is_sure()) {
          if (e.row.step < 0)
            other_pass = pass_of_step(e.row.step);
          else
            ++stale;
        }
        if (e.row.dp != dp && (!e.is_near || row.is_sure())) other_dp = e.row.dp;
        if (is_faint)
          ++faint_factors[e.factor];
        else if (e.factor != 1)
          ++factors[e.factor];
        partial += e.reading == RowReading::partial;
        if (required != nullptr && *required != e.row) {
          ++moved;
          moved_surely += !e.is_near || row.is_sure();
        } else {
          ++(e.is_near || is_faint ? near : right);
        }
        break;
      case RowReading::pad:
        if (e.row.content == PadContent::other)
          ++unknown;
        else if (e.row.content == PadContent::stale)
          ++stale;
        else if (required == nullptr || pad_is_due)
          ++right;
        else
          ++lost;
        break;
      case RowReading::mix:
        ++mixed;
        break;
      case RowReading::sum:
        ++other_sum;
        for (const RowPiece& piece : e.pieces)
          if (piece.row.kind == RowKind::token && piece.row.dp != dp) other_dp = piece.row.dp;
        break;
      case RowReading::unknown:
        ++unknown;
        parts += row.likeness && row.likeness->is_part;
        break;
    }
  }
};

}  // namespace

const char* const part_of_the_value = "a part of the value";

std::string rows_in_words(const InferredRank& rank, std::int16_t dp, std::int32_t step) {
  const auto words_at = [&](std::size_t i) {
    const InferredRow& row = rank.rows[i];
    return row.is_finite ? row_in_words(row.best, dp, step) : "NaN";
  };
  const auto goes_on = [&](std::size_t i) {  // with the token after that of the row before
    const RowExplanation &a = rank.rows[i - 1].best, &b = rank.rows[i].best;
    return is_token(a) && a.reading == b.reading && a.factor == b.factor && a.row.dp == b.row.dp &&
           a.row.step == b.row.step && a.is_near == b.is_near && a.row.first + 1 == b.row.first;
  };
  const bool in_runs = std::ssize(rank.rows) > most_rows;
  std::string words = "[";
  for (std::size_t begin = 0, end = 0; begin < rank.rows.size(); begin = end) {
    const std::string first = words_at(begin);
    for (end = begin + 1; in_runs && end < rank.rows.size() && goes_on(end);) ++end;
    const bool is_range = end - begin > 1;
    while (in_runs && !is_range && end < rank.rows.size() && words_at(end) == first) ++end;
    words += (begin == 0 ? "" : ",") + first;
    if (is_range) words += '-' + words_at(end - 1);
    if (!is_range && end - begin > 1) words += text('*', end - begin);
  }
  words += ']';
  if (!rank.view.columns.all()) words += " columns " + to_string(rank.view.columns);
  if (rank.view.sum.is_partial()) words += ' ' + to_string(rank.view.sum);
  return words;
}

std::string factor_in_words(double factor, std::int64_t ranks) {
  const std::string times = factor_as_number(factor);
  if (factor == double(ranks) && ranks > 1)
    return ranks == 2 ? "summed twice" : text("summed twice: ", times, " times the value");
  const bool is_part = factor > 0 && factor < 1 && times.find('/') != std::string::npos;
  return text(times, is_part ? " of the value" : " times the value");
}

std::string fault_in_words(const std::vector<InferredRank>& ranks,
                           const std::vector<TokenView>& required, std::int16_t dp,
                           std::int32_t step) {
  Findings found;
  bool has_other_counts = false;  // of rows than are due
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool is_known =
        i < required.size() && required[i].rows.size() == std::ssize(ranks[i].rows);
    has_other_counts |= i < required.size() && !is_known;
    for (std::size_t row = 0; row < ranks[i].rows.size(); ++row) {
      const RowRun due = is_known ? required[i].rows.at(std::int64_t(row)) : RowRun{};
      found.add(ranks[i].rows[row], is_known ? &due : nullptr, dp, step);
    }
  }
  if (found.not_finite > 0)
    return text("NaN or infinity in ", plural(found.not_finite, "row"), " of tokens");
  if (found.stale > 0) return "rows of another step";
  if (found.other_pass) return text("rows of another pass: draft step ", *found.other_pass);
  if (found.other_dp)
    return text("wrong group: ", found.other_sum > 0 ? "a sum with rows" : "rows",
                " of dp=", *found.other_dp);
  if (found.other_sum > 0) return "sum over different tokens";
  std::int64_t faint = 0;
  for (const auto& [factor, count] : found.faint_factors) faint += count;
  if (2 * faint > found.right + found.near + found.moved) found.factors.merge(found.faint_factors);
  if (!found.factors.empty()) {
    const auto most =
        std::ranges::max_element(found.factors, {}, [](const auto& entry) { return entry.second; });
    return factor_in_words(most->first, std::int64_t(ranks.size()));
  }
  // A row that is only near its own token is a wrong value, unless others say what is wrong.
  const bool are_elsewhere = found.moved_surely > 0 || has_other_counts;
  if (!are_elsewhere) found.unknown += found.near + found.moved;
  if (found.mixed > 0) return "columns of different tokens side by side";
  if (found.unknown == 0) {
    const bool due_is_partial =
        std::ranges::any_of(required, [](const TokenView& view) { return view.sum.is_partial(); });
    if (found.partial > 0 && !required.empty() && !due_is_partial)
      return "partial sum where the complete value is required";
    if (found.garbage_in_pads > 0 && found.moved == 0) return "pads poisoned";
    if (found.lost > 0 && found.moved == 0 && !has_other_counts)
      return "zeros where tokens are due";
    if (are_elsewhere) {
      std::vector<TokenView> views;
      for (const InferredRank& rank : ranks) views.push_back(rank.view);
      return layout_in_words(views, required);
    }
  }
  for (std::size_t i = 0; i < std::min(ranks.size(), required.size()); ++i)
    if (found.unknown == 0 && ranks[i].view.columns.all() != required[i].columns.all())
      return columns_in_words(!ranks[i].view.columns.all());
  if (found.parts > 0 && 2 * found.parts >= found.unknown) return part_of_the_value;
  return {};
}

std::string unknown_ranks_in_words(const std::vector<InferredRank>& ranks) {
  const auto is_unknown = [](const InferredRow& row) {
    return row.best.reading == RowReading::unknown ||  // or a pad, for want of another token
           (row.best.reading == RowReading::pad && row.best.row.content == PadContent::other);
  };
  const auto ranks_with = [&](const auto& is_wrong) {
    std::string names;
    std::int64_t count = 0;
    for (const InferredRank& rank : ranks) {
      if (std::ranges::none_of(rank.rows, is_wrong)) continue;
      ++count;
      if (rank.at) names += (names.empty() ? "tp=" : ", ") + std::to_string(rank.at->tp);
    }
    return std::pair(count, names);
  };
  // What is wrong with a sum may be any rank's.
  if (std::ranges::any_of(ranks, [](const InferredRank& r) { return r.view.sum.is_partial(); }))
    return {};
  auto [count, names] = ranks_with(is_unknown);
  if (count == 0)  // then those that are near what is due, and may be right
    std::tie(count, names) = ranks_with([](const InferredRow& row) { return row.best.is_near; });
  return count == 0 || count == std::ssize(ranks) || names.empty()
             ? ""
             : text("other values on ", names, " alone");
}

std::string row_counts_in_words(const std::vector<InferredRank>& ranks,
                                const std::vector<TokenView>& required) {
  for (std::size_t i = 0; i < std::min(ranks.size(), required.size()); ++i)
    if (const std::int64_t due = required[i].rows.size(); std::ssize(ranks[i].rows) != due)
      return text(plural(std::ssize(ranks[i].rows), "row"), " where ", due,
                  due == 1 ? " is due" : " are due");
  return {};
}

}  // namespace tokenview
