// SPDX-License-Identifier: Apache-2.0
#include "verify/held_words.hpp"

#include <algorithm>
#include <utility>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

bool any_of(const std::vector<TokenView>& ranks, auto holds) {
  return std::ranges::any_of(ranks, holds);
}

bool are_replicated(const std::vector<TokenView>& ranks) {
  return std::ranges::all_of(
      ranks, [&](const TokenView& rank) { return same_rows(rank.rows, ranks.front().rows); });
}

/// What the ranks hold in another order of ranks: place(i, n) is whose rows rank i of n has.
using Order = std::size_t (*)(std::size_t i, std::size_t n);

/// True where each rank holds the rows that another is to hold.
bool is_permuted(const std::vector<TokenView>& held, const std::vector<TokenView>& required,
                 Order place) {
  const std::size_t n = held.size();
  for (std::size_t i = 0; i < n; ++i)
    if (!same_rows(held[i].rows, required[place(i, n)].rows)) return false;
  return n > 1 && !are_replicated(held);
}

/// True where every rank holds all tokens, gathered from the shards in another order, and cut to
/// their number.
bool is_gathered_in(const std::vector<TokenView>& held, const std::vector<TokenView>& required,
                    Order place) {
  const auto n = held.size();
  const Rows& full = required.front().rows;
  const std::int64_t tokens = full.size();
  const auto share = (tokens + std::int64_t(n) - 1) / std::int64_t(n);
  Rows gathered;
  for (std::size_t i = 0; i < n; ++i) {
    const auto begin = std::min(tokens, std::int64_t(place(i, n)) * share);
    const auto end = std::min(tokens, begin + share);
    gathered.append(full.slice(begin, end));
    if (end - begin < share) gathered.append_pads(share - (end - begin));
  }
  return n > 1 && same_rows(held.front().rows, gathered.slice(0, tokens)) &&
         !same_rows(held.front().rows, full);
}

/// The same rows, but in another order.
bool are_reordered(const TokenView& held, const TokenView& required) {
  const auto tokens = [](const Rows& rows) {
    std::vector<std::int32_t> found;
    for (const RowRun& run : rows.runs())
      for (std::int32_t i = 0; i < run.count; ++i)
        if (run.kind == RowKind::token) found.push_back(run.first + i);
    std::ranges::sort(found);
    return found;
  };
  return !same_rows(held.rows, required.rows) && tokens(held.rows) == tokens(required.rows);
}

}  // namespace

Rows as_numbered_by(std::int16_t dp, const Rows& rows) {
  Rows own;
  for (RowRun run : rows.runs()) {
    if (run.kind == RowKind::token && run.dp == dp) run.dp = 0;
    own.append(run);
  }
  return own;
}

std::string view_in_words(const TokenView& view) {
  std::string words = to_map(view.rows);
  if (!view.columns.all()) words += text(" columns ", view.columns.begin, '/', view.columns.of);
  if (!view.sum.is_complete()) words += ' ' + to_string(view.sum);
  return words;
}

std::string kind_of(const std::vector<TokenView>& ranks) {
  if (any_of(ranks, [](const TokenView& view) { return view.sum.is_partial(); })) return "partial";
  if (any_of(ranks, [](const TokenView& view) { return !view.columns.all(); })) return "columns";
  return are_replicated(ranks) ? "full" : "shard";
}

std::string columns_in_words(bool holds_block) {
  return holds_block ? "a block of the columns where all are due"
                     : "all columns where a block is due";
}

std::string layout_in_words(const std::vector<TokenView>& held,
                            const std::vector<TokenView>& required) {
  constexpr std::pair<const char*, Order> orders[] = {
      {"reversed rank order", [](std::size_t i, std::size_t n) { return n - 1 - i; }},
      {"ranks rotated by one", [](std::size_t i, std::size_t n) { return (i + 1) % n; }},
      {"ranks rotated by one", [](std::size_t i, std::size_t n) { return (i + n - 1) % n; }}};
  if (held.size() == required.size() && !held.empty())
    for (const auto& [words, order] : orders)
      if (is_permuted(held, required, order) || is_gathered_in(held, required, order)) return words;
  const std::string found = kind_of(held), wanted = kind_of(required);
  // Complete values where summands are due may be those of another module's end.
  if (found == "full" && wanted == "partial" && are_reordered(held.front(), required.front()))
    return "rows in another order";
  if (found == "columns" || wanted == "columns") {
    if (found != wanted) return columns_in_words(found == "columns");
  }
  if (found == wanted)
    return are_reordered(held.front(), required.front()) ? "rows in another order"
                                                         : found + " of other rows than required";
  if (found == "partial") return "partial sum where the complete value is required";
  if (wanted == "partial") return "complete value where a partial sum is due";
  return text(found, " where ", wanted, " is required");
}

}  // namespace tokenview
