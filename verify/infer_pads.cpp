// SPDX-License-Identifier: Apache-2.0
#include "verify/infer_pads.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace tokenview {
namespace {

/// What is certain of pads that hold something: that no token is left for their rows.
constexpr double by_counting = 0.9;

/// How often each token of a step is among some rows, by dp rank.
using TokenCounts = std::map<std::int16_t, std::map<std::int32_t, std::int64_t>>;

bool is_of_step(const InferredRow& row, std::int32_t step) {
  return is_token(row.best) && row.best.row.step == step;
}

TokenCounts tokens_of(std::span<const InferredRow> rows, std::int32_t step) {
  TokenCounts tokens;
  for (const InferredRow& row : rows)
    if (is_of_step(row, step)) ++tokens[row.best.row.dp][row.best.row.first];
  return tokens;
}

std::int64_t num_tokens(std::span<const TrustedRows> trusted, std::int16_t dp, std::int32_t step) {
  for (const TrustedRows& of_rank : trusted)
    if (of_rank.dp == dp && of_rank.step == step) return of_rank.rows;
  return 0;
}

}  // namespace

void name_pads(std::span<const RankRows> ranks, std::span<const TrustedRows> trusted,
               std::int32_t step, std::vector<std::vector<InferredRow>>& rows) {
  const auto is_unknown = [](const InferredRow& row) {
    return row.best.reading == RowReading::unknown;
  };
  if (std::ranges::none_of(
          rows, [&](const auto& of_rank) { return std::ranges::any_of(of_rank, is_unknown); }))
    return;
  std::vector<TokenCounts> of_ranks;
  TokenCounts of_all;
  for (const auto& of_rank : rows) {
    of_ranks.push_back(tokens_of(of_rank, step));
    for (const auto& [dp, tokens] : of_ranks.back())
      for (const auto& [token, count] : tokens) of_all[dp][token] += count;
  }
  const auto has_all = [&](const TokenCounts& tokens, std::int16_t dp) {
    const auto of_dp = tokens.find(dp);
    return of_dp != tokens.end() && std::ssize(of_dp->second) == num_tokens(trusted, dp, step);
  };
  const auto are_once = [&](std::int16_t dp) {
    return std::ranges::all_of(of_all[dp], [](const auto& token) { return token.second == 1; });
  };
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::set<std::int16_t> dps;
    for (const auto& [dp, tokens] : of_ranks[r]) dps.insert(dp);
    // A rank without a token may be a shard of pads, if it is known of which dp rank.
    if (dps.empty() && ranks[r].at) dps.insert(std::int16_t(ranks[r].at->dp));
    const bool no_token_is_left = !dps.empty() && std::ranges::all_of(dps, [&](std::int16_t dp) {
      return has_all(of_ranks[r], dp) || (has_all(of_all, dp) && are_once(dp));
    });
    if (!no_token_is_left) continue;
    for (std::int64_t i = std::ssize(rows[r]) - 1; i >= 0; --i) {
      InferredRow& row = rows[r][std::size_t(i)];
      if (is_of_step(row, step)) break;
      if (!is_unknown(row)) continue;
      row.best = {.reading = RowReading::pad,
                  .row = {.count = 1, .kind = RowKind::pad, .content = PadContent::other}};
      row.confidence = by_counting;
    }
  }
}

}  // namespace tokenview
