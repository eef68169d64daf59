// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <any>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "comm_sim/sim_mesh.hpp"
#include "reference/program/protocols.hpp"
#include "reference/program/runner.hpp"

namespace tokenview {

template <class Ops>
using SimRank = Rank<Ops, SimComm<Ops>>;

/// A protocol that is none of the shipped ones, for the arithmetics that a run may use. A class
/// template `P<R>` is added as `own.add<Ops>(maker)` for each, or for all
/// of them by own_protocol<P>() (verify/own_protocol.hpp).
class OwnProtocol {
 public:
  template <class Ops>
  using Maker = std::function<std::unique_ptr<Protocol<SimRank<Ops>>>(const ParallelPlan&)>;

  template <class Ops>
  void add(Maker<Ops> maker) {
    makers_[typeid(Ops)] = std::move(maker);
  }

  /// Throws ConfigError where the protocol was not added for `Ops`.
  template <class Ops>
  std::unique_ptr<Protocol<SimRank<Ops>>> make(const ParallelPlan& plan) const {
    const auto found = makers_.find(typeid(Ops));
    if (found == makers_.end())
      throw ConfigError("own protocol: it was not added for the arithmetic of this run");
    return std::any_cast<const Maker<Ops>&>(found->second)(plan);
  }

 private:
  std::map<std::type_index, std::any> makers_;  // Maker<Ops> by Ops
};

/// What one data-parallel rank is given: tokens processed before the first step, and the steps.
struct StepInputs {
  Batch context = {};  // without rows for a prefill
  Batch step;
  std::vector<std::int32_t> rejected = {};  // [requests] drafts that the step rejects; empty: none
};

/// One configuration of the parallel program: a model, its plan, and what each dp rank is given.
struct ParallelRun {
  const ModelConfig& config;
  ParallelPlan plan;
  std::vector<StepInputs> inputs = {};  // [dp]; what ranks know of each other is filled in
  std::size_t draft_steps = 0;
  bool target_runs = true;  // false: the drafter is fed the rows of a correct target (views only)
  RunnerOptions runner = {};
  std::vector<std::vector<StepInputs>> later_steps = {};  // [step][dp] after the first; no contexts
  const std::vector<InjectedFault>* faults = nullptr;
  std::vector<std::int64_t>* fault_hits = nullptr;       // [faults] how often each met its place
  std::vector<PlaceVisit>* visits = nullptr;             // every place, of ranks of one thread
  std::function<void(const SimMesh&)> finished = {};     // told when all ranks have ended
  std::size_t most_findings = 100'000;                   // of a rank, on views
  std::vector<CollectiveRecord>* collectives = nullptr;  // where those of rank 0 go, with numbers
                                                         // those of every rank
  std::vector<CollectiveRecord>* group_calls = nullptr;  // where those of every group go, once each
  const OwnProtocol* own_protocol = nullptr;             // null: that of the plan
};

/// Sees what one rank makes: taps of the last step, logits of all rows, and the draft passes.
template <class Ops, class Comm = SimComm<Ops>>
class RankObserver : public TapSink<Ops>, public DraftObserver<Rank<Ops, Comm>> {
 public:
  /// The step whose tensors it sees begins.
  virtual void starts() {}
  virtual void lm_head(const typename Ops::Tensor& logits) = 0;

  /// Who sees the taps of the pass over the context of a run of one step.
  virtual TapSink<Ops>* context_taps() { return nullptr; }
};

/// The program of one rank: weights and caches, and the steps one after the other.
template <class Ops, class Comm>
class RankProgram {
 public:
  using R = Rank<Ops, Comm>;
  using T = typename Ops::Tensor;
  using Ids = typename Ops::Ids;

  RankProgram(const ParallelRun& run, const Protocol<R>& protocol,
              const ModelWeights<typename Ops::Weight>& weights, const Comms<Comm>& comms,
              const Ops& ops)
      : run_(run),
        protocol_(protocol),
        at_(comms.at),
        ops_(ops),
        weights_(weights),
        rank_(ops, comms.tp, comms.dp, comms.ep, comms.pp),
        shapes_(rank_shapes(run.config, comms.at.tp, run.plan.parallel.tp)),
        state_(empty_state(ops, run.config, shapes_)) {
    if (run.faults == nullptr && run.visits == nullptr) return;
    static const std::vector<InjectedFault> none;
    injector_.emplace(
        ops, run.faults == nullptr ? none : *run.faults, at_, rank_.module,
        typename Injector<Ops, Comm>::Groups{&comms.tp, &comms.dp, &comms.ep, &comms.pp},
        run.fault_hits, run.visits);
    rank_.faults = &*injector_;
  }

