// SPDX-License-Identifier: Apache-2.0
#include "verify/parallel_run.hpp"

namespace tokenview {

PreparedSteps prepare_steps(const ParallelRun& run) {
  PreparedSteps steps{run.inputs, run.later_steps};
  RunnerOptions runner = run.runner;
  runner.draft_steps = std::int64_t(run.draft_steps);
  const auto prepare = [&](std::vector<StepInputs>& inputs) {
    std::vector<Batch*> batches;
    std::vector<std::vector<std::int32_t>> rejected;
    for (StepInputs& of_rank : inputs) {
      batches.push_back(&of_rank.step);
      rejected.push_back(of_rank.rejected);
    }
    prepare_step(batches, rejected, runner);
  };
  std::vector<Batch*> contexts;
  for (StepInputs& of_rank : steps.first) {
    contexts.push_back(&of_rank.context);
    steps.any_context = steps.any_context || of_rank.context.num_tokens() > 0;
  }
  if (steps.any_context) prepare_step(contexts, {}, {});
  prepare(steps.first);
  for (std::vector<StepInputs>& inputs : steps.later) prepare(inputs);
  return steps;
}

}  // namespace tokenview
