// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/program/error.hpp"
#include "verify/golden_run.hpp"

namespace tokenview {

/// A choice that a rank makes on its way: the experts [T, k] of tokens from their router logits
/// [T, E], or draft ids [rows, 1], without logits.
struct Choice {
  const std::string& place;
  const Matrix<double>& logits;
  const Matrix<std::int64_t>& own;  // what the rank would take by itself
  const RankTaps& before;           // what it has made so far
  Matrix<std::int64_t>& ids;        // what it takes
};

/// What the ranks of a run take from elsewhere instead of what they made.
struct Given {
  const IdsByPlace* ids = nullptr;                // experts, and draft ids
  const std::vector<RankTaps>* values = nullptr;  // [rank] each tap's, from which the rank goes on

  /// Moves given values by a step of float32, so that sums of them round otherwise each time.
  std::optional<RandomRounding> jitter = {};

  /// Told of each choice after `ids` was heard; may change it.
  std::function<void(const Choice&)> choose = {};
};

/// Keeps the taps of one rank as it made them, and hands it what is given.
template <class S>
class GivenRecorder final : public RankObserver<EigenOps<S>> {
 public:
  using Ops = EigenOps<S>;
  using Routing = typename Ops::Routing;

  GivenRecorder(const Ops& ops, const ModelConfig& config, const Given& given, std::size_t rank)
      : ops_(ops),
        config_(config),
        given_(given),
        values_(given.values == nullptr ? nullptr : &(*given.values)[rank].values) {}

  RankTaps taps;
  std::vector<std::string> order;  // of the places, as the program came by; without the context's

  TapSink<Ops>* context_taps() override { return &context_; }

  void tensor(const ModulePath& module, const char* leaf, Matrix<S>& value) override {
    record(pass_ + module.str(leaf), value);
    if (std::string_view(leaf) == "logits") logits_ = value;
  }
  void routing(const ModulePath& module, Routing& value) override {
    take_choice(pass_ + module.str("ids"), value);
    order.push_back(pass_ + module.str("ids"));
    record(pass_ + module.str("weights"), value.weights);
  }
  void lm_head(const Matrix<S>& logits) override {
    Matrix<S> copy = logits;
    record("target/lm_head", copy);
  }
  void before_step(std::size_t step, std::vector<std::int64_t>& ids, const Batch& batch) override {
    pass_ = text("step", step, '/');
    const auto column = [](const std::vector<std::int64_t>& list) -> Matrix<std::int64_t> {
      return Eigen::Map<const Matrix<std::int64_t>>(list.data(), Eigen::Index(list.size()), 1);
    };
    Matrix<std::int64_t> chosen = column(ids);
    choose(pass_ + "input_ids", {}, chosen);
    ids.assign(chosen.data(), chosen.data() + chosen.size());
    taps.ids[pass_ + "positions"] = column(batch.positions);
    order.insert(order.end(), {pass_ + "input_ids", pass_ + "positions"});
  }
  void after_step(std::size_t, const Matrix<S>& logits) override {
    Matrix<S> copy = logits;
    record(pass_ + "logits", copy);
  }

 private:
  /// The experts of the context; its values are nobody's.
  class Context final : public TapSink<Ops> {
   public:
    explicit Context(GivenRecorder& of) : of_(of) {}
    void tensor(const ModulePath& module, const char* leaf, Matrix<S>& value) override {
      if (std::string_view(leaf) != "logits") return;
      of_.logits_ = value;
      of_.taps.values["context/" + module.str(leaf)] = value.template cast<double>();
    }
    void routing(const ModulePath& module, Routing& value) override {
      of_.take_choice("context/" + module.str("ids"), value);
    }

   private:
    GivenRecorder& of_;
  };

  void record(const std::string& place, Matrix<S>& value) {
    taps.values[place] = value.template cast<double>();
    order.push_back(place);
    if (values_ == nullptr) return;
    const auto given = values_->find(place);
    if (given == values_->end()) return;
    if (given->second.rows() != value.rows() || given->second.cols() != value.cols())
      throw ShapeError(text(place, ": given as [", given->second.rows(), ", ", given->second.cols(),
                            "], made as [", value.rows(), ", ", value.cols(), ']'));
    // NaN: not given.
    for (Eigen::Index i = 0; i < value.size(); ++i)
      if (const double x = given->second.data()[i]; x == x)
        value.data()[i] = given_.jitter ? S((*given_.jitter)(float(x))) : S(x);
  }

  void take_choice(const std::string& place, Routing& value) {
    const Matrix<std::int64_t> own = value.ids;
    choose(place, logits_.template cast<double>(), value.ids);
    if (value.ids != own)
      value.weights = ops_.routing_weights(logits_, value.ids, config_.norm_topk_prob);
  }

  void choose(const std::string& place, const Matrix<double>& logits, Matrix<std::int64_t>& ids) {
    const Matrix<std::int64_t> own = ids;
    if (given_.ids != nullptr)
      if (const auto given = given_.ids->find(place); given != given_.ids->end()) {
        if (given->second.rows() != ids.rows() || given->second.cols() != ids.cols())
          throw ShapeError(text(place, ": given as [", given->second.rows(), ", ",
                                given->second.cols(), "], made as [", ids.rows(), ", ", ids.cols(),
                                ']'));
        ids = given->second;
      }
    if (given_.choose) given_.choose({place, logits, own, taps, ids});
    taps.ids[place] = ids;
  }

  const Ops& ops_;
  const ModelConfig& config_;
  const Given& given_;
  const std::map<std::string, Matrix<double>>* values_;
  std::string pass_ = "target/";
  Matrix<S> logits_;
  Context context_{*this};
};

/// The taps of every rank of a run in which all ranks take what is given; `order`, unless null,
/// gets the places in the order of the program. Throws the first error of a rank.
template <class S>
std::vector<RankTaps> run_given(const ParallelRun& run, LoadedWeights<EigenOps<S>>& weights,
                                const EigenOps<S>& ops, const Given& given,
                                std::vector<std::string>* order = nullptr) {
  std::vector<std::optional<GivenRecorder<S>>> recorders(
      std::size_t(run.plan.parallel.world_size()));
  run_with_weights<EigenOps<S>>(
      run, [&](const auto& at) -> const auto& { return weights.of(at, ops); },
      [&](const auto&) -> const auto& { return ops; },
      [&](const auto& at) {
        const auto rank = std::size_t(at.world);
        return &recorders[rank].emplace(ops, run.config, given, rank);
      });
  std::vector<RankTaps> taps;
  for (auto& recorder : recorders) taps.push_back(std::move(recorder->taps));
  if (order != nullptr) *order = std::move(recorders.front()->order);
  return taps;
}

}  // namespace tokenview
