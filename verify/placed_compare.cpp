// SPDX-License-Identifier: Apache-2.0
#include "verify/placed_compare.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/row_ratios.hpp"

namespace tokenview {

std::vector<std::int64_t> columns_of(const std::string& tap, const ColumnBlock& block,
                                     std::int64_t width, const ModelConfig& config) {
  std::vector<std::int64_t> columns;
  const auto add = [&](std::int64_t begin, std::int64_t extent) {
    const std::int64_t share = extent / block.of;
    for (std::int64_t c = begin + block.begin * share; c < begin + block.end * share; ++c)
      columns.push_back(c);
  };
  if (tap.ends_with("in_proj_qkv")) {  // three segments, each cut by itself
    add(0, config.key_dim());
    add(config.key_dim(), config.key_dim());
    add(2 * config.key_dim(), config.value_dim());
  } else {
    add(0, width);
  }
  return columns;
}

template <class S>
PlacedTap<S> placed(const std::vector<HeldTensor<S>>& ranks, std::int64_t dp, std::int64_t summands,
                    const Eigen::Ref<const Matrix<S>>& trusted,
                    const std::function<std::int64_t(const RowRun&)>& row_of) {
  PlacedTap<S> result;
  Matrix<double> sum;
  std::vector<bool> is_summed(std::size_t(trusted.rows()), false);
  PlacedValues<S> total{.is_sum = true, .columns = trusted.cols()};
  std::int64_t partial_ranks = 0;
  for (const HeldTensor<S>& held : ranks) {
    const auto& mine = held.values;
    const std::vector<std::int64_t>& columns = held.columns;
    if (mine.rows() != held.rows.size() || mine.cols() != std::int64_t(columns.size())) {
      result.other_shapes.push_back({held.at,
                                     text('[', held.rows.size(), ", ", columns.size(), ']'),
                                     text('[', mine.rows(), ", ", mine.cols(), ']')});
      continue;
    }
    if (held.is_partial && sum.size() == 0)
      sum = Matrix<double>::Zero(trusted.rows(), trusted.cols());
    PlacedValues<S> values{.at = held.at, .columns = std::int64_t(columns.size())};
    std::int64_t r = -1;
    for (const RowRun& run : held.rows.runs())
      for (std::int32_t i = 0; i < run.count; ++i) {
        ++r;
        if (run.kind != RowKind::token || run.dp != dp) continue;
        RowRun row = run;
        row.first += i;
        row.count = 1;
        const std::int64_t place = row_of(row);
        if (place < 0 || place >= trusted.rows()) {
          result.strangers.push_back({held.at, r});
          continue;
        }
        if (held.is_partial) {
          is_summed[std::size_t(place)] = true;
          for (std::size_t c = 0; c < columns.size(); ++c)
            sum(place, columns[c]) += double(mine(r, std::int64_t(c)));
          continue;
        }
        values.rows.push_back(r);
        values.trusted_rows.push_back(place);
        for (std::size_t c = 0; c < columns.size(); ++c) {
          values.found.push_back(mine(r, std::int64_t(c)));
          values.trusted.push_back(trusted(place, columns[c]));
        }
      }
    if (held.is_partial) {
      ++partial_ranks;
      total.at = held.at;
    } else if (!values.rows.empty()) {
      result.values.push_back(std::move(values));
    }
  }
  if (partial_ranks == 0 || partial_ranks != summands) return result;
  for (std::int64_t r = 0; r < trusted.rows(); ++r) {
    if (!is_summed[std::size_t(r)]) continue;
    total.rows.push_back(r);
    total.trusted_rows.push_back(r);
    for (std::int64_t c = 0; c < trusted.cols(); ++c) {
      total.found.push_back(S(sum(r, c)));
      total.trusted.push_back(trusted(r, c));
    }
  }
  result.values.push_back(std::move(total));  // without a row too: then the summands are of none
  return result;
}

template PlacedTap<float> placed(const std::vector<HeldTensor<float>>&, std::int64_t, std::int64_t,
                                 const Eigen::Ref<const Matrix<float>>&,
                                 const std::function<std::int64_t(const RowRun&)>&);
template PlacedTap<double> placed(const std::vector<HeldTensor<double>>&, std::int64_t,
                                  std::int64_t, const Eigen::Ref<const Matrix<double>>&,
                                  const std::function<std::int64_t(const RowRun&)>&);

PlacedTap<double> placed(const NamedView& view, const std::vector<RankTaps>& taps, std::int64_t dp,
                         const ParallelConfig& parallel, const ModelConfig& config,
                         const Matrix<double>& trusted,
                         const std::function<std::int64_t(const RowRun&)>& row_of) {
  const std::string tap = view.name.substr(view.name.find('/') + 1);
  std::vector<HeldTensor<double>> ranks;
  for_each_holder(view, parallel, [&](const RankCoordinates& at, const ViewOps::Tensor& held) {
    if (at.dp != dp) return;
    const RankTaps& of_rank = taps[std::size_t(at.world)];
    if (const auto values = of_rank.values.find(view.name); values != of_rank.values.end())
      ranks.push_back({at, values->second, held.rows, held.sum.is_partial(),
                       columns_of(tap, held.columns, trusted.cols(), config)});
  });
  return placed<double>(ranks, dp, parallel.tp, trusted, row_of);
}

void raise_row_ratios(std::vector<double>& ratios, const PlacedValues<double>& values,
                      double allowed) {
  const std::vector<double> of_rows =
      row_ratios(std::span<const double>(values.found), std::span<const double>(values.trusted),
                 values.columns, allowed);
  for (std::size_t i = 0; i < of_rows.size(); ++i) {
    double& ratio = ratios[std::size_t(values.trusted_rows[i])];
    ratio = std::max(ratio, of_rows[i]);
  }
}

}  // namespace tokenview
