// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/host_tensor.hpp"
#include "verify/compare.hpp"
#include "verify/placed_tap.hpp"
#include "verify/token_view.hpp"
#include "verify/tolerance_rules.hpp"

namespace tokenview {

/// One rank's tensor as a dump has it.
struct RankTensor {
  RankCoordinates at;
  HostTensor values;  // [rows, columns]
};

/// A tensor of the tensor-parallel ranks of one data-parallel rank, and the trusted one.
struct TapTensors {
  std::vector<RankTensor> ranks = {};  // by tp; not all of them where some have no file
  std::int64_t tp_size = 1;
  std::int16_t dp = 0;
  const HostTensor* trusted = nullptr;      // [tokens, columns]
  std::vector<std::int64_t> segments = {};  // of its columns, each cut by itself
  /// Of narrow types: what is left may be so much of the change that a term explains.
  double looseness = 0;

  std::int64_t tokens() const { return trusted->rows(); }
};

/// Which rows the ranks may hold.
struct RowLayout {
  std::vector<Rows> rows;   // of each rank given
  bool is_partial = false;  // each rank has a summand

  bool operator==(const RowLayout&) const = default;
};

/// Which columns of the trusted tensor the ranks may hold.
struct ColumnLayout {
  ColumnBlock block_of(std::int64_t tp, std::int64_t tp_size) const;

  std::vector<std::vector<std::int64_t>> columns;  // of each rank given
  std::vector<std::int64_t> blocks;  // of each segment: how many it is cut into; one: not cut
  bool is_whole() const;
};

/// The row layouts that the row counts allow, likelier ones first: full; full and partial; shards
/// of ceil(T / p) rows or, with pads, of more; shards that differ by a row; full with pads.
std::vector<RowLayout> row_layouts(const TapTensors& tap);

/// The same rows of every rank, given or found: rows `rows` of the trusted tensor.
RowLayout sampled_layout(const TapTensors& tap, const std::vector<std::int64_t>& rows);

/// The column layouts that the widths allow: all columns; each segment cut into as many blocks as
/// ranks, or into fewer where neighbouring ranks hold copies.
std::vector<ColumnLayout> column_layouts(const TapTensors& tap);

/// A tap taken as held in one way, beside the trusted tensor.
struct TapFit {
  std::vector<TokenView> views;  // of each rank given
  PlacedTap<float> placed;
  Comparison comparison;
  Judgement judgement{false, {}};
  bool complete = false;  // every token and column is held, and every summand
  bool fits() const { return complete && judgement.holds; }
};

/// `sampled`: not every token is asked for.
TapFit fit_of(const TapTensors& tap, const RowLayout& rows, const ColumnLayout& columns,
              const ToleranceRule& rule, bool sampled, int threads);

}  // namespace tokenview
