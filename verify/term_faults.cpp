// SPDX-License-Identifier: Apache-2.0
#include "verify/term_faults.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "reference/program/error.hpp"
#include "verify/host_matrix.hpp"
#include "verify/tap_terms.hpp"
#include "verify/token_rows.hpp"

namespace tokenview {
namespace {

using Map = Eigen::Map<const Matrix<float>>;
using Row = Eigen::RowVectorXd;

/// The times that `term` is in what was found, if one number explains every row.
std::optional<double> times_of(const TapTensors& tensors, const std::vector<Rows>& rows,
                               const HostTensor& term) {
  const Map trusted = as_matrix(*tensors.trusted), terms = as_matrix(term);
  if (terms.rows() != trusted.rows() || terms.cols() != trusted.cols()) return std::nullopt;
  double products = 0, squares = 0;
  const auto error_of = [&](const Row& found, std::int64_t token) {
    return Row(found - trusted.row(token).cast<double>());
  };
  if (!for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, std::size_t) {
        if (found.size() != trusted.cols()) return false;
        const Row one = terms.row(token).cast<double>();
        products += error_of(found, token).dot(one);
        squares += one.squaredNorm();
        return true;
      }))
    return std::nullopt;
  if (!(squares > 0) || !std::isfinite(products)) return std::nullopt;
  const double more = products / squares;
  const bool explains =
      for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, std::size_t) {
        const Row one = terms.row(token).cast<double>();
        return (error_of(found, token) - more * one).norm() <=
               (close_enough + tensors.looseness) * std::abs(more) * one.norm();
      });
  if (!explains) return std::nullopt;
  // Whole numbers and simple fractions, as ranks make them.
  const double times = 1 + more;
  for (int divisor = 1; divisor <= 64; ++divisor) {
    if (tensors.looseness > 0 && tensors.tp_size % divisor != 0) continue;
    const double whole = std::round(times * divisor);
    const double allowed = close_enough + divisor * tensors.looseness / 4 * std::abs(more);
    if (whole != divisor && std::abs(times * divisor - whole) <= allowed) return whole / divisor;
  }
  return times;
}

/// The taps that a norm's input is the sum of; empty where the trusted side lacks one.
std::vector<std::string> terms_of_norm(const std::string& tap, const TrustedStep& trusted) {
  std::string layer;  // whose terms they are
  bool has_feed_forward = true;
  if (tap.ends_with(".post_attention_layernorm")) {
    layer = tap.substr(0, tap.rfind('.'));
    has_feed_forward = false;
  } else if (tap.ends_with(".input_layernorm")) {
    layer = layer_before(tap.substr(0, tap.rfind('.')));
  } else {
    const std::string layers = tap.substr(0, tap.rfind("norm")) + "layers.";
    for (const std::string& other : trusted.taps())  // in program order: the last one stays
      if (other.starts_with(layers) && other.find('.', layers.size()) == std::string::npos)
        layer = other;
  }
  if (layer.find("layers.") == std::string::npos) return {};
  std::vector<std::string> terms = {
      layer_before(layer),
      layer + (trusted.has(layer + ".self_attn") ? ".self_attn" : ".linear_attn")};
  if (has_feed_forward) terms.push_back(layer + ".mlp");
  for (const std::string& term : terms)
    if (!trusted.has(term)) return {};
  return terms;
}

/// A norm of a sum of trusted terms.
class NormOfTerms {
 public:
  NormOfTerms(const std::string& tap, const TrustedStep& trusted, const HostTensor& weight,
              double eps)
      : names(terms_of_norm(tap, trusted)), eps_(eps) {
    const auto width = std::int64_t(weight.values.size());
    scale_ =
        Eigen::Map<const Eigen::RowVectorXf>(weight.values.data(), width).cast<double>().array() +
        1.0;
    for (const std::string& name : names) {
      const HostTensor values = trusted.values(name);
      if (values.cols() == width) terms_.push_back(as_matrix(values).cast<double>());
    }
    if (terms_.size() != names.size()) names.clear();
  }

  std::vector<std::string> names;  // of the terms; empty where they are not known

  /// The norm at `token` with the value `instead` for term `other`.
  Row with(std::int64_t token, std::size_t other, const Row& instead) const {
    Row x = instead;
    for (std::size_t i = 0; i < terms_.size(); ++i)
      if (i != other) x += terms_[i].row(token);
    return (x / std::sqrt(x.squaredNorm() / double(x.size()) + eps_)).array() * scale_.array();
  }
  Row term(std::size_t i, std::int64_t token) const { return terms_[i].row(token); }

