// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_case.hpp"

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

}  // namespace tokenview
