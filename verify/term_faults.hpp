// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/tap_fit.hpp"
#include "verify/trusted_step.hpp"

namespace tokenview {

/// A tap that is a sum of others of which one is counted otherwise than once.
struct MiscountedTerm {
  std::string term;  // "model.layers.1.mlp"
  double times = 1;
};

/// Looks for the term of `tap` of which found - trusted is a multiple, the same on every row of
/// every rank: of a layer's output its mixer, its feed-forward, what came in, and the sum of that
/// and the mixer; of a sparse block the routed experts and the gated shared one; of any model
/// terms_beside(), and what is left without one of them. `rows`: the tokens that the ranks hold.
std::optional<MiscountedTerm> miscounted_term(const std::string& tap, const TapTensors& tensors,
                                              const std::vector<Rows>& rows,
                                              const TrustedStep& trusted);

/// A layer's output from what is trusted of its terms; absent for any other tap, or where one is
/// not there.
std::optional<HostTensor> sum_of_terms(const std::string& tap, const TrustedStep& trusted);

/// The same for a norm of the residual stream, `weight` [H] times which plus one it scales: tried
/// are terms that are left out, summed twice, or divided by the ranks.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextRMSNorm.
std::optional<MiscountedTerm> miscounted_term_of_norm(const std::string& tap,
                                                      const TapTensors& tensors,
                                                      const std::vector<Rows>& rows,
                                                      const TrustedStep& trusted,
                                                      const HostTensor& weight, double eps);

/// The weight less one of a norm of the residual stream whose model is not known, from what is
/// trusted of it and of the terms that it adds up; absent where these are not there, or where it is
/// no RMS norm of them.
std::optional<HostTensor> norm_weight(const std::string& tap, const TrustedStep& trusted,
                                      double eps);

/// The tensors that the ranks have of another tap, in their order; empty where there is none.
using OwnTensors = std::function<std::vector<HostTensor>(const std::string& tap)>;

/// The term of a layer's output, or with `weight` of a norm, in place of which each rank has added
/// `added`, [tokens, columns]: its own summand alone, or a sum over other ranks. `own` are the
/// ranks' summands, which the dump itself has and which add up to the term.
std::optional<std::string> replaced_term(const std::string& tap, const TapTensors& tensors,
                                         const std::vector<Rows>& rows, const TrustedStep& trusted,
                                         const HostTensor* weight, double eps,
                                         const OwnTensors& own, const OwnTensors& added);

/// A term that was added to other rows than its own.
struct MovedTerm {
  std::string term;
  std::vector<TokenView> held, due;  // of each rank: the term's rows, at the tap's tokens
};

/// The term of a layer's output, or with `weight` of a norm, of which the ranks have added other
/// rows: for each row of the tap the one row of the term, or zeros, that explains it.
/// Time: rows x tokens x columns where it is found.
std::optional<MovedTerm> moved_term(const std::string& tap, const TapTensors& tensors,
                                    const std::vector<Rows>& rows, const TrustedStep& trusted,
                                    const HostTensor* weight, double eps);

/// True where each rank's rows of `tap`, the shared expert of a sparse block, are what the rank's
/// block of the intermediate columns gives: a summand, whose partners hold other rows.
/// `down`: the weight of its down projection, [H, I].
bool is_summand_of_shared_expert(const std::string& tap, const TapTensors& tensors,
                                 const std::vector<Rows>& rows, const TrustedStep& trusted,
                                 const HostTensor& down);

/// The weight that is_summand_of_shared_expert() needs; empty for any other tap.
std::string shared_expert_weight(const std::string& tap);

}  // namespace tokenview
