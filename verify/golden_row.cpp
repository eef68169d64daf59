// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_row.hpp"

namespace tokenview {

std::int64_t golden_row(const RowRun& row, const GoldenInputs& inputs, std::int64_t draft_step,
                        const std::vector<std::int32_t>& rejected) {
  if (draft_step <= 0) return row.first;
  for (std::int64_t s = 0; s < inputs.num_sequences(); ++s)
    if (inputs.query_start_loc[std::size_t(s) + 1] - 1 -
            (rejected.empty() ? 0 : rejected[std::size_t(s)]) ==
        row.first)
      return s;
  return -1;
}

std::int64_t draft_step_of(const std::string& place) {
  return place.starts_with("step") ? std::stoll(place.substr(4)) : -1;
}

}  // namespace tokenview
