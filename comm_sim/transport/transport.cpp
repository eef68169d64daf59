// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/transport.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tokenview {
namespace {

RankFailure gone(std::int64_t rank) { return {rank, Fault::comm, "its process has ended"}; }

}  // namespace

Transport::Transport(std::int64_t rank, std::int64_t size, Seconds limit)
    : rank_(rank), world_(std::size_t(size)), limit_(limit), inboxes_(std::size_t(size)) {
  std::iota(world_.begin(), world_.end(), 0);
}

void Transport::start_run() {
  const std::lock_guard lock(mutex_);
  ++run_;
  has_failed_ = false;
  failure_.reset();
  for (std::size_t from = 0; from < inboxes_.size(); ++from) {
    Inbox& inbox = inboxes_[from];
    inbox.messages.clear();
    if (inbox.lost) note_failure(gone(std::int64_t(from)));
    for (Message& message : std::exchange(inbox.later, {}))
      take(std::int64_t(from), std::move(message));
  }
}

void Transport::send(std::int64_t to, Bytes bytes) {
  if (to != rank_) return deliver(to, {run_, Kind::data, std::move(bytes)});
  const std::lock_guard lock(mutex_);
  inboxes_[std::size_t(rank_)].messages.push_back(std::move(bytes));
}

Bytes Transport::receive(std::int64_t from) {
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit_);
  std::unique_lock lock(mutex_);
  Inbox& inbox = inboxes_[std::size_t(from)];
  while (inbox.messages.empty()) {
    if (failure_) {
      lock.unlock();
      throw_failure();
    }
    if (inbox.ended) throw CommError(text("rank ", from, " has ended"));
    if (std::chrono::steady_clock::now() >= until)
      throw CommError(text("rank ", from, " sent nothing for ", limit_.count(), " s"));
    wait(lock, until);
  }
  Bytes bytes = std::move(inbox.messages.front());
  inbox.messages.pop_front();
  return bytes;
}

void Transport::fail(Fault fault, const std::string& problem) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_failed_, true) || failure_) return;
  }
  ByteWriter words;
  words.add(fault).add(problem);
  tell_all({run_, Kind::failed, words.take()});
}

std::optional<RankFailure> Transport::failure() {
  poll();
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Transport::throw_failure() {
  if (const auto failed = failure())
    throw Error(failed->fault, text("rank ", failed->rank, ": ", failed->problem));
}

std::vector<Bytes> Transport::all_gather(std::span<const std::int64_t> members, const Bytes& mine) {
  return all_to_all(members, std::vector<Bytes>(members.size(), mine));
}

std::vector<Bytes> Transport::all_to_all(std::span<const std::int64_t> members,
                                         std::vector<Bytes> to) {
  for (std::size_t i = 0; i < members.size(); ++i) send(members[i], std::move(to[i]));
  std::vector<Bytes> from;
  for (const std::int64_t member : members) from.push_back(receive(member));
  return from;
}

Bytes Transport::broadcast(std::span<const std::int64_t> members, std::int64_t root, Bytes mine) {
  if (rank_ != root) return receive(root);
  for (const std::int64_t member : members)
    if (member != rank_) send(member, mine);
  return mine;
}

void Transport::barrier(std::span<const std::int64_t> members) { all_gather(members, {}); }

void Transport::wait(std::unique_lock<std::mutex>& lock,
                     std::chrono::steady_clock::time_point until) {
  something_arrived_.wait_until(lock, until);
}

void Transport::arrived(std::int64_t from, Message message) {
  const std::lock_guard lock(mutex_);
  take(from, std::move(message));
  something_arrived_.notify_all();
}

void Transport::take(std::int64_t from, Message message) {
  Inbox& inbox = inboxes_[std::size_t(from)];
  if (message.kind == Kind::ended) {
    inbox.ended = true;
  } else if (message.kind == Kind::lost) {
    if (inbox.ended) return;
    inbox.lost = true;
    note_failure(gone(from));
  } else if (message.run != run_) {
    if (message.run > run_) inbox.later.push_back(std::move(message));
  } else if (message.kind == Kind::failed) {
    ByteReader words(message.bytes);
    const auto fault = words.read<Fault>();
    note_failure({from, fault, words.read_word()});
  } else {
    inbox.messages.push_back(std::move(message.bytes));
  }
}

void Transport::note_failure(RankFailure failure) {
  if (!failure_ && !has_failed_) failure_ = std::move(failure);
}

void Transport::tell_all(const Message& message) noexcept {
  for (const std::int64_t to : world_) {
    if (to == rank_) continue;
    try {
      deliver(to, message);
    } catch (const Error&) {  // the others are told all the same
    }
  }
}

void Transport::say_goodbye() noexcept { tell_all({run_, Kind::ended, {}}); }

bool Transport::others_have_ended() {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(world_, [&](std::int64_t rank) {
    const Inbox& inbox = inboxes_[std::size_t(rank)];
    return rank == rank_ || inbox.ended || inbox.lost;
  });
}

}  // namespace tokenview
