// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/case_judgement.hpp"

namespace tokenview {

/// The taps of one data-parallel rank of a simulated run, whole.
struct RunTaps {
  FoundTaps found;
  std::vector<std::string> problems;  // "target/model.norm: row 3 is on no rank"; what ended it
};

/// Puts the taps of a run together by the views of a right run of that configuration. Taps that the
/// golden does not have are left out.
RunTaps taps_of_run(const GoldenCase& golden, const ViewRunResult& views,
                    const NumberRunResult& numbers, const ParallelConfig& parallel,
                    std::int64_t dp = 0);

}  // namespace tokenview
