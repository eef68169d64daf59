// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/thread_transport.hpp"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace tokenview {

class ThreadWorld::End final : public Transport {
 public:
  End(ThreadWorld& world, std::int64_t rank, std::int64_t size, Seconds limit)
      : Transport(rank, size, limit), world_(world) {}

 private:
  void deliver(std::int64_t to, Message message) override {
    world_.ends_[std::size_t(to)]->arrived(rank(), std::move(message));
  }

  ThreadWorld& world_;
};

ThreadWorld::ThreadWorld(std::int64_t size, Transport::Seconds limit) {
  for (std::int64_t rank = 0; rank < size; ++rank)
    ends_.push_back(std::make_unique<End>(*this, rank, size, limit));
}

ThreadWorld::~ThreadWorld() = default;

Transport& ThreadWorld::end(std::int64_t rank) { return *ends_[std::size_t(rank)]; }

void ThreadWorld::run(const std::function<void(Transport&)>& body) {
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  const auto run_rank = [&](Transport& mine) {
    try {
      body(mine);
    } catch (...) {
      const std::lock_guard lock(mutex);
      std::exception_ptr& first = mine.failure() ? consequence : cause;
      if (!first) first = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (const auto& mine : ends_)
      threads.emplace_back([&, &rank_end = *mine] { run_rank(rank_end); });
  }
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace tokenview
