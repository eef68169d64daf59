// SPDX-License-Identifier: Apache-2.0
#include "reference/serial_model.hpp"

namespace tokenview {

template <class S>
SerialModel<S>::SerialModel(const ModelConfig& config, const WeightSource& source, const Ops& ops)
    : config_(config),
      ops_(ops),
      shapes_(rank_shapes(config, 0, 1)),
      weights_(WeightLoader<Ops>(ops_, source, config_, {}).model()),
      protocol_(plan_for(config_, {}, ProtocolId::S)) {}

template <class S>
typename SerialModel<S>::State SerialModel<S>::empty_state() const {
  return tokenview::empty_state(ops_, config_, shapes_);
}

template <class S>
Matrix<S> SerialModel<S>::forward(State& state, const Batch& batch, TapSink<Ops>* taps) const {
  SoloComm solo;
  SerialRank<S> rank(ops_, solo);
  rank.taps = taps;
  return tokenview::forward(rank, protocol_, weights_, config_, shapes_, state, batch);
}

template <class S>
Matrix<S> SerialModel<S>::logits(const Matrix<S>& hidden) const {
  SoloComm solo;
  SerialRank<S> rank(ops_, solo);
  return compute_logits(rank, weights_, config_, hidden);
}

template <class S>
Matrix<S> SerialModel<S>::mtp_forward(State& state, const Batch& batch,
                                      const std::vector<std::int64_t>& ids, const Matrix<S>& hidden,
                                      TapSink<Ops>* taps) const {
  SoloComm solo;
  SerialRank<S> rank(ops_, solo);
  rank.taps = taps;
  return tokenview::mtp_forward(rank, protocol_, weights_, config_, shapes_, state, batch, ids,
                                hidden);
}

template <class S>
std::vector<std::vector<std::int64_t>> SerialModel<S>::draft(
    State& state, const Batch& batch, const Matrix<S>& hidden, const SampleRows& sampled,
    const std::vector<std::int64_t>& next, std::size_t num_steps,
    const std::vector<std::int32_t>& rejected, TapSink<Ops>* taps,
    DraftObserver<SerialRank<S>>* observer) const {
  SoloComm solo;
  SerialRank<S> rank(ops_, solo);
  rank.taps = taps;
  return tokenview::draft(
      rank, protocol_, weights_, config_, shapes_, state, batch, hidden, sampled, next,
      {.num_steps = num_steps, .all_logits = observer != nullptr}, rejected, observer);
}

template class SerialModel<float>;
template class SerialModel<double>;

}  // namespace tokenview
