// SPDX-License-Identifier: Apache-2.0
// The sharded program on GPUs: virtual ranks, ranks over NCCL, and ranks whose data is staged
// through the host.
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "comm_sim/transport/host_mesh.hpp"
#include "comm_sim/transport/process_rank.hpp"
#include "device/check.hpp"
#include "device/device_info.hpp"
#include "device/nccl_world.hpp"
#include "device/tensor_bytes.hpp"
#include "verify/executor.hpp"
#include "verify/gpu_numbers.hpp"
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
template <class Ops>
const Ops& kept_ops(int device, Rounding rounding) {
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

/// What a run that an error ended left behind on the GPU of `ops`.
template <class Ops>
void note_end(NumberRunResult& result, const Ops& ops) {
  if (result.error.empty() || result.assert_record) return;
  if (result.cuda_error.empty()) result.cuda_error = ops.error();
  result.assert_record = ops.assert_record();
}

template <class Ops>
class VirtualRanks final : public GpuNumbers {
 public:
  using Weights = ModelWeights<typename Ops::Weight>;

  VirtualRanks(const ModelConfig& config, const WeightSource& source, Rounding rounding,
               ReductionOrder order)
      : config_(config), source_(source), gpu_(kept_ops<Ops>(0, rounding)), order_(order) {}

  NumberRunResult run(const ParallelRun& run) override {
    std::vector<Ops> ops;
    for (std::int64_t rank = 0; rank < run.plan.parallel.world_size(); ++rank)
      ops.push_back(gpu_.of_rank(rank));
    SimMesh mesh(run.plan.parallel, order_);
    NumberRunResult result = run_numbers_on_mesh<Ops>(
        run, mesh,
        [&](const RankCoordinates& at) -> const Ops& { return ops[std::size_t(at.world)]; },
        [&](const RankCoordinates& at) -> const Weights& {
          return weights_at(placement_of(run.plan, at.tp, at.ep));
        });
    note_end(result, gpu_);
    return result;
  }

  std::int64_t uploads() const override { return std::int64_t(loaded_.size()); }

 private:
  const Weights& weights_at(const WeightPlacement& placement) {
    for (const auto& [at, weights] : loaded_)
      if (at == placement) return weights;
    return loaded_
        .emplace_back(placement, WeightLoader<Ops>(gpu_, source_, config_, placement).model())
        .second;
  }

  const ModelConfig& config_;
  const WeightSource& source_;
  const Ops& gpu_;
  ReductionOrder order_;
  std::deque<std::pair<WeightPlacement, Weights>> loaded_;
};

template <class Ops>
NumberRunResult run_on_gpus(const Executor& executor, const ParallelRun& run,
                            const WeightSource& weights) {
  const ParallelConfig& parallel = run.plan.parallel;
  if (executor.comm == CommKind::sim)
    return VirtualRanks<Ops>(run.config, weights, executor.rounding, executor.order).run(run);
  if (executor.comm == CommKind::mpi) {
    Transport& world = process_world();
    HostMesh mesh(world, parallel, executor.order);
    const Ops ops = kept_ops<Ops>(device_of_process(), executor.rounding).of_rank(world.rank());
    NumberRunResult result = run_numbers_on_mesh<Ops>(
        run, weights, mesh, [&](const RankCoordinates&) -> const Ops& { return ops; });
    note_end(result, ops);
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
  if (process_rank())
    note_end(result, world.ops(process_rank()->rank));
  else
    for (std::int64_t rank = 0; rank < parallel.world_size(); ++rank)
      note_end(result, world.ops(rank));
  if (process_rank()) gather_taps(process_world(), result);
  return result;
}

}  // namespace

std::unique_ptr<GpuNumbers> gpu_numbers(const ModelConfig& config, const WeightSource& weights,
                                        Rounding rounding, ReductionOrder order) {
  if (rounding == Rounding::none)
    return std::make_unique<VirtualRanks<CudaOps<float>>>(config, weights, rounding, order);
  return std::make_unique<VirtualRanks<CudaOps<__nv_bfloat16>>>(config, weights, rounding, order);
}

NumberRunResult run_numbers_on_gpus(const Executor& executor, const ParallelRun& run,
                                    const WeightSource& weights) {
  if (executor.rounding == Rounding::none)
    return run_on_gpus<CudaOps<float>>(executor, run, weights);
  return run_on_gpus<CudaOps<__nv_bfloat16>>(executor, run, weights);
}

}  // namespace tokenview
