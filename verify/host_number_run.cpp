// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/host_mesh.hpp"
#include "reference/tensor_bytes.hpp"
#include "verify/executor.hpp"
#include "verify/tap_recorder.hpp"

namespace tokenview {

template <class S>
NumberRunResult run_numbers_over(Transport& world, const ParallelRun& run,
                                 const WeightSource& weights, ReductionOrder order,
                                 Rounding rounding) {
  const EigenOps<S> ops(1, rounding);
  HostMesh mesh(world, run.plan.parallel, order);
  NumberRunResult result = run_numbers_on_mesh<EigenOps<S>>(
      run, weights, mesh, [&](const RankCoordinates&) -> const EigenOps<S>& { return ops; });
  gather_taps(world, result);
  return result;
}

template NumberRunResult run_numbers_over<float>(Transport&, const ParallelRun&,
                                                 const WeightSource&, ReductionOrder, Rounding);
template NumberRunResult run_numbers_over<double>(Transport&, const ParallelRun&,
                                                  const WeightSource&, ReductionOrder, Rounding);

}  // namespace tokenview
