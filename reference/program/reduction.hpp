// SPDX-License-Identifier: Apache-2.0
// What a collective does with the parts of its ranks, once they are in one place.
#pragma once
#include <cstdint>
#include <span>

#include "reference/program/operations.hpp"

namespace tokenview {

/// The order in which a reduction adds. All are deterministic.
enum class ReductionOrder {
  rank,  // ((x0 + x1) + x2) + x3
  ring,  // chunk c: from rank c + 1 around to rank c
  tree,  // (x0 + x1) + (x2 + x3)
};

/// `parts` joined along `axis`, as each of `results`; only where X is Replicable may there be
/// several.
template <class Ops, class X>
void join_parts(const Ops& ops, std::span<const X* const> parts, Axis axis,
                std::span<X* const> results) {
  if constexpr (Replicable<Ops, X>)
    ops.concat(parts, axis, results);
  else
    *results.front() = ops.concat(parts, axis);
}

/// The part [begin, end) of the sum of `parts`, in their order or as a tree, likewise. (On a ring
/// the caller turns the parts: their order depends on the chunk.)
template <class Ops, class X>
void sum_parts(const Ops& ops, ReductionOrder order, std::span<const X* const> parts, Axis axis,
               std::int64_t begin, std::int64_t end, std::span<X* const> results) {
  const auto add = [&](std::span<const X* const> addends, std::int64_t from, std::int64_t to) {
    if constexpr (Replicable<Ops, X>)
      ops.sum(addends, axis, from, to, results);
    else
      *results.front() = ops.sum(addends, axis, from, to);
  };
  if (order != ReductionOrder::tree || parts.size() <= 2) return add(parts, begin, end);
  const std::size_t half = (parts.size() + 1) / 2;
  X left, right;
  X *const left_result = &left, *const right_result = &right;
  sum_parts<Ops, X>(ops, order, parts.first(half), axis, begin, end, {&left_result, 1});
  sum_parts<Ops, X>(ops, order, parts.subspan(half), axis, begin, end, {&right_result, 1});
  const X* const halves[] = {&left, &right};
  add(halves, 0, end - begin);
}

}  // namespace tokenview
