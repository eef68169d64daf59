// SPDX-License-Identifier: Apache-2.0
#include "verify/case_error_models.hpp"

namespace tokenview {

CaseJudgement CaseErrorModels::judge(const std::string& name, const LoadedGolden::Case& trusted,
                                     std::int64_t tp, const FoundTaps& found) {
  Model* model = nullptr;
  {
    const std::lock_guard lock(mutex_);
    model = &models_[{name, trusted.inputs.num_tokens(), tp}];
  }
  const std::lock_guard lock(model->mutex);
  if (model->errors == nullptr) {
    model->trusted = trusted;
    model->golden =
        std::make_unique<GoldenCase>(golden_.config(), golden_, model->trusted, golden_.dtype());
    model->errors =
        std::make_unique<TapErrorModel>(*model->golden, Implementation{golden_.dtype(), tp});
  }
  return judge_case(*model->golden, *model->errors, found);
}

}  // namespace tokenview
