// SPDX-License-Identifier: Apache-2.0
// The sharded program on GPUs: virtual ranks, ranks over NCCL, and ranks whose data is staged
// through the host.
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "device/check.hpp"
#include "device/device_info.hpp"
#include "device/nccl_world.hpp"
#include "device/tensor_bytes.hpp"
#include "comm_sim/transport/host_mesh.hpp"
#include "comm_sim/transport/process_rank.hpp"
#include "verify/executor.hpp"
#include "verify/tap_recorder.hpp"

namespace tokenview {

template <class T, class X>
Matrix<double> to_double(const CudaOps<T>& ops, const DeviceMatrix<X>& x) {
  const std::vector<float> values = ops.download(x);
  return Eigen::Map<const Matrix<float>>(values.data(), x.rows(), x.cols()).template cast<double>();
}
template <class T>
Matrix<std::int64_t> expert_ids(const CudaOps<T>& ops, const typename CudaOps<T>::Routing& x) {
  const std::vector<std::int64_t> ids = ops.download(x.ids);
  return Eigen::Map<const Matrix<std::int64_t>>(ids.data(), x.ids.rows(), x.ids.cols());
}

namespace {

/// The GPU of this process among others of its machine.
int device_of_process() {
  std::string reason;
  const auto found = std::int64_t(devices(reason).size());
  const auto process = process_rank();
  if (!process || found == 1) return 0;  // its only one, or all that it is shown
  if (process->local_rank >= found)
    throw ConfigError(text("local rank ", process->local_rank, ": found ", found,
                           " GPUs, expected one for each rank; virtual ranks share one (--comm sim "
                           "--device cuda)"));
  return int(process->local_rank);
}

/// What is slow to start is kept until the process ends, and not taken down then: CUDA may be gone.
/// Its GPU is the current one.
template <class Ops>
const Ops& kept_ops(int device, Rounding rounding) {
  check(cudaSetDevice(device), "cudaSetDevice");
  static auto& kept = *new std::map<std::pair<int, Rounding>, Ops>;
  const auto known = kept.find({device, rounding});
  if (known != kept.end()) return known->second;
  return kept.try_emplace({device, rounding}, device, rounding).first->second;
}
template <class Ops>
NcclWorld<Ops>& kept_world(std::int64_t size, Rounding rounding, const NcclOptions& options) {
  using Key = std::tuple<std::int64_t, Rounding, bool>;
  static auto& kept = *new std::map<Key, NcclWorld<Ops>>;
  const Key key{process_rank() ? 0 : size, rounding, options.fixed_order};
  if (const auto known = kept.find(key); known != kept.end()) return known->second;
  return kept
      .emplace(key, process_rank() ? NcclWorld<Ops>::of_processes(
                                         process_world(), device_of_process(), rounding, options)
                                   : NcclWorld<Ops>::of_threads(size, rounding, options))
      .first->second;
}

template <class Ops>
NumberRunResult run_on_gpus(const Executor& executor, const ParallelRun& run,
                            const WeightSource& weights) {
  const ParallelConfig& parallel = run.plan.parallel;
  const auto shared = [&](int device) {
    return [&ops = kept_ops<Ops>(device, executor.rounding)](const RankCoordinates&) -> const Ops& {
      return ops;
    };
  };
  if (executor.comm == CommKind::sim) {
    SimMesh mesh(parallel, executor.order);
    return run_numbers_on_mesh<Ops>(run, weights, mesh, shared(0));
  }
  if (executor.comm == CommKind::mpi) {
    Transport& world = process_world();
    HostMesh mesh(world, parallel, executor.order);
    NumberRunResult result =
        run_numbers_on_mesh<Ops>(run, weights, mesh, shared(device_of_process()));
    gather_taps(world, result);
    return result;
  }
  if (executor.order != ReductionOrder::rank)
    throw UsageError("--comm nccl: adds in rank order, or as NCCL does");
  NcclWorld<Ops>& world = kept_world<Ops>(parallel.world_size(), executor.rounding, {});
  NcclMesh<Ops> mesh(world, parallel);
  NumberRunResult result = run_numbers_on_mesh<Ops>(
      run, weights, mesh,
      [&](const RankCoordinates& at) -> const Ops& { return world.ops(at.world); });
  if (process_rank()) gather_taps(process_world(), result);
  return result;
}

}  // namespace

NumberRunResult run_numbers_on_gpus(const Executor& executor, const ParallelRun& run,
                                    const WeightSource& weights) {
  if (executor.rounding == Rounding::none)
    return run_on_gpus<CudaOps<float>>(executor, run, weights);
  return run_on_gpus<CudaOps<__nv_bfloat16>>(executor, run, weights);
}

}  // namespace tokenview
