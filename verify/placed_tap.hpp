// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "verify/number_run.hpp"

namespace tokenview {

/// The trusted tensor's columns that a rank's block of the tap `tap` holds; q, k and v of a Gated
/// DeltaNet are cut each by itself.
std::vector<std::int64_t> columns_of(const std::string& tap, const ColumnBlock& block,
                                     std::int64_t width, const ModelConfig& config);

/// One rank's tensor, what its rows are, and the trusted columns that it holds. S is float or
/// double; std::int64_t of ids.
template <class S>
struct HeldTensor {
  RankCoordinates at;
  Eigen::Ref<const Matrix<S>> values;
  const Rows& rows;  // of who calls: several threads read one view, and only one may copy its rows
  bool is_partial = false;
  std::vector<std::int64_t> columns;
};

/// The token rows of one rank's tensor, or of the sum over the ranks that hold its summands, and
/// the trusted value of each place.
template <class S>
struct PlacedValues {
  RankCoordinates at = {};  // of a sum the last rank that holds a summand
  bool is_sum = false;
  std::vector<std::int64_t> rows = {};  // of the rank's tensor; of a sum those of the trusted one
  std::vector<std::int64_t> trusted_rows = {};     // the trusted tensor's, row for row
  std::vector<std::int64_t> trusted_columns = {};  // likewise, column for column
  std::vector<S> found = {}, trusted = {};         // [rows, trusted_columns]

  std::int64_t columns() const { return std::int64_t(trusted_columns.size()); }
};

/// A tensor of the ranks of one data-parallel rank beside the trusted one.
template <class S>
struct PlacedTap {
  std::vector<PlacedValues<S>> values;  // of each rank where they are complete, then of the sum
  struct OtherShape {
    RankCoordinates at;
    std::string expected, actual;
  };
  std::vector<OtherShape> other_shapes;       // than the view says
  std::vector<RankCoordinates> without = {};  // ranks of a run without what their view says
  struct Stranger {
    RankCoordinates at;
    std::int64_t row;
  };
  std::vector<Stranger> strangers;        // tokens that the trusted tensor has not, and mixed rows
  std::vector<std::int64_t> absent_rows;  // the trusted tensor's that no rank holds in all columns,
                                          // and of which not all summands are there either

  /// All of these, a line each: "rows 3-5 are on no rank".
  std::vector<std::string> problems() const;
};

/// Puts each rank's rows where its view says that they belong, its columns likewise, and adds up
/// what is partial where `summands` ranks have one (where not, the views say what is missing).
/// Rows of other data-parallel ranks than `dp` are left out. `row_of` says which row of `trusted` a
/// token is; -1: none.
template <class S>
PlacedTap<S> placed(const std::vector<HeldTensor<S>>& ranks, std::int64_t dp, std::int64_t summands,
                    const Eigen::Ref<const Matrix<S>>& trusted,
                    const std::function<std::int64_t(const RowRun&)>& row_of);

/// The same for a named tensor of a run, S double, or std::int64_t of ids. `taps` are those of all
/// ranks of the world.
template <class S>
PlacedTap<S> placed(const NamedView& view, const std::vector<RankTaps>& taps, std::int64_t dp,
                    const ParallelConfig& parallel, const ModelConfig& config,
                    const Matrix<S>& trusted,
                    const std::function<std::int64_t(const RowRun&)>& row_of);

/// The tensor put together. Where several ranks hold one element, the one that is farthest from
/// `trusted` stands for all: no copy that is wrong is hidden by one that is right. What no rank
/// holds has the trusted value.
template <class S>
Matrix<S> whole(const PlacedTap<S>& tap, const Eigen::Ref<const Matrix<S>>& trusted);

/// True where all ranks that hold an element hold the same.
bool are_equal_copies(const PlacedTap<std::int64_t>& tap);

/// Raises ratios[r], [trusted rows], to max|found - trusted| / allowed of the rows that belong to
/// the trusted row r.
void raise_row_ratios(std::vector<double>& ratios, const PlacedValues<double>& values,
                      double allowed);

/// Calls `visit(at, held)` for each rank of the view's pipeline stage, with what it holds.
template <class Visit>
void for_each_holder(const NamedView& view, const ParallelConfig& parallel, Visit visit) {
  std::size_t in_stage = 0;
  for (std::int64_t world = 0; world < parallel.world_size(); ++world) {
    const RankCoordinates at = coordinates_of(world, parallel);
    if (at.pp != view.stage) continue;
    if (in_stage == view.by_rank.size()) return;
    visit(at, view.by_rank[in_stage++]);
  }
}

}  // namespace tokenview
