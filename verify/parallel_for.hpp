// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tokenview {

/// Calls body(index, worker) for every index below `count`, each once, in any order, on at most
/// `threads` threads, this one among them; `worker`, from 0, is one thread's alone. Rethrows the
/// first exception, after which no further index begins. Threads that have nothing to do sleep: on
/// a machine with other work, those of OpenMP would take its processors from those that have.
template <class Body>
void parallel_for(std::int64_t count, int threads, const Body& body) {
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&](int worker) {
    try {
      for (std::int64_t index; (index = next++) < count;) body(index, worker);
    } catch (...) {
      next = count;
      const std::scoped_lock lock(failing);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    const std::int64_t workers = std::min<std::int64_t>(threads, count);
    for (int worker = 1; worker < workers; ++worker) others.emplace_back(work, worker);
    work(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tokenview
