// SPDX-License-Identifier: Apache-2.0
#include "verify/placed_tap.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <type_traits>

#include "reference/program/error.hpp"
#include "verify/row_ratios.hpp"

namespace tokenview {
namespace {

/// How far a value is from what it should be; infinite where one of the two alone is not finite.
template <class S>
double distance(S found, S trusted) {
  if (found == trusted || (std::isnan(double(found)) && std::isnan(double(trusted)))) return 0;
  const double error = std::abs(double(found) - double(trusted));
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

template <class S>
const std::map<std::string, Matrix<S>>& tensors_of(const RankTaps& rank) {
  if constexpr (std::is_same_v<S, std::int64_t>)
    return rank.ids;
  else
    return rank.values;
}

}  // namespace

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
  Matrix<bool> is_held = Matrix<bool>::Constant(trusted.rows(), trusted.cols(), false);
  Matrix<double> sum;
  std::vector<std::int64_t> addends(std::size_t(trusted.rows()), 0);  // of each row of the sum
  PlacedValues<S> total{.is_sum = true};
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
    PlacedValues<S> values{.at = held.at, .trusted_columns = columns};
    std::int64_t r = -1;
    for (const RowRun& run : held.rows.runs())
      for (std::int32_t i = 0; i < run.count; ++i) {
        ++r;
        if (run.kind == RowKind::mix) {
          result.strangers.push_back({held.at, r});
          continue;
        }
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
          ++addends[std::size_t(place)];
          for (std::size_t c = 0; c < columns.size(); ++c)
            sum(place, columns[c]) += double(mine(r, std::int64_t(c)));
          continue;
        }
        values.rows.push_back(r);
        values.trusted_rows.push_back(place);
        for (std::size_t c = 0; c < columns.size(); ++c) {
          is_held(place, columns[c]) = true;
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

  const bool is_summed = partial_ranks > 0 && partial_ranks == summands;
  for (std::int64_t c = 0; is_summed && c < trusted.cols(); ++c) total.trusted_columns.push_back(c);
  for (std::int64_t r = 0; r < trusted.rows(); ++r) {
    const std::int64_t found = is_summed ? addends[std::size_t(r)] : 0;
    if (found != summands && !is_held.row(r).all()) result.absent_rows.push_back(r);
    if (found == 0) continue;
    total.rows.push_back(r);
    total.trusted_rows.push_back(r);
    for (std::int64_t c = 0; c < trusted.cols(); ++c) {
      total.found.push_back(S(sum(r, c)));
      total.trusted.push_back(trusted(r, c));
    }
  }
  if (!total.rows.empty()) result.values.push_back(std::move(total));
  return result;
}

template <class S>
PlacedTap<S> placed(const NamedView& view, const std::vector<RankTaps>& taps, std::int64_t dp,
                    const ParallelConfig& parallel, const ModelConfig& config,
                    const Matrix<S>& trusted,
                    const std::function<std::int64_t(const RowRun&)>& row_of) {
  const std::string tap = view.name.substr(view.name.find('/') + 1);
  std::vector<HeldTensor<S>> ranks;
  std::vector<RankCoordinates> without;
  for_each_holder(view, parallel, [&](const RankCoordinates& at, const ViewOps::Tensor& held) {
    if (at.dp != dp) return;
    const auto& of_rank = tensors_of<S>(taps[std::size_t(at.world)]);
    if (const auto values = of_rank.find(view.name); values != of_rank.end())
      ranks.push_back({at, values->second, held.rows, held.sum.is_partial(),
                       columns_of(tap, held.columns, trusted.cols(), config)});
    else if (held.rows.size() > 0)
      without.push_back(at);
  });
  PlacedTap<S> result = placed<S>(ranks, dp, parallel.tp, trusted, row_of);
  result.without = std::move(without);
  return result;
}

template <class S>
std::vector<std::string> PlacedTap<S>::problems() const {
  std::vector<std::string> lines;
  const auto in_words = [](const Rows& rows, const char* one, const char* several) {
    return text(rows.size() == 1 ? "row " : "rows ", to_string(rows),
                rows.size() == 1 ? one : several);
  };
  for (const RankCoordinates& at : without) lines.push_back(text("rank ", at.world, " has none"));
  for (const auto& [at, expected, actual] : other_shapes)
    lines.push_back(text("rank ", at.world, " has ", actual, ", its view says ", expected));
  for (auto begin = strangers.begin(); begin != strangers.end();) {
    const std::int64_t rank = begin->at.world;
    Rows rows;
    for (; begin != strangers.end() && begin->at.world == rank; ++begin)
      rows.append({std::int32_t(begin->row), 1});
    lines.push_back(text("rank ", rank, ' ', in_words(rows, " is no row", " are no rows"),
                         " of the trusted tensor"));
  }
  if (!absent_rows.empty()) {
    Rows rows;
    for (const std::int64_t row : absent_rows) rows.append({std::int32_t(row), 1});
    lines.push_back(in_words(rows, " is on no rank", " are on no rank"));
  }
  return lines;
}

template <class S>
Matrix<S> whole(const PlacedTap<S>& tap, const Eigen::Ref<const Matrix<S>>& trusted) {
  Matrix<S> result = trusted;
  for (const PlacedValues<S>& values : tap.values) {
    auto found = values.found.begin();
    for (const std::int64_t row : values.trusted_rows)
      for (const std::int64_t column : values.trusted_columns) {
        S& known = result(row, column);
        const S right = trusted(row, column), value = *found++;
        if (distance(value, right) > distance(known, right)) known = value;
      }
  }
  return result;
}

bool are_equal_copies(const PlacedTap<std::int64_t>& tap) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> known;  // by row and column
  for (const PlacedValues<std::int64_t>& values : tap.values) {
    auto found = values.found.begin();
    for (const std::int64_t row : values.trusted_rows)
      for (const std::int64_t column : values.trusted_columns) {
        const auto [first, is_new] = known.try_emplace({row, column}, *found);
        if (!is_new && first->second != *found) return false;
        ++found;
      }
  }
  return true;
}

template struct PlacedTap<float>;
template struct PlacedTap<double>;
template struct PlacedTap<std::int64_t>;

template PlacedTap<float> placed(const std::vector<HeldTensor<float>>&, std::int64_t, std::int64_t,
                                 const Eigen::Ref<const Matrix<float>>&,
                                 const std::function<std::int64_t(const RowRun&)>&);
template PlacedTap<std::int64_t> placed(const std::vector<HeldTensor<std::int64_t>>&, std::int64_t,
                                        std::int64_t, const Eigen::Ref<const Matrix<std::int64_t>>&,
                                        const std::function<std::int64_t(const RowRun&)>&);
template PlacedTap<double> placed(const NamedView&, const std::vector<RankTaps>&, std::int64_t,
                                  const ParallelConfig&, const ModelConfig&, const Matrix<double>&,
                                  const std::function<std::int64_t(const RowRun&)>&);
template PlacedTap<std::int64_t> placed(const NamedView&, const std::vector<RankTaps>&,
                                        std::int64_t, const ParallelConfig&, const ModelConfig&,
                                        const Matrix<std::int64_t>&,
                                        const std::function<std::int64_t(const RowRun&)>&);
template Matrix<float> whole(const PlacedTap<float>&, const Eigen::Ref<const Matrix<float>>&);
template Matrix<double> whole(const PlacedTap<double>&, const Eigen::Ref<const Matrix<double>>&);
template Matrix<std::int64_t> whole(const PlacedTap<std::int64_t>&,
                                    const Eigen::Ref<const Matrix<std::int64_t>>&);

void raise_row_ratios(std::vector<double>& ratios, const PlacedValues<double>& values,
                      double allowed) {
  const std::vector<double> of_rows =
      row_ratios(std::span<const double>(values.found), std::span<const double>(values.trusted),
                 values.columns(), allowed);
  for (std::size_t i = 0; i < of_rows.size(); ++i) {
    double& ratio = ratios[std::size_t(values.trusted_rows[i])];
    ratio = std::max(ratio, of_rows[i]);
  }
}

}  // namespace tokenview
