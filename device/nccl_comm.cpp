// SPDX-License-Identifier: Apache-2.0
#include "device/nccl_comm.hpp"

#include <algorithm>
#include <numeric>

#include "device/cuda_context.hpp"
#include "device/kernels.hpp"

namespace tokenview {
namespace {

template <class T>
constexpr ncclDataType_t type_of = ncclFloat32;
template <>
constexpr ncclDataType_t type_of<__nv_bfloat16> = ncclBfloat16;
template <>
constexpr ncclDataType_t type_of<std::int64_t> = ncclInt64;

/// Calls of NCCL as one: they need each other.
template <class Calls>
ncclResult_t as_one(Calls calls) {
  if (const ncclResult_t status = ncclGroupStart(); status != ncclSuccess) return status;
  const ncclResult_t status = calls();
  const ncclResult_t end = ncclGroupEnd();
  return status == ncclSuccess ? end : status;
}

bool are_equal(std::span<const std::int64_t> sizes) {
  return std::ranges::all_of(sizes, [&](std::int64_t rows) { return rows == sizes.front(); });
}

std::int64_t total(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

}  // namespace

template <class Ops>
NcclComm<Ops>::NcclComm(const Ops& arithmetic, HostGroup ranks, NcclConnection& connection,
                        ncclComm_t comm, const NcclOptions& options)
    : DistributedComm<Ops>(arithmetic, std::move(ranks), options.compares_calls),
      connection_(connection),
      comm_(comm),
      options_(options) {}

template <class Ops>
template <class Queue>
void NcclComm<Ops>::queue(const CollectiveCall& call, Queue queue_calls) {
  connection_.call(queue_calls, [&] { return group().where(call); });
}

template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::carry_out(const CollectiveCall& call,
                                                        const Tensor& x) {
  switch (call.op) {
    case CollectiveOp::all_reduce:
      return all_reduce_native(call, x);
    case CollectiveOp::reduce_scatter:
      if (call.axis == Axis::rows) return reduce_scatter_rows(call, x, shares(x.rows()));
      return reduce_scatter_rows(call, columns_as_rows(x), shares(x.rows() * size()));
    case CollectiveOp::reduce_scatter_v:
      return reduce_scatter_rows(call, x, call.sizes);
    default:
      break;
  }
  if (call.op == CollectiveOp::all_gather && call.axis == Axis::cols)
    return gathered_columns(call, x);
  const Tensor out = result_of(call, x);
  queue(call, [&] { return move_rows(call, x, out); });
  return out;
}

template <class Ops>
typename NcclComm<Ops>::Routing NcclComm<Ops>::carry_out(const CollectiveCall& call,
                                                         const Routing& x) {
  if (call.axis == Axis::cols)
    throw ShapeError(text(to_string(call.op), ": a routing is joined along its rows only"));
  const Routing out{result_of(call, x.weights), result_of(call, x.ids)};
  queue(call, [&] {
    return as_one([&] {
      const ncclResult_t status = move_rows(call, x.weights, out.weights);
      return status == ncclSuccess ? move_rows(call, x.ids, out.ids) : status;
    });
  });
  return out;
}

template <class Ops>
template <class T>
DeviceMatrix<T> NcclComm<Ops>::result_of(const CollectiveCall& call,
                                         const DeviceMatrix<T>& x) const {
  std::int64_t rows = x.rows();
  if (call.op == CollectiveOp::all_gather) rows *= size();
  if (call.op == CollectiveOp::all_gather_v) rows = total(call.sizes);
  if (call.op == CollectiveOp::all_to_all_v) rows = total(call.from);
  if (call.op == CollectiveOp::broadcast && call.peer == rank()) return x;  // in place: not written
  return ops().context().template matrix<T>(rows, x.cols());
}

template <class Ops>
template <class T>
ncclResult_t NcclComm<Ops>::move_rows(const CollectiveCall& call, const DeviceMatrix<T>& x,
                                      const DeviceMatrix<T>& out) const {
  const cudaStream_t stream = ops().context().stream();
  const auto elements = [&](std::int64_t rows) { return std::size_t(rows * x.cols()); };
  // Rows of x for each rank, and of each rank in `out`.
  const auto exchange = [&](auto rows_to, auto rows_from) {
    return as_one([&] {
      const T* from = x.data();
      T* to = out.data();
      for (int peer = 0; peer < int(size()); ++peer) {
        const std::size_t sent = elements(rows_to(peer)), received = elements(rows_from(peer));
        if (sent > 0)
          if (const auto status = ncclSend(from, sent, type_of<T>, peer, comm_, stream);
              status != ncclSuccess)
            return status;
        if (received > 0)
          if (const auto status = ncclRecv(to, received, type_of<T>, peer, comm_, stream);
              status != ncclSuccess)
            return status;
        from += sent;
        to += received;
      }
      return ncclSuccess;
    });
  };
  switch (call.op) {
    case CollectiveOp::broadcast:
      return ncclBroadcast(x.data(), out.data(), elements(x.rows()), type_of<T>, int(call.peer),
                           comm_, stream);
    case CollectiveOp::all_to_all: {
      const auto share = [&](int) { return x.rows() / size(); };
      return exchange(share, share);
    }
    case CollectiveOp::all_to_all_v:
      return exchange([&](int peer) { return call.sizes[std::size_t(peer)]; },
                      [&](int peer) { return call.from[std::size_t(peer)]; });
    default:
      break;
  }
  if (call.op == CollectiveOp::all_gather || are_equal(call.sizes))
    return ncclAllGather(x.data(), out.data(), elements(x.rows()), type_of<T>, comm_, stream);
  return as_one([&] {
    T* to = out.data();
    for (int root = 0; root < int(size()); ++root) {
      const std::size_t count = elements(call.sizes[std::size_t(root)]);
      if (count > 0)
        if (const auto status = ncclBroadcast(x.data(), to, count, type_of<T>, root, comm_, stream);
            status != ncclSuccess)
          return status;
      to += count;
    }
    return ncclSuccess;
  });
}

template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::gathered_columns(const CollectiveCall& call,
                                                               const Tensor& x) {
  const Tensor parts = result_of(call, x);
  queue(call, [&] { return move_rows(call, x, parts); });
  const auto out =
      ops().context().template matrix<typename Tensor::Element>(x.rows(), x.cols() * size());
  for (std::int64_t i = 0; i < size(); ++i)
    kernels::copy_blocks<typename Tensor::Element>(out, parts.middle_rows(i * x.rows(), x.rows()),
                                                   {1, x.cols(), 0, 0, i * x.cols(), 0},
                                                   ops().context().stream());
  return out;
}

template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::all_reduce_native(const CollectiveCall& call,
                                                                const Tensor& x) {
  using T = typename Tensor::Element;
  if (!is_native()) {
    // As flat parts: an order of addition does not see rows.
    std::vector<std::int64_t> parts;
    for (std::int64_t i = 0; i < size(); ++i)
      parts.push_back(x.size() * (i + 1) / size() - x.size() * i / size());
    const Tensor mine = sum_in_order(call, x.reshaped(0, x.size(), 1), parts);
    CollectiveCall gather = call;
    gather.op = CollectiveOp::all_gather_v;
    gather.sizes = parts;
    const Tensor out = result_of(gather, mine);
    queue(call, [&] { return move_rows(gather, mine, out); });
    return out.reshaped(0, x.rows(), x.cols());
  }
  const Tensor out = ops().context().template matrix<T>(x.rows(), x.cols());
  queue(call, [&] {
    return ncclAllReduce(x.data(), out.data(), std::size_t(x.size()), type_of<T>, ncclSum, comm_,
                         ops().context().stream());
  });
  return out;
}

template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::reduce_scatter_rows(
    const CollectiveCall& call, const Tensor& x, std::span<const std::int64_t> rows) {
  using T = typename Tensor::Element;
  if (!is_native()) return sum_in_order(call, x, rows);
  const cudaStream_t stream = ops().context().stream();
  const Tensor out = ops().context().template matrix<T>(rows[std::size_t(rank())], x.cols());
  queue(call, [&] {
    if (are_equal(rows))
      return ncclReduceScatter(x.data(), out.data(), std::size_t(out.size()), type_of<T>, ncclSum,
                               comm_, stream);
    return as_one([&] {
      const T* from = x.data();
      for (int root = 0; root < int(size()); ++root) {
        const auto count = std::size_t(rows[std::size_t(root)] * x.cols());
        if (count > 0)
          if (const auto status =
                  ncclReduce(from, out.data(), count, type_of<T>, ncclSum, root, comm_, stream);
              status != ncclSuccess)
            return status;
        from += count;
      }
      return ncclSuccess;
    });
  });
  return out;
}

/// The columns of each rank below each other: [T, n c] -> [n T, c].
template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::columns_as_rows(const Tensor& x) const {
  using T = typename Tensor::Element;
  const std::int64_t width = x.cols() / size();
  const Tensor out = ops().context().template matrix<T>(x.rows() * size(), width);
  for (std::int64_t i = 0; i < size(); ++i)
    kernels::copy_blocks<T>(out.middle_rows(i * x.rows(), x.rows()), x,
                            {1, width, i * width, 0, 0, 0}, ops().context().stream());
  return out;
}

/// This rank's rows of the sum, added in rank order; rows[i] belong to rank i.
template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::sum_in_order(const CollectiveCall& call,
                                                           const Tensor& x,
                                                           std::span<const std::int64_t> rows) {
  const std::int64_t mine = rows[std::size_t(rank())];
  const std::vector<std::int64_t> from(std::size_t(size()), mine);
  CollectiveCall exchange = call;
  exchange.op = CollectiveOp::all_to_all_v;
  exchange.sizes = rows;
  exchange.from = from;
  const Tensor received = result_of(exchange, x);
  queue(call, [&] { return move_rows(exchange, x, received); });
  std::vector<Tensor> parts;
  for (std::int64_t i = 0; i < size(); ++i) parts.push_back(received.middle_rows(i * mine, mine));
  std::vector<const Tensor*> in_order;
  for (const Tensor& part : parts) in_order.push_back(&part);
  return ops().sum(in_order, Axis::rows, 0, mine);
}

template <class Ops>
std::vector<std::int64_t> NcclComm<Ops>::shares(std::int64_t rows) const {
  return std::vector<std::int64_t>(std::size_t(size()), rows / size());
}

template <class Ops>
void NcclComm<Ops>::wait_for_all() {
  const CollectiveCall call{.op = CollectiveOp::barrier};
  const auto one = ops().context().template zeros<float>(1, 1);
  queue(call, [&] {
    return ncclAllReduce(one.data(), one.data(), 1, ncclFloat32, ncclSum, comm_,
                         ops().context().stream());
  });
  ops().context().download(one.data(), 1);
  connection_.require_alive(group().where(call));
}

template <class Ops>
void NcclComm<Ops>::hand_over(const CollectiveCall& call, const Tensor& x) {
  if (x.size() == 0) return;
  queue(call, [&] {
    return ncclSend(x.data(), std::size_t(x.size()), type_of<typename Tensor::Element>,
                    int(call.peer), comm_, ops().context().stream());
  });
}

template <class Ops>
typename NcclComm<Ops>::Tensor NcclComm<Ops>::take_over(const CollectiveCall& call) {
  using T = typename Tensor::Element;
  const Tensor out = ops().context().template matrix<T>(call.rows, call.cols);
  if (out.size() > 0)
    queue(call, [&] {
      return ncclRecv(out.data(), std::size_t(out.size()), type_of<T>, int(call.peer), comm_,
                      ops().context().stream());
    });
  return out;
}

template class NcclComm<CudaOps<float>>;
template class NcclComm<CudaOps<__nv_bfloat16>>;

}  // namespace tokenview
