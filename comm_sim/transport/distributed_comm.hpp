// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "comm_sim/transport/host_group.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// One rank's end of a group whose ranks are processes or threads, whatever carries their data: the
/// program is compiled once for all of them. Every call is a CollectiveCall and a tensor; a group
/// of one gives the tensor back.
template <class OpsT>
class DistributedComm {
 public:
  using Ops = OpsT;
  using Tensor = typename Ops::Tensor;
  using Routing = typename Ops::Routing;

  virtual ~DistributedComm() = default;
  DistributedComm(const DistributedComm&) = delete;
  DistributedComm& operator=(const DistributedComm&) = delete;

  std::int64_t rank() const { return group_.rank(); }
  std::int64_t size() const { return group_.size(); }
  void locate(const ModulePath& module) { group_.locate(module); }

  Tensor all_reduce(const Tensor& x) { return call({.op = CollectiveOp::all_reduce}, x); }
  template <class X>
  X all_gather(const X& x, Axis axis) {
    return call({.op = CollectiveOp::all_gather, .axis = axis}, x);
  }
  Tensor reduce_scatter(const Tensor& x, Axis axis) {
    return call({.op = CollectiveOp::reduce_scatter, .axis = axis}, x);
  }
  template <class X>
  X all_gather_v(const X& x, const std::vector<std::int64_t>& sizes) {
    return call({.op = CollectiveOp::all_gather_v, .sizes = sizes}, x);
  }
  Tensor reduce_scatter_v(const Tensor& x, const std::vector<std::int64_t>& sizes) {
    return call({.op = CollectiveOp::reduce_scatter_v, .sizes = sizes}, x);
  }
  template <class X>
  X all_to_all(const X& x) {
    return call({.op = CollectiveOp::all_to_all}, x);
  }
  template <class X>
  X all_to_all_v(const X& x, const std::vector<std::int64_t>& to,
                 const std::vector<std::int64_t>& from) {
    return call({.op = CollectiveOp::all_to_all_v, .sizes = to, .from = from}, x);
  }
  template <class X>
  X broadcast(const X& x, std::int64_t root) {
    return call({.op = CollectiveOp::broadcast, .peer = root}, x);
  }
  void barrier() {
    if (agrees_) group_.agree({.op = CollectiveOp::barrier});
    if (size() > 1) wait_for_all();
  }

  /// Does not wait for the other end.
  void send(const Tensor& x, std::int64_t to) {
    const CollectiveCall of_x = with(x, {.op = CollectiveOp::send, .peer = to});
    group_.announce(of_x);
    hand_over(of_x, x);
  }
  template <class X>
  X recv(std::int64_t from, std::int64_t rows = -1, std::int64_t cols = -1) {
    static_assert(std::is_same_v<X, Tensor>);
    CollectiveCall any = with(X{}, {.op = CollectiveOp::recv, .peer = from});
    any.rows = rows;
    any.cols = cols;
    const HostGroup::Shape shape = group_.expect(any);
    any.rows = shape.rows;
    any.cols = shape.cols;
    return take_over(any);
  }

 protected:
  /// `agrees`: ranks compare their calls before each.
  DistributedComm(const Ops& ops, HostGroup group, bool agrees)
      : ops_(ops), group_(std::move(group)), agrees_(agrees) {}

  /// Carries a call out, which fits those of the other ranks, in a group of several.
  virtual Tensor carry_out(const CollectiveCall& call, const Tensor& x) = 0;
  virtual Routing carry_out(const CollectiveCall& call, const Routing& x) = 0;
  virtual void wait_for_all() = 0;
  /// A send whose shape the other end knows, and the receive of one.
  virtual void hand_over(const CollectiveCall& call, const Tensor& x) = 0;
  virtual Tensor take_over(const CollectiveCall& call) = 0;

  const Ops& ops() const { return ops_; }
  HostGroup& group() { return group_; }

 private:
  template <class X>
  CollectiveCall with(const X& x, CollectiveCall call) const {
    call.element = ops_.element_type(x);
    call.rows = ops_.extent(x, Axis::rows);
    call.cols = ops_.extent(x, Axis::cols);
    return call;
  }
  template <class X>
  X call(const CollectiveCall& of_op, const X& x) {
    const CollectiveCall of_x = with(x, of_op);
    if (agrees_) group_.agree(of_x);
    return size() == 1 ? x : carry_out(of_x, x);
  }

  const Ops& ops_;
  HostGroup group_;
  bool agrees_;
};

}  // namespace tokenview
