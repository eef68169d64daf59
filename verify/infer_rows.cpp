// SPDX-License-Identifier: Apache-2.0
#include "verify/infer_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/parallel_for.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t rows_a_task = 64;

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

}  // namespace tokenview
