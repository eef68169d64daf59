// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "verify/golden_file.hpp"
#include "verify/number_run.hpp"

namespace tokenview {

/// A golden tap's row of a token of the step; draft steps after the first have a row a sequence,
/// that of its last token that was not rejected. `draft_step` is -1 for the target; the result is
/// -1 for a token that has no row there.
std::int64_t golden_row(const RowRun& row, const GoldenInputs& inputs, std::int64_t draft_step,
                        const std::vector<std::int32_t>& rejected = {});

/// -1 of "target/...", 2 of "step2/..."
std::int64_t draft_step_of(const std::string& place);

/// A tensor put together from what the ranks of a data-parallel rank hold of it.
template <class S>
struct WholeTap {
  Matrix<S> values;
  std::vector<std::int64_t> absent_rows = {};  // that no rank holds whole
  std::string problem = {};                    // a rank's tensor is not of the shape of its view
};

/// A rank's tensor of each rank of the world; null: it has none.
template <class S>
std::vector<const Matrix<S>*> values_of(const std::string& place,
                                        const std::vector<RankTaps>& ranks) {
  std::vector<const Matrix<S>*> of_ranks;
  for (const RankTaps& rank : ranks) {
    const auto& all = [&]() -> const auto& {
      if constexpr (std::is_same_v<S, double>)
        return rank.values;
      else
        return rank.ids;
    }
    ();
    const auto found = all.find(place);
    of_ranks.push_back(found == all.end() ? nullptr : &found->second);
  }
  return of_ranks;
}

/// Puts each rank's rows and columns where its view says that they belong, and adds up what is
/// partial. Where several ranks hold one element, the one that is farthest from `trusted`, whose
/// shape the result has, stands for all: no copy that is wrong is hidden by one that is right.
template <class S>
WholeTap<S> whole_tap(const NamedView& view, const std::vector<const Matrix<S>*>& ranks,
                      std::int64_t dp, const ParallelConfig& parallel, const ModelConfig& config,
                      const Matrix<S>& trusted,
                      const std::function<std::int64_t(const RowRun&)>& row_of);

}  // namespace tokenview
