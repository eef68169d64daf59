// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

#include "verify/loaded_golden.hpp"
#include "verify/number_run.hpp"

namespace tokenview {

/// A case of a golden file, and what its model is made of; all outlive what is made from it.
struct GoldenCase {
  const ModelConfig& config;
  const WeightSource& weights;
  const LoadedGolden::Case& trusted;
  DType dtype = DType::float32;  // of the arithmetic that the trusted values were made in

  GoldenCase(const LoadedGolden& golden, const std::string& case_name)
      : config(golden.config()),
        weights(golden),
        trusted(golden.cases().at(case_name)),
        dtype(golden.dtype()) {}
  GoldenCase(const ModelConfig& model, const WeightSource& source, const LoadedGolden::Case& values,
             DType type)
      : config(model), weights(source), trusted(values), dtype(type) {}
};

/// Ids by place: "target/model.layers.0.mlp.gate.ids", "context/...", "step1/input_ids".
using IdsByPlace = std::map<std::string, Matrix<std::int64_t>>;

/// The golden's experts, draft ids and positions. Throws FileError for ids that the model does not
/// have.
IdsByPlace trusted_ids(const GoldenCase& golden);

/// Drafts that each sequence of the step rejected, as an engine that verifies drafts does: so many
/// rows before its last one a sequence samples. Read off the positions of the second draft step;
/// empty: none, or not known.
std::vector<std::int32_t> rejected_of(const LoadedGolden::Case& of);

/// The case as a run of protocol S on `tp` ranks.
ParallelRun run_of(const GoldenCase& golden, std::int64_t tp);

/// A case in memory: the taps of a run of protocol S on one rank, `run`, in float32 arithmetic with
/// the rounding points of `rounding`.
LoadedGolden::Case recorded_case(const GoldenInputs& inputs, const ParallelRun& run,
                                 const WeightSource& weights, Rounding rounding);

}  // namespace tokenview
