// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "reference/program/error.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// A group of one: turns the parallel program into the serial model.
struct SoloComm {
  std::int64_t rank() const { return 0; }
  std::int64_t size() const { return 1; }
  void locate(const ModulePath&) {}

  template <class X>
  X all_reduce(const X& x) {
    return x;
  }
  template <class X>
  X all_gather(const X& x, Axis) {
    return x;
  }
  template <class X>
  X reduce_scatter(const X& x, Axis) {
    return x;
  }
  template <class X>
  X all_gather_v(const X& x, const std::vector<std::int64_t>&) {
    return x;
  }
  template <class X>
  X reduce_scatter_v(const X& x, const std::vector<std::int64_t>&) {
    return x;
  }
  template <class X>
  X all_to_all(const X& x) {
    return x;
  }
  template <class X>
  X all_to_all_v(const X& x, const std::vector<std::int64_t>&, const std::vector<std::int64_t>&) {
    return x;
  }
  template <class X>
  X broadcast(const X& x, std::int64_t) {
    return x;
  }
  void barrier() {}

  /// There is nobody to send to.
  template <class X>
  void send(const X&, std::int64_t to) {
    throw CommError(text("send to rank ", to, " in a group of one"));
  }
  template <class X>
  X recv(std::int64_t from) {
    throw CommError(text("receive from rank ", from, " in a group of one"));
  }
};

}  // namespace tokenview
