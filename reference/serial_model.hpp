// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "reference/eigen_ops.hpp"
#include "reference/program/drafter.hpp"
#include "reference/program/solo_comm.hpp"

namespace tokenview {

template <class S>
using SerialRank = Rank<EigenOps<S>, SoloComm>;

/// The unsharded model: the program on a group of one. Everything else is compared with it, and it
/// with golden files. Not for use by several threads at once.
template <class S>
class SerialModel {
 public:
  using Ops = EigenOps<S>;
  using State = ModelState<Ops>;

  /// Loads every weight. Throws FileError for one that is missing or has another shape.
  SerialModel(const ModelConfig& config, const WeightSource& source, const Ops& ops);

  const ModelConfig& config() const { return config_; }
  bool has_mtp() const { return weights_.mtp.has_value(); }
  State empty_state() const;

  /// ids [T] -> hidden [T, H] after the final norm. Taps go to `taps` unless it is null.
  Matrix<S> forward(State& state, const Batch& batch, TapSink<Ops>* taps = nullptr) const;

  /// hidden [rows, H] -> logits [rows, V].
  Matrix<S> logits(const Matrix<S>& hidden) const;

  /// One MTP pass: `ids` [T] paired with `hidden` [T, H] -> hidden [T, H] after mtp.norm.
  Matrix<S> mtp_forward(State& state, const Batch& batch, const std::vector<std::int64_t>& ids,
                        const Matrix<S>& hidden, TapSink<Ops>* taps = nullptr) const;

  /// draft() of drafter.hpp: the draft ids of each step, one a request of `sampled`.
  std::vector<std::vector<std::int64_t>> draft(
      State& state, const Batch& batch, const Matrix<S>& hidden, const SampleRows& sampled,
      const std::vector<std::int64_t>& next, std::size_t num_steps,
      const std::vector<std::int32_t>& rejected = {}, TapSink<Ops>* taps = nullptr,
      DraftObserver<SerialRank<S>>* observer = nullptr) const;

 private:
  ModelConfig config_;
  Ops ops_;
  RankShapes shapes_;
  ModelWeights<typename Ops::Weight> weights_;
  Protocol<SerialRank<S>> protocol_;
};

extern template class SerialModel<float>;
extern template class SerialModel<double>;

}  // namespace tokenview
