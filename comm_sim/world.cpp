// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/world.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// Thrown into ranks that still wait when a run has failed; nobody but run() sees it.
struct Unwound {};

std::string in_words(const CollectiveCall& call) {
  std::string words = text(call.op, '(', call.dtype, " [", call.rows, ", ", call.cols, ']');
  if (std::strcmp(call.op, "all_reduce") != 0 && std::strcmp(call.op, "broadcast") != 0)
    words += call.axis == Axis::rows ? ", rows" : ", cols";
  if (call.root >= 0) words += text(", root ", call.root);
  if (!call.sizes.empty()) {
    words += ", sizes ";
    for (std::size_t i = 0; i < call.sizes.size(); ++i)
      words += (i > 0 ? "," : "[") + std::to_string(call.sizes[i]);
    words += ']';
  }
  return words + ')';
}

}  // namespace

double ring_elements(const CollectiveCall& call, std::int64_t place, std::int64_t size) {
  const double others = double(size - 1), p = double(size);
  const double elements = double(call.rows) * double(call.cols);
  const std::string_view op = call.op;
  if (op == "all_reduce") return 2 * others / p * elements;
  if (op == "reduce_scatter") return others / p * elements;
  if (op == "all_gather") return others * elements;
  // Variable sizes: a gather passes on all parts but the next rank's, a scatter all but its own.
  double rows = 0;
  for (const std::int64_t part : call.sizes) rows += double(part);
  const auto kept = std::size_t(op == "all_gather_v" ? (place + 1) % size : place);
  return (rows - double(call.sizes[kept])) * double(call.cols);
}

Group::Group(World& world, std::string name, std::vector<std::int64_t> members)
    : world_(world),
      name_(std::move(name)),
      members_(std::move(members)),
      arrivals_(members_.size()),
      operands_(members_.size()),
      results_(members_.size()) {
  world_.groups_.push_back(this);
}

std::int64_t Group::place_of(std::int64_t world_rank) const {
  const auto found = std::ranges::find(members_, world_rank);
  if (found == members_.end())
    throw CommError(text("rank ", world_rank, " is not in the group ", name_));
  return found - members_.begin();
}

std::string Group::mismatch() const {
  const CollectiveCall& first = arrivals_.front().call;
  const auto same = [&](auto&& equal) {
    return std::ranges::all_of(arrivals_, [&](const Arrival& a) { return equal(a.call, first); });
  };
  const auto differ = [](const char* what) { return text("ranks differ in the ", what); };
  using Call = const CollectiveCall&;
  if (!same([](Call a, Call b) { return std::strcmp(a.op, b.op) == 0; }))
    return differ("operation");
  if (!same([](Call a, Call b) { return std::strcmp(a.dtype, b.dtype) == 0; }))
    return differ("element type");
  if (!same([](Call a, Call b) { return a.axis == b.axis; })) return differ("axis");
  if (!same([](Call a, Call b) { return a.root == b.root; })) return differ("root");
  if (!same([](Call a, Call b) { return a.sizes == b.sizes; })) return differ("sizes");
  if (first.sizes.empty()) {
    if (!same([](Call a, Call b) { return a.rows == b.rows && a.cols == b.cols; }))
      return differ("element count");
  } else {
    const bool reduces = std::strcmp(first.op, "reduce_scatter_v") == 0;
    const std::int64_t total =
        std::accumulate(first.sizes.begin(), first.sizes.end(), std::int64_t{0});
    if (std::int64_t(first.sizes.size()) != size())
      return text("the sizes name ", first.sizes.size(), " ranks of ", size());
    for (std::size_t i = 0; i < arrivals_.size(); ++i) {
      const std::int64_t expected = reduces ? total : first.sizes[i];
      if (arrivals_[i].call.rows != expected)
        return text("rank ", i, " brought ", arrivals_[i].call.rows, " rows, its size says ",
                    expected);
    }
    if (!same([](Call a, Call b) { return a.cols == b.cols; })) return differ("element count");
  }
  if (std::strcmp(first.op, "reduce_scatter") == 0) {
    const std::int64_t extent = first.axis == Axis::rows ? first.rows : first.cols;
    if (extent % size() != 0)
      return text("reduce_scatter of ", extent, first.axis == Axis::rows ? " rows" : " columns",
                  " over ", size(), " ranks: not divisible");
  }
  return {};
}

