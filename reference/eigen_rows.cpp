// SPDX-License-Identifier: Apache-2.0
// Rows that come and go: pads, masks, rows by index, flat slices. Nothing is computed here.
#include <algorithm>
#include <limits>

#include "reference/eigen_ops.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

template <class S>
typename EigenOps<S>::Routing EigenOps<S>::pad_rows(const Routing& x, std::int64_t count) const {
  Routing out{pad_rows(x.weights, count),
              Matrix<std::int64_t>::Zero(x.ids.rows() + count, x.ids.cols())};
  out.ids.topRows(x.ids.rows()) = x.ids;
  return out;
}

template <class S>
typename EigenOps<S>::Routing EigenOps<S>::skip_pads(Routing routing, const Mask& mask,
                                                     bool) const {
  const auto rows = std::min<std::int64_t>(routing.ids.rows(), std::int64_t(mask.size()));
  for (std::int64_t t = 0; t < rows; ++t) {
    if (mask[std::size_t(t)] == 0) continue;
    routing.ids.row(t).setConstant(-1);
    routing.weights.row(t).setZero();
  }
  return routing;
}

template <class S>
std::vector<std::int64_t> EigenOps<S>::rows_for(const Routing& routing,
                                                const Range& experts) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < routing.ids.rows(); ++t)
    for (std::int64_t j = 0; j < routing.ids.cols(); ++j)
      if (routing.ids(t, j) >= experts.begin && routing.ids(t, j) < experts.end) {
        rows.push_back(t);
        break;
      }
  return rows;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::take_rows(const Tensor& x,
                                                    const std::vector<std::int64_t>& rows) const {
  Tensor out(Eigen::Index(rows.size()), x.cols());
  for (std::size_t i = 0; i < rows.size(); ++i) out.row(Eigen::Index(i)) = x.row(rows[i]);
  return out;
}

template <class S>
typename EigenOps<S>::Routing EigenOps<S>::take_rows(const Routing& x,
                                                     const std::vector<std::int64_t>& rows) const {
  Routing out{take_rows(x.weights, rows),
              Matrix<std::int64_t>(Eigen::Index(rows.size()), x.ids.cols())};
  for (std::size_t i = 0; i < rows.size(); ++i) out.ids.row(Eigen::Index(i)) = x.ids.row(rows[i]);
  return out;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::add_rows(const Tensor& x,
                                                   const std::vector<std::int64_t>& rows,
                                                   std::int64_t count) const {
  if (std::int64_t(rows.size()) != x.rows())
    throw ShapeError(text("add_rows: ", x.rows(), " rows to ", rows.size(), " places"));
  Tensor out = Tensor::Zero(count, x.cols());
  for (std::size_t i = 0; i < rows.size(); ++i) out.row(rows[i]) += x.row(Eigen::Index(i));
  round_in_place(out);
  return out;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::fill_rows(Tensor x, std::int64_t begin,
                                                    const std::string& content) const {
  const auto rows = x.bottomRows(x.rows() - begin);
  if (content == "nan")
    x.bottomRows(rows.rows()).setConstant(std::numeric_limits<S>::quiet_NaN());
  else if (begin > 0)  // rows of the step, a thousand times as large, or as they are
    for (std::int64_t t = begin; t < x.rows(); ++t)
      x.row(t) = x.row(t % begin) * (content == "large" ? S(1000) : S(1));
  return x;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::flat_slice(const Tensor& x, std::int64_t part,
                                                     std::int64_t parts) const {
  const std::int64_t size = x.size() / parts;
  Tensor flat(size, 1);
  std::copy_n(x.data() + part * size, size, flat.data());
  return flat;
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::unflatten(const Tensor& flat, std::int64_t width) const {
  return Eigen::Map<const Tensor>(flat.data(), flat.size() / width, width);
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::index_rows(const Tensor& x,
                                                     const std::vector<std::int64_t>& rows) const {
  for (const std::int64_t row : rows)
    if (row < 0 || row >= x.rows())
      throw ShapeError(text("index_rows: index ", row, " is out of range for ", x.rows(), " rows"));
  return take_rows(x, rows);
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::first_rows(const Tensor& x, std::int64_t count,
                                                     bool by_pointer) const {
  if (count <= x.rows()) return slice(x, Axis::rows, 0, count);
  throw ShapeError(text("first_rows: ", count, " rows of ", x.rows(),
                        by_pointer ? ", read through a pointer" : ""));
}

template <class S>
typename EigenOps<S>::Tensor EigenOps<S>::blended(const Tensor& x) const {
  Tensor out = x;
  for (Eigen::Index t = 0; t < x.rows(); ++t)
    out.row(t) = (x.row(t) + x.row((t + 1) % x.rows())) / S(2);
  return out;
}

template <class S>
typename EigenOps<S>::Routing EigenOps<S>::with_experts(
    Routing routing, const std::vector<std::int64_t>& experts) const {
  for (Eigen::Index t = 0; !experts.empty() && t < routing.ids.rows(); ++t)
    for (Eigen::Index j = 0; j < routing.ids.cols(); ++j)
      routing.ids(t, j) = experts[std::size_t(t) % experts.size()] + j;
  return routing;
}

template class EigenOps<float>;
template class EigenOps<double>;

}  // namespace tokenview