 private:
  double eps_;
  Row scale_;
  std::vector<Matrix<double>> terms_;
};

/// Whether what was found is `expected` rather than what is due for the token.
bool is_near(const Row& found, const Row& expected, const TapTensors& tensors, std::int64_t token) {
  if (found.size() != expected.size()) return false;
  double allowed = close_enough * expected.norm();
  if (tensors.looseness > 0)
    allowed += tensors.looseness *
               (expected - as_matrix(*tensors.trusted).row(token).cast<double>()).norm();
  return (found - expected).norm() <= allowed;
}

/// The terms of a layer's output that are products over all ranks.
std::vector<std::string> products_of_layer(const std::string& tap) {
  const std::size_t layer = tap.rfind("layers.");
  if (layer == std::string::npos || tap.find('.', layer + 7) != std::string::npos) return {};
  return {tap + ".mlp", tap + ".self_attn", tap + ".linear_attn"};
}

/// `known` and what else there may be, each once.
std::vector<std::string> all_terms(std::vector<std::string> known, const std::string& tap,
                                   const TrustedStep& trusted) {
  for (std::string& term : terms_beside(tap, trusted))
    if (std::ranges::find(known, term) == known.end()) known.push_back(std::move(term));
  return known;
}

/// A term of a tap, and what the tap is with something else in its place.
struct Place {
  std::string term;
  Matrix<double> values;  // [tokens, columns]
  std::function<Row(std::int64_t token, const Row& instead)> with;
};

/// The terms of a layer's output that are products, or with `weight` those of a norm's input but
/// for the stream.
std::vector<Place> places_of(const std::string& tap, const TapTensors& tensors,
                             const TrustedStep& trusted, const HostTensor* weight, double eps) {
  std::vector<Place> places;
  const auto values_of = [&](const std::string& term) {
    return Matrix<double>(as_matrix(trusted.values(term)).cast<double>());
  };
  if (weight != nullptr) {
    const auto norm = std::make_shared<NormOfTerms>(tap, trusted, *weight, eps);
    for (std::size_t i = 1; i < norm->names.size(); ++i)
      places.push_back({norm->names[i], values_of(norm->names[i]),
                        [norm, i](std::int64_t token, const Row& instead) {
                          return norm->with(token, i, instead);
                        }});
    return places;
  }
  const Matrix<double> whole = as_matrix(*tensors.trusted).cast<double>();
  for (const std::string& term : all_terms(products_of_layer(tap), tap, trusted)) {
    if (!trusted.has(term)) continue;
    const Matrix<double> values = values_of(term);
    if (values.rows() != whole.rows() || values.cols() != whole.cols()) continue;
    const Matrix<double> rest = whole - values;
    places.push_back({term, values, [rest](std::int64_t token, const Row& instead) {
                        return Row(rest.row(token) + instead);
                      }});
  }
  return places;
}

/// True where the ranks' tensors add up to the trusted one, as summands of it do. What is wrong
/// before it was added is another fault.
bool are_summands(const std::vector<HostTensor>& mine, const Matrix<double>& whole,
                  const TapTensors& tensors) {
  if (tensors.tp_size < 2 || std::ssize(mine) != tensors.tp_size) return false;
  Matrix<double> sum = -whole;
  for (const HostTensor& summand : mine) {
    if (summand.rows() != whole.rows() || summand.cols() != whole.cols()) return false;
    sum += as_matrix(summand).cast<double>();
  }
  return sum.norm() <= (close_enough + tensors.looseness) * whole.norm();
}

}  // namespace

std::optional<HostTensor> sum_of_terms(const std::string& tap, const TrustedStep& trusted) {
  std::vector<std::string> terms = products_of_layer(tap);
  if (terms.empty()) return std::nullopt;
  terms.push_back(layer_before(tap));
  std::erase_if(terms, [&](const std::string& term) { return !trusted.has(term); });
  if (terms.size() != 3) return std::nullopt;  // one of the two mixers is not there
  HostTensor sum = trusted.values(terms.front());
  for (std::size_t i = 1; i < terms.size(); ++i) {
    const HostTensor term = trusted.values(terms[i]);
    if (term.shape != sum.shape) return std::nullopt;
    for (std::size_t k = 0; k < sum.values.size(); ++k) sum.values[k] += term.values[k];
  }
  return sum;
}

