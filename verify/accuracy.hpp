// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "reference/program/host_tensor.hpp"

namespace tokenview {

/// Mutants, and those of them that the judgement does not see.
struct MutantCount {
  std::int64_t mutants = 0;
  std::vector<std::string> missed = {};  // in words

  MutantCount& operator+=(const MutantCount& more);
};

/// What the experiments of one seed gave.
struct AccuracyResult {
  std::string setting = {};  // in words: model, types, layout, requests
  std::int64_t clean = 0, taps = 0, ties = 0;
  std::vector<std::string> alarms = {};  // clean runs that do not hold, with the table
  double nearest = 0;                    // observed / allowed: the largest of the clean runs
  std::string nearest_place = {};        // in words

  MutantCount plain = {};       // that change a value by 16 roundings or more
  MutantCount in_context = {};  // of those, that do so through caches that the context left wrong
  MutantCount small = {};       // by 1 to 16 roundings
  std::int64_t equivalent = 0;  // by less: judged by nobody

  AccuracyResult& operator+=(const AccuracyResult& more);
};

struct AccuracyOptions {
  std::int64_t clean = 3, mutants = 4;  // runs of each seed
  int samples = 16;                     // of the error model
};

/// How often the judgement of a case is wrong, measured on runs whose truth is known. The seed
/// decides everything: a tiny model with random weights (for a third of the seeds a router with
/// experts in nearly or exactly equal pairs), requests (prefills, several sequences, decodes with a
/// context, draft steps), tp 1 to 8, and the types: float32 on a float32 golden, bfloat16 on a
/// bfloat16 or a float32 golden, rounded as Hugging Face or as vLLM. The golden is the serial
/// reference's.
///
/// Clean runs are of protocols that are right for these rows, on simulated ranks, whole experts or
/// not. Mutants are clean runs with one fault injected at random: a collective left out, done
/// twice, over its parts in another order, along other rows, stale; its operand scaled by 1/p or 2;
/// a shared expert that is split over ranks of different tokens. How much a mutant changes is
/// measured in float64: the largest change of a token's value in roundings of the run's type, each
/// half a step of the tap's largest value.
///
/// A fault acts in the pass over the context too. Where it changes nothing but what the context
/// left in the caches, the step that is judged is right: it is the context's own step that is
/// wrong.
AccuracyResult measure_accuracy(std::uint64_t seed, const AccuracyOptions& options = {});

}  // namespace tokenview
