// SPDX-License-Identifier: Apache-2.0
#include "verify/gpu_numbers.hpp"

#include <deque>
#include <utility>

#include "device/cuda_ops.hpp"
#include "device/device_info.hpp"
#include "verify/tap_recorder.hpp"

namespace tokenview {

Matrix<double> to_double(const CudaOps& ops, const CudaOps::Tensor& x) {
  return Eigen::Map<const Matrix<float>>(ops.download(x).data(), x.rows(), x.cols()).cast<double>();
}
Matrix<std::int64_t> expert_ids(const CudaOps& ops, const CudaOps::Routing& x) {
  return Eigen::Map<const Matrix<std::int64_t>>(ops.download(x.ids).data(), x.ids.rows(),
                                                x.ids.cols());
}

namespace {

class VirtualRanks final : public GpuNumbers {
 public:
  VirtualRanks(const ModelConfig& config, const WeightSource& source, int device)
      : config_(config), source_(source), device_(device), gpu_(device) {}

  NumberRunResult run(const ParallelRun& run) override {
    std::vector<CudaOps> ops;
    for (std::int64_t rank = 0; rank < run.plan.parallel.world_size(); ++rank)
      ops.push_back(gpu_.of_rank(rank));
    SimMesh mesh(run.plan.parallel);
    return run_numbers_on_mesh<CudaOps>(
        run, mesh,
        [&](const RankCoordinates& at) -> const CudaOps& { return ops[std::size_t(at.world)]; },
        [&](const RankCoordinates& at) -> const ModelWeights<CudaOps::Weight>& {
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
  const ModelWeights<CudaOps::Weight>& weights_at(const WeightPlacement& placement) {
    for (const auto& [at, weights] : loaded_)
      if (at == placement) return weights;
    return loaded_
        .emplace_back(placement, WeightLoader<CudaOps>(gpu_, source_, config_, placement).model())
        .second;
  }

  const ModelConfig& config_;
  const WeightSource& source_;
  int device_;
  CudaOps gpu_;
  std::deque<std::pair<WeightPlacement, ModelWeights<CudaOps::Weight>>> loaded_;
};

}  // namespace

std::unique_ptr<GpuNumbers> gpu_numbers(const ModelConfig& config, const WeightSource& weights,
                                        int device) {
  return std::make_unique<VirtualRanks>(config, weights, device);
}

}  // namespace tokenview
