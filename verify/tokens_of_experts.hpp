// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "verify/tap_fit.hpp"
#include "verify/trusted_step.hpp"

namespace tokenview {

/// Of a sparse block `tap`, or of a module in it, where the weights of its experts are not known:
/// "other values where expert 3 was chosen" if the rows that are wrong are those of one expert, or
/// of the block of experts of one of `ranks` ranks, and no others; else empty. `rows`: the tokens
/// that the ranks hold.
std::string wrong_experts_in_words(const std::string& tap, const TapTensors& tensors,
                                   const std::vector<Rows>& rows, const TrustedStep& trusted,
                                   std::int64_t ranks);

}  // namespace tokenview
