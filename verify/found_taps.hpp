// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "verify/golden_run.hpp"
#include "verify/number_run.hpp"

namespace tokenview {

/// What a run had of a case's taps, whole, by place: "target/model.norm", "step1/mtp.fc".
struct FoundTaps {
  std::map<std::string, Matrix<double>> values;  // [rows, columns]
  IdsByPlace ids;                                // experts [T, k]; input_ids, positions [rows, 1]
  std::map<std::string, std::vector<std::int64_t>> absent_rows = {};  // of either, ascending

  bool is_absent(const std::string& place, std::int64_t row) const;

  /// The run's `columns` ids of a row; nullptr where it did not keep them.
  const std::int64_t* ids_of(const std::string& place, std::int64_t row,
                             std::int64_t columns) const;

  /// The run's `columns` values of a row; nothing where it did not keep them.
  std::optional<Eigen::RowVectorXd> values_of(const std::string& place, std::int64_t row,
                                              std::int64_t columns) const;
};

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
