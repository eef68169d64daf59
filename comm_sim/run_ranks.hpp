// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "comm_sim/sim_comm.hpp"

namespace tokenview {

/// Runs `body(comm)` on `size` simulated ranks of one group, named `name`; returns their results in
/// rank order. Throws the first error of any rank, with the rank named.
template <class Ops, class Body>
auto run_ranks(const Ops& ops, std::int64_t size, Body body, const char* name = "tp",
               ReductionOrder order = ReductionOrder::rank) {
  using Result = std::invoke_result_t<Body&, SimComm<Ops>&>;
  World world(size);
  std::vector<std::int64_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  Group group(world, name, std::move(all));
  std::vector<std::optional<Result>> results(static_cast<std::size_t>(size));
  world.run([&](std::int64_t rank) {
    in_scope(text(name, '=', rank), [&] {
      SimComm<Ops> comm(ops, group, rank, order);
      results[std::size_t(rank)].emplace(body(comm));
    });
  });
  std::vector<Result> in_rank_order;
  for (auto& result : results) in_rank_order.push_back(std::move(*result));
  return in_rank_order;
}

}  // namespace tokenview
