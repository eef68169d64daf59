// SPDX-License-Identifier: Apache-2.0
#include "verify/expert_faults.hpp"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>

#include "reference/program/error.hpp"
#include "verify/host_matrix.hpp"
#include "verify/token_rows.hpp"

namespace tokenview {
namespace {

using Map = Eigen::Map<const Matrix<float>>;
using Vector = Eigen::VectorXd;

constexpr std::int64_t most_rows = 8;  // of each rank

/// What each expert gives for `x` [H]: [H, experts].
/// Source: transformers modeling_qwen3_next.py, Qwen3NextExperts.
Eigen::MatrixXd outputs_of_experts(const ExpertWeights& weights, const Vector& x) {
  const std::int64_t experts = weights.down.shape[0], hidden = weights.down.shape[1],
                     width = weights.down.shape[2];
  Eigen::MatrixXd outputs(hidden, experts);
  for (std::int64_t e = 0; e < experts; ++e) {
    const Map gate_up(weights.gate_up.values.data() + e * 2 * width * hidden, 2 * width, hidden);
    const Map down(weights.down.values.data() + e * hidden * width, hidden, width);
    const Vector both = gate_up.cast<double>() * x;
    const Vector gate = both.head(width);
    const Vector silu = gate.array() / (1 + (-gate.array()).exp());
    outputs.col(e) = down.cast<double>() * Vector(silu.array() * both.tail(width).array());
  }
  return outputs;
}

/// What one row has of each expert, and what is due.
struct Shares {
  std::int64_t token = 0, rank = 0;
  Vector found, due;

  /// The expert that is farthest from its share.
  std::int64_t worst() const {
    std::int64_t expert = 0;
    (found - due).cwiseAbs().maxCoeff(&expert);
    return expert;
  }
};

std::string in_words(const Shares& shares) {
  const std::int64_t expert = shares.worst();
  return text("token ", shares.token, ": expert ", expert, " times ", shares.found[expert],
              ", expected ", shares.due[expert]);
}

std::string name_of_fault(const std::vector<Shares>& all, std::int64_t ranks) {
  bool has_others = false, has_factors = false, are_own = ranks > 1;
  for (const Shares& shares : all) {
    const double least = close_enough * shares.due.maxCoeff();
    const std::int64_t experts = shares.due.size();
    for (std::int64_t e = 0; e < experts; ++e) {
      const double found = shares.found[e], due = shares.due[e];
      const bool is_zero = std::abs(found) <= least;
      has_others |= due == 0 && !is_zero;
      has_factors |= due != 0 && !is_zero && std::abs(found - due) > least;
      const bool is_mine = e * ranks / experts == shares.rank;
      are_own &= std::abs(found - (is_mine ? due : 0)) <= least;
    }
  }
  if (are_own) return "experts of other ranks left out: each rank has its own experts' part alone";
  if (has_others) return "other experts than chosen";
  return has_factors ? "experts counted otherwise than once" : "experts left out";
}

}  // namespace

std::optional<std::string> sparse_block_of(const std::string& tap) {
  if (tap.ends_with(".mlp")) return tap;
  const std::string_view end = ".experts";
  if (tap.ends_with(".mlp.experts")) return tap.substr(0, tap.size() - end.size());
  return std::nullopt;
}

std::optional<ExpertFault> miscounted_experts(const std::string& block, const TapTensors& tensors,
                                              const std::vector<Rows>& rows,
                                              const TrustedStep& trusted,
                                              const ExpertWeights& weights) {
  if (weights.down.shape.size() != 3 || weights.gate_up.shape.size() != 3) return std::nullopt;
  const std::int64_t experts = weights.down.shape[0], hidden = weights.down.shape[1];
  const std::string input = block.substr(0, block.rfind('.')) + ".post_attention_layernorm";
  const std::string routed = block + ".experts", ids_name = block + ".gate.ids",
                    weights_name = block + ".gate.weights";
  for (const std::string& needed : {input, routed, ids_name, weights_name})
    if (!trusted.has(needed)) return std::nullopt;
  if (experts > hidden || tensors.trusted->cols() != hidden) return std::nullopt;
  const HostTensor inputs = trusted.values(input), parts = trusted.values(routed),
                   scales = trusted.values(weights_name);
  const IntegerTensor ids = trusted.ids(ids_name);
  if (ids.values.size() != scales.values.size() || inputs.cols() != hidden ||
      parts.cols() != hidden ||
      std::ranges::any_of(ids.values, [&](std::int64_t id) { return id < 0 || id >= experts; }))
    return std::nullopt;

  std::vector<Shares> all;
  bool differs = false;
  std::vector<std::int64_t> taken(tensors.ranks.size(), 0);
  const bool are_sums = for_all_rows(
      tensors, rows, [&](const Eigen::RowVectorXd& found, std::int64_t token, std::size_t i) {
        if (found.size() != hidden) return false;
        if (taken[i]++ >= most_rows) return true;
        const auto row_of = [&](const HostTensor& tensor) {
          return Vector(as_matrix(tensor).row(token).transpose().cast<double>());
        };
        // The rest of the block, its shared expert, is taken for right.
        const Vector due_part = row_of(parts);
        const Vector part = found.transpose() - row_of(*tensors.trusted) + due_part;
        const Eigen::MatrixXd outputs = outputs_of_experts(weights, row_of(inputs));
        Shares shares{.token = token,
                      .rank = tensors.ranks[i].at.dp * tensors.tp_size + tensors.ranks[i].at.tp,
                      .found = outputs.colPivHouseholderQr().solve(part),
                      .due = Vector::Zero(experts)};
        if (!((outputs * shares.found - part).norm() <=
              close_enough * std::max(part.norm(), due_part.norm())))
          return false;
        for (std::int64_t c = 0; c < scales.cols(); ++c)
          shares.due[ids.values[std::size_t(token * scales.cols() + c)]] +=
              double(scales.values[std::size_t(token * scales.cols() + c)]);
        differs |= (shares.found - shares.due).cwiseAbs().maxCoeff() >
                   close_enough * shares.due.maxCoeff();
        all.push_back(std::move(shares));
        return true;
      });
  if (!are_sums || !differs) return std::nullopt;
  const auto first = std::ranges::max_element(all, {}, [](const Shares& shares) {
    return (shares.found - shares.due).cwiseAbs().maxCoeff();
  });
  return ExpertFault{name_of_fault(all, weights.ranks), in_words(*first)};
}

}  // namespace tokenview
