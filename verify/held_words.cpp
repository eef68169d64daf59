// SPDX-License-Identifier: Apache-2.0
#include "verify/held_words.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
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

/// A token as dp rank, step and row.
using Token = std::tuple<std::int16_t, std::int32_t, std::int32_t>;

std::vector<Token> tokens_of(const Rows& rows) {
  std::vector<Token> tokens;
  for (const RowRun& run : rows.runs())
    for (std::int32_t i = 0; i < run.count; ++i)
      if (run.kind == RowKind::token) tokens.emplace_back(run.dp, run.step, run.first + i);
  return tokens;
}

std::vector<Token> sorted(std::vector<Token> tokens) {
  std::ranges::sort(tokens);
  return tokens;
}

/// The same rows, but in another order.
bool are_reordered(const TokenView& held, const TokenView& required) {
  return !same_rows(held.rows, required.rows) &&
         sorted(tokens_of(held.rows)) == sorted(tokens_of(required.rows));
}

/// True where each rank has what is due but for more, or fewer, rows.
bool differ_in_rows_alone(const std::vector<TokenView>& held,
                          const std::vector<TokenView>& required) {
  return std::ranges::equal(held, required, [](const TokenView& a, const TokenView& b) {
    return a.sum.is_partial() == b.sum.is_partial() && a.columns.all() == b.columns.all();
  });
}

/// True where every rank has the rows of `longer` that come first in it, and behind them pads.
bool has_pads_behind(const std::vector<TokenView>& longer, const std::vector<TokenView>& rows) {
  bool any = false;
  for (std::size_t i = 0; i < longer.size(); ++i) {
    const std::int64_t size = rows[i].rows.size(), more = longer[i].rows.size() - size;
    if (more < 0 || !same_rows(longer[i].rows.slice(0, size), rows[i].rows) ||
        longer[i].rows.slice(size, size + more).count(RowKind::pad) != more)
      return false;
    any |= more > 0;
  }
  return any;
}

/// "row 9 is missing", "rows 2, 5-8 are missing": tokens that are due and that no rank holds.
std::string missing_in_words(const std::vector<TokenView>& held,
                             const std::vector<TokenView>& required) {
  std::set<Token> due, found;
  for (const TokenView& view : required)
    for (const Token& token : tokens_of(view.rows)) due.insert(token);
  for (const TokenView& view : held)
    for (const Token& token : tokens_of(view.rows)) found.insert(token);
  std::vector<Token> missing;
  std::ranges::set_difference(due, found, std::back_inserter(missing));
  std::string rows;
  for (std::size_t begin = 0, end = 0; begin < missing.size(); begin = end) {
    const auto [dp, step, first] = missing[begin];
    for (end = begin + 1; end < missing.size() &&
                          missing[end] == Token(dp, step, first + std::int32_t(end - begin));)
      ++end;
    rows += text(rows.empty() ? "" : ", ", first);
    if (end - begin > 1) rows += text('-', std::get<2>(missing[end - 1]));
  }
  if (rows.empty()) return {};
  return missing.size() == 1 ? text("row ", rows, " is missing")
                             : text("rows ", rows, " are missing");
}

/// True where each rank holds rows that are due there, in order, and no others.
bool are_some_of(const std::vector<TokenView>& held, const std::vector<TokenView>& required) {
  for (std::size_t i = 0; i < held.size(); ++i) {
    const std::vector<Token> mine = tokens_of(held[i].rows), due = tokens_of(required[i].rows);
    auto at = due.begin();
    for (const Token& token : mine) {
      at = std::find(at, due.end(), token);
      if (at == due.end()) return false;
      ++at;
    }
  }
  return true;
}

/// "tp=1, 2, 3 hold the rows of tp=0", "tp=1 and tp=2 hold each other's rows"; empty where it is
/// neither. The views are those of the ranks of a group, in order.
std::string exchange_in_words(const std::vector<TokenView>& held,
                              const std::vector<TokenView>& required) {
  if (are_replicated(required)) return {};
  std::vector<std::pair<std::size_t, std::size_t>> others;  // a rank, and whose rows it has
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (same_rows(held[i].rows, required[i].rows)) continue;
    const auto whose = std::ranges::find_if(
        required, [&](const TokenView& view) { return same_rows(held[i].rows, view.rows); });
    if (whose == required.end()) return {};
    others.emplace_back(i, whose - required.begin());
  }
  if (others.empty()) return {};
  if (others.size() == 2 && others[0] == std::pair(others[1].second, others[1].first))
    return text("tp=", others[0].first, " and tp=", others[1].first, " hold each other's rows");
  std::string ranks;
  for (const auto& [rank, whose] : others) {
    if (whose != others.front().second) return {};
    ranks += text(ranks.empty() ? "tp=" : ", ", rank);
  }
  return text(ranks, others.size() == 1 ? " holds" : " hold",
              " the rows of tp=", others.front().second);
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
  if (differ_in_rows_alone(held, required)) {
    if (has_pads_behind(held, required)) return "not trimmed: pads left on";
    if (has_pads_behind(required, held)) return "not padded: the pads are missing";
    const std::string missing = missing_in_words(held, required);
    if (const std::string exchange = exchange_in_words(held, required); !exchange.empty())
      return missing.empty() ? exchange : text(exchange, ": ", missing);
    if (!missing.empty() && are_some_of(held, required)) return missing;
    bool is_order = false;  // of some ranks, where the others have their rows
    for (std::size_t i = 0; i < held.size(); ++i) is_order |= are_reordered(held[i], required[i]);
    for (std::size_t i = 0; i < held.size(); ++i)
      is_order &= same_rows(held[i].rows, required[i].rows) || are_reordered(held[i], required[i]);
    if (is_order) return "rows in another order";
  }
  const std::string found = kind_of(held), wanted = kind_of(required);
  // Complete values where summands are due may be those of another module's end.
  if (found == "full" && wanted == "partial" && are_reordered(held.front(), required.front()))
    return "rows in another order";
  if (found == "columns" || wanted == "columns") {
    if (found != wanted) return columns_in_words(found == "columns");
  }
  if (found == wanted) {
    if (are_reordered(held.front(), required.front())) return "rows in another order";
    const std::string missing = missing_in_words(held, required);
    return text(found == "columns" ? "other rows" : found + " of other rows", " than required",
                missing.empty() ? "" : ": " + missing);
  }
  if (found == "partial") return "partial sum where the complete value is required";
  if (wanted == "partial") return "complete value where a partial sum is due";
  return text(found, " where ", wanted, " is required");
}

}  // namespace tokenview
