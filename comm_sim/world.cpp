// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/world.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// Thrown into ranks that still wait when a run has failed; nobody but run() sees it.
struct Unwound {};

}  // namespace

Group::Group(World& world, std::string name, std::vector<std::int64_t> members)
    : world_(world),
      name_(std::move(name)),
      members_(std::move(members)),
      arrivals_(members_.size()),
      calls_(members_.size()),
      operands_(members_.size()) {
  world_.groups_.push_back(this);
}

std::int64_t Group::place_of(std::int64_t world_rank) const {
  const auto found = std::ranges::find(members_, world_rank);
  if (found == members_.end())
    throw CommError(text("rank ", world_rank, " is not in the group ", name_));
  return found - members_.begin();
}

std::string Group::describe() const {
  std::string lines;
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const Arrival& arrival = arrivals_[i];
    lines += member_in_words(name_, std::int64_t(i), members_[i]);
    if (arrival.here)
      lines += arrival_in_words(*calls_[i], arrival.sequence,
                                arrival.module == nullptr ? "" : arrival.module->str());
    else
      lines += text(world_.ranks_[std::size_t(members_[i])]->ended() ? "has ended" : "is elsewhere",
                    " after ", arrival.sequence, " calls");
  }
  return lines;
}

void Group::arrive(std::size_t place, const CollectiveCall& call, const ModulePath* module,
                   const void* operand) {
  if (!failure_.empty()) throw CommError(failure_);
  Arrival& arrival = arrivals_[place];
  arrival.here = true;
  arrival.module = module;
  ++arrival.sequence;
  calls_[place] = &call;
  operands_[place] = operand;
}

void Group::wait(std::size_t place) {
  world_.wait(members_[place]);
  if (!failure_.empty()) throw CommError(failure_);
}

void Group::release(std::size_t place) {
  arrivals_[place].here = false;
  world_.wake(members_[place]);
}

void Group::fail(std::size_t place, const std::string& problem) {
  failure_ = mismatch_in_words(name_, problem) + describe();
  for (std::size_t i = 0; i < arrivals_.size(); ++i)
    if (arrivals_[i].here && i != place) release(i);
  arrivals_[place].here = false;
  num_met_ = 0;
  throw CommError(failure_);
}

void Group::meet(std::int64_t place, const CollectiveCall& call, const ModulePath* module,
                 const void* operand, Complete complete) {
  const auto mine = std::size_t(place);
  arrive(mine, call, module, operand);
  if (++num_met_ < size()) return wait(mine);

  if (const std::string problem = mismatch(calls_); !problem.empty()) fail(mine, problem);
  complete(*calls_.front(), operands_);
  num_met_ = 0;
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    count(i);
    if (i != mine) release(i);
  }
  arrivals_[mine].here = false;
}

void Group::pass(std::int64_t place, const CollectiveCall& call, const ModulePath* module,
                 const void* operand, Complete complete) {
  const auto mine = std::size_t(place);
  arrive(mine, call, module, operand);
  if (call.peer < 0 || call.peer >= size() || call.peer == place)
    fail(mine, text(to_string(call.op), " of rank ", place, " with rank ", call.peer, " of ",
                    size(), " ranks"));
  const bool sends = call.op == CollectiveOp::send;
  const auto peer = std::size_t(call.peer);
  const Arrival& other = arrivals_[peer];
  const CollectiveOp other_end = sends ? CollectiveOp::recv : CollectiveOp::send;
  if (!other.here || calls_[peer]->op != other_end || calls_[peer]->peer != place)
    return wait(mine);

  const std::size_t sender = sends ? mine : peer, receiver = sends ? peer : mine;
  if (const std::string problem = mismatch(*calls_[sender], std::int64_t(sender), *calls_[receiver],
                                           std::int64_t(receiver));
      !problem.empty())
    fail(mine, problem);
  const std::array operands{operands_[sender], operands_[receiver]};
  complete(*calls_[sender], operands);
  count(mine);
  count(peer);
  release(peer);
  arrivals_[mine].here = false;
}

void Group::count(std::size_t place) {
  Arrival& arrival = arrivals_[place];
  const CollectiveCall& call = *calls_[place];
  const Traffic sent = ring_traffic(call, std::int64_t(place), size());
  arrival.traffic += sent;
  const auto record = [&](std::vector<std::int64_t> ranks) {
    return CollectiveRecord{
        to_string(call.op), name_,           arrival.module == nullptr ? "" : arrival.module->str(),
        sent.elements,      members_[place], call.rows * call.cols,
        call.element.name,  std::move(ranks)};
  };
  if (world_.log_ != nullptr && (world_.logs_every_rank_ || members_[place] == 0))
    world_.log_->push_back(record({}));
  if (world_.group_log_ == nullptr) return;
  if (call.op == CollectiveOp::send)
    world_.group_log_->push_back(record({members_[place], members_[std::size_t(call.peer)]}));
  else if (call.op != CollectiveOp::recv && place == 0)
    world_.group_log_->push_back(record(members_));
}

void World::wait(std::int64_t rank) {
  ranks_[std::size_t(rank)]->pause();
  if (unwinding_) throw Unwound{};
}

Traffic World::traffic(std::int64_t rank) const {
  Traffic sent;
  for (const Group* group : groups_)
    for (std::size_t i = 0; i < group->members_.size(); ++i)
      if (group->members_[i] == rank) sent += group->arrivals_[i].traffic;
  return sent;
}

std::string World::deadlock() const {
  std::string message = "deadlock: no rank can go on";
  for (const Group* group : groups_)
    if (std::ranges::any_of(group->arrivals_, &Group::Arrival::here)) message += group->describe();
  return message;
}

void World::run(const std::function<void(std::int64_t)>& body) {
  for (std::int64_t rank = 0; rank < size(); ++rank) {
    ranks_[std::size_t(rank)] = std::make_unique<Fiber>([this, rank, &body] {
      try {
        body(rank);
      } catch (const Unwound&) {
      } catch (...) {
        if (!first_error_) first_error_ = std::current_exception();
      }
    });
    runnable_.push_back(rank);
  }
  for (std::size_t next = 0; next < runnable_.size(); ++next) {
    ranks_[std::size_t(runnable_[next])]->resume();
    if (next > 4096) {  // what has run is not needed any more
      runnable_.erase(runnable_.begin(), runnable_.begin() + std::ptrdiff_t(next) + 1);
      next = std::size_t(-1);
    }
  }
  runnable_.clear();

  if (!std::ranges::all_of(ranks_, &Fiber::ended)) {
    if (!first_error_) first_error_ = std::make_exception_ptr(CommError(deadlock()));
    unwinding_ = true;
    for (const auto& rank : ranks_)
      while (!rank->ended()) rank->resume();
  }
  if (first_error_) std::rethrow_exception(first_error_);
}

}  // namespace tokenview