std::optional<MiscountedTerm> miscounted_term_of_norm(const std::string& tap,
                                                      const TapTensors& tensors,
                                                      const std::vector<Rows>& rows,
                                                      const TrustedStep& trusted,
                                                      const HostTensor& weight, double eps) {
  const NormOfTerms norm(tap, trusted, weight, eps);
  const auto p = double(tensors.tp_size);
  std::optional<MiscountedTerm> nearest;
  double least = 0;
  // The stream itself, the first term, has a tap of its own; and more of a mixer is less of it.
  for (std::size_t i = 1; i < norm.names.size(); ++i)
    for (const double times : {p, 2.0, 1 / p, 0.0, p * p}) {
      double left = 0;
      const auto fits = [&](const Row& found, std::int64_t token, std::size_t) {
        const Row expected = norm.with(token, i, times * norm.term(i, token));
        left += found.size() == expected.size() ? (found - expected).squaredNorm() : 0;
        return is_near(found, expected, tensors, token);
      };
      if (times == 1 || !for_all_rows(tensors, rows, fits) || (nearest && left >= least)) continue;
      nearest = MiscountedTerm{name_of(norm.names[i]), times};
      least = left;
    }
  return nearest;
}

std::optional<std::string> replaced_term(const std::string& tap, const TapTensors& tensors,
                                         const std::vector<Rows>& rows, const TrustedStep& trusted,
                                         const HostTensor* weight, double eps,
                                         const OwnTensors& own, const OwnTensors& added) {
  for (const Place& place : places_of(tap, tensors, trusted, weight, eps)) {
    if (!are_summands(own(place.term), place.values, tensors)) continue;
    const std::vector<HostTensor> instead = added(place.term);
    if (instead.size() == tensors.ranks.size() &&
        for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, std::size_t rank) {
          const Row mine = as_matrix(instead[rank]).row(token).cast<double>();
          return is_near(found, place.with(token, mine), tensors, token);
        }))
      return name_of(place.term);
  }
  return std::nullopt;
}

std::optional<MovedTerm> moved_term(const std::string& tap, const TapTensors& tensors,
                                    const std::vector<Rows>& rows, const TrustedStep& trusted,
                                    const HostTensor* weight, double eps) {
  for (const Place& place : places_of(tap, tensors, trusted, weight, eps)) {
    const Row zeros = Row::Zero(place.values.cols());
    MovedTerm moved{name_of(place.term), std::vector<TokenView>(rows.size()),
                    std::vector<TokenView>(rows.size())};
    bool any = false;
    const auto fits = [&](const Row& found, std::int64_t token, std::size_t rank) {
      std::int64_t best = -1;  // zeros: a pad's
      Row nearest = place.with(token, zeros);
      if (found.size() != nearest.size()) return false;
      double least = (found - nearest).norm(), second = std::numeric_limits<double>::infinity();
      for (std::int64_t other = 0; other < place.values.rows(); ++other) {
        Row expected = place.with(token, place.values.row(other));
        const double left = (found - expected).norm();
        second = std::min(second, std::max(left, least));
        if (!(left < least)) continue;
        least = left;
        best = other;
        nearest = std::move(expected);
      }
      if (!is_near(found, nearest, tensors, token) || second < clearly * least) return false;
      const RowRun due{.first = std::int32_t(token), .count = 1, .dp = tensors.dp};
      RowRun held = due;
      held.first = std::int32_t(best);
      moved.due[rank].rows.append(due);
      if (best < 0)
        moved.held[rank].rows.append_pads(1);
      else
        moved.held[rank].rows.append(held);
      any |= best != token;
      return true;
    };
    if (for_all_rows(tensors, rows, fits) && any) return moved;
  }
  return std::nullopt;
}

