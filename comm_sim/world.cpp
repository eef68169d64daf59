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

std::int64_t total(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

bool same(const ElementType& a, const ElementType& b) {
  return a.name == b.name || std::string_view(a.name) == b.name;
}

std::string list(std::span<const std::int64_t> sizes) {
  std::string words = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    words += (i > 0 ? "," : "") + std::to_string(sizes[i]);
  return words + ']';
}

std::string in_words(const CollectiveCall& call) {
  using enum CollectiveOp;
  const auto extent = [](std::int64_t n) { return n < 0 ? "any" : std::to_string(n); };
  std::string words = text(to_string(call.op), '(');
  if (call.op != barrier)
    words += text(call.element.name, " [", extent(call.rows), ", ", extent(call.cols), ']');
  switch (call.op) {
    case all_gather:
    case reduce_scatter:
      words += call.axis == Axis::rows ? ", rows" : ", cols";
      break;
    case all_gather_v:
    case reduce_scatter_v:
      words += ", sizes " + list(call.sizes);
      break;
    case all_to_all_v:
      words += ", to " + list(call.sizes) + ", from " + list(call.from);
      break;
    case broadcast:
      words += text(", root ", call.peer);
      break;
    case send:
      words += text(", to ", call.peer);
      break;
    case recv:
      words += text(", from ", call.peer);
      break;
    default:
      break;
  }
  return words + ')';
}

}  // namespace

const char* to_string(CollectiveOp op) {
  constexpr const char* names[] = {
      "all_reduce", "all_gather",   "reduce_scatter", "all_gather_v", "reduce_scatter_v",
      "all_to_all", "all_to_all_v", "broadcast",      "barrier",      "send",
      "recv"};
  return names[std::size_t(op)];
}

Traffic& Traffic::operator+=(const Traffic& more) {
  calls += more.calls;
  messages += more.messages;
  elements += more.elements;
  bytes += more.bytes;
  return *this;
}

Traffic ring_traffic(const CollectiveCall& call, std::int64_t place, std::int64_t size) {
  using enum CollectiveOp;
  const std::int64_t others = size - 1;
  const double share = double(others) / double(size);
  const double whole = double(call.rows) * double(call.cols);
  // Variable sizes: a gather passes on all parts but the next rank's, a scatter all but its own.
  const auto rows_but_of = [&](std::int64_t kept) {
    return double(total(call.sizes) - call.sizes[std::size_t(kept)]) * double(call.cols);
  };
  std::int64_t messages = others;
  double elements = 0;
  switch (call.op) {
    case all_reduce:
      elements = 2 * share * whole;
      messages = 2 * others;
      break;
    case barrier:
      messages = 2 * others;
      break;
    case reduce_scatter:
    case all_to_all:
      elements = share * whole;
      break;
    case all_gather:
      elements = double(others) * whole;
      break;
    case all_gather_v:
      elements = rows_but_of((place + 1) % size);
      break;
    case reduce_scatter_v:
    case all_to_all_v:
      elements = rows_but_of(place);
      break;
    case broadcast:
      messages = (place + 1) % size == call.peer ? 0 : 1;
      elements = double(messages) * whole;
      break;
    case send:
      messages = 1;
      elements = whole;
      break;
    case recv:
      messages = 0;
      break;
  }
  return {1, messages, elements, elements * double(call.element.bytes)};
}

Group::Group(World& world, std::string name, std::vector<std::int64_t> members)
    : world_(world),
      name_(std::move(name)),
      members_(std::move(members)),
      arrivals_(members_.size()),
      operands_(members_.size()) {
  world_.groups_.push_back(this);
}

std::int64_t Group::place_of(std::int64_t world_rank) const {
  const auto found = std::ranges::find(members_, world_rank);
  if (found == members_.end())
    throw CommError(text("rank ", world_rank, " is not in the group ", name_));
  return found - members_.begin();
}

