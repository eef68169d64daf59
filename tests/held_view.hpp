// SPDX-License-Identifier: Apache-2.0
// Numbers beside their view, and whether the two agree.
#pragma once
#include <Eigen/Dense>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "reference/eigen_ops.hpp"
#include "reference/program/error.hpp"
#include "verify/view_ops.hpp"

namespace tokenview {

/// One rank's tensor: its numbers, and what they are said to be.
struct Held {
  Matrix<double> values;
  ViewOps::Tensor view;
};
inline const Matrix<double>& of(const EigenOps<double>&, const Held& x) { return x.values; }
inline const ViewOps::Tensor& of(const ViewOps&, const Held& x) { return x.view; }

/// The unsharded value of each token, a row each: tokens of dp rank 0, then those of dp rank 1.
struct Truth {
  Matrix<double> rows;
  std::int64_t tokens;                      // of one dp rank
  std::vector<std::int64_t> segments = {};  // widths that are cut into blocks each by itself

  std::vector<std::int64_t> columns(const ColumnBlock& block) const {
    std::vector<std::int64_t> columns;
    std::int64_t begin = 0;
    for (const std::int64_t width :
         segments.empty() ? std::vector<std::int64_t>{rows.cols()} : segments) {
      for (std::int64_t c = width * block.begin / block.of; c < width * block.end / block.of; ++c)
        columns.push_back(begin + c);
      begin += width;
    }
    return columns;
  }
  Matrix<double> row(const RowRun& token, const ColumnBlock& block) const {
    const auto held = columns(block);
    Matrix<double> out(1, Eigen::Index(held.size()));
    for (std::size_t c = 0; c < held.size(); ++c)
      out(0, Eigen::Index(c)) = rows(token.dp * tokens + token.first, held[c]);
    return out;
  }
};

/// Not true of NaN.
inline bool near(const Matrix<double>& a, const Matrix<double>& b) {
  return a.cols() == b.cols() &&
         ((a - b).array().abs() <= 1e-9 * (1 + b.cwiseAbs().maxCoeff())).all();
}

/// What is untrue of the views, as far as their numbers can tell; empty: nothing. `all_there`: each
/// summand of a token is on some rank.
inline std::string confirm(const std::vector<Held>& ranks, const Truth& truth,
                           bool all_there = true) {
  struct Summands {
    std::vector<std::vector<double>> counts;
    std::vector<Matrix<double>> rows;
    RowRun token;
    ColumnBlock columns;
  };
  std::map<std::tuple<int, int, int, int>, Summands> partial;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& [values, view] = ranks[r];
    const auto width = std::int64_t(truth.columns(view.columns).size());
    if (values.rows() != view.rows.size() || values.cols() != view.width || view.width != width)
      return text("rank ", r, " has [", values.rows(), ", ", values.cols(), "], its view says [",
                  view.rows.size(), ", ", view.width, "], its columns ", width);
    for (std::int64_t i = 0; i < values.rows(); ++i) {
      const auto place = [&] {
        return text("rank ", r, " row ", i, " of ", to_string(view), ": ");
      };
      const RowRun row = view.rows.at(i);
      const Matrix<double> found = values.row(i);
      if (row.kind == RowKind::pad) {
        if (row.content == PadContent::zero && !(found.array() == 0).all())
          return place() + "not zeros";
      } else if (row.kind == RowKind::mix) {
        for (std::int64_t t = 0; t < truth.rows.rows(); ++t)
          if (near(found,
                   truth.row({std::int32_t(t % truth.tokens), 1, std::int16_t(t / truth.tokens)},
                             view.columns)))
            return place() + text("is token ", t);
      } else if (!view.sum.is_partial()) {
        const double times = double(view.sum.times()) / view.sum.divisor();
        if (!near(found, times * truth.row(row, view.columns))) return place() + "another value";
      } else {
        Summands& all = partial[{row.dp, row.first, view.columns.begin, view.columns.of}];
        std::vector<double> counts;
        for (std::int64_t s = 0; s < view.sum.size(); ++s)
          counts.push_back(double(view.sum.count(s)) / view.sum.divisor());
        if (!all.counts.empty() && all.counts.front().size() != counts.size())
          return place() + "summands of another sum";
        all.counts.push_back(counts);
        all.rows.push_back(found);
        all.token = row;
        all.columns = view.columns;
      }
    }
  }
  // The ranks' counts in the proportions in which every summand is there once.
  for (const auto& [key, all] : partial) {
    const auto n = Eigen::Index(all.counts.size()), size = Eigen::Index(all.counts.front().size());
    Eigen::MatrixXd counts(size, n);
    for (Eigen::Index i = 0; i < n; ++i)
      for (Eigen::Index s = 0; s < size; ++s)
        counts(s, i) = all.counts[std::size_t(i)][std::size_t(s)];
    const Eigen::VectorXd once = Eigen::VectorXd::Ones(size);
    const Eigen::VectorXd share = counts.completeOrthogonalDecomposition().solve(once);
    if ((counts * share - once).norm() > 1e-9) {
      if (!all_there) continue;
      return text("token ", all.token.first, ": summands are missing");
    }
    Matrix<double> sum = Matrix<double>::Zero(1, all.rows.front().cols());
    for (Eigen::Index i = 0; i < n; ++i) sum += share[i] * all.rows[std::size_t(i)];
    if (!near(sum, truth.row(all.token, all.columns)))
      return text("token ", all.token.first, ": the summands add up to something else");
  }
  return {};
}

}  // namespace tokenview
