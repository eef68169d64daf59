// SPDX-License-Identifier: Apache-2.0
// Rows that come and go: pads, masks, rows by index, flat slices, and the algebra of collectives.
#include <algorithm>

#include "device/cuda_context.hpp"
#include "device/cuda_ops.hpp"
#include "device/kernels.hpp"
#include "device/row_gather.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {

namespace {

template <class T>
DeviceMatrix<T> joined_rows(CudaContext& gpu, std::span<const DeviceMatrix<T>* const> parts) {
  std::int64_t rows = 0;
  for (const DeviceMatrix<T>* part : parts) {
    if (part->cols() != parts.front()->cols())
      throw ShapeError(text("concat: operand is [", part->rows(), ", ", part->cols(),
                            "], expected ", parts.front()->cols(), " columns"));
    rows += part->rows();
  }
  const auto whole = gpu.matrix<T>(rows, parts.front()->cols());
  T* to = whole.data();
  for (const DeviceMatrix<T>* part : parts) {
    gpu.copy(to, part->data(), part->size() * std::int64_t(sizeof(T)));
    to += part->size();
  }
  return whole;
}

template <class T>
DeviceMatrix<T> copied(CudaContext& gpu, const DeviceMatrix<T>& x) {
  const DeviceMatrix<T>* const parts[] = {&x};
  return joined_rows<T>(gpu, parts);
}

template <class T>
DeviceMatrix<T> with_zero_rows(CudaContext& gpu, const DeviceMatrix<T>& x, std::int64_t count) {
  const auto pads = gpu.zeros<T>(count, x.cols());
  const DeviceMatrix<T>* const parts[] = {&x, &pads};
  return joined_rows<T>(gpu, parts);
}

template <class T>
DeviceMatrix<T> gathered(CudaContext& gpu, const DeviceMatrix<T>& x,
                         const std::vector<std::int64_t>& rows, std::int64_t rank) {
  const auto out = gpu.matrix<T>(std::int64_t(rows.size()), x.cols());
  const auto index = gpu.upload(rows);
  row_gather<T>(out, x, index.get(), gpu.stream(), gpu.assert_note(rank));
  return out;
}

}  // namespace

