// SPDX-License-Identifier: Apache-2.0
#include "verify/scenario_accuracy.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/case_judgement.hpp"
#include "verify/found_taps.hpp"

namespace tokenview {
namespace {

constexpr double small_change = 16;  // roundings

ModelConfig small_model(const Scenario& scenario) {
  ModelConfig config = config_of(scenario);
  if (config.has_arithmetic() && config.hidden_size <= 128) return config;
  config = *preset("qwen3-next");
  config.num_hidden_layers = 2;
  config.layer_types = {LayerType::linear_attention, LayerType::full_attention};
  return config;
}

GoldenInputs inputs_of(const StepInputs& step) {
  GoldenInputs inputs{step.step.input_ids, step.step.positions, step.step.query_start_loc,
                      step.context.input_ids, step.context.query_start_loc};
  if (inputs.context_start_loc.size() != inputs.query_start_loc.size())
    inputs.context_start_loc.assign(inputs.query_start_loc.size(), 0);
  return inputs;
}

/// The largest change of a value, of the largest value of its tap.
double largest_change(const FoundTaps& found, const RankTaps& right) {
  double largest = 0;
  for (const auto& [place, values] : found.values) {
    const Matrix<double>& exact = right.values.at(place);
    if (exact.size() == 0) continue;
    const double scale = exact.cwiseAbs().maxCoeff();
    const double change = (values - exact).cwiseAbs().maxCoeff();
    if (!(change <= largest * scale)) largest = change / std::max(scale, 1e-30);
  }
  return largest;
}

}  // namespace

ScenarioSight see_scenario(const Scenario& scenario, DType type) {
  const ModelConfig config = small_model(scenario);
  ParallelRun run = run_of(scenario, scenario.broken, config);
  run.target_runs = true;
  if (!run.later_steps.empty()) return {ScenarioSight::not_run, "it takes several steps"};
  for (const StepInputs& inputs : run.inputs)
    for (const std::int32_t rejected : inputs.rejected)
      if (rejected > 0) return {ScenarioSight::not_run, "it rejects drafts"};
  if (run.plan.parallel.pp > 1) return {ScenarioSight::not_run, "it has pipeline stages"};
  try {
    require_simulable(config, run.plan.parallel, std::int64_t(run.draft_steps));
  } catch (const ConfigError& error) {
    return {ScenarioSight::not_run, error.what()};
  }

  const bool is_narrow = type == DType::bfloat16;
  const SeededWeights weights(config, 1, type);
  const ViewRunResult views = run_views(run, true);
  std::vector<std::int64_t> hits(scenario.broken.faults.size(), 0);
  run.fault_hits = &hits;
  const NumberRunResult wide = run_numbers<double>(run, weights);
  run.fault_hits = nullptr;
  if (wide.error.empty() && std::ranges::find(hits, 0) != hits.end())
    return {ScenarioSight::not_run, "its fault has no place in the small model"};
  const NumberRunResult numbers = run_numbers<float>(run, weights, ReductionOrder::rank,
                                                     is_narrow ? Rounding::hf : Rounding::none);
  if (!numbers.error.empty()) return {ScenarioSight::seen, "stops: " + numbers.error};
  bool is_changed = false;
  for (std::size_t dp = 0; dp < run.inputs.size(); ++dp) {
    ParallelRun alone = run;
    alone.plan = plan_for(config, {}, ProtocolId::S);
    alone.inputs = {run.inputs[dp]};
    alone.faults = nullptr;
    alone.fault_hits = nullptr;
    if (alone.inputs.front().step.num_tokens() == 0) continue;
    const LoadedGolden::Case trusted =
        recorded_case(inputs_of(run.inputs[dp]), alone, weights, Rounding::none);
    const GoldenCase golden(config, weights, trusted, DType::float32);
    const ParallelConfig& parallel = run.plan.parallel;
    const RunTaps exact = taps_of_run(golden, views, wide, parallel, std::int64_t(dp));
    const RunTaps taps = taps_of_run(golden, views, numbers, parallel, std::int64_t(dp));
    if (!taps.problems.empty()) return {ScenarioSight::seen, taps.problems.front()};
    const TapErrorModel model(golden, {type, parallel.tp});
    is_changed |= !exact.problems.empty() || !(largest_change(exact.found, model.exact()) <=
                                               small_change * unit_roundoff_of(type));
    const CaseJudgement judgement = judge_case(golden, model, taps.found);
    if (judgement.holds()) continue;
    const std::vector<std::string> origins = judgement.origins();
    return {ScenarioSight::seen, origins.empty() ? "inherited" : origins.front()};
  }
  if (is_changed) return {ScenarioSight::missed, ""};
  return {ScenarioSight::unchanged, ""};
}

}  // namespace tokenview
