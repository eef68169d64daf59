// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_run.hpp"

#include "reference/program/error.hpp"
#include "verify/given_run.hpp"
#include "verify/golden_case.hpp"
#include "verify/host_matrix.hpp"

namespace tokenview {

IdsByPlace trusted_ids(const GoldenCase& golden) {
  IdsByPlace all;
  for (const auto& [place, ids] : golden.trusted.ids) {
    const std::int64_t end =
        place.ends_with("gate.ids") ? golden.config.num_experts : golden.config.vocab_size;
    if (!place.ends_with("positions"))
      for (const std::int64_t id : ids.values)
        if (id < 0 || id >= end)
          throw FileError(text(place, ": id ", id, ", expected [0, ", end, ')'));
    all.emplace(place, as_matrix(ids));
  }
  return all;
}

std::vector<std::int32_t> rejected_of(const LoadedGolden::Case& of) {
  const auto positions = of.ids.find("step1/positions");
  if (positions == of.ids.end()) return {};
  const GoldenInputs& inputs = of.inputs;
  std::vector<std::int32_t> rejected(std::size_t(inputs.num_sequences()), 0);
  bool any = false;
  std::size_t row = 0;
  for (std::size_t s = 0; s < rejected.size(); ++s) {
    const std::int32_t begin = inputs.query_start_loc[s], end = inputs.query_start_loc[s + 1];
    if (begin == end) continue;
    if (row == positions->second.values.size()) return {};
    const std::int64_t last = inputs.positions[std::size_t(end) - 1];
    const std::int64_t missing = last + 1 - positions->second.values[row++];
    if (missing < 0 || missing >= end - begin) return {};
    rejected[s] = std::int32_t(missing);
    any |= missing > 0;
  }
  return any ? rejected : std::vector<std::int32_t>();
}

ParallelRun run_of(const GoldenCase& golden, std::int64_t tp) {
  CaseBatches batches = case_batches(golden.trusted.inputs);
  return {.config = golden.config,
          .plan = plan_for(golden.config, {.tp = tp}, ProtocolId::S),
          .inputs = {{std::move(batches.context), std::move(batches.step),
                      rejected_of(golden.trusted)}},
          .draft_steps = std::size_t(golden.trusted.draft_steps)};
}

LoadedGolden::Case recorded_case(const GoldenInputs& inputs, const ParallelRun& run,
                                 const WeightSource& weights, Rounding rounding) {
  LoadedWeights<EigenOps<float>> loaded(run, weights);
  const RankTaps taps =
      std::move(run_given(run, loaded, EigenOps<float>(1, rounding), Given{}).front());
  LoadedGolden::Case made{inputs, std::int64_t(run.draft_steps), {}, {}};
  for (const auto& [place, values] : taps.values)
    if (!place.starts_with("context/")) {
      const Matrix<float> narrow = values.cast<float>();
      made.taps[place] = {{narrow.rows(), narrow.cols()},
                          {narrow.data(), narrow.data() + narrow.size()}};
    }
  for (const auto& [place, ids] : taps.ids)
    if (!place.starts_with("context/"))
      made.ids[place] = {{ids.rows(), ids.cols()}, {ids.data(), ids.data() + ids.size()}};
  return made;
}

}  // namespace tokenview
