// SPDX-License-Identifier: Apache-2.0
#include "verify/gpu_numbers.hpp"

#include <deque>
#include <utility>

#include "device/cuda_ops.hpp"
#include "device/device_info.hpp"
#include "verify/executor.hpp"
#include "verify/tap_recorder.hpp"

namespace tokenview {

template <class T, class X>
Matrix<double> to_double(const CudaOps<T>& ops, const DeviceMatrix<X>& x) {
  return Eigen::Map<const Matrix<float>>(ops.download(x).data(), x.rows(), x.cols())
      .template cast<double>();
}
template <class T>
Matrix<std::int64_t> expert_ids(const CudaOps<T>& ops, const typename CudaOps<T>::Routing& x) {
  return Eigen::Map<const Matrix<std::int64_t>>(ops.download(x.ids).data(), x.ids.rows(),
                                                x.ids.cols());
}

namespace {

template <class T>
class VirtualRanks final : public GpuNumbers {
 public:
  using Ops = CudaOps<T>;
  using Weights = ModelWeights<typename Ops::Weight>;

  VirtualRanks(const ModelConfig& config, const WeightSource& source, Rounding rounding, int device)
      : config_(config), source_(source), device_(device), gpu_(device, rounding) {}

  NumberRunResult run(const ParallelRun& run) override {
    std::vector<Ops> ops;
    for (std::int64_t rank = 0; rank < run.plan.parallel.world_size(); ++rank)
      ops.push_back(gpu_.of_rank(rank));
    SimMesh mesh(run.plan.parallel);
    return run_numbers_on_mesh<Ops>(
        run, mesh,
        [&](const RankCoordinates& at) -> const Ops& { return ops[std::size_t(at.world)]; },
        [&](const RankCoordinates& at) -> const Weights& {
          return weights_at(placement_of(run.plan, at.tp, at.ep));
        });
  }

  std::string device() const override {
    std::string reason;
    return text("GPU ", device_, " (", devices(reason).at(std::size_t(device_)).name, ')');
  }
  std::int64_t uploads() const override { return std::int64_t(loaded_.size()); }
  std::string cuda_error() const override { return gpu_.error(); }
  std::optional<AssertRecord> assert_record() const override { return gpu_.assert_record(); }

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
  int device_;
  Ops gpu_;
  std::deque<std::pair<WeightPlacement, Weights>> loaded_;
};

}  // namespace

std::unique_ptr<GpuNumbers> gpu_numbers(const ModelConfig& config, const WeightSource& weights,
                                        Rounding rounding, int device) {
  if (rounding == Rounding::none)
    return std::make_unique<VirtualRanks<float>>(config, weights, rounding, device);
  return std::make_unique<VirtualRanks<__nv_bfloat16>>(config, weights, rounding, device);
}

NumberRunResult run_numbers_on_gpus(const Executor& executor, const ParallelRun& run,
                                    const WeightSource& weights) {
  if (executor.comm != CommKind::sim)
    throw ConfigError(text("--comm ", to_string(executor.comm), ": expected sim on a GPU"));
  return gpu_numbers(run.config, weights, executor.rounding)->run(run);
}

}  // namespace tokenview