std::string Group::describe() const {
  std::string lines;
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const Arrival& arrival = arrivals_[i];
    lines += text("\n  ", name_, '=', i, " (rank ", members_[i], ") ");
    if (arrival.here)
      lines += text("call ", arrival.sequence, ": ", in_words(arrival.call), " in ",
                    arrival.module == nullptr ? "?" : arrival.module->str());
    else
      lines += text(
          world_.ranks_[std::size_t(members_[i])].fiber->ended() ? "has ended" : "is elsewhere",
          " after ", arrival.sequence, " calls");
  }
  return lines;
}

void Group::meet(std::int64_t place, CollectiveCall call, const ModulePath* module, const void* in,
                 void* out,
                 const std::function<void(const std::vector<const void*>&,
                                          const std::vector<void*>&)>& complete) {
  if (!failure_.empty()) throw CommError(failure_);
  const auto mine = std::size_t(place);
  Arrival& arrival = arrivals_[mine];
  arrival.here = true;
  arrival.call = std::move(call);
  arrival.module = module;
  ++arrival.sequence;
  operands_[mine] = in;
  results_[mine] = out;
  if (world_.log_ != nullptr && members_[mine] == 0)
    world_.log_->push_back({arrival.call.op, name_, module == nullptr ? "" : module->str(),
                            ring_elements(arrival.call, place, size())});

  if (++num_here_ < size()) {
    world_.wait(members_[mine]);
    if (!failure_.empty()) throw CommError(failure_);
    return;
  }
  if (const std::string problem = mismatch(); !problem.empty())
    failure_ = text("collective mismatch on the group ", name_, ": ", problem, describe());
  else
    complete(operands_, results_);
  num_here_ = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    arrivals_[i].here = false;
    if (i != mine) world_.wake(members_[i]);
  }
  if (!failure_.empty()) throw CommError(failure_);
}

void World::wait(std::int64_t rank) {
  RankState& state = ranks_[std::size_t(rank)];
  state.waiting = true;
  state.fiber->pause();
  if (unwinding_) throw Unwound{};
}

void World::wake(std::int64_t rank) {
  ranks_[std::size_t(rank)].waiting = false;
  runnable_.push_back(rank);
}

std::string World::deadlock() const {
  std::string message = "deadlock: no rank can go on";
  for (const Group* group : groups_)
    if (group->num_here_ > 0) message += group->describe();
  return message;
}

void World::run(const std::function<void(std::int64_t)>& body) {
  for (std::int64_t rank = 0; rank < size(); ++rank) {
    ranks_[std::size_t(rank)].fiber = std::make_unique<Fiber>([this, rank, &body] {
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
    ranks_[std::size_t(runnable_[next])].fiber->resume();
    if (next > 4096) {  // what has run is not needed any more
      runnable_.erase(runnable_.begin(), runnable_.begin() + std::ptrdiff_t(next) + 1);
      next = std::size_t(-1);
    }
  }
  runnable_.clear();

  const bool stuck =
      std::ranges::any_of(ranks_, [](const RankState& r) { return !r.fiber->ended(); });
  if (stuck) {
    if (!first_error_) first_error_ = std::make_exception_ptr(CommError(deadlock()));
    unwinding_ = true;
    for (RankState& rank : ranks_)
      while (!rank.fiber->ended()) rank.fiber->resume();
  }
  if (first_error_) std::rethrow_exception(first_error_);
}

}  // namespace tokenview
