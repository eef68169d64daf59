// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "verify/golden_file.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// A golden tap's row of a token of the step; draft steps after the first have a row a sequence,
/// that of its last token that was not rejected. `draft_step` is -1 for the target; the result is
/// -1 for a token that has no row there.
std::int64_t golden_row(const RowRun& row, const GoldenInputs& inputs, std::int64_t draft_step,
                        const std::vector<std::int32_t>& rejected = {});

/// -1 of "target/...", 2 of "step2/..."
std::int64_t draft_step_of(const std::string& place);

}  // namespace tokenview
