// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "verify/case_judgement.hpp"

namespace tokenview {

/// The error models of the cases of a golden file, each made when it is first asked for. For any
/// number of threads; those that ask for one model wait for each other.
class CaseErrorModels {
 public:
  /// `golden` outlives it.
  explicit CaseErrorModels(const LoadedGolden& golden) : golden_(golden) {}

  /// judge_case() of what `tp` ranks computed in the file's type. `trusted` is the case `name` of
  /// the file, or its first rows.
  CaseJudgement judge(const std::string& name, const LoadedGolden::Case& trusted, std::int64_t tp,
                      const FoundTaps& found);

 private:
  struct Model {
    std::mutex mutex;
    LoadedGolden::Case trusted;
    std::unique_ptr<GoldenCase> golden;
    std::unique_ptr<TapErrorModel> errors;
  };
  const LoadedGolden& golden_;
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, Model> models_;  // name, rows, tp
};

}  // namespace tokenview
