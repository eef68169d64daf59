// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "verify/case_error_models.hpp"
#include "verify/matrix.hpp"
#include "verify/number_run.hpp"

namespace tokenview {

/// Holds the taps of a float32 run to those of the golden, into `result`: every value by
/// float32_bound(), ids exactly. Every row of a golden tap must be on some rank, and every rank
/// must have what `views` say. `cases`: [dp].
void judge_by_fixed_bound(const ModelConfig& config,
                          const std::vector<const LoadedGolden::Case*>& cases,
                          const ViewRunResult& views, const NumberRunResult& numbers,
                          MatrixResult& result);

/// Holds the taps of a bfloat16 run to its error model, into `result`: see judge_case().
void judge_by_errors(CaseErrorModels& models, const LoadedGolden& golden,
                     const std::vector<const LoadedGolden::Case*>& cases,
                     const ViewRunResult& views, const NumberRunResult& numbers,
                     MatrixResult& result);

}  // namespace tokenview