template <class T>
DeviceMatrix<T> CudaOps<T>::blank(std::int64_t rows, std::int64_t cols) const {
  return gpu_->zeros<T>(rows, cols);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::pad_rows(const Tensor& x, std::int64_t count) const {
  return with_zero_rows(*gpu_, x, count);
}

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::pad_rows(const Routing& x, std::int64_t count) const {
  return {with_zero_rows(*gpu_, x.weights, count), with_zero_rows(*gpu_, x.ids, count)};
}

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::skip_pads(const Routing& routing, const Mask& mask,
                                                   bool) const {
  const Routing out{copied(*gpu_, routing.weights), copied(*gpu_, routing.ids)};
  const auto device_mask = gpu_->step_input(
      mask, [](const Batch& step) { return HostRows().pad_mask(step); }, "skip_pads: the pads");
  kernels::skip_pads(out.weights, out.ids.data(), device_mask.get(),
                     std::min(out.ids.rows(), std::int64_t(mask.size())), gpu_->stream());
  return out;
}

template <class T>
std::vector<std::int64_t> CudaOps<T>::rows_for(const Routing& routing, const Range& experts) const {
  const auto ids = in_scope("rows_for", [&] { return download(routing.ids); });
  const auto k = routing.ids.cols();
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < routing.ids.rows(); ++t)
    if (std::any_of(ids.begin() + t * k, ids.begin() + (t + 1) * k,
                    [&](std::int64_t id) { return id >= experts.begin && id < experts.end; }))
      rows.push_back(t);
  return rows;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::take_rows(const Tensor& x,
                                      const std::vector<std::int64_t>& rows) const {
  return gathered(*gpu_, x, rows, rank_);
}

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::take_rows(const Routing& x,
                                                   const std::vector<std::int64_t>& rows) const {
  return {gathered(*gpu_, x.weights, rows, rank_), gathered(*gpu_, x.ids, rows, rank_)};
}

/// The rows of x that belong to each row of the result are listed first, in their order.
template <class T>
DeviceMatrix<T> CudaOps<T>::add_rows(const Tensor& x, const std::vector<std::int64_t>& rows,
                                     std::int64_t count) const {
  std::vector<std::int64_t> begin(std::size_t(count) + 1, 0), order(rows.size());
  for (const std::int64_t row : rows) ++begin.at(std::size_t(row) + 1);
  for (std::size_t r = 1; r < begin.size(); ++r) begin[r] += begin[r - 1];
  std::vector<std::int64_t> next = begin;
  for (std::size_t i = 0; i < rows.size(); ++i)
    order[std::size_t(next[std::size_t(rows[i])]++)] = std::int64_t(i);
  const Tensor out = matrix(count, x.cols());
  const auto device_begin = gpu_->upload(begin), device_order = gpu_->upload(order);
  kernels::add_rows<T>(out, x, device_begin.get(), device_order.get(), gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::flat_slice(const Tensor& x, std::int64_t part,
                                       std::int64_t parts) const {
  const std::int64_t size = x.size() / parts;
  return x.reshaped(part * size, size, 1);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::unflatten(const Tensor& flat, std::int64_t width) const {
  return flat.reshaped(0, flat.size() / width, width);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::index_rows(const Tensor& x,
                                       const std::vector<std::int64_t>& rows) const {
  return gathered(*gpu_, x, rows, rank_);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::first_rows(const Tensor& x, std::int64_t count, bool by_pointer) const {
  if (count <= x.rows()) return slice(x, Axis::rows, 0, count);
  throw ShapeError(text("first_rows: ", count, " rows of ", x.rows(),
                        by_pointer ? ", read through a pointer" : ""));
}

template <class T>
DeviceMatrix<T> CudaOps<T>::slice(const Tensor& x, Axis axis, std::int64_t begin,
                                  std::int64_t end) const {
  if (begin < 0 || begin > end || end > extent(x, axis))
    throw ShapeError(text("slice: [", begin, ", ", end, ") of ", extent(x, axis)));
  if (axis == Axis::rows) return x.middle_rows(begin, end - begin);
  const Tensor out = matrix(x.rows(), end - begin);
  kernels::copy_blocks<T>(out, x, {1, end - begin, begin, 0, 0, 0}, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::concat(std::span<const Tensor* const> parts, Axis axis) const {
  if (axis == Axis::rows) return joined_rows(*gpu_, parts);
  std::int64_t cols = 0;
  for (const Tensor* part : parts) {
    if (part->rows() != parts.front()->rows())
      throw ShapeError(text("concat: operand is [", part->rows(), ", ", part->cols(),
                            "], expected ", parts.front()->rows(), " rows"));
    cols += part->cols();
  }
  const Tensor whole = matrix(parts.front()->rows(), cols);
  std::int64_t first = 0;
  for (const Tensor* part : parts) {
    kernels::copy_blocks<T>(whole, *part, {1, part->cols(), 0, 0, first, 0}, gpu_->stream());
    first += part->cols();
  }
  return whole;
}

template <class T>
void CudaOps<T>::concat(std::span<const Tensor* const> parts, Axis axis,
                        std::span<Tensor* const> results) const {
  const Tensor whole = concat(parts, axis);
  for (Tensor* result : results) *result = whole;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
                                std::int64_t end) const {
  for (const Tensor* part : parts) require_same_shape("sum", *parts.front(), *part);
  Tensor total = slice(*parts.front(), axis, begin, end);
  for (const Tensor* part : parts.subspan(1)) total = add(total, slice(*part, axis, begin, end));
  return total;
}

template <class T>
void CudaOps<T>::sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
                     std::int64_t end, std::span<Tensor* const> results) const {
  const Tensor total = sum(parts, axis, begin, end);
  for (Tensor* result : results) *result = total;
}

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::slice(const Routing& x, Axis axis, std::int64_t begin,
                                               std::int64_t end) const {
  if (axis == Axis::cols) throw ShapeError("slice: a routing is cut along its rows only");
  if (begin < 0 || begin > end || end > x.ids.rows())
    throw ShapeError(text("slice: [", begin, ", ", end, ") of ", x.ids.rows()));
  return {x.weights.middle_rows(begin, end - begin), x.ids.middle_rows(begin, end - begin)};
}

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::concat(std::span<const Routing* const> parts,
                                                Axis axis) const {
  if (axis == Axis::cols) throw ShapeError("concat: a routing is joined along its rows only");
  std::vector<const DeviceMatrix<float>*> weights;
  std::vector<const DeviceMatrix<std::int64_t>*> ids;
  for (const Routing* part : parts) {
    weights.push_back(&part->weights);
    ids.push_back(&part->ids);
  }
  return {joined_rows<float>(*gpu_, weights), joined_rows<std::int64_t>(*gpu_, ids)};
}

template class CudaOps<float>;
template class CudaOps<__nv_bfloat16>;

}  // namespace tokenview
