// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/mpi_transport.hpp"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>
#include <limits>
#include <list>
#include <string>
#include <thread>
#include <utility>

namespace tokenview {
namespace {

/// Throws CommError when `status`, what `call` returned, is not success.
void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, words, &length);
  throw CommError(text(call, ": ", std::string(words, std::size_t(length))));
}

/// Every message is one of MPI's: the run and the kind in front, the bytes behind them.
class MpiTransport final : public Transport {
 public:
  MpiTransport(std::int64_t rank, std::int64_t size, Seconds limit)
      : Transport(rank, size, limit) {}

  /// Goes on taking in until nothing can be under way to this rank: what nobody takes in keeps its
  /// sender from its end.
  ~MpiTransport() override {
    say_goodbye();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until && (!sendings_.empty() || !others_have_ended()))
      if (!take_in()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (sendings_.empty())
      MPI_Finalize();
    else
      MPI_Abort(MPI_COMM_WORLD, 1);
  }

 private:
  struct Head {
    std::uint32_t run, kind;
  };
  struct Sending {
    Bytes bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void deliver(std::int64_t to, Message message) override {
    const Head head{message.run, std::uint32_t(message.kind)};
    message.bytes.insert(message.bytes.begin(), sizeof(head), std::byte{0});
    std::memcpy(message.bytes.data(), &head, sizeof(head));
    if (message.bytes.size() > std::size_t(std::numeric_limits<int>::max()))
      throw CommError(text("a message of ", message.bytes.size(), " bytes: over the 2 GiB of MPI"));
    const std::lock_guard lock(mpi_mutex_);
    forget_sent();
    Sending& sending = sendings_.emplace_back(Sending{std::move(message.bytes)});
    check(MPI_Isend(sending.bytes.data(), int(sending.bytes.size()), MPI_BYTE, int(to), 0,
                    MPI_COMM_WORLD, &sending.request),
          "MPI_Isend");
  }

  void forget_sent() {
    std::erase_if(sendings_, [](Sending& sending) {
      int is_done = 0;
      check(MPI_Test(&sending.request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
      return is_done != 0;
    });
  }

  void poll() override { take_in(); }

  /// True when something has come.
  bool take_in() {
    const std::lock_guard lock(mpi_mutex_);
    forget_sent();
    bool has_come = false;
    while (true) {
      int is_there = 0;
      MPI_Message envelope{};
      MPI_Status status{};
      check(MPI_Improbe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &is_there, &envelope, &status),
            "MPI_Improbe");
      if (is_there == 0) return has_come;
      int size = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
      Head head{};
      Bytes bytes(static_cast<std::size_t>(size));
      check(MPI_Mrecv(bytes.data(), size, MPI_BYTE, &envelope, MPI_STATUS_IGNORE), "MPI_Mrecv");
      std::memcpy(&head, bytes.data(), sizeof(head));
      bytes.erase(bytes.begin(), bytes.begin() + sizeof(head));
      arrived(status.MPI_SOURCE, {head.run, Kind(head.kind), std::move(bytes)});
      has_come = true;
    }
  }

  /// Looks, less and less often while nothing comes: ranks may share a processor.
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point) override {
    lock.unlock();
    if (take_in())
      idle_looks_ = 0;
    else if (++idle_looks_ < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
  }

  std::mutex mpi_mutex_;  // a watching thread may poll() beside the rank's own
  std::list<Sending> sendings_;
  int idle_looks_ = 0;
};

}  // namespace

std::unique_ptr<Transport> mpi_transport(Transport::Seconds limit) {
  int has_started = 0;
  check(MPI_Initialized(&has_started), "MPI_Initialized");
  if (has_started != 0) throw CommError("MPI has been started before in this process");
  int given = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (given < MPI_THREAD_SERIALIZED)
    throw CommError("this MPI cannot be called from several threads, even one at a time");
  int rank = 0, size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return std::make_unique<MpiTransport>(rank, size, limit);
}

}  // namespace tokenview
