// SPDX-License-Identifier: Apache-2.0
// A protocol of one's own under the checks of the shipped ones; docs/your-own-protocol.md.
#pragma once
#include <type_traits>

#include "reference/eigen_ops.hpp"
#include "verify/parallel_run.hpp"
#include "verify/view_ops.hpp"

namespace tokenview {

/// The class template `P`, a Protocol<R> over any rank R, for token views (run_views()) and for
/// numbers in float32 and float64 (run_numbers(), run_entry()).
template <template <class> class P>
OwnProtocol own_protocol() {
  OwnProtocol own;
  const auto add = [&own]<class Ops>(std::type_identity<Ops>) {
    own.add<Ops>([](const ParallelPlan& plan) { return std::make_unique<P<SimRank<Ops>>>(plan); });
  };
  add(std::type_identity<ViewOps>());
  add(std::type_identity<EigenOps<float>>());
  add(std::type_identity<EigenOps<double>>());
  return own;
}

}  // namespace tokenview
