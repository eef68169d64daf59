// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include "comm_sim/world.hpp"
#include "reference/program/error.hpp"
#include "reference/program/reduction.hpp"

namespace tokenview {

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
    return meet({.op = CollectiveOp::all_reduce}, x, [](const Call&, const Meeting<X>& all) {
      const std::int64_t rows = all.ops(0).extent(*all.parts[0], Axis::rows), size = all.size();
      if (all.order() != ReductionOrder::ring)
        return all.for_every_rank([&](const Ops& ops, Results<X> results) {
          sum_parts<Ops, X>(ops, all.order(), all.parts, Axis::rows, 0, rows, results);
        });
      all.for_every_rank([&](const Ops& ops, Results<X> results) {
        std::vector<X> chunks(static_cast<std::size_t>(size));
        std::vector<const X*> in_order;
        for (std::int64_t c = 0; c < size; ++c) {
          X* const chunk = &chunks[std::size_t(c)];
          in_order.push_back(chunk);
          sum_parts<Ops, X>(ops, ReductionOrder::rank, all.around_to(c), Axis::rows,
                            rows * c / size, rows * (c + 1) / size, {&chunk, 1});
        }
        join_parts<Ops, X>(ops, in_order, Axis::rows, results);
      });
    });
  }

  /// The parts of all ranks joined along `axis`, in rank order.
  template <class X>
  requires Movable<Ops, X> X all_gather(const X& x, Axis axis) {
    return meet({.op = CollectiveOp::all_gather, .axis = axis}, x, gather<X>);
  }

  /// This rank's equal part of the sum along `axis`.
  template <class X>
  requires Summable<Ops, X> X reduce_scatter(const X& x, Axis axis) {
    return meet({.op = CollectiveOp::reduce_scatter, .axis = axis}, x,
                [](const Call& call, const Meeting<X>& all) {
                  const std::int64_t width =
                      (call.axis == Axis::rows ? call.rows : call.cols) / all.size();
                  for (std::int64_t i = 0; i < all.size(); ++i)
                    all.reduce_to(i, call.axis, i * width, (i + 1) * width);
                });
  }

  /// The parts of all ranks joined along rows; rank i brings sizes[i] rows.
  template <class X>
  requires Movable<Ops, X> X all_gather_v(const X& x, const std::vector<std::int64_t>& sizes) {
    return meet({.op = CollectiveOp::all_gather_v, .sizes = sizes}, x, gather<X>);
  }

  /// The rows of the sum that belong to this rank; rank i keeps sizes[i] of them, in rank order.
  template <class X>
  requires Summable<Ops, X> X reduce_scatter_v(const X& x, const std::vector<std::int64_t>& sizes) {
    return meet({.op = CollectiveOp::reduce_scatter_v, .sizes = sizes}, x,
                [](const Call& call, const Meeting<X>& all) {
                  std::int64_t begin = 0;
                  for (std::int64_t i = 0; i < all.size(); ++i) {
                    const std::int64_t end = begin + call.sizes[std::size_t(i)];
                    all.reduce_to(i, Axis::rows, begin, end);
                    begin = end;
                  }
                });
  }

  /// The rows of x in equal parts, part i for rank i; returns what was received, in rank order.
  template <class X>
  requires Movable<Ops, X> X all_to_all(const X& x) {
    return meet({.op = CollectiveOp::all_to_all}, x, [](const Call& call, const Meeting<X>& all) {
      const std::int64_t width = call.rows / all.size();
      all.exchange([&](std::int64_t, std::int64_t) { return width; });
    });
  }

  /// The rows of x in parts, to[i] of them for rank i; returns what was received, from[i] rows of
  /// rank i, in rank order.
  template <class X>
  requires Movable<Ops, X> X all_to_all_v(const X& x, const std::vector<std::int64_t>& to,
                                          const std::vector<std::int64_t>& from) {
    return meet({.op = CollectiveOp::all_to_all_v, .sizes = to, .from = from}, x,
                [](const Call&, const Meeting<X>& all) {
                  all.exchange([&](std::int64_t sender, std::int64_t receiver) {
                    return all.of(sender).to[std::size_t(receiver)];
                  });
                });
  }

  /// The x of the rank `root`; the others bring one of the same shape, which is not read.
  template <class X>
  requires Movable<Ops, X> X broadcast(const X& x, std::int64_t root) {
    return meet({.op = CollectiveOp::broadcast, .peer = root}, x,
                [](const Call& call, const Meeting<X>& all) {
                  for (X* result : all.results) *result = *all.parts[std::size_t(call.peer)];
                });
  }

  /// Returns when every rank of the group has called it.
  void barrier() {
    group_.meet(place_, {.op = CollectiveOp::barrier}, module_, nullptr,
                [](const Call&, std::span<const void* const>) {});
  }

  /// Hands x to the rank `to` of the group; returns when that rank has received it.
  template <class X>
  requires Movable<Ops, X>
  void send(const X& x, std::int64_t to) {
    pass<X>(call_with(x, {.op = CollectiveOp::send, .peer = to}), {this, &x, nullptr});
  }

  /// What the rank `from` of the group sends; of `rows` and `cols` where they are given.
  template <class X>
  requires Movable<Ops, X> X recv(std::int64_t from, std::int64_t rows = -1,
                                  std::int64_t cols = -1) {
    X result;
    Call call = call_with(result, {.op = CollectiveOp::recv, .peer = from});
    call.rows = rows;
    call.cols = cols;
    pass<X>(call, {this, nullptr, &result});
    return noted(std::move(result), call);
  }

 private:
  using Call = CollectiveCall;
  template <class X>
  using Parts = std::span<const X* const>;
  template <class X>
  using Results = std::span<X* const>;

  /// What a rank brings to a call, and where its result goes.
  template <class X>
  struct Operand {
    const SimComm* end;
    const X* x;
    X* result;
    std::span<const std::int64_t> to = {};  // of an all_to_all_v
  };

  /// All that the ranks bring, in their order.
  template <class X>
  struct Meeting {
    explicit Meeting(std::span<const void* const> of_ranks) : operands(of_ranks) {
      parts.reserve(operands.size());
      results.reserve(operands.size());
      for (std::int64_t rank = 0; rank < size(); ++rank) {
        parts.push_back(of(rank).x);
        results.push_back(of(rank).result);
      }
    }

    std::int64_t size() const { return std::int64_t(operands.size()); }
    const Operand<X>& of(std::int64_t rank) const {
      return *static_cast<const Operand<X>*>(operands[std::size_t(rank)]);
    }
    const Ops& ops(std::int64_t rank) const { return of(rank).end->ops_; }
    ReductionOrder order() const { return of(0).end->order_; }
    Results<X> result(std::int64_t rank) const { return {&results[std::size_t(rank)], 1}; }

    /// The parts from rank c + 1 around to rank c.
    std::vector<const X*> around_to(std::int64_t c) const {
      std::vector<const X*> turned(parts.begin(), parts.end());
      std::ranges::rotate(turned, turned.begin() + (c + 1) % size());
      return turned;
    }

    /// make(ops, results) for a result that is the same on every rank: once where one arithmetic
    /// may serve all, else with the arithmetic of each (which notes what it finds as that rank's).
    template <class Make>
    void for_every_rank(Make make) const {
      if constexpr (Replicable<Ops, X>) {
        make(ops(0), Results<X>(results));
      } else if constexpr (requires { ops(0).follow(ops(0), ops(0).mark()); }) {
        // What one rank finds, all find; where it finds nothing, they need not look.
        const auto before = ops(0).mark();
        make(ops(0), result(0));
        const bool is_quiet = ops(0).is_quiet_since(before);
        for (std::int64_t i = 1; i < size(); ++i) {
          if (is_quiet) {
            *results[std::size_t(i)] = *results[0];
            ops(i).follow(ops(0), before);
          } else {
            make(ops(i), result(i));
          }
        }
      } else {
        for (std::int64_t i = 0; i < size(); ++i) make(ops(i), result(i));
      }
    }

    /// The part [begin, end) of the sum, as the result of `rank`.
    void reduce_to(std::int64_t rank, Axis axis, std::int64_t begin, std::int64_t end) const {
      if (order() == ReductionOrder::ring)
        sum_parts<Ops, X>(ops(rank), ReductionOrder::rank, around_to(rank), axis, begin, end,
                          result(rank));
      else
        sum_parts<Ops, X>(ops(rank), order(), parts, axis, begin, end, result(rank));
    }

    /// Sends rows_of(sender, receiver) rows from each rank to each.
    template <class RowsOf>
    void exchange(RowsOf rows_of) const {
      std::vector<std::int64_t> next(parts.size());  // row of each sender
      for (std::int64_t receiver = 0; receiver < size(); ++receiver) {
        std::vector<X> received;
        std::vector<const X*> in_order;
        for (std::size_t sender = 0; sender < parts.size(); ++sender) {
          const std::int64_t begin = next[sender];
          next[sender] += rows_of(std::int64_t(sender), receiver);
          received.push_back(ops(receiver).slice(*parts[sender], Axis::rows, begin, next[sender]));
        }
        for (const X& part : received) in_order.push_back(&part);
        join_parts<Ops, X>(ops(receiver), in_order, Axis::rows, result(receiver));
      }
    }

    std::span<const void* const> operands;
    std::byte memory[64 * sizeof(void*)];  // enough for 32 ranks; more is taken from the heap
    std::pmr::monotonic_buffer_resource resource{memory, sizeof(memory)};
    std::pmr::vector<const X*> parts{&resource};
    std::pmr::vector<X*> results{&resource};
  };

  /// Fills in what x says of the call.
  template <class X>
  Call call_with(const X& x, Call call) const {
    static constexpr char type_tag = 0;
    call.element = ops_.element_type(x);
    call.tensor_type = &type_tag;
    call.rows = ops_.extent(x, Axis::rows);
    call.cols = ops_.extent(x, Axis::cols);
    return call;
  }

  /// Brings `x` to the group; the last rank to arrive makes every rank's result.
  template <class X, class Complete>
  X meet(const Call& of_op, const X& x, Complete) {
    X result;
    const Call call = call_with(x, of_op);
    const Operand<X> operand{this, &x, &result, call.sizes};
    group_.meet(place_, call, module_, &operand,
                [](const Call& shared, std::span<const void* const> operands) {
                  Complete{}(shared, Meeting<X>(operands));
                });
    return noted(std::move(result), call);
  }

  template <class X>
  void pass(const Call& call, const Operand<X>& operand) {
    group_.pass(place_, call, module_, &operand,
                [](const Call&, std::span<const void* const> operands) {
                  *static_cast<const Operand<X>*>(operands[1])->result =
                      *static_cast<const Operand<X>*>(operands[0])->x;
                });
  }

  template <class X>
  X noted(X result, const Call& call) const {
    if constexpr (requires { ops_.made_by(result, "", group_.name()); })
      ops_.made_by(result, to_string(call.op), group_.name());
    return result;
  }

  template <class X>
  static constexpr auto gather = [](const Call& call, const Meeting<X>& all) {
    all.for_every_rank([&](const Ops& ops, Results<X> results) {
      join_parts<Ops, X>(ops, all.parts, call.axis, results);
    });
  };

  const Ops& ops_;
  Group& group_;
  std::int64_t place_;
  ReductionOrder order_;
  const ModulePath* module_ = nullptr;
};

}  // namespace tokenview
