// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "comm_sim/transport/distributed_comm.hpp"
#include "reference/program/reduction.hpp"

namespace tokenview {

/// A group whose data travels in host memory over a Transport: MPI, TCP or threads. Bit-equal to
/// SimComm in every order: slices of what is summed go to one rank each, which adds them with the
/// algebra of the tensor, as the simulator does.
///
/// A tensor becomes bytes and back by to_bytes(ops, x) and from_bytes(ops, bytes, x), which stand
/// beside its arithmetic (reference/tensor_bytes.hpp, device/tensor_bytes.hpp).
template <class Ops>
class HostComm final : public DistributedComm<Ops> {
 public:
  using typename DistributedComm<Ops>::Tensor;
  using typename DistributedComm<Ops>::Routing;
  using DistributedComm<Ops>::rank, DistributedComm<Ops>::size;

  HostComm(const Ops& arithmetic, HostGroup ranks, ReductionOrder order = ReductionOrder::rank)
      : DistributedComm<Ops>(arithmetic, std::move(ranks), true), order_(order) {}

 private:
  using DistributedComm<Ops>::ops, DistributedComm<Ops>::group;

  Tensor carry_out(const CollectiveCall& call, const Tensor& x) override {
    switch (call.op) {
      case CollectiveOp::all_reduce: {
        const Tensor mine = summed(x, Axis::rows, ends_of(call.rows));
        return joined(unpacked<Tensor>(group().all_gather(to_bytes(ops(), mine))), Axis::rows);
      }
      case CollectiveOp::reduce_scatter:
        return summed(x, call.axis, ends_of(call.axis == Axis::rows ? call.rows : call.cols));
      case CollectiveOp::reduce_scatter_v:
        return summed(x, Axis::rows, ends_of(call.sizes));
      default:
        return moved(call, x);
    }
  }
  Routing carry_out(const CollectiveCall& call, const Routing& x) override {
    return moved(call, x);
  }

  void wait_for_all() override {}  // to agree was to wait

  void hand_over(const CollectiveCall& call, const Tensor& x) override {
    group().send(call.peer, to_bytes(ops(), x));
  }
  Tensor take_over(const CollectiveCall& call) override {
    return unpacked<Tensor>(group().receive(call.peer));
  }

  /// What moves rows and adds nothing.
  template <class X>
  X moved(const CollectiveCall& call, const X& x) {
    switch (call.op) {
      case CollectiveOp::broadcast:
        return unpacked<X>(
            group().broadcast(call.peer, rank() == call.peer ? to_bytes(ops(), x) : Bytes()));
      case CollectiveOp::all_to_all:
        return joined(exchanged(x, Axis::rows, ends_of(call.rows)), Axis::rows);
      case CollectiveOp::all_to_all_v:
        return joined(exchanged(x, Axis::rows, ends_of(call.sizes)), Axis::rows);
      default:  // the gathers
        return joined(unpacked<X>(group().all_gather(to_bytes(ops(), x))), call.axis);
    }
  }

  /// Where each rank's part of an axis ends: of `extent` cut evenly, or of parts of `sizes`.
  std::vector<std::int64_t> ends_of(std::int64_t extent) const {
    std::vector<std::int64_t> ends;
    for (std::int64_t i = 1; i <= size(); ++i) ends.push_back(extent * i / size());
    return ends;
  }
  static std::vector<std::int64_t> ends_of(std::span<const std::int64_t> sizes) {
    std::vector<std::int64_t> ends;
    for (const std::int64_t part : sizes) ends.push_back((ends.empty() ? 0 : ends.back()) + part);
    return ends;
  }

  /// Sends part i of x to rank i; what each rank sends to this one.
  template <class X>
  std::vector<X> exchanged(const X& x, Axis axis, const std::vector<std::int64_t>& ends) {
    std::vector<Bytes> to;
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      to.push_back(to_bytes(ops(), ops().slice(x, axis, begin, end)));
      begin = end;
    }
    return unpacked<X>(group().all_to_all(std::move(to)));
  }

  /// This rank's part of the sum over all ranks.
  Tensor summed(const Tensor& x, Axis axis, const std::vector<std::int64_t>& ends) {
    const std::vector<Tensor> parts = exchanged(x, axis, ends);
    std::vector<const Tensor*> in_order = pointers(parts);
    ReductionOrder order = order_;
    if (order == ReductionOrder::ring) {  // ends at this rank
      std::ranges::rotate(in_order, in_order.begin() + (rank() + 1) % size());
      order = ReductionOrder::rank;
    }
    Tensor sum;
    Tensor* const result = &sum;
    sum_parts<Ops, Tensor>(ops(), order, in_order, axis, 0, ops().extent(parts.front(), axis),
                           {&result, 1});
    return sum;
  }

  template <class X>
  X joined(const std::vector<X>& parts, Axis axis) const {
    return ops().concat(std::span<const X* const>(pointers(parts)), axis);
  }
  template <class X>
  static std::vector<const X*> pointers(const std::vector<X>& parts) {
    std::vector<const X*> all;
    for (const X& part : parts) all.push_back(&part);
    return all;
  }

  template <class X>
  X unpacked(const Bytes& bytes) const {
    X x;
    from_bytes(ops(), bytes, x);
    return x;
  }
  template <class X>
  std::vector<X> unpacked(const std::vector<Bytes>& of_ranks) const {
    std::vector<X> parts;
    for (const Bytes& bytes : of_ranks) parts.push_back(unpacked<X>(bytes));
    return parts;
  }

  ReductionOrder order_;
};

}  // namespace tokenview
