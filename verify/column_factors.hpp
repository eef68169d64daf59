// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <vector>

#include "verify/tap_fit.hpp"

namespace tokenview {

/// Where every row of every rank, all columns of it, is the trusted one times the same factors by
/// column, [columns]: these. Absent where they are one number, or where the rows are fewer than
/// three tokens that are not multiples of each other: anything would be.
std::optional<Eigen::RowVectorXd> factors_by_column(const TapTensors& tensors,
                                                    const std::vector<Rows>& rows);

/// What such factors of a norm are called, whose weight is `weight`: the norm multiplies by
/// 1 + weight.
const char* norm_weight_in_words(const Eigen::RowVectorXd& factors, const HostTensor& weight);

}  // namespace tokenview
