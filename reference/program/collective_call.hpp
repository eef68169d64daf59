// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "reference/program/operations.hpp"

namespace tokenview {

enum class CollectiveOp {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_gather_v,
  reduce_scatter_v,
  all_to_all,
  all_to_all_v,
  broadcast,
  barrier,
  send,
  recv,
};

/// As programs call it: "all_reduce".
const char* to_string(CollectiveOp op);

/// What a rank passes to a collective. Compared between the ranks of the group before anything
/// moves: a library finds out by hanging, or not at all.
struct CollectiveCall {
  CollectiveOp op = CollectiveOp::barrier;
  ElementType element{"nothing", 0};
  const void* tensor_type = nullptr;  // differs between C++ types
  std::int64_t rows = 0, cols = 0;    // of a receive: what is expected, -1: anything
  Axis axis = Axis::rows;             // joined or cut along
  std::int64_t peer = -1;             // root of a broadcast; the other end of a send or a receive
  // Rows of each rank, of a variable-size form; of an all_to_all_v, rows to each rank.
  std::span<const std::int64_t> sizes = {};
  std::span<const std::int64_t> from = {};  // of an all_to_all_v, rows from each rank
};

/// "all_gather(float32 [3, 64], rows)".
std::string in_words(const CollectiveCall& call);

/// What is wrong with the calls of a group, in rank order; empty when they fit together.
std::string mismatch(std::span<const CollectiveCall* const> calls);

/// What is wrong with a receive from what is sent; empty when they fit together.
std::string mismatch(const CollectiveCall& sent, std::int64_t sender,
                     const CollectiveCall& expected, std::int64_t receiver);

/// The beginning of every mismatch, a line for each member following: "\n  tp=1 (rank 3) ", and
/// "call 5: all_reduce(float32 [3, 64]) in mtp.fc".
std::string mismatch_in_words(const std::string& group, const std::string& problem);
std::string member_in_words(const std::string& group, std::int64_t place, std::int64_t world_rank);
std::string arrival_in_words(const CollectiveCall& call, std::int64_t sequence,
                             const std::string& module);

/// What one rank sends on rings, whatever the simulator itself copies.
struct Traffic {
  std::int64_t calls = 0, messages = 0;
  double elements = 0, bytes = 0;

  Traffic& operator+=(const Traffic& more);
  bool operator==(const Traffic&) const = default;
};

/// What the rank at `place` of `size` sends when the call runs on a ring: an all-reduce passes
/// every element twice around less one step, a gather or a scatter once, a broadcast to the next
/// rank until all have it; a barrier is an all-reduce of nothing. All-to-all sends to each rank
/// directly.
Traffic ring_traffic(const CollectiveCall& call, std::int64_t place, std::int64_t size);

}  // namespace tokenview
