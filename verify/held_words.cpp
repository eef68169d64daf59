// SPDX-License-Identifier: Apache-2.0
#include "verify/held_words.hpp"

#include <algorithm>

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

/// True where rank i of n holds what rank place(i, n) is to hold.
bool is_permuted(const std::vector<TokenView>& held, const std::vector<TokenView>& required,
                 auto place) {
  const std::size_t n = held.size();
  for (std::size_t i = 0; i < n; ++i)
    if (!same_rows(held[i].rows, required[place(i, n)].rows)) return false;
  return n > 1;
}

}  // namespace

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

std::string layout_in_words(const std::vector<TokenView>& held,
                            const std::vector<TokenView>& required) {
  if (is_permuted(held, required, [](std::size_t i, std::size_t n) { return n - 1 - i; }) &&
      !are_replicated(held))
    return "reversed rank order";
  const std::string found = kind_of(held), wanted = kind_of(required);
  if (found == "columns" || wanted == "columns") {
    if (found != wanted)
      return found == "columns" ? "a block of the columns where all are due"
                                : "all columns where a block is due";
  }
  if (found == wanted) return found + " of other rows than required";
  if (found == "partial") return "partial sum where the complete value is required";
  if (wanted == "partial") return "complete value where a partial sum is due";
  return text(found, " where ", wanted, " is required");
}

}  // namespace tokenview
