// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <optional>
#include <type_traits>
#include <vector>

#include "comm_sim/sim_comm.hpp"
#include "reference/program/comms.hpp"

namespace tokenview {

template <class Ops>
using SimComms = Comms<SimComm<Ops>>;

/// A simulated dp x pp x tp world with its groups.
class SimMesh {
 public:
  template <class Ops>
  using CommOf = SimComm<Ops>;

  explicit SimMesh(const ParallelConfig& parallel, ReductionOrder order = ReductionOrder::rank)
      : parallel_(parallel), order_(order), world_(parallel.world_size()) {
    const auto members = [&](auto same) {
      std::vector<std::int64_t> ranks;
      for (std::int64_t rank = 0; rank < world_.size(); ++rank)
        if (same(coordinates_of(rank, parallel_))) ranks.push_back(rank);
      return ranks;
    };
    for (std::int64_t dp = 0; dp < parallel.dp; ++dp)
      for (std::int64_t pp = 0; pp < parallel.pp; ++pp)
        tp_.emplace_back(world_, "tp", members([&](const RankCoordinates& r) {
                           return r.dp == dp && r.pp == pp;
                         }));
    for (std::int64_t pp = 0; pp < parallel.pp; ++pp) {
      for (std::int64_t tp = 0; tp < parallel.tp; ++tp)
        dp_.emplace_back(world_, "dp", members([&](const RankCoordinates& r) {
                           return r.tp == tp && r.pp == pp;
                         }));
      ep_.emplace_back(world_, "ep", members([&](const RankCoordinates& r) { return r.pp == pp; }));
    }
    for (std::int64_t dp = 0; dp < parallel.dp; ++dp)
      for (std::int64_t tp = 0; tp < parallel.tp; ++tp)
        pp_.emplace_back(world_, "pp", members([&](const RankCoordinates& r) {
                           return r.dp == dp && r.tp == tp;
                         }));
  }

  const ParallelConfig& parallel() const { return parallel_; }
  Group& tp(const RankCoordinates& at) { return tp_[std::size_t(at.dp * parallel_.pp + at.pp)]; }
  Group& dp(const RankCoordinates& at) { return dp_[std::size_t(at.pp * parallel_.tp + at.tp)]; }
  Group& ep(const RankCoordinates& at) { return ep_[std::size_t(at.pp)]; }
  Group& pp(const RankCoordinates& at) { return pp_[std::size_t(at.dp * parallel_.tp + at.tp)]; }

  /// See World::record(), World::record_groups(), World::traffic().
  void record(std::vector<CollectiveRecord>* log, bool of_every_rank = false) {
    world_.record(log, of_every_rank);
  }
  void record_groups(std::vector<CollectiveRecord>* log) { world_.record_groups(log); }
  Traffic traffic(std::int64_t rank) const { return world_.traffic(rank); }

  /// Runs `body(comms)` on every rank with `ops_of(coordinates)` as its arithmetic; returns the
  /// results in rank order. Throws the first error of any rank, with the rank named.
  template <class OpsOf, class Body>
  auto run(OpsOf ops_of, Body body) {
    using Ops = std::remove_cvref_t<std::invoke_result_t<OpsOf&, const RankCoordinates&>>;
    using Result = std::invoke_result_t<Body&, SimComms<Ops>&>;
    std::vector<std::optional<Result>> results(static_cast<std::size_t>(world_.size()));
    world_.run([&](std::int64_t rank) {
      const RankCoordinates at = coordinates_of(rank, parallel_);
      in_scope(text("tp=", at.tp, " dp=", at.dp, " pp=", at.pp), [&] {
        const Ops& ops = ops_of(at);
        SimComm<Ops> tp_end(ops, tp(at), rank, order_), dp_end(ops, dp(at), rank, order_),
            ep_end(ops, ep(at), rank, order_), pp_end(ops, pp(at), rank, order_);
        SimComms<Ops> comms{at, tp_end, dp_end, ep_end, pp_end};
        results[std::size_t(rank)].emplace(body(comms));
      });
    });
    std::vector<Result> in_rank_order;
    for (auto& result : results) in_rank_order.push_back(std::move(*result));
    return in_rank_order;
  }

 private:
  ParallelConfig parallel_;
  ReductionOrder order_;
  World world_;
  std::deque<Group> tp_, dp_, ep_, pp_;  // a world keeps their addresses
};

}  // namespace tokenview
