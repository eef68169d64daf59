// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm_sim/transport/transport.hpp"
#include "reference/program/collective_call.hpp"
#include "reference/program/module_path.hpp"

namespace tokenview {

/// One rank's end of a group of a distributed world, on the host: here ranks compare what they are
/// about to call, before anything moves. A call that does not fit is a CommError on every rank, in
/// the words of the simulator, with what each rank called and where.
class HostGroup {
 public:
  /// `members` are ranks of the world in ascending order. `name` stands in messages: "tp", ...
  HostGroup(Transport& transport, std::string name, std::vector<std::int64_t> members);

  std::int64_t rank() const { return place_; }
  std::int64_t size() const { return std::int64_t(members_.size()); }
  const std::string& name() const { return name_; }
  Transport& transport() const { return transport_; }

  /// Where the rank is, for messages.
  void locate(const ModulePath& module) { module_ = &module; }

  /// "all_reduce on the group tp in model.norm".
  std::string where(const CollectiveCall& call) const;

  /// Collective: returns when every rank has come with a call that fits.
  void agree(const CollectiveCall& call);

  /// Tells the other end of a send what comes.
  void announce(const CollectiveCall& send);
  struct Shape {
    std::int64_t rows, cols;
  };
  /// Waits for what the other end of `receive` announces.
  Shape expect(const CollectiveCall& receive);

  // Bytes among the ranks, in their order.
  std::vector<Bytes> all_gather(const Bytes& mine) { return transport_.all_gather(members_, mine); }
  std::vector<Bytes> all_to_all(std::vector<Bytes> to) {
    return transport_.all_to_all(members_, std::move(to));
  }
  Bytes broadcast(std::int64_t root, Bytes mine) {
    return transport_.broadcast(members_, member(root), std::move(mine));
  }
  void send(std::int64_t to, Bytes bytes) { transport_.send(member(to), std::move(bytes)); }
  Bytes receive(std::int64_t from) { return transport_.receive(member(from)); }

  struct Arrival;  // what a rank said when it came, or left

 private:
  std::int64_t member(std::int64_t place) const { return members_[std::size_t(place)]; }
  Bytes packed(const CollectiveCall& call) const;
  void require_peer(const CollectiveCall& call) const;
  /// `arrivals`: what ranks of the group said, by their place in it.
  [[noreturn]] void fail(const std::string& problem,
                         std::span<const std::pair<std::int64_t, const Arrival*>> arrivals) const;

  Transport& transport_;
  std::string name_;
  std::vector<std::int64_t> members_;
  std::int64_t place_ = 0;
  const ModulePath* module_ = nullptr;
  std::int64_t sequence_ = 0;  // of this rank's calls on this group
};

/// Runs `body`, a rank's program in a world over `transport`, as a run of its own: the ranks end it
/// together. An Error that leaves it is told to the others first; where another rank was the first
/// to fail, its error is thrown. `scope` names the rank in messages.
void run_rank(Transport& transport, const std::string& scope, const std::function<void()>& body);

}  // namespace tokenview
