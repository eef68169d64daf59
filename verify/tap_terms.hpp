// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/trusted_step.hpp"

namespace tokenview {

/// Trusted taps that may be terms of `tap`, a sum in a model of which only the names are known; in
/// program order:
///   of a block of a layer, or of a module in it, the other modules of the block;
///   of X.residual, what a norm X of the stream adds up, and of a layer's output, the blocks before
///   it in its layer, or of a layer's first norm and of the last norm those of the layer before.
std::vector<std::string> terms_beside(const std::string& tap, const TrustedStep& trusted);

}  // namespace tokenview
