// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/host_group.hpp"

#include <algorithm>
#include <deque>

namespace tokenview {
namespace {

/// What a rank sends at the end of its run, where others may expect a call.
constexpr auto end_of_run = CollectiveOp(-1);

}  // namespace

/// What a rank said when it came, or left.
struct HostGroup::Arrival {
  explicit Arrival(const Bytes& bytes) {
    ByteReader reader(bytes);
    call.op = reader.read<CollectiveOp>();
    if (has_ended()) return;
    group = reader.read_word();
    module = reader.read_word();
    sequence = reader.read<std::int64_t>();
    element = reader.read_word();
    call.rows = reader.read<std::int64_t>();
    call.cols = reader.read<std::int64_t>();
    call.axis = reader.read<Axis>();
    call.peer = reader.read<std::int64_t>();
    sizes = reader.read_list<std::int64_t>();
    from = reader.read_list<std::int64_t>();
    call.element.name = element.c_str();
    call.sizes = sizes;
    call.from = from;
  }
  Arrival(const Arrival&) = delete;  // the call points into it
  Arrival& operator=(const Arrival&) = delete;

  bool has_ended() const { return call.op == end_of_run; }
  std::string in_words() const {
    return has_ended() ? "has ended" : arrival_in_words(call, sequence, module);
  }

  std::string group, module, element;
  std::int64_t sequence = 0;
  std::vector<std::int64_t> sizes, from;
  CollectiveCall call;
};

HostGroup::HostGroup(Transport& transport, std::string name, std::vector<std::int64_t> members)
    : transport_(transport), name_(std::move(name)), members_(std::move(members)) {
  const auto found = std::ranges::find(members_, transport.rank());
  if (found == members_.end())
    throw CommError(text("rank ", transport.rank(), " is not in the group ", name_));
  place_ = found - members_.begin();
}

std::string HostGroup::where(const CollectiveCall& call) const {
  return text(to_string(call.op), " on the group ", name_, " in ",
              module_ == nullptr ? "?" : module_->str());
}

Bytes HostGroup::packed(const CollectiveCall& call) const {
  ByteWriter writer;
  writer.add(call.op)
      .add(name_)
      .add(module_ == nullptr ? std::string() : module_->str())
      .add(sequence_)
      .add(std::string_view(call.element.name))
      .add(call.rows)
      .add(call.cols)
      .add(call.axis)
      .add(call.peer)
      .add_list(call.sizes)
      .add_list(call.from);
  return writer.take();
}

void HostGroup::fail(const std::string& problem,
                     std::span<const std::pair<std::int64_t, const Arrival*>> arrivals) const {
  std::string message = mismatch_in_words(name_, problem);
  for (const auto& [place, arrival] : arrivals) {
    message += member_in_words(name_, place, member(place)) + arrival->in_words();
    if (!arrival->has_ended() && arrival->group != name_)
      message += " on the group " + arrival->group;
  }
  throw CommError(message);
}

void HostGroup::agree(const CollectiveCall& call) {
  ++sequence_;
  const std::vector<Bytes> heads = in_scope(where(call), [&] { return all_gather(packed(call)); });
  std::deque<Arrival> arrivals;
  std::vector<std::pair<std::int64_t, const Arrival*>> of_ranks;
  std::vector<const CollectiveCall*> calls;
  std::string problem;
  for (const Bytes& head : heads) {
    const Arrival& arrival = arrivals.emplace_back(head);
    of_ranks.emplace_back(std::int64_t(of_ranks.size()), &arrival);
    calls.push_back(&arrival.call);
    if (arrival.has_ended())
      problem = "a rank has ended";
    else if (arrival.group != name_ && problem.empty())
      problem = "ranks differ in the group";
  }
  if (problem.empty()) problem = mismatch(calls);
  if (!problem.empty()) fail(problem, of_ranks);
}

void HostGroup::require_peer(const CollectiveCall& call) const {
  if (call.peer < 0 || call.peer >= size() || call.peer == place_)
    throw CommError(
        mismatch_in_words(name_, text(to_string(call.op), " of rank ", place_, " with rank ",
                                      call.peer, " of ", size(), " ranks")));
}

void HostGroup::announce(const CollectiveCall& call) {
  ++sequence_;
  require_peer(call);
  send(call.peer, packed(call));
}

HostGroup::Shape HostGroup::expect(const CollectiveCall& call) {
  ++sequence_;
  require_peer(call);
  const Arrival sender(in_scope(where(call), [&] { return receive(call.peer); }));
  std::string problem;
  if (sender.has_ended())
    problem = "a rank has ended";
  else if (sender.group != name_)
    problem = "ranks differ in the group";
  else if (sender.call.op != CollectiveOp::send || sender.call.peer != place_)
    problem = "ranks differ in the operation";
  else
    problem = mismatch(sender.call, call.peer, call, place_);
  if (problem.empty()) return {sender.call.rows, sender.call.cols};
  const Arrival receiver(packed(call));
  std::pair<std::int64_t, const Arrival*> ends[] = {{call.peer, &sender}, {place_, &receiver}};
  if (place_ < call.peer) std::swap(ends[0], ends[1]);
  fail(problem, ends);
}

namespace {

/// Returns when all ranks are here. What a rank expects instead, if it does, is a call: it fails,
/// and this one with it. Left over is what was sent to nobody.
void end_run(Transport& transport) {
  const Bytes end = ByteWriter().add(end_of_run).take();
  for (const std::int64_t rank : transport.world()) transport.send(rank, end);
  std::string left_over;
  for (const std::int64_t rank : transport.world())
    for (Bytes bytes = transport.receive(rank); bytes != end; bytes = transport.receive(rank))
      if (left_over.empty())
        left_over = text("rank ", rank, " sent what rank ", transport.rank(),
                         " did not receive: ", HostGroup::Arrival(bytes).in_words());
  for (const Bytes& of_rank : transport.all_gather(
           transport.world(), ByteWriter().add(std::string_view(left_over)).take()))
    if (const std::string words = ByteReader(of_rank).read_word(); !words.empty())
      throw CommError(words);
}

}  // namespace

void run_rank(Transport& transport, const std::string& scope, const std::function<void()>& body) {
  transport.start_run();
  try {
    in_scope(scope, body);
    end_run(transport);
  } catch (const Error& error) {
    // What a rank computes after another one has failed means nothing.
    transport.throw_failure();
    transport.fail(error.fault(), error.what());
    throw;
  } catch (const std::exception& error) {
    transport.fail(Fault::comm, error.what());
    throw;
  }
}

}  // namespace tokenview
