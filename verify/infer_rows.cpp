// SPDX-License-Identifier: Apache-2.0
#include "verify/infer_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "verify/parallel_for.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t rows_a_task = 64;

/// What is certain of a row that the rows around it suggest, and its own values allow.
constexpr double by_suggestion = 0.9;

/// body(row) for all rows, some at a time on each thread.
template <class Body>
void for_each_row(std::int64_t count, int threads, const Body& body) {
  parallel_for((count + rows_a_task - 1) / rows_a_task, threads, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(count, (task + 1) * rows_a_task);
    for (std::int64_t i = task * rows_a_task; i < end; ++i) body(i);
  });
}

}  // namespace

RankAtHand::RankAtHand(const RankRows& given, TrustedPool& pool, int threads)
    : given_(&given),
      pool_(&pool),
      sketches_(std::size_t(given.rows)),
      largest_(std::size_t(given.rows)) {
  const std::int64_t width = given.columns;
  const float* const values = given.values.data();
  parallel_for((given.rows + rows_a_task - 1) / rows_a_task, threads, [&](std::int64_t task, int) {
    const std::int64_t begin = task * rows_a_task;
    const std::int64_t count = std::min(rows_a_task, given.rows - begin);
    const auto part = pool.plan().sketches(values + begin * width, count, width);
    std::ranges::copy(part, sketches_.begin() + begin);
    for (std::int64_t i = begin; i < begin + count; ++i) {
      float largest = 0;
      bool is_finite = true;
      for (std::int64_t c = 0; c < width; ++c) {
        const float size = std::abs(values[i * width + c]);
        is_finite &= size <= std::numeric_limits<float>::max();
        largest = std::max(largest, size);
      }
      largest_[std::size_t(i)] = is_finite ? largest : std::numeric_limits<double>::infinity();
    }
  });
}

RowExplanation explanation_of(const TrustedPool& pool, const PoolMatch& match, RowReading reading) {
  RowExplanation explanation;
  explanation.reading = reading;
  explanation.row = pool.run_of(match.token);
  explanation.columns = pool.blocks()[std::size_t(match.block)];
  explanation.factor = match.factor;
  explanation.error = match.error;
  explanation.is_near = match.is_near;
  return explanation;
}

void explain(InferredRow& row, const TrustedPool& pool, std::span<const PoolMatch> matches,
             RowReading reading, double hypotheses) {
  if (matches.empty()) return;
  const auto nearest = std::ranges::min_element(matches, {}, &PoolMatch::error);
  const double chance = pool.chance(*nearest, hypotheses);
  if (chance > 0.5) return;
  row.best = explanation_of(pool, *nearest, reading);
  row.others.clear();
  for (const PoolMatch& match : matches)
    if (&match != &*nearest) row.others.push_back(explanation_of(pool, match, reading));
  row.confidence = (1 - chance) / double(matches.size());
}

void explain_equal_rows(const RankAtHand& rank, std::span<InferredRow> rows, int threads) {
  const TrustedPool& pool = rank.pool();
  for_each_row(rank.num_rows(), threads, [&](std::int64_t i) {
    InferredRow& row = rows[std::size_t(i)];
    row.is_finite = std::isfinite(rank.largest(i));
    const std::vector<PoolMatch> matches = pool.equals(rank.row(i));
    if (!rank.is_zero(i)) return explain(row, pool, matches, RowReading::token, 1);
    row.best = {.reading = RowReading::pad, .row = {.count = 1, .kind = RowKind::pad}};
    for (const PoolMatch& match : matches)
      row.others.push_back(explanation_of(pool, match, RowReading::token));
    row.confidence = 1.0 / double(1 + matches.size());
  });
}

void explain_multiples(const RankAtHand& rank, std::span<InferredRow> rows, int threads) {
  TrustedPool& pool = rank.pool();
  if (std::ranges::none_of(
          rows, [](const InferredRow& row) { return row.best.reading == RowReading::unknown; }))
    return;
  pool.index_directions();
  for_each_row(rank.num_rows(), threads, [&](std::int64_t i) {
    InferredRow& row = rows[std::size_t(i)];
    if (row.best.reading != RowReading::unknown) return;
    explain(row, pool, pool.multiples(rank.row(i), rank.largest(i)), RowReading::token,
            usual_factors);
  });
}

void explain_nearest(const RankAtHand& rank, std::span<InferredRow> rows, double nearest,
                     int threads) {
  const TrustedPool& pool = rank.pool();
  std::vector<std::int64_t> unknown;
  for (std::int64_t i = 0; i < rank.num_rows(); ++i)
    if (rows[std::size_t(i)].best.reading == RowReading::unknown) unknown.push_back(i);
  if (std::ssize(unknown) > pool.affordable_rows())
    unknown.resize(std::size_t(pool.affordable_rows()));
  for_each_row(std::ssize(unknown), threads, [&](std::int64_t u) {
    const std::int64_t i = unknown[std::size_t(u)];
    explain(rows[std::size_t(i)], pool, pool.nearest(rank.row(i), nearest), RowReading::token, 1);
  });
}

namespace {

/// The rows that those beside row i of a rank, and the rows i of the others, suggest for it.
std::vector<RowRun> suggestions(const std::vector<std::vector<InferredRow>>& rows, std::size_t rank,
                                std::size_t i) {
  std::vector<RowRun> suggested;
  const auto add = [&](const InferredRow& row, std::int32_t further) {
    if (row.best.reading != RowReading::token || row.best.factor != 1) return;
    RowRun run = row.best.row;
    run.first += further;
    if (run.first >= 0 && std::ranges::find(suggested, run) == suggested.end())
      suggested.push_back(run);
  };
  const std::vector<InferredRow>& mine = rows[rank];
  if (i > 0) add(mine[i - 1], 1);
  if (i + 1 < mine.size()) add(mine[i + 1], -1);
  for (const std::vector<InferredRow>& other : rows)
    if (other.size() == mine.size()) add(other[i], 0);
  return suggested;
}

}  // namespace

void explain_suggested(std::span<const RankAtHand* const> ranks, double nearest,
                       std::vector<std::vector<InferredRow>>& rows) {
  const std::vector<std::vector<InferredRow>> known = rows;  // not what is suggested meanwhile
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (ranks[r] == nullptr) continue;
    const TrustedPool& pool = ranks[r]->pool();
    std::vector<std::int64_t> votes(pool.blocks().size(), 0);  // which block the rank has
    for (const InferredRow& row : known[r])
      if (is_token(row.best))
        ++votes[std::size_t(std::ranges::find(pool.blocks(), row.best.columns) -
                            pool.blocks().begin())];
    const auto most = std::ranges::max_element(votes);
    if (*most == 0) continue;
    const auto block = std::int16_t(most - votes.begin());
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      if (known[r][i].best.reading != RowReading::unknown) continue;
      const SketchedRow row = ranks[r]->row(std::int64_t(i));
      const std::optional<PoolMatch> match = pool.nearest_of(block, row, nearest);
      if (!match) continue;
      const std::vector<RowRun> suggested = suggestions(known, r, i);
      if (std::ranges::find(suggested, pool.run_of(match->token)) == suggested.end()) continue;
      rows[r][i].best = explanation_of(pool, *match, RowReading::token);
      rows[r][i].confidence = by_suggestion;
    }
  }
}

}  // namespace tokenview
