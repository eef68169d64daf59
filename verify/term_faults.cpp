// SPDX-License-Identifier: Apache-2.0
#include "verify/term_faults.hpp"

#include <cmath>

#include "reference/matrix.hpp"
#include "reference/program/error.hpp"

namespace tokenview {
namespace {

using Map = Eigen::Map<const Matrix<float>>;
using Row = Eigen::RowVectorXd;

constexpr double close_enough = 1e-3;  // of what is explained: far above rounding, far below chance

Map as_matrix(const HostTensor& tensor) {
  return {tensor.values.data(), tensor.rows(), tensor.cols()};
}

/// Calls `visit(found row, token)` for every token row of every rank until it returns false; true
/// where it never did and there was one.
template <class Visit>
bool for_all_rows(const TapTensors& tensors, const std::vector<Rows>& rows, Visit visit) {
  bool any = false;
  for (std::size_t i = 0; i < tensors.ranks.size(); ++i) {
    const Map mine = as_matrix(tensors.ranks[i].values);
    if (mine.rows() != rows[i].size()) return false;
    std::int64_t row = 0;
    for (const RowRun& run : rows[i].runs())
      for (std::int32_t k = 0; k < run.count; ++k, ++row) {
        if (run.kind != RowKind::token || run.first + k >= tensors.tokens()) continue;
        any = true;
        if (!visit(Row(mine.row(row).cast<double>()), std::int64_t(run.first + k),
                   tensors.ranks[i].at))
          return false;
      }
  }
  return any;
}

/// The times that `term` is in what was found, if one number explains every row.
std::optional<double> times_of(const TapTensors& tensors, const std::vector<Rows>& rows,
                               const HostTensor& term) {
  const Map trusted = as_matrix(*tensors.trusted), terms = as_matrix(term);
  if (terms.rows() != trusted.rows() || terms.cols() != trusted.cols()) return std::nullopt;
  double products = 0, squares = 0;
  const auto error_of = [&](const Row& found, std::int64_t token) {
    return Row(found - trusted.row(token).cast<double>());
  };
  if (!for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, const auto&) {
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
      for_all_rows(tensors, rows, [&](const Row& found, std::int64_t token, const auto&) {
        const Row one = terms.row(token).cast<double>();
        return (error_of(found, token) - more * one).norm() <=
               close_enough * std::abs(more) * one.norm();
      });
  if (!explains) return std::nullopt;
  // Whole numbers and simple fractions, as ranks make them.
  const double times = 1 + more;
  for (int divisor = 1; divisor <= 64; ++divisor)
    if (std::abs(times * divisor - std::round(times * divisor)) <= close_enough)
      return std::round(times * divisor) / divisor;
  return times;
}

}  // namespace

std::optional<MiscountedTerm> miscounted_term(const std::string& tap, const TapTensors& tensors,
                                              const std::vector<Rows>& rows,
                                              const TrustedStep& trusted) {
  std::vector<std::string> terms;
  const std::size_t layer = tap.rfind("layers.");
  if (layer != std::string::npos && tap.find('.', layer + 7) == std::string::npos)
    terms = {tap + ".mlp", tap + ".self_attn", tap + ".linear_attn", layer_before(tap)};
  if (tap.ends_with(".mlp")) terms = {tap + ".shared_expert.gated", tap + ".experts"};
  for (const std::string& term : terms) {
    const std::optional<Counterpart> value = counterpart_of(term, {}, trusted, nullptr);
    if (!value) continue;
    if (const std::optional<double> times = times_of(tensors, rows, value->values))
      return MiscountedTerm{name_of(term), *times};
  }
  return std::nullopt;
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
  return for_all_rows(
      tensors, rows, [&](const Row& found, std::int64_t token, const RankCoordinates& at) {
        const Row x = g.row(token).segment(at.tp * share, share).cast<double>();
        const Row silu = x.array() / (1 + (-x.array()).exp());
        const Row active =
            silu.array() * u.row(token).segment(at.tp * share, share).cast<double>().array();
        Row summand = active * w.middleCols(at.tp * share, share).cast<double>().transpose();
        if (is_gated) summand /= 1 + std::exp(-double(factors.values[std::size_t(token)]));
        return found.size() == summand.size() &&
               (found - summand).norm() <= close_enough * summand.norm();
      });
}

}  // namespace tokenview
