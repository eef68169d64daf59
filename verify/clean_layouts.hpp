// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "verify/golden_file.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// How one protocol lays out the tensors of a step, where it is right.
struct CleanLayout {
  std::string protocol;
  /// "step0/mtp.norm" -> the view of each rank of the world; those of other stages are empty. Rows
  /// count as in files: tokens of the dp rank, in draft passes after the first its requests.
  std::map<std::string, std::vector<TokenView>> views;

  /// Null where the program does not name the tap.
  const TokenView* find(const std::string& tap, std::int64_t world) const;
};

/// A view of a symbolic run as files have it: in draft passes after the first a row is named after
/// its request, not after a token of it. `inputs`: of each dp rank.
TokenView as_in_files(TokenView view, const std::string& tap,
                      const std::vector<GoldenInputs>& inputs);

/// The layouts of the published protocols that have no finding for this model, these ranks and
/// these inputs of each dp rank, from symbolic runs; each layout once. Empty where the model or the
/// ranks are not simulable.
std::vector<CleanLayout> clean_layouts(const ModelConfig& config, const ParallelConfig& parallel,
                                       const std::vector<GoldenInputs>& inputs,
                                       std::int64_t draft_steps);

}  // namespace tokenview
