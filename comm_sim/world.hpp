// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm_sim/fiber.hpp"
#include "reference/program/collective_call.hpp"
#include "reference/program/module_path.hpp"

namespace tokenview {

/// One collective as one rank sent it: what a run costs.
struct CollectiveRecord {
  std::string op, group, module;
  double elements = 0;     // sent by this rank on a ring, whatever the simulator itself copies
  std::int64_t rank = 0;   // of the world
  std::int64_t count = 0;  // elements that it passed
  std::string dtype = {};
  std::vector<std::int64_t> ranks = {};  // of the world, that take part; see record_groups()
};

class World;

/// A process group: ranks that call collectives together, in the order of their place in it.
class Group {
 public:
  /// Moves what a call moves: `operands` are those of the ranks in the order of their places; of a
  /// send and its receive, those two.
  using Complete = void (*)(const CollectiveCall& call, std::span<const void* const> operands);

  /// `members` are ranks of the world. `name` stands in messages: "tp", "ep", ...
  Group(World& world, std::string name, std::vector<std::int64_t> members);

  const std::string& name() const { return name_; }
  std::int64_t size() const { return std::int64_t(members_.size()); }
  std::int64_t place_of(std::int64_t world_rank) const;

  /// What the rank at `place` has sent in this group so far, in all runs.
  const Traffic& traffic(std::int64_t place) const { return arrivals_[std::size_t(place)].traffic; }

  /// Blocks the rank at `place` until every rank of the group is in the same call; the last one to
  /// arrive runs `complete`. Throws CommError on every rank when the calls do not fit together, or
  /// a rank will never come. `operand` is of a type that equal calls share.
  void meet(std::int64_t place, const CollectiveCall& call, const ModulePath* module,
            const void* operand, Complete complete);

  /// A send or a receive: blocks the rank until the rank at call.peer is at the other end; the
  /// second to arrive runs `complete`. Throws as meet() does.
  void pass(std::int64_t place, const CollectiveCall& call, const ModulePath* module,
            const void* operand, Complete complete);

  /// Every member: the call it is in (or that it is in none), its module, sequence number,
  /// arguments.
  std::string describe() const;

 private:
  friend class World;
  struct Arrival {
    bool here = false;
    const ModulePath* module = nullptr;
    std::int64_t sequence = 0;  // of this rank's calls on this group
    Traffic traffic;
  };
  void arrive(std::size_t place, const CollectiveCall& call, const ModulePath* module,
              const void* operand);
  void wait(std::size_t place);
  void release(std::size_t place);
  /// Wakes everybody who is here, throws the mismatch on all of them.
  [[noreturn]] void fail(std::size_t place, const std::string& problem);
  void count(std::size_t place);  // a call that has been completed

  World& world_;
  std::string name_;
  std::vector<std::int64_t> members_;
  std::vector<Arrival> arrivals_;
  std::vector<const CollectiveCall*> calls_;  // on the stacks of the ranks, which wait
  std::vector<const void*> operands_;
  std::int64_t num_met_ = 0;  // ranks in a call of all ranks
  std::string failure_;       // once set, every call on the group throws it
};

/// Ranks in one process that take turns on one thread. A rank runs until it waits for others, so a
/// run is the same every time, and a deadlock is a fact: nobody can go on.
class World {
 public:
  explicit World(std::int64_t size) : ranks_(std::size_t(size)) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::int64_t size() const { return std::int64_t(ranks_.size()); }

  /// Appends every collective of world rank 0, or of every rank, to `log` from here on.
  void record(std::vector<CollectiveRecord>* log, bool of_every_rank = false) {
    log_ = log;
    logs_every_rank_ = of_every_rank;
  }

  /// Appends every collective of every group to `log` from here on, once each, as the first rank of
  /// the group sent it; of a send and its receive the send.
  void record_groups(std::vector<CollectiveRecord>* log) { group_log_ = log; }

  /// What `rank` has sent in all its groups so far.
  Traffic traffic(std::int64_t rank) const;

  /// Runs `body(rank)` for every rank to its end. Throws the first error of a rank, in the order of
  /// time; the other ranks are then unwound. A deadlock is a CommError that describes every group
  /// in which somebody waits.
  void run(const std::function<void(std::int64_t)>& body);

 private:
  friend class Group;
  void wait(std::int64_t rank);  // until woken
  void wake(std::int64_t rank) { runnable_.push_back(rank); }
  std::string deadlock() const;

  std::vector<std::unique_ptr<Fiber>> ranks_;
  std::vector<std::int64_t> runnable_;
  std::vector<Group*> groups_;
  std::vector<CollectiveRecord>* log_ = nullptr;
  bool logs_every_rank_ = false;
  std::vector<CollectiveRecord>* group_log_ = nullptr;
  std::exception_ptr first_error_;
  bool unwinding_ = false;
};

}  // namespace tokenview
