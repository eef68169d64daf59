// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm_sim/transport/transport.hpp"

namespace tokenview {

/// One rank's communicators of NCCL: that of the world, and those of its groups. They are blocking
/// ones: others start a thread for each call.
///
/// Nobody waits for ever: while a Watch lives, a failure of another rank, of which `transport`
/// tells, and one that NCCL finds by itself abort all communicators. Kernels that wait for the
/// other rank then end, what they would have written is undefined, and every later call throws.
class NcclConnection {
 public:
  /// Collective over the ranks of `transport`, each on a GPU of its own. Throws DeviceError for
  /// what NCCL refuses, and the error of another rank.
  NcclConnection(Transport& transport, int device);

  /// Collective, but after a failure: it aborts then.
  ~NcclConnection();
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  /// Collective over the world, which is cut into groups of equal sizes: the communicator of this
  /// rank's group, `members`. Kept for whoever asks for the same `cut` again, on every rank.
  ncclComm_t group(const std::string& cut, const std::vector<std::int64_t>& members);

  /// Queues what `queue()` queues on communicators of this connection. Throws CommError, naming
  /// `where()`, for what NCCL refuses and after a failure.
  template <class Queue, class Where>
  void call(Queue queue, Where where) {
    ncclResult_t status = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (!is_aborted_) status = queue();
    }
    if (is_aborted_ || status != ncclSuccess) [[unlikely]]
      fail(status, where());
  }

  /// Throws where the connection has failed.
  void require_alive(const std::string& where) {
    if (is_aborted_) fail(ncclSuccess, where);
  }

  void abort(const std::string& reason);

  class Watch {
   public:
    explicit Watch(NcclConnection& connection);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    void look();

    NcclConnection& connection_;
    std::mutex mutex_;
    std::condition_variable stops_;
    bool is_stopping_ = false;
    std::thread thread_;
  };

 private:
  [[noreturn]] void fail(ncclResult_t status, const std::string& where);
  std::string asynchronous_error();

  Transport& transport_;
  int device_;
  std::timed_mutex mutex_;  // on the communicators
  std::atomic<bool> is_aborted_{false};
  std::string reason_;  // before is_aborted_
  ncclComm_t world_ = nullptr;
  std::map<std::string, ncclComm_t> groups_;  // by cut
};

}  // namespace tokenview
