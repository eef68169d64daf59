// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

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
};

}  // namespace tokenview
