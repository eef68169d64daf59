// SPDX-License-Identifier: Apache-2.0
#include "verify/expected_verdict.hpp"

#include <algorithm>
#include <functional>

namespace tokenview {
namespace {

/// True for some data-parallel rank with tokens (or pads alone), in some pass of the target, of its
/// padded T.
bool some_pass(const PreparedSteps& steps, const std::function<bool(std::int64_t)>& holds,
               bool of_pads = false) {
  const auto holds_for = [&](const Batch& batch) {
    const bool has_tokens = batch.num_sequences() > 0 && batch.num_real_tokens() > 0;
    return (has_tokens || of_pads) && holds(batch.num_tokens());
  };
  const auto in_step = [&](const std::vector<StepInputs>& inputs) {
    return std::ranges::any_of(inputs, [&](const StepInputs& i) { return holds_for(i.step); });
  };
  return in_step(steps.first) || std::ranges::any_of(steps.later, in_step) ||
         (steps.any_context && std::ranges::any_of(steps.first, [&](const StepInputs& i) {
            return holds_for(i.context);
          }));
}

/// Two layers one after the other on a stage, both of which scatter, and nothing between them that
/// gathers: an auxiliary state is captured from the gathered pair, which stays full.
bool has_sharded_boundary(const ParallelPlan& plan) {
  const auto layers = std::int64_t(plan.scatters.size()), stages = plan.parallel.pp;
  const auto stage_of_layer = [&](std::int64_t layer) {
    std::int64_t stage = stages - 1;
    while (stage * layers / stages > layer) --stage;
    return stage;
  };
  const auto is_captured = [&](std::int64_t layer) {
    return !plan.captures_alone &&
           std::ranges::find(plan.aux_layers, layer) != plan.aux_layers.end();
  };
  for (std::int64_t i = 0; i + 1 < layers; ++i)
    if (plan.scatters[std::size_t(i)] && plan.scatters[std::size_t(i) + 1] && !is_captured(i + 1) &&
        stage_of_layer(i) == stage_of_layer(i + 1))
      return true;
  return false;
}

}  // namespace

std::string known_fault(const ParallelRun& run) {
  const ParallelPlan& plan = run.plan;
  const std::int64_t p = plan.parallel.tp;
  if (p == 1) return {};
  const PreparedSteps steps = prepare_steps(run);
  const auto any_rows = [](std::int64_t) { return true; };
  const bool drafts = run.draft_steps > 0;
  switch (plan.protocol) {
    case ProtocolId::B:
      // Of pads alone it is another number of rows, from two on.
      if (drafts && plan.mtp_scatters &&
          (some_pass(steps, any_rows) || some_pass(
                                             steps, [](std::int64_t t) { return t > 1; }, true)))
        return "MTP shard";
      [[fallthrough]];
    case ProtocolId::C:
    case ProtocolId::vllm_48763:
      if (run.target_runs && std::ranges::find(plan.scatters, true) != plan.scatters.end() &&
          some_pass(steps, [](std::int64_t t) { return t == 1; }))
        return "T = 1";
      return {};
    case ProtocolId::vllm_53191_shape:
      // Of pads alone too: a mixer refuses rows that positions do not have.
      if (has_sharded_boundary(plan) &&
          some_pass(
              steps, [p](std::int64_t t) { return t >= p && (t + p - 1) / p < p; }, true))
        return "S < p";
      return {};
    case ProtocolId::vllm_58061: {
      bool any_dense =
          drafts &&
          !run.config.is_moe_layer(run.config.has_arithmetic() ? 0 : run.config.num_hidden_layers);
      for (std::int64_t i = 0; i < run.config.num_hidden_layers; ++i)
        any_dense = any_dense || !run.config.is_moe_layer(i);
      return any_dense && some_pass(steps, any_rows) ? "dense on a shard" : "";
    }
    case ProtocolId::deferred:
      if (!some_pass(steps, any_rows)) return {};
      if (plan.parallel.pp > 1) return "partial handed over";
      if (plan.parallel.enable_expert_parallel && plan.parallel.dp > 1) {
        bool any_moe = drafts && run.config.is_moe_layer(0);
        for (std::int64_t i = 0; i < run.config.num_hidden_layers; ++i)
          any_moe = any_moe || run.config.is_moe_layer(i);
        if (any_moe) return "summed twice";
      }
      return {};
    default:
      return {};
  }
}

}  // namespace tokenview
