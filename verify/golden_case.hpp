// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/serial_model.hpp"
#include "verify/golden_file.hpp"

namespace tokenview {

/// What a golden case asks the model to do: the tokens processed before the step, and the step.
struct CaseBatches {
  Batch context;  // without rows for a prefill
  Batch step;
};
CaseBatches case_batches(const GoldenInputs& inputs);

/// Sees every tap of a case as the model makes it, in the order of the program.
template <class S>
class CaseObserver : public TapSink<EigenOps<S>>, public DraftObserver<SerialRank<S>> {
 public:
  /// The logits of every row of the step, the tap `lm_head`.
  virtual void lm_head(const Matrix<S>& logits) = 0;

  /// Who sees the taps of the context, which no golden file records.
  virtual TapSink<EigenOps<S>>* context_taps() { return nullptr; }
};

/// Runs a model, a SerialModel<S> or one with its interface, on a case: the context (the MTP layer
/// sees it too, each token paired with the known next one), then the step, then `draft_steps` draft
/// steps. The greedy token of a sequence's last row follows the step. Returns draft ids [draft
/// step][sequence]; a sequence without rows in the step has -1.
template <class Model, class S>
std::vector<std::vector<std::int64_t>> run_case(const Model& model, const GoldenInputs& inputs,
                                                std::int64_t draft_steps,
                                                CaseObserver<S>& observer) {
  const EigenOps<S> ops;
  const auto [context, step] = case_batches(inputs);
  auto state = model.empty_state();

  if (context.num_tokens() > 0) {
    const Matrix<S> hidden = model.forward(state, context, observer.context_taps());
    if (draft_steps > 0) {
      const SampleRows last = sample_rows(context);
      std::vector<std::int64_t>
          next;  // the token that follows the context is known: the step's first
      for (const std::int64_t s : last.requests) {
        const auto first = std::size_t(inputs.query_start_loc[std::size_t(s)]);
        const bool has_rows = inputs.query_start_loc[std::size_t(s) + 1] > std::int32_t(first);
        next.push_back(has_rows ? inputs.input_ids[first] : 0);
      }
      model.mtp_forward(state, context, ops.next_ids(context.input_ids, context, last.rows, next),
                        hidden, observer.context_taps());
    }
  }

  const Matrix<S> hidden = model.forward(state, step, &observer);
  const Matrix<S> logits = model.logits(hidden);
  observer.lm_head(logits);

  const SampleRows sampled = sample_rows(step);
  const auto next = ops.argmax(ops.index_rows(logits, sampled.rows));
  const auto drafts = model.draft(state, step, hidden, sampled, next, std::size_t(draft_steps), {},
                                  &observer, &observer);
  std::vector<std::vector<std::int64_t>> by_sequence;
  for (const auto& ids : drafts) {
    auto& row = by_sequence.emplace_back(inputs.num_sequences(), -1);
    for (std::size_t i = 0; i < ids.size(); ++i) row[std::size_t(sampled.requests[i])] = ids[i];
  }
  return by_sequence;
}

}  // namespace tokenview