std::optional<MiscountedTerm> miscounted_term(const std::string& tap, const TapTensors& tensors,
                                              const std::vector<Rows>& rows,
                                              const TrustedStep& trusted) {
  std::vector<std::string> terms = products_of_layer(tap);
  if (!terms.empty()) terms.push_back(layer_before(tap));
  if (tap.ends_with(".mlp")) terms = {tap + ".shared_expert.gated", tap + ".experts"};
  for (const std::string& term : all_terms(terms, tap, trusted)) {
    const std::optional<Counterpart> value = counterpart_of(term, {}, trusted, nullptr);
    if (!value) continue;
    if (const std::optional<double> times = times_of(tensors, rows, value->values))
      return MiscountedTerm{name_of(term), *times};
  }
  if (!products_of_layer(tap).empty() && trusted.has(tap + ".mlp")) {
    HostTensor residual = trusted.values(tap);  // what came in and the mixer, added up
    const HostTensor product = trusted.values(tap + ".mlp");
    if (product.values.size() != residual.values.size()) return std::nullopt;
    for (std::size_t i = 0; i < product.values.size(); ++i) residual.values[i] -= product.values[i];
    if (const std::optional<double> times = times_of(tensors, rows, residual))
      return MiscountedTerm{name_of(tap) + ".residual", *times};
  }
  for (const std::string& term : terms_beside(tap, trusted)) {
    HostTensor rest = *tensors.trusted;
    const HostTensor one = trusted.values(term);
    if (one.values.size() != rest.values.size()) continue;
    for (std::size_t i = 0; i < rest.values.size(); ++i) rest.values[i] -= one.values[i];
    if (const std::optional<double> times = times_of(tensors, rows, rest))
      return MiscountedTerm{"all but " + name_of(term), *times};
  }
  return std::nullopt;
}

std::optional<HostTensor> norm_weight(const std::string& tap, const TrustedStep& trusted,
                                      double eps) {
  const HostTensor normed = trusted.values(tap);
  const Map values = as_matrix(normed);
  const std::vector<std::string> terms = terms_of_norm(tap, trusted);
  if (terms.empty() || values.rows() == 0) return std::nullopt;
  Matrix<double> x = Matrix<double>::Zero(values.rows(), values.cols());
  for (const std::string& term : terms) {
    const HostTensor summand = trusted.values(term);
    if (summand.shape != normed.shape) return std::nullopt;
    x += as_matrix(summand).cast<double>();
  }
  for (std::int64_t row = 0; row < x.rows(); ++row)
    x.row(row) /= std::sqrt(x.row(row).squaredNorm() / double(x.cols()) + eps);
  const Matrix<double> y = values.cast<double>();
  HostTensor weight{{values.cols()}, {}};
  for (std::int64_t c = 0; c < x.cols(); ++c) {
    const double squares = x.col(c).squaredNorm();
    const double scale = squares > 0 ? x.col(c).dot(y.col(c)) / squares : 0;
    x.col(c) *= scale;
    weight.values.push_back(float(scale - 1));
  }
  const bool is_norm = (x - y).norm() <= close_enough * y.norm();
  return is_norm ? std::optional(std::move(weight)) : std::nullopt;
}

std::string shared_expert_weight(const std::string& tap) {
  for (const std::string_view end :
       {".shared_expert", ".shared_expert.gated", ".shared_expert.down_proj"})
    if (tap.ends_with(end))
      return name_of(tap.substr(0, tap.size() - end.size())) + ".shared_expert.down_proj.weight";
  return {};
}

bool is_summand_of_shared_expert(const std::string& tap, const TapTensors& tensors,
                                 const std::vector<Rows>& rows, const TrustedStep& trusted,
                                 const HostTensor& down) {
  const std::string expert = tap.substr(0, tap.rfind(".shared_expert")) + ".shared_expert";
  const std::string gate = expert + ".gate_proj", up = expert + ".up_proj";
  const bool is_gated = tap.ends_with(".gated");
  if (!trusted.has(gate) || !trusted.has(up) || (is_gated && !trusted.has(expert + "_gate")))
    return false;
  const HostTensor gates = trusted.values(gate), ups = trusted.values(up),
                   factors = is_gated ? trusted.values(expert + "_gate") : HostTensor();
  const std::int64_t width = gates.cols(), share = width / tensors.tp_size;
  if (width % tensors.tp_size != 0 || down.cols() != width || ups.cols() != width) return false;
  const Map g = as_matrix(gates), u = as_matrix(ups), w = as_matrix(down);
  return for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, std::size_t rank) {
    const std::int64_t begin = tensors.ranks[rank].at.tp * share;
    const Row x = g.row(token).segment(begin, share).cast<double>();
    const Row silu = x.array() / (1 + (-x.array()).exp());
    const Row active = silu.array() * u.row(token).segment(begin, share).cast<double>().array();
    Row summand = active * w.middleCols(begin, share).cast<double>().transpose();
    if (is_gated) summand /= 1 + std::exp(-double(factors.values[std::size_t(token)]));
    return found.size() == summand.size() &&
           (found - summand).norm() <= (close_enough + tensors.looseness) * summand.norm();
  });
}

}  // namespace tokenview
