// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "comm_sim/transport/host_comm.hpp"
#include "comm_sim/transport/rank_groups.hpp"
#include "reference/program/comms.hpp"

namespace tokenview {

/// A dp x pp x tp world of which this process, or this thread, is one rank; the others are at the
/// ends of `transport`. Data travels over it too.
class HostMesh {
 public:
  template <class Ops>
  using CommOf = DistributedComm<Ops>;

  /// Throws ConfigError where the transport has another number of ranks.
  HostMesh(Transport& transport, const ParallelConfig& parallel,
           ReductionOrder order = ReductionOrder::rank)
      : transport_(transport), parallel_(parallel), order_(order) {
    require_world(transport.size(), parallel);
  }

  /// Runs `body(comms)` on this rank with `ops_of(coordinates)` as its arithmetic. All ranks of the
  /// world call it; see run_rank().
  template <class OpsOf, class Body>
  void run(OpsOf ops_of, Body body) {
    using Ops = std::remove_cvref_t<std::invoke_result_t<OpsOf&, const RankCoordinates&>>;
    const RankCoordinates at = coordinates_of(transport_.rank(), parallel_);
    run_rank(transport_, in_words(at), [&] {
      const Ops& ops = ops_of(at);
      const RankGroups groups = groups_of(at, parallel_);
      HostComm<Ops> tp(ops, {transport_, "tp", groups.tp}, order_),
          dp(ops, {transport_, "dp", groups.dp}, order_),
          ep(ops, {transport_, "ep", groups.ep}, order_),
          pp(ops, {transport_, "pp", groups.pp}, order_);
      Comms<DistributedComm<Ops>> comms{at, tp, dp, ep, pp};
      body(comms);
    });
  }

 private:
  Transport& transport_;
  ParallelConfig parallel_;
  ReductionOrder order_;
};

}  // namespace tokenview