  /// The pass over what was processed before: target and drafter write their caches, nobody
  /// samples.
  void context(const Batch& context, const Batch& step, RankObserver<Ops, Comm>* observer) {
    rank_.taps = observer != nullptr ? observer->context_taps() : nullptr;
    if constexpr (requires { ops_.enter_step(0); }) ops_.enter_step(-1);
    if (injector_) injector_->enter_context(context.num_tokens());
    const T hidden = forward(rank_, protocol_, weights_, run_.config, shapes_, state_, context);
    if (run_.draft_steps == 0 || !stage().is_last()) return;
    const SampleRows last = sample_rows(context);
    std::vector<std::int64_t> firsts;
    for (const std::int64_t s : last.requests)
      firsts.push_back(step.query_start_loc[std::size_t(s)]);
    const Ids next = ops_.select(ops_.ids(step), firsts);
    mtp_forward(rank_, protocol_, weights_, run_.config, shapes_, state_, context,
                ops_.next_ids(ops_.ids(context), context, last.rows, next), hidden);
  }

  /// One engine step: target, sampler, drafter, and the states of the accepted rows.
  void step(std::int64_t index, const StepInputs& inputs, RankObserver<Ops, Comm>* observer) {
    const Batch& batch = inputs.step;
    if (injector_) injector_->enter_step(index, batch.num_tokens());
    if constexpr (requires { ops_.enter_step(0); }) ops_.enter_step(std::int32_t(index));
    if (observer != nullptr) observer->starts();
    exchange(batch);
    rank_.taps = observer;
    const T hidden = target(batch);
    if (stage().is_last()) {
      const SampleRows sampled = sample_rows(batch, inputs.rejected);
      const T logits = compute_logits(rank_, weights_, run_.config, hidden);
      if (observer != nullptr) observer->lm_head(logits);
      const Ids next = ops_.argmax(ops_.index_rows(logits, sampled.rows));
      draft(rank_, protocol_, weights_, run_.config, shapes_, state_, batch, hidden, sampled, next,
            {.num_steps = run_.draft_steps,
             .padded = run_.runner.padded_drafter,
             .runner = run_.runner.version,
             .all_logits = true},
            inputs.rejected, static_cast<DraftObserver<R>*>(observer));
    }
    rank_.taps = nullptr;
    broadcast_sampled(batch);
    if (injector_) injector_->enter_draft(-1, batch.num_tokens());
    commit(batch, inputs.rejected);
  }

 private:
  Stage stage() { return stage_of(rank_, run_.plan); }

  /// Row counts are agreed on over the data-parallel ranks: unpadded, padded, graph mode, ubatch.
  /// Source: vllm dp_utils.py, coordinate_batch_across_dp.
  void exchange(const Batch& batch) {
    if (run_.plan.parallel.dp == 1 || batch.tokens_across_dp.empty()) return;
    const auto scope = rank_.enter("runner");
    rank_.dp.all_reduce(ops_.blank(0, rank_.number("exchanged_fields", 4) * run_.plan.parallel.dp));
  }

  /// The last stage tells the others what it sampled: K + 1 ids a request, whatever was verified.
  /// Source: vllm PR 49443.
  void broadcast_sampled(const Batch& batch) {
    if (run_.plan.parallel.pp == 1) return;
    const auto scope = rank_.enter("runner");
    rank_.pp.broadcast(
        ops_.blank(0, std::max<std::int64_t>(batch.num_sequences(), 1) *
                          rank_.number("sampled_width", std::int64_t(run_.draft_steps) + 1)),
        run_.plan.parallel.pp - 1);
  }

  T target(const Batch& batch) {
    if constexpr (requires { ops_.rows_of(batch, run_.config.hidden_size); })
      if (!run_.target_runs) return ops_.rows_of(batch, run_.config.hidden_size);
    return forward(rank_, protocol_, weights_, run_.config, shapes_, state_, batch);
  }

  /// Recurrent states go back to the last accepted row. Source: vllm gdn_attn.py.
  void commit(const Batch& batch, const std::vector<std::int32_t>& rejected) {
    if (!run_.target_runs || !batch.keep_states || rejected.empty()) return;
    if (!rank_.gate("commits_accepted", true)) return;
    for (LayerState<Ops>& layer : state_.layers)
      for (std::size_t s = 0; layer.gdn && s < rejected.size(); ++s)
        if (const std::int32_t rows = batch.query_start_loc[s + 1] - batch.query_start_loc[s];
            rows > 0 && owns(layer))
          ops_.commit_accepted(*layer.gdn, batch.slots[s],
                               rank_.number("accepted_rows", rows - rejected[s]));
  }
  bool owns(const LayerState<Ops>& layer) {
    const auto index = std::int64_t(&layer - state_.layers.data());
    const auto count = std::int64_t(state_.layers.size());
    return index >= stage().first_layer(count) && index < stage().end_layer(count);
  }

