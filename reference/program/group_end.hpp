// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "reference/program/error.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// A collective as data: what one rank asks of a group.
struct Move {
  std::string_view op;  // "all_reduce", ...
  Axis axis = Axis::rows;
  const std::vector<std::int64_t>* sizes = nullptr;  // rows of each rank; all_to_all_v: sent to it
  const std::vector<std::int64_t>* from = nullptr;   // all_to_all_v: received from each
  std::int64_t root = -1;                            // of a broadcast
};

/// Carries `move` out on a communicator. Throws ShapeError for a sum of what cannot be summed.
template <class Ops, class Comm, class X>
X carry_out(Comm& comm, const Move& move, const X& x) {
  if (move.op == "all_gather") return comm.all_gather(x, move.axis);
  if (move.op == "all_gather_v") return comm.all_gather_v(x, *move.sizes);
  if (move.op == "broadcast") return comm.broadcast(x, move.root);
  if (move.op == "all_to_all_v") return comm.all_to_all_v(x, *move.sizes, *move.from);
  if constexpr (Summable<Ops, X>) {
    if (move.op == "all_reduce") return comm.all_reduce(x);
    if (move.op == "reduce_scatter") return comm.reduce_scatter(x, move.axis);
    if (move.op == "reduce_scatter_v") return comm.reduce_scatter_v(x, *move.sizes);
  }
  throw ShapeError(text(move.op, ": no such collective for this tensor"));
}

template <class Ops, class Comm>
class Injector;

/// One rank's end of a process group, as the program calls it. Where faults are injected they act
/// here, whatever the communicator underneath.
template <class Ops, class Comm>
class GroupEnd {
 public:
  /// `faults` points to null as long as nothing is injected.
  GroupEnd(const char* name, Comm& comm, Injector<Ops, Comm>* const& faults)
      : name_(name), comm_(comm), faults_(faults) {}

  std::int64_t rank() const { return comm_.rank(); }
  std::int64_t size() const { return comm_.size(); }

  template <class X>
  X all_reduce(const X& x) {
    return faults_ == nullptr ? comm_.all_reduce(x) : inject({.op = "all_reduce"}, x);
  }
  template <class X>
  X all_gather(const X& x, Axis axis) {
    return faults_ == nullptr ? comm_.all_gather(x, axis)
                              : inject({.op = "all_gather", .axis = axis}, x);
  }
  template <class X>
  X reduce_scatter(const X& x, Axis axis) {
    return faults_ == nullptr ? comm_.reduce_scatter(x, axis)
                              : inject({.op = "reduce_scatter", .axis = axis}, x);
  }
  template <class X>
  X all_gather_v(const X& x, const std::vector<std::int64_t>& sizes) {
    return faults_ == nullptr ? comm_.all_gather_v(x, sizes)
                              : inject({.op = "all_gather_v", .sizes = &sizes}, x);
  }
  template <class X>
  X reduce_scatter_v(const X& x, const std::vector<std::int64_t>& sizes) {
    return faults_ == nullptr ? comm_.reduce_scatter_v(x, sizes)
                              : inject({.op = "reduce_scatter_v", .sizes = &sizes}, x);
  }
  template <class X>
  X broadcast(const X& x, std::int64_t root) {
    return faults_ == nullptr ? comm_.broadcast(x, root)
                              : inject({.op = "broadcast", .root = root}, x);
  }
  template <class X>
  X all_to_all_v(const X& x, const std::vector<std::int64_t>& to,
                 const std::vector<std::int64_t>& from) {
    return faults_ == nullptr ? comm_.all_to_all_v(x, to, from)
                              : inject({.op = "all_to_all_v", .sizes = &to, .from = &from}, x);
  }
  template <class X>
  void send(const X& x, std::int64_t to) {
    comm_.send(x, to);
  }
  template <class X>
  X recv(std::int64_t from) {
    return comm_.template recv<X>(from);
  }

 private:
  template <class X>
  X inject(Move move, const X& x) {
    return faults_->collective(name_, comm_, move, x);
  }

  const char* name_;
  Comm& comm_;
  Injector<Ops, Comm>* const& faults_;
};

}  // namespace tokenview
