// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_run.hpp"

#include "reference/program/error.hpp"
#include "verify/golden_case.hpp"

namespace tokenview {

IdsByPlace trusted_ids(const GoldenCase& golden) {
  IdsByPlace all;
  for (const auto& [place, ids] : golden.trusted.ids) {
    const std::int64_t rows = ids.shape.empty() ? 0 : ids.shape[0];
    const std::int64_t columns = rows == 0 ? 1 : std::int64_t(ids.values.size()) / rows;
    Matrix<std::int64_t> matrix =
        Eigen::Map<const Matrix<std::int64_t>>(ids.values.data(), rows, columns);
    const std::int64_t end =
        place.ends_with("gate.ids") ? golden.config.num_experts : golden.config.vocab_size;
    if (!place.ends_with("positions"))
      for (const std::int64_t id : ids.values)
        if (id < 0 || id >= end)
          throw FileError(text(place, ": id ", id, ", expected [0, ", end, ')'));
    all.emplace(place, std::move(matrix));
  }
  return all;
}

ParallelRun run_of(const GoldenCase& golden, std::int64_t tp) {
  CaseBatches batches = case_batches(golden.trusted.inputs);
  return {.config = golden.config,
          .plan = plan_for(golden.config, {.tp = tp}, ProtocolId::S),
          .inputs = {{std::move(batches.context), std::move(batches.step)}},
          .draft_steps = std::size_t(golden.trusted.draft_steps)};
}

}  // namespace tokenview
