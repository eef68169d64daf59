// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/tap_fit.hpp"
#include "verify/trusted_step.hpp"

namespace tokenview {

/// The experts of one sparse block.
struct ExpertWeights {
  const HostTensor& gate_up;  // [experts, 2 I, H]
  const HostTensor& down;     // [experts, H, I]
  std::int64_t ranks = 1;     // over which they are spread, each with a block; 1: each has all
};

struct ExpertFault {
  std::string called;   // "experts of other ranks left out: ..."
  std::string example;  // a token: "token 3: expert 5 times 0, expected 0.41"
};

/// "target/model.layers.1.mlp" where `tap` is the output of a sparse block or of its routed
/// experts; absent for any other.
std::optional<std::string> sparse_block_of(const std::string& tap);

/// Finds out of which experts the routed part of the sparse block `block` is made, by least squares
/// of a few rows over what each expert gives for the trusted input of the block, and holds that to
/// the trusted choice: experts that are left out or counted otherwise, or that nobody chose. Absent
/// where the rows are no sum over experts, or the right one, or where there are more experts than
/// columns. `rows`: the tokens that the ranks hold. Time: rows x (experts x 3 H I + H experts^2).
std::optional<ExpertFault> miscounted_experts(const std::string& block, const TapTensors& tensors,
                                              const std::vector<Rows>& rows,
                                              const TrustedStep& trusted,
                                              const ExpertWeights& weights);

}  // namespace tokenview
