// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_case.hpp"

#include <set>

#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"

namespace tokenview {

CaseBatches case_batches(const GoldenInputs& inputs) {
  CaseBatches batches;
  Batch& context = batches.context;
  Batch& step = batches.step;
  context.input_ids = inputs.context_ids;
  context.query_start_loc = inputs.context_start_loc;
  step.input_ids = inputs.input_ids;
  step.positions = inputs.positions;
  step.query_start_loc = inputs.query_start_loc;
  for (std::size_t s = 0; s < std::size_t(inputs.num_sequences()); ++s) {
    const std::int32_t length = inputs.context_start_loc[s + 1] - inputs.context_start_loc[s];
    for (std::int32_t i = 0; i < length; ++i) context.positions.push_back(i);
    context.num_computed.push_back(0);
    step.num_computed.push_back(length);
    context.slots.push_back(std::int32_t(s));
    step.slots.push_back(std::int32_t(s));
  }
  return batches;
}

void require_known_weights(const GoldenFile& golden, const ModelConfig& config) {
  std::set<std::string> known;
  for (const WeightShape& weight : weight_shapes(config)) known.insert(weight.name);
  for (const auto& [name, shape] : golden.weight_shapes())
    if (!known.contains(name))
      golden.file().fail(GoldenFile::weight_path(name),
                         text("no such weight in a ", to_string(config.model_type),
                              " model of this configuration"));
}

template <class S>
std::vector<std::vector<std::int64_t>> run_case(const SerialModel<S>& model,
                                                const GoldenInputs& inputs,
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

template std::vector<std::vector<std::int64_t>> run_case(const SerialModel<float>&,
                                                         const GoldenInputs&, std::int64_t,
                                                         CaseObserver<float>&);
template std::vector<std::vector<std::int64_t>> run_case(const SerialModel<double>&,
                                                         const GoldenInputs&, std::int64_t,
                                                         CaseObserver<double>&);

}  // namespace tokenview
