// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "verify/tap_fit.hpp"

namespace tokenview {

/// One rank whose summands are wrong while all others' are right.
struct SummandFault {
  std::size_t rank = 0;              // place among those given
  double times = 1;                  // that it has its summands; or, where that is 1,
  std::vector<std::int64_t> tokens;  // [rows] whose summands it has there; -1: not known
};

/// Where the ranks' tensors, every one a summand of the rows `rows`, do not add up to the trusted
/// one: the rank whose own rows in other places, or its own times a factor, would make them. What
/// any of several ranks could explain is no answer, nor what takes other values. Time: ranks x
/// rows^2 x columns for the rows that are off.
std::optional<SummandFault> summand_fault(const TapTensors& tensors, const std::vector<Rows>& rows);

}  // namespace tokenview