std::string Group::mismatch() const {
  using enum CollectiveOp;
  const CollectiveCall& first = *arrivals_.front().call;
  const bool sized =
      first.op == all_gather_v || first.op == reduce_scatter_v || first.op == all_to_all_v;
  for (const Arrival& arrival : arrivals_) {
    const CollectiveCall& call = *arrival.call;
    if (call.op != first.op) return "ranks differ in the operation";
    if (call.tensor_type != first.tensor_type || !same(call.element, first.element))
      return "ranks differ in the element type";
    if (call.axis != first.axis) return "ranks differ in the axis";
    if (call.peer != first.peer) return "ranks differ in the root";
    if (call.cols != first.cols || (call.rows != first.rows && !sized))
      return "ranks differ in the element count";
  }
  if (sized) return size_mismatch();
  if (first.op == broadcast && (first.peer < 0 || first.peer >= size()))
    return text("root ", first.peer, " of ", size(), " ranks");
  const std::int64_t extent = first.axis == Axis::rows ? first.rows : first.cols;
  if ((first.op == reduce_scatter || first.op == all_to_all) && extent % size() != 0)
    return text(to_string(first.op), " of ", extent,
                first.axis == Axis::rows ? " rows" : " columns", " over ", size(),
                " ranks: not divisible");
  return {};
}

std::string Group::size_mismatch() const {
  const CollectiveCall& first = *arrivals_.front().call;
  const bool exchanges = first.op == CollectiveOp::all_to_all_v;
  const auto ranks = std::size_t(size());
  for (const Arrival& arrival : arrivals_) {
    const CollectiveCall& call = *arrival.call;
    if (call.sizes.size() != ranks || (exchanges && call.from.size() != ranks))
      return text("the sizes name ",
                  call.sizes.size() != ranks ? call.sizes.size() : call.from.size(), " ranks of ",
                  ranks);
    if (!exchanges && !std::ranges::equal(call.sizes, first.sizes))
      return "ranks differ in the sizes";
    for (const std::int64_t rows : call.sizes)
      if (rows < 0) return text("a size of ", rows, " rows");
  }
  for (std::size_t i = 0; i < ranks; ++i) {
    const CollectiveCall& call = *arrivals_[i].call;
    const std::int64_t expected =
        first.op == CollectiveOp::all_gather_v ? call.sizes[i] : total(call.sizes);
    if (call.rows != expected)
      return text("rank ", i, " brought ", call.rows, " rows, its size says ", expected);
    for (std::size_t j = 0; exchanges && j < ranks; ++j)
      if (call.sizes[j] != arrivals_[j].call->from[i])
        return text("rank ", i, " sends ", call.sizes[j], " rows to rank ", j, ", which expects ",
                    arrivals_[j].call->from[i]);
  }
  return {};
}

std::string Group::mismatch(std::size_t sender, std::size_t receiver) const {
  const CollectiveCall& sent = *arrivals_[sender].call;
  const CollectiveCall& expected = *arrivals_[receiver].call;
  if (sent.tensor_type != expected.tensor_type || !same(sent.element, expected.element))
    return text("rank ", sender, " sends ", sent.element.name, " to rank ", receiver,
                ", which expects ", expected.element.name);
  if ((expected.rows >= 0 && expected.rows != sent.rows) ||
      (expected.cols >= 0 && expected.cols != sent.cols))
    return text("rank ", receiver, " expects another shape than rank ", sender, " sends");
  return {};
}

std::string Group::describe() const {
  std::string lines;
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const Arrival& arrival = arrivals_[i];
    lines += text("\n  ", name_, '=', i, " (rank ", members_[i], ") ");
    if (arrival.here)
      lines += text("call ", arrival.sequence, ": ", in_words(*arrival.call), " in ",
                    arrival.module == nullptr ? "?" : arrival.module->str());
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
  arrival.call = &call;
  arrival.module = module;
  ++arrival.sequence;
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
  failure_ = text("collective mismatch on the group ", name_, ": ", problem, describe());
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

  if (const std::string problem = mismatch(); !problem.empty()) fail(mine, problem);
  complete(*arrivals_.front().call, operands_);
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
  if (!other.here || other.call->op != other_end || other.call->peer != place) return wait(mine);

  const std::size_t sender = sends ? mine : peer, receiver = sends ? peer : mine;
  if (const std::string problem = mismatch(sender, receiver); !problem.empty()) fail(mine, problem);
  const std::array operands{operands_[sender], operands_[receiver]};
  complete(*arrivals_[sender].call, operands);
  count(mine);
  count(peer);
  release(peer);
  arrivals_[mine].here = false;
}

void Group::count(std::size_t place) {
  Arrival& arrival = arrivals_[place];
  const Traffic sent = ring_traffic(*arrival.call, std::int64_t(place), size());
  arrival.traffic += sent;
  if (world_.log_ != nullptr && members_[place] == 0)
    world_.log_->push_back({to_string(arrival.call->op), name_,
                            arrival.module == nullptr ? "" : arrival.module->str(), sent.elements});
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
