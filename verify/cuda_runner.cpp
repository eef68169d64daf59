// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>
#include <type_traits>

#include "device/cuda_ops.hpp"
#include "device/device_info.hpp"
#include "verify/case_runner.hpp"
#include "verify/not_here.hpp"

namespace tokenview {
namespace {

template <class T>
using CudaRank = Rank<CudaOps<T>, SoloComm>;
using HostTaps = TapSink<EigenOps<float>>;
using HostRouting = EigenOps<float>::Routing;

template <class T>
DeviceMatrix<T> to_device(const CudaOps<T>& ops, const Matrix<float>& x) {
  return ops.upload({x.data(), std::size_t(x.size())}, x.rows(), x.cols());
}

template <class T, class X>
Matrix<float> to_host(const CudaOps<T>& ops, const DeviceMatrix<X>& x) {
  return Eigen::Map<const Matrix<float>>(ops.download(x).data(), x.rows(), x.cols());
}

template <class T>
bool same_bits(const Matrix<T>& x, const Matrix<T>& y) {
  return x.rows() == y.rows() && x.cols() == y.cols() &&
         (x.size() == 0 || std::memcmp(x.data(), y.data(), std::size_t(x.size()) * sizeof(T)) == 0);
}

/// Shows the taps of the GPU to a sink on the host, which may change them.
template <class T>
class TapsToHost final : public TapSink<CudaOps<T>> {
 public:
  TapsToHost(const CudaOps<T>& ops, HostTaps& to) : ops_(ops), to_(to) {}

  void tensor(const ModulePath& module, const char* leaf, DeviceMatrix<T>& value) override {
    const Matrix<float> before = to_host(ops_, value);
    Matrix<float> seen = before;
    to_.tensor(module, leaf, seen);
    if (!same_bits(seen, before)) value = to_device(ops_, seen);
  }

  void routing(const ModulePath& module, typename CudaOps<T>::Routing& value) override {
    using Ids = HostRouting::Ids;
    const std::vector<std::int64_t> ids = ops_.download(value.ids);
    const HostRouting before{to_host(ops_, value.weights),
                             Eigen::Map<const Ids>(ids.data(), value.ids.rows(), value.ids.cols())};
    HostRouting seen = before;
    to_.routing(module, seen);
    if (!same_bits(seen.weights, before.weights) || !same_bits(seen.ids, before.ids))
      value = ops_.upload({seen.weights.data(), std::size_t(seen.weights.size())},
                          {seen.ids.data(), std::size_t(seen.ids.size())}, seen.ids.rows(),
                          seen.ids.cols());
  }

 private:
  const CudaOps<T>& ops_;
  HostTaps& to_;
};

/// Shows the draft passes of the GPU to an observer on the host.
template <class T>
class DraftsToHost final : public DraftObserver<CudaRank<T>> {
 public:
  DraftsToHost(const CudaOps<T>& ops, DraftObserver<SerialRank<float>>& to) : ops_(ops), to_(to) {}

  void before_step(std::size_t step, std::vector<std::int64_t>& ids, const Batch& batch) override {
    to_.before_step(step, ids, batch);
  }
  void after_step(std::size_t step, const DeviceMatrix<T>& logits) override {
    to_.after_step(step, to_host(ops_, logits));
  }

 private:
  const CudaOps<T>& ops_;
  DraftObserver<SerialRank<float>>& to_;
};

/// SerialModel's interface over the program on the GPU.
template <class T>
class CudaModel {
 public:
  using State = ModelState<CudaOps<T>>;

  CudaModel(const ModelConfig& config, const WeightSource& source, Rounding rounding,
            GdnForm gdn_form)
      : config_(config),
        ops_(0, rounding, gdn_form),
        shapes_(rank_shapes(config, 0, 1)),
        weights_(WeightLoader<CudaOps<T>>(ops_, source, config_, {}).model()),
        protocol_(plan_for(config_, {}, ProtocolId::S)) {}

  bool has_mtp() const { return weights_.mtp.has_value(); }
  State empty_state() const { return tokenview::empty_state(ops_, config_, shapes_); }

  Matrix<float> forward(State& state, const Batch& batch, HostTaps* taps) const {
    return on_a_rank(taps, [&](CudaRank<T>& rank) {
      return to_host(ops_,
                     tokenview::forward(rank, protocol_, weights_, config_, shapes_, state, batch));
    });
  }

  Matrix<float> logits(const Matrix<float>& hidden) const {
    return on_a_rank(nullptr, [&](CudaRank<T>& rank) {
      return to_host(ops_, compute_logits(rank, weights_, config_, to_device(ops_, hidden)));
    });
  }

  Matrix<float> mtp_forward(State& state, const Batch& batch, const std::vector<std::int64_t>& ids,
                            const Matrix<float>& hidden, HostTaps* taps) const {
    return on_a_rank(taps, [&](CudaRank<T>& rank) {
      return to_host(ops_, tokenview::mtp_forward(rank, protocol_, weights_, config_, shapes_,
                                                  state, batch, ids, to_device(ops_, hidden)));
    });
  }

  std::vector<std::vector<std::int64_t>> draft(
      State& state, const Batch& batch, const Matrix<float>& hidden, const SampleRows& sampled,
      const std::vector<std::int64_t>& next, std::size_t num_steps,
      const std::vector<std::int32_t>& rejected, HostTaps* taps,
      DraftObserver<SerialRank<float>>* observer) const {
    return on_a_rank(taps, [&](CudaRank<T>& rank) {
      DraftsToHost<T> drafts(ops_, *observer);
      return tokenview::draft(rank, protocol_, weights_, config_, shapes_, state, batch,
                              to_device(ops_, hidden), sampled, next,
                              {.num_steps = num_steps, .all_logits = true}, rejected, &drafts);
    });
  }

 private:
  template <class Body>
  std::invoke_result_t<Body&, CudaRank<T>&> on_a_rank(HostTaps* taps, Body body) const {
    SoloComm solo;
    CudaRank<T> rank(ops_, solo);
    std::optional<TapsToHost<T>> to_host_taps;
    if (taps != nullptr) rank.taps = &to_host_taps.emplace(ops_, *taps);
    return body(rank);
  }

  ModelConfig config_;
  CudaOps<T> ops_;
  RankShapes shapes_;
  ModelWeights<typename CudaOps<T>::Weight> weights_;
  Protocol<CudaRank<T>> protocol_;
};

}  // namespace

Device usable(Device device) {
  if (device == Device::cpu) return device;
  std::string reason;
  if (!devices(reason).empty()) return Device::cuda;
  if (device == Device::cuda) throw NotHere("no GPU: " + reason);
  return Device::cpu;
}

std::unique_ptr<CaseRunner<float>> cuda_runner(const ModelConfig& config,
                                               const WeightSource& weights, Rounding rounding,
                                               GdnForm gdn_form) {
  if (rounding == Rounding::none)
    return std::make_unique<ModelRunner<CudaModel<float>, float>>(config, weights, rounding,
                                                                  gdn_form);
  return std::make_unique<ModelRunner<CudaModel<__nv_bfloat16>, float>>(config, weights, rounding,
                                                                        gdn_form);
}

}  // namespace tokenview
