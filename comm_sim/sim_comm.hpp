// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <numeric>
#include <optional>
#include <vector>

#include "comm_sim/world.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

/// The order in which a reduction adds. All are deterministic.
enum class ReductionOrder {
  rank,  // ((x0 + x1) + x2) + x3
  ring,  // chunk c: from rank c + 1 around to rank c
  tree,  // (x0 + x1) + (x2 + x3)
};

/// One rank's end of a simulated group. Each collective is a line in the algebra of the tensor that
/// it moves, so numbers and token views travel through the same code.
template <class Ops>
class SimComm {
 public:
  SimComm(const Ops& ops, Group& group, std::int64_t world_rank,
          ReductionOrder order = ReductionOrder::rank)
      : ops_(ops), group_(group), place_(group.place_of(world_rank)), order_(order) {}

  std::int64_t rank() const { return place_; }
  std::int64_t size() const { return group_.size(); }

  /// Where the rank is, for messages.
  void locate(const ModulePath& module) { module_ = &module; }

  template <class X>
  requires Summable<Ops, X> X all_reduce(const X& x) {
    return meet<X>("all_reduce", x, {}, [](const SimComm& me, const std::vector<X>& parts) {
      if (me.order_ != ReductionOrder::ring) return me.reduced(parts, 0);
      const std::int64_t rows = me.ops_.extent(parts.front(), Axis::rows), size = me.size();
      std::vector<X> chunks;
      for (std::int64_t c = 0; c < size; ++c)
        chunks.push_back(me.reduced(parts, c, Axis::rows, rows * c / size, rows * (c + 1) / size));
      return me.ops_.concat(std::span<const X>(chunks), Axis::rows);
    });
  }

  /// The parts of all ranks joined along `axis`, in rank order.
  template <class X>
  requires Movable<Ops, X> X all_gather(const X& x, Axis axis) {
    CollectiveCall call;
    call.axis = axis;
    return meet<X>("all_gather", x, std::move(call),
                   [axis](const SimComm& me, const std::vector<X>& parts) {
                     return me.ops_.concat(std::span<const X>(parts), axis);
                   });
  }

  /// This rank's equal part of the sum along `axis`.
  template <class X>
  requires Summable<Ops, X> X reduce_scatter(const X& x, Axis axis) {
    CollectiveCall call;
    call.axis = axis;
    return meet<X>("reduce_scatter", x, std::move(call),
                   [axis](const SimComm& me, const std::vector<X>& parts) {
                     const std::int64_t width = me.ops_.extent(parts.front(), axis) / me.size();
                     return me.reduced(parts, me.place_, axis, me.place_ * width,
                                       (me.place_ + 1) * width);
                   });
  }

  /// The parts of all ranks joined along rows; rank i brings sizes[i] rows.
  template <class X>
  requires Movable<Ops, X> X all_gather_v(const X& x, const std::vector<std::int64_t>& sizes) {
    CollectiveCall call;
    call.sizes = sizes;
    return meet<X>("all_gather_v", x, std::move(call),
                   [](const SimComm& me, const std::vector<X>& parts) {
                     return me.ops_.concat(std::span<const X>(parts), Axis::rows);
                   });
  }

  /// The rows of the sum that belong to this rank; rank i keeps sizes[i] of them, in rank order.
  template <class X>
  requires Summable<Ops, X> X reduce_scatter_v(const X& x, const std::vector<std::int64_t>& sizes) {
    CollectiveCall call;
    call.sizes = sizes;
    return meet<X>("reduce_scatter_v", x, std::move(call),
                   [&sizes](const SimComm& me, const std::vector<X>& parts) {
                     const auto mine = sizes.begin() + me.place_;
                     const std::int64_t begin =
                         std::accumulate(sizes.begin(), mine, std::int64_t{0});
                     return me.reduced(parts, me.place_, Axis::rows, begin, begin + *mine);
                   });
  }

 private:
  /// What a rank brings to a meeting.
  template <class X>
  struct Operand {
    const SimComm* comm;
    const X* x;
  };

  /// Brings `x` to the group. The last rank to arrive makes every rank's result, each with the
  /// arithmetic of its rank (which notes what it finds as that rank's): result(comm, parts).
  template <class X, class Result>
  X meet(const char* op, const X& x, CollectiveCall call, Result result) {
    call.op = op;
    call.dtype = ops_.dtype_name(x);
    call.rows = ops_.extent(x, Axis::rows);
    call.cols = ops_.extent(x, Axis::cols);
    std::optional<X> out;
    const Operand<X> operand{this, &x};
    group_.meet(place_, std::move(call), module_, &operand, &out,
                [&](const std::vector<const void*>& operands, const std::vector<void*>& results) {
                  std::vector<X> parts;
                  for (const void* of_rank : operands)
                    parts.push_back(*static_cast<const Operand<X>*>(of_rank)->x);
                  for (std::size_t i = 0; i < results.size(); ++i)
                    *static_cast<std::optional<X>*>(results[i]) =
                        result(*static_cast<const Operand<X>*>(operands[i])->comm, parts);
                });
    if constexpr (requires { ops_.made_by(*out, op, group_.name()); })
      ops_.made_by(*out, op, group_.name());
    return std::move(*out);
  }

  template <class X>
  X reduced(const std::vector<X>& parts, std::int64_t chunk) const {
    if (order_ == ReductionOrder::tree) return tree(std::span<const X>(parts));
    std::vector<X> in_order;
    for (std::size_t i = 0; i < parts.size(); ++i)
      in_order.push_back(
          parts[order_ == ReductionOrder::ring ? (i + std::size_t(chunk) + 1) % parts.size() : i]);
    return ops_.sum(std::span<const X>(in_order));
  }
  template <class X>
  X reduced(const std::vector<X>& parts, std::int64_t chunk, Axis axis, std::int64_t begin,
            std::int64_t end) const {
    std::vector<X> slices;
    for (const X& part : parts) slices.push_back(ops_.slice(part, axis, begin, end));
    return reduced(slices, chunk);
  }
  template <class X>
  X tree(std::span<const X> parts) const {
    if (parts.size() == 1) return parts.front();
    const std::size_t half = (parts.size() + 1) / 2;
    const X pair[] = {tree(parts.first(half)), tree(parts.subspan(half))};
    return ops_.sum(std::span<const X>(pair));
  }

  const Ops& ops_;
  Group& group_;
  std::int64_t place_;
  ReductionOrder order_;
  const ModulePath* module_ = nullptr;
};

}  // namespace tokenview
