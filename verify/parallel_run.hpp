// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm_sim/sim_mesh.hpp"
#include "reference/program/drafter.hpp"
#include "reference/program/protocols.hpp"

namespace tokenview {

template <class Ops>
using SimRank = Rank<Ops, SimComm<Ops>>;

/// What one data-parallel rank is given: tokens processed before the step, the step, and where
/// known the tokens that follow the context.
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
  std::vector<CollectiveRecord>* collectives = nullptr;  // where those of rank 0 go
};

/// Sees what one rank makes: taps of the step, logits of all rows, and the draft passes.
template <class Ops>
class RankObserver : public TapSink<Ops>, public DraftObserver<SimRank<Ops>> {
 public:
  virtual void lm_head(const typename Ops::Tensor& logits) = 0;
};

/// Batches of all dp ranks with the row counts that they exchange.
/// Source: vllm forward_context.py, DPMetadata.
inline void exchange_row_counts(std::vector<Batch*> batches) {
  std::vector<std::int64_t> tokens, requests;
  for (const Batch* batch : batches) {
    tokens.push_back(batch->num_tokens());
    requests.push_back(std::int64_t(sample_rows(*batch).rows.size()));
  }
  for (Batch* batch : batches) {
    batch->tokens_across_dp = tokens;
    batch->requests_across_dp = requests;
  }
}

/// Runs the program on every rank of the world with `ops_of(coordinates)`;
/// `observer_of(coordinates)` may be null. The target's logits are computed for all rows, as golden
/// files have them. Throws the first error of a rank.
template <class Ops, class OpsOf, class ObserverOf>
void run_parallel(const ParallelRun& run, const WeightSource& source, OpsOf ops_of,
                  ObserverOf observer_of) {
  const auto protocol = make_protocol<SimRank<Ops>>(run.plan);
  std::vector<StepInputs> inputs = run.inputs;
  std::vector<Batch*> contexts, steps;
  bool any_context = false;
  for (StepInputs& of_rank : inputs) {
    contexts.push_back(&of_rank.context);
    steps.push_back(&of_rank.step);
    any_context = any_context || of_rank.context.num_tokens() > 0;
  }
  if (any_context) exchange_row_counts(contexts);
  exchange_row_counts(steps);

  SimMesh mesh(run.plan.parallel);
  mesh.record(run.collectives);
  mesh.run(ops_of, [&](SimComms<Ops>& comms) {
    const Ops& ops = ops_of(comms.at);
    SimRank<Ops> rank(ops, comms.tp, comms.dp, comms.ep);
    const auto weights =
        WeightLoader<Ops>(ops, source, run.config, placement_of(run.plan, comms.at.tp, comms.at.ep))
            .model();
    const RankShapes shapes = rank_shapes(run.config, comms.at.tp, run.plan.parallel.tp);
    auto state = empty_state(ops, run.config, shapes);
    const StepInputs& mine = inputs[std::size_t(comms.at.dp)];
    RankObserver<Ops>* const observer = observer_of(comms.at);

    if (any_context) {
      const auto hidden =
          forward(rank, *protocol, weights, run.config, shapes, state, mine.context);
      if (run.draft_steps > 0) {
        const SampleRows last = sample_rows(mine.context);
        std::vector<std::int64_t> firsts;
        for (const std::int64_t s : last.requests)
          firsts.push_back(mine.step.query_start_loc[std::size_t(s)]);
        const auto next = ops.select(ops.ids(mine.step), firsts);
        mtp_forward(rank, *protocol, weights, run.config, shapes, state, mine.context,
                    ops.next_ids(ops.ids(mine.context), mine.context, last.rows, next), hidden);
      }
    }
    rank.taps = observer;
    const auto hidden = [&] {
      if constexpr (requires { ops.rows_of(mine.step, run.config.hidden_size); })
        if (!run.target_runs) return ops.rows_of(mine.step, run.config.hidden_size);
      return forward(rank, *protocol, weights, run.config, shapes, state, mine.step);
    }();
    const SampleRows sampled = sample_rows(mine.step, mine.rejected);
    const auto logits = compute_logits(rank, weights, run.config, hidden);
    if (observer != nullptr) observer->lm_head(logits);
    const auto next = ops.argmax(ops.index_rows(logits, sampled.rows));
    if (run.draft_steps > 0)
      draft(rank, *protocol, weights, run.config, shapes, state, mine.step, hidden, sampled, next,
            run.draft_steps, mine.rejected, true, observer);
    return 0;
  });
}

}  // namespace tokenview
