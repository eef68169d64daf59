// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm_sim/fiber.hpp"
#include "reference/program/module_path.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// What a rank passes to a collective. Compared between the ranks of the group before anything
/// moves: a library finds out by hanging, or not at all.
struct CollectiveCall {
  const char* op = "";     // "all_reduce", ...
  const char* dtype = "";  // of the elements
  std::int64_t rows = 0, cols = 0;
  Axis axis = Axis::rows;           // joined or cut along
  std::int64_t root = -1;           // of a broadcast
  std::vector<std::int64_t> sizes;  // rows of each rank, of a variable-size form
};

/// One collective as one rank sent it: what a run costs.
struct CollectiveRecord {
  std::string op, group, module;
  double elements = 0;  // sent by this rank on a ring, whatever the simulator itself copies
};

/// Elements that the rank at `place` of `size` sends when the call runs on a ring: an all-reduce
/// passes every element twice around less one step, a gather or a scatter once.
double ring_elements(const CollectiveCall& call, std::int64_t place, std::int64_t size);

class World;

/// A process group: ranks that call collectives together, in the order of their place in it.
class Group {
 public:
  /// `members` are ranks of the world. `name` stands in messages: "tp", "ep", ...
  Group(World& world, std::string name, std::vector<std::int64_t> members);

  const std::string& name() const { return name_; }
  std::int64_t size() const { return std::int64_t(members_.size()); }
  std::int64_t place_of(std::int64_t world_rank) const;

  /// Blocks the rank at `place` until every rank of the group is in the same call. `in` and `out`
  /// are the rank's operand and result, of types that equal calls share; the last rank to arrive
  /// runs `complete`, which finds all operands and fills all results, in the order of places.
  /// Throws CommError on every rank when the calls do not fit together, or a rank will never come.
  void meet(std::int64_t place, CollectiveCall call, const ModulePath* module, const void* in,
            void* out,
            const std::function<void(const std::vector<const void*>&, const std::vector<void*>&)>&
                complete);

  /// Every member: the call it is in (or that it is in none), its module, sequence number,
  /// arguments.
  std::string describe() const;

 private:
  friend class World;
  struct Arrival {
    bool here = false;
    CollectiveCall call;
    const ModulePath* module = nullptr;
    std::int64_t sequence = 0;  // of this rank's calls on this group
  };
  std::string mismatch() const;  // empty when the calls fit together

  World& world_;
  std::string name_;
  std::vector<std::int64_t> members_;
  std::vector<Arrival> arrivals_;
  std::vector<const void*> operands_;
  std::vector<void*> results_;
  std::int64_t num_here_ = 0;
  std::string failure_;  // once set, every call on the group throws it
};

/// Ranks in one process that take turns on one thread. A rank runs until it waits for others, so a
/// run is the same every time, and a deadlock is a fact: nobody can go on.
class World {
 public:
  explicit World(std::int64_t size) : ranks_(std::size_t(size)) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::int64_t size() const { return std::int64_t(ranks_.size()); }

  /// Appends every collective of world rank 0 to `log` from here on.
  void record(std::vector<CollectiveRecord>* log) { log_ = log; }

  /// Runs `body(rank)` for every rank to its end. Throws the first error of a rank, in the order of
  /// time; the other ranks are then unwound. A deadlock is a CommError that describes every group
  /// in which somebody waits.
  void run(const std::function<void(std::int64_t)>& body);

 private:
  friend class Group;
  struct RankState {
    std::unique_ptr<Fiber> fiber;
    bool waiting = false;
    bool failed = false;
  };
  void wait(std::int64_t rank);  // until woken
  void wake(std::int64_t rank);
  std::string deadlock() const;

  std::vector<RankState> ranks_;
  std::vector<std::int64_t> runnable_;
  std::vector<Group*> groups_;
  std::vector<CollectiveRecord>* log_ = nullptr;
  std::exception_ptr first_error_;
  bool unwinding_ = false;
};

}  // namespace tokenview
