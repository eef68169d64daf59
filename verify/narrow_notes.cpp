// SPDX-License-Identifier: Apache-2.0
#include "verify/narrow_notes.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/trusted_dump.hpp"

namespace tokenview {

std::vector<std::string> notes_on_narrow_types(const TrustedSide& side, const DumpFile& dump,
                                               bool has_limits, const DumpDiffResult& result) {
  const DType mine = arithmetic_of(dump), trusted = side.dtype();
  const DType narrow = mine == DType::float32 ? trusted : mine;
  if (side.config() != nullptr || narrow == DType::float32 || result.failed == 0) return {};
  std::vector<std::string> notes;
  if (!has_limits)
    notes.push_back(text(to_string(narrow),
                         " of a model that the reference does not know: the "
                         "limits are those of one operation, and errors add up with depth; others "
                         "for all taps: --rule '*: of_max=0.1, l2=0.05, row_l2=0.1'"));
  const auto other_choice = std::ranges::find_if(result.taps, [](const TapDiff& tap) {
    return tap.failed() && tap.tap.ends_with(".gate.ids");
  });
  if (other_choice != result.taps.end())
    notes.push_back(text("tokens choose other experts, from step ", other_choice->step, ' ',
                         other_choice->tap, " on: errors of ", to_string(narrow),
                         " turn near ties, which no limit excuses here; what follows of these "
                         "tokens differs as well"));
  return notes;
}

}  // namespace tokenview
