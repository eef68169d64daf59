// SPDX-License-Identifier: Apache-2.0
#include "verify/tap_fit.hpp"

#include <algorithm>
#include <span>

#include "verify/host_matrix.hpp"

namespace tokenview {
namespace {

Rows token_rows(std::int64_t first, std::int64_t count, std::int16_t dp) {
  Rows rows;
  if (count > 0) rows.append({std::int32_t(first), std::int32_t(count), dp});
  return rows;
}

/// Rows [begin, begin + count) of T tokens, with pads for those past the last.
Rows rows_with_pads(std::int64_t begin, std::int64_t count, std::int64_t tokens, std::int16_t dp) {
  const std::int64_t held = std::clamp<std::int64_t>(tokens - begin, 0, count);
  Rows rows = token_rows(begin, held, dp);
  if (count > held) rows.append_pads(count - held);
  return rows;
}

/// Divisors of n, largest first.
std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = n; d >= 1; --d)
    if (n % d == 0) found.push_back(d);
  return found;
}

std::vector<std::int64_t> columns_of_blocks(const std::vector<std::int64_t>& segments,
                                            const std::vector<std::int64_t>& blocks,
                                            std::int64_t tp, std::int64_t tp_size) {
  std::vector<std::int64_t> columns;
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const std::int64_t share = segments[s] / blocks[s];
    const std::int64_t block = tp / (tp_size / blocks[s]);
    for (std::int64_t c = 0; c < share; ++c) columns.push_back(begin + block * share + c);
    begin += segments[s];
  }
  return columns;
}

}  // namespace

ColumnBlock ColumnLayout::block_of(std::int64_t tp, std::int64_t tp_size) const {
  const std::int64_t of = blocks.front();
  const auto block = std::int16_t(tp / (tp_size / of));
  return of == 1 ? ColumnBlock() : ColumnBlock{block, std::int16_t(block + 1), std::int16_t(of)};
}

bool ColumnLayout::is_whole() const {
  return std::ranges::all_of(blocks, [](std::int64_t of) { return of == 1; });
}

std::vector<RowLayout> row_layouts(const TapTensors& tap) {
  std::vector<RowLayout> layouts;
  const std::int64_t tokens = tap.tokens(), size = tap.tp_size;
  const auto all_have = [&](auto rows_of) {
    return std::ranges::all_of(
        tap.ranks, [&](const RankTensor& rank) { return rank.values.rows() == rows_of(rank.at); });
  };
  const auto add = [&](auto rows_of, bool is_partial = false) {
    RowLayout layout{{}, is_partial};
    for (const RankTensor& rank : tap.ranks) layout.rows.push_back(rows_of(rank.at));
    layouts.push_back(std::move(layout));
  };
  const auto all_tokens = [&](const RankCoordinates&) { return token_rows(0, tokens, tap.dp); };
  if (all_have([&](const RankCoordinates&) { return tokens; })) {
    add(all_tokens);
    if (size > 1) add(all_tokens, true);
  }
  const std::int64_t rows = tap.ranks.front().values.rows();
  const bool are_equal = all_have([&](const RankCoordinates&) { return rows; });
  if (size > 1 && are_equal && size * rows >= tokens && (rows < tokens || tokens == rows))
    if (rows < tokens || tokens == 1)
      add([&](const RankCoordinates& at) {
        return rows_with_pads(at.tp * rows, rows, tokens, tap.dp);
      });
  const auto share = [&](const RankCoordinates& at) {
    return tokens / size + (at.tp < tokens % size ? 1 : 0);
  };
  if (size > 1 && tokens % size != 0 && all_have(share))
    add([&](const RankCoordinates& at) {
      return token_rows(at.tp * (tokens / size) + std::min(at.tp, tokens % size), share(at),
                        tap.dp);
    });
  if (are_equal && rows > tokens) {
    const auto padded = [&](const RankCoordinates&) {
      return rows_with_pads(0, rows, tokens, tap.dp);
    };
    add(padded);
    if (size > 1) add(padded, true);
  }
  return layouts;
}

RowLayout sampled_layout(const TapTensors& tap, const std::vector<std::int64_t>& rows) {
  Rows held;
  for (const std::int64_t row : rows) held.append({std::int32_t(row), 1, tap.dp});
  return {std::vector<Rows>(tap.ranks.size(), held)};
}

std::vector<ColumnLayout> column_layouts(const TapTensors& tap) {
  const std::vector<std::int64_t> segments =
      tap.segments.empty() ? std::vector{tap.trusted->cols()} : tap.segments;
  const std::int64_t width = tap.ranks.front().values.cols();
  for (const RankTensor& rank : tap.ranks)
    if (rank.values.cols() != width) return {};

  std::vector<ColumnLayout> layouts;
  const auto try_blocks = [&](const std::vector<std::int64_t>& blocks) {
    std::int64_t found = 0;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      if (segments[s] % blocks[s] != 0) return;
      found += segments[s] / blocks[s];
    }
    if (found != width) return;
    ColumnLayout layout{{}, blocks};
    for (const RankTensor& rank : tap.ranks)
      layout.columns.push_back(columns_of_blocks(segments, blocks, rank.at.tp, tap.tp_size));
    layouts.push_back(std::move(layout));
  };
  // The first segment by itself: queries are cut into more blocks than keys and values.
  for (const std::int64_t first : divisors(tap.tp_size))
    for (const std::int64_t others : divisors(segments.size() > 1 ? first : 1)) {
      std::vector<std::int64_t> blocks(segments.size(), others);
      blocks.front() = first;
      try_blocks(blocks);
    }
  return layouts;
}

TapFit fit_of(const TapTensors& tap, const RowLayout& rows, const ColumnLayout& columns,
              const ToleranceRule& rule, bool sampled, int threads) {
  TapFit fit;
  std::vector<HeldTensor<float>> held;
  for (std::size_t i = 0; i < tap.ranks.size(); ++i) {
    const RankTensor& rank = tap.ranks[i];
    held.push_back(
        {rank.at, as_matrix(rank.values), rows.rows[i], rows.is_partial, columns.columns[i]});
    fit.views.push_back(
        {rows.rows[i],
         rows.is_partial ? Completeness::summand(rank.at.tp, tap.tp_size) : Completeness(),
         columns.block_of(rank.at.tp, tap.tp_size)});
  }
  fit.placed = placed<float>(held, tap.dp, tap.tp_size, as_matrix(*tap.trusted),
                             [](const RowRun& row) { return std::int64_t(row.first); });
  if (!fit.placed.other_shapes.empty() || !fit.placed.strangers.empty()) return fit;

  std::vector<float> found, trusted;
  std::int64_t row_columns = 0;
  for (const PlacedValues<float>& values : fit.placed.values) {
    found.insert(found.end(), values.found.begin(), values.found.end());
    trusted.insert(trusted.end(), values.trusted.begin(), values.trusted.end());
    row_columns = values.columns();
  }
  CompareOptions options =
      compare_options(rule, StorageType::float32, StorageType::float32, row_columns);
  options.threads = threads;
  fit.comparison =
      compare(std::as_bytes(std::span(found)), std::as_bytes(std::span(trusted)), options);
  fit.judgement = judge(fit.comparison, rule);
  fit.complete = sampled || fit.placed.absent_rows.empty();
  return fit;
}

}  // namespace tokenview
