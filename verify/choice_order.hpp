// SPDX-License-Identifier: Apache-2.0
// The experts of a token are a set: engines keep them, each with its weight, in any order
// (torch.topk(sorted=False)).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/matrix.hpp"
#include "verify/tap_fit.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// Puts the columns of each row of `values`, [rows, k], in the order in which the trusted choice
/// has the same experts: `found` are this rank's ids, [rows, k], `trusted` those of the tokens,
/// [tokens, k], and `rows` says which token a row is. Experts that are not in the trusted choice
/// take the places that are left, in order. Rows that are no token of the trusted side stay.
/// Returns how many rows had the same experts in another order.
template <class S>
std::int64_t put_in_trusted_order(Eigen::Ref<Matrix<S>> values, const Matrix<std::int64_t>& found,
                                  const Matrix<std::int64_t>& trusted, const Rows& rows);

/// "X.gate.ids" where `tap` is "X.gate.weights"; else empty.
std::string ids_of_weights(const std::string& tap);

/// The experts to which the weights of a tap belong.
struct WeighedChoice {
  std::vector<Matrix<std::int64_t>> found;  // of each rank, [rows, k]
  Matrix<std::int64_t> trusted;             // [tokens, k]

  /// The weights, [rows, k] of each rank, with those of each token in the trusted order. `rows`:
  /// of each rank.
  TapTensors in_trusted_order(TapTensors weights, const std::vector<Rows>& rows) const;
};

/// True where every row has the trusted weights, and not all of them where they are due: they
/// belong to other experts. `weights` are in the trusted order.
bool are_weights_of_other_experts(const TapTensors& weights, const std::vector<Rows>& rows);

}  // namespace tokenview
