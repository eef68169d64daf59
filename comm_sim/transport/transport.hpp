// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/program/bytes.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

/// Why a rank cannot go on.
struct RankFailure {
  std::int64_t rank = 0;
  Fault fault = Fault::comm;
  std::string problem;
};

/// Bytes between the ranks of a world, each a process or a thread, on the host: what ranks have to
/// agree on, and their data where nothing faster carries it.
///
/// Nobody waits for a rank that will not come: a rank that fails tells the others, a process that
/// ends is noticed, and a wait has a limit. What then throws names the rank.
///
/// Ranks run one program after the other over the same transport; start_run() separates them, so a
/// failed run leaves nothing behind for the next one. One thread of a rank sends and receives.
class Transport {
 public:
  using Seconds = std::chrono::duration<double>;
  static constexpr Seconds default_limit{300};

  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  std::int64_t rank() const { return rank_; }
  std::int64_t size() const { return std::int64_t(inboxes_.size()); }

  /// How long receive() waits for another rank.
  void set_limit(Seconds limit) { limit_ = limit; }

  /// Every rank calls it before a run: what is left of the one before is dropped.
  void start_run();

  /// Queues `bytes` for the rank `to`, and does not wait for it.
  void send(std::int64_t to, Bytes bytes);

  /// The next bytes of the rank `from`, in the order in which it sent them. Throws the error of a
  /// rank that has failed, and CommError when `from` has ended or does not send within the limit.
  Bytes receive(std::int64_t from);

  /// Tells every other rank that this one cannot go on; once a run, and not when another rank was
  /// the first.
  void fail(Fault fault, const std::string& problem);

  /// The first failure of another rank in this run. Any thread may ask.
  std::optional<RankFailure> failure();

  /// Throws it: an error of the kind that the other rank had, CommError where it is gone.
  void throw_failure();

  // Among `members`, ranks of the world in ascending order of which this is one; every one of them
  // calls. What comes from each is returned in their order.
  std::vector<Bytes> all_gather(std::span<const std::int64_t> members, const Bytes& mine);
  std::vector<Bytes> all_to_all(std::span<const std::int64_t> members, std::vector<Bytes> to);
  Bytes broadcast(std::span<const std::int64_t> members, std::int64_t root, Bytes mine);
  void barrier(std::span<const std::int64_t> members);

  /// All ranks of the world.
  std::span<const std::int64_t> world() const { return world_; }

 protected:
  enum class Kind : std::uint32_t {
    data,
    failed,  // the sender's run
    ended,   // the sender, for good
    lost,    // the sender, for good and without a goodbye
  };
  struct Message {
    std::uint32_t run = 0;
    Kind kind = Kind::data;
    Bytes bytes;
  };

  Transport(std::int64_t rank, std::int64_t size, Seconds limit);

  /// Hands a message to another rank; where that one is gone, it has arrived() as lost.
  virtual void deliver(std::int64_t to, Message message) = 0;
  /// Returns when something may have arrived or at `until`; `lock` is on what arrived() fills.
  virtual void wait(std::unique_lock<std::mutex>& lock,
                    std::chrono::steady_clock::time_point until);
  /// Takes in what has arrived, where no other thread does.
  virtual void poll() {}

  /// For the implementation: a message of the rank `from` is here.
  void arrived(std::int64_t from, Message message);

  /// Tells all others that this rank ends: for the destructor of an implementation.
  void say_goodbye() noexcept;
  /// True when all others have told so, or are lost.
  bool others_have_ended();

 private:
  struct Inbox {
    std::deque<Bytes> messages;
    std::deque<Message> later;  // of runs that this rank has not started yet
    bool ended = false, lost = false;
  };
  void take(std::int64_t from, Message message);
  void note_failure(RankFailure failure);
  void tell_all(const Message& message) noexcept;

  std::int64_t rank_;
  std::vector<std::int64_t> world_;
  Seconds limit_;
  std::mutex mutex_;
  std::condition_variable something_arrived_;
  std::vector<Inbox> inboxes_;  // of each rank
  std::uint32_t run_ = 0;
  bool has_failed_ = false;             // this rank
  std::optional<RankFailure> failure_;  // another one
};

}  // namespace tokenview
