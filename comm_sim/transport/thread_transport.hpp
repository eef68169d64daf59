// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "comm_sim/transport/transport.hpp"

namespace tokenview {

/// A world whose ranks are threads of this process.
class ThreadWorld {
 public:
  explicit ThreadWorld(std::int64_t size, Transport::Seconds limit = Transport::default_limit);
  ~ThreadWorld();

  std::int64_t size() const { return std::int64_t(ends_.size()); }

  /// The end of one rank, for one thread at a time.
  Transport& end(std::int64_t rank);

  /// Runs `body(end)` for every rank, each on a thread of its own. Throws the first error of a rank
  /// that was not told of another's; all have ended then.
  void run(const std::function<void(Transport&)>& body);

 private:
  class End;
  std::vector<std::unique_ptr<End>> ends_;
};

}  // namespace tokenview
