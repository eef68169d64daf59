// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "verify/infer.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// The trusted rows of draft pass `pass` of the same step, where those of another pass are due: as
/// if of a step of this number.
constexpr std::int32_t step_of_pass(std::int64_t pass) { return std::int32_t(-1 - pass); }

/// "[0,1,2]", "[4x0,4x1]", "[d1:0,step0:2,draft1:0,PAD,~5,?]": an inferred rank's rows; ~5 is
/// nearest to token 5, what is not known is a question mark, more than 16 rows are in runs. `dp`:
/// whose rows need no mark.
std::string rows_in_words(const InferredRank& rank, std::int16_t dp, std::int32_t step);

/// "summed twice", "4 times the value", "1/4 of the value": a factor on `ranks` ranks.
std::string factor_in_words(double factor, std::int64_t ranks);

/// What fault_in_words() says of rows that are unknown and resemble a summand.
extern const char* const part_of_the_value;

/// What is wrong with a tensor, from what its rows were found to be: "rows of another step",
/// "wrong group: rows of dp=1", "summed twice", "pads poisoned", "reversed rank order", ...; empty
/// where the rows are not known. `required`: the views that are due on these ranks; empty where
/// that is not known.
std::string fault_in_words(const std::vector<InferredRank>& ranks,
                           const std::vector<TokenView>& required, std::int16_t dp,
                           std::int32_t step);

/// "other values on tp=1 alone": where some ranks have rows that nothing explains, and the others
/// none; else empty.
std::string unknown_ranks_in_words(const std::vector<InferredRank>& ranks);

/// "7 rows where 2 are due": of the first rank whose number of rows is another than required;
/// empty: none is.
std::string row_counts_in_words(const std::vector<InferredRank>& ranks,
                                const std::vector<TokenView>& required);

}  // namespace tokenview