  const ParallelRun& run_;
  const Protocol<R>& protocol_;
  RankCoordinates at_;
  const Ops& ops_;
  const ModelWeights<typename Ops::Weight>& weights_;
  R rank_;
  RankShapes shapes_;
  ModelState<Ops> state_;
  std::optional<Injector<Ops, Comm>> injector_;
};

/// Every step's inputs of each dp rank, padded and with what the ranks exchange.
struct PreparedSteps {
  std::vector<StepInputs> first;               // [dp]
  std::vector<std::vector<StepInputs>> later;  // [step][dp]
  bool any_context = false;
};
PreparedSteps prepare_steps(const ParallelRun& run);

/// The protocol of a run. Throws ConfigError for one's own over other than simulated ranks.
template <class Ops, class Comm>
std::unique_ptr<Protocol<Rank<Ops, Comm>>> protocol_of(const ParallelRun& run) {
  if (run.own_protocol == nullptr) return make_protocol<Rank<Ops, Comm>>(run.plan);
  if constexpr (std::is_same_v<Comm, SimComm<Ops>>)
    return run.own_protocol->make<Ops>(run.plan);
  else
    throw ConfigError("own protocol: it runs on simulated ranks only");
}

/// Runs the program on every rank of `mesh` that is in this process, with `ops_of(coordinates)` and
/// `weights_of(coordinates)`; `observer_of(coordinates)` may be null. The target's logits are
/// computed for all rows, as golden files have them. Throws the first error of a rank.
///
/// A mesh has Mesh::CommOf<Ops>, and run(ops_of, body) calls body(comms) for each of its ranks,
/// with Comms<CommOf<Ops>>; on other threads, it may be.
template <class Ops, class Mesh, class WeightsOf, class OpsOf, class ObserverOf>
void run_on_mesh(const ParallelRun& run, Mesh& mesh, WeightsOf weights_of, OpsOf ops_of,
                 ObserverOf observer_of) {
  using Comm = typename Mesh::template CommOf<Ops>;
  const auto protocol = protocol_of<Ops, Comm>(run);
  const PreparedSteps steps = prepare_steps(run);
  mesh.run(ops_of, [&](Comms<Comm>& comms) {
    const Ops& ops = ops_of(comms.at);
    const ModelWeights<typename Ops::Weight>& weights = weights_of(comms.at);
    RankProgram<Ops, Comm> program(run, *protocol, weights, comms, ops);
    const auto dp = std::size_t(comms.at.dp);
    try {
      const auto last = std::int64_t(steps.later.size());
      RankObserver<Ops, Comm>* const observer = last == 0 ? observer_of(comms.at) : nullptr;
      if (steps.any_context)
        program.context(steps.first[dp].context, steps.first[dp].step, observer);
      program.step(0, steps.first[dp], observer);
      for (std::int64_t i = 1; i <= last; ++i)
        program.step(i, steps.later[std::size_t(i) - 1][dp],
                     i == last ? observer_of(comms.at) : nullptr);
    } catch (const RankLeaves&) {  // an injected fault: the others will say that it has ended
    }
    return 0;
  });
}

/// The same on simulated ranks.
template <class Ops, class WeightsOf, class OpsOf, class ObserverOf>
void run_with_weights(const ParallelRun& run, WeightsOf weights_of, OpsOf ops_of,
                      ObserverOf observer_of, ReductionOrder order = ReductionOrder::rank) {
  SimMesh mesh(run.plan.parallel, order);
  mesh.record(run.collectives);
  mesh.record_groups(run.group_calls);
  run_on_mesh<Ops>(run, mesh, weights_of, ops_of, observer_of);
  if (run.finished) run.finished(mesh);
}

/// The weights of each rank of a run from `source`, loaded when the rank first asks for its own.
template <class Ops>
class LoadedWeights {
 public:
  LoadedWeights(const ParallelRun& run, const WeightSource& source)
      : run_(run), source_(source), loaded_(std::size_t(run.plan.parallel.world_size())) {}

  const ModelWeights<typename Ops::Weight>& of(const RankCoordinates& at, const Ops& ops) {
    const std::lock_guard lock(mutex_);  // a source serves one rank at a time
    auto& weights = loaded_[std::size_t(at.world)];
    if (!weights)
      weights = WeightLoader<Ops>(ops, source_, run_.config, placement_of(run_.plan, at.tp, at.ep))
                    .model();
    return *weights;
  }

 private:
  const ParallelRun& run_;
  const WeightSource& source_;
  std::mutex mutex_;
  std::vector<std::optional<ModelWeights<typename Ops::Weight>>> loaded_;
};

}  // namespace tokenview
