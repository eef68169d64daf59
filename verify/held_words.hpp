// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/token_view.hpp"

namespace tokenview {

/// "[0,1,2]", "[0,1,2] partial 1/4", "[0,1,2] columns 1/4".
std::string view_in_words(const TokenView& view);

/// What the ranks of a group hold of a tensor, in a word: "full", "shard", "partial", "columns".
std::string kind_of(const std::vector<TokenView>& ranks);

/// What is wrong where a block of the columns is held, or all of them, and the other is due.
std::string columns_in_words(bool holds_block);

/// What is wrong with a layout where another one is due: "shard where full is required", "reversed
/// rank order", "row 9 is missing", "tp=1, 2, 3 hold the rows of tp=0: rows 3-9 are missing", "not
/// trimmed: pads left on", ... The ranks are those of a tensor-parallel group, in order.
std::string layout_in_words(const std::vector<TokenView>& held,
                            const std::vector<TokenView>& required);

/// The rows with those of data-parallel rank `dp` as of rank 0: in the numbering of that rank.
Rows as_numbered_by(std::int16_t dp, const Rows& rows);

}  // namespace tokenview
