// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/dump_diff.hpp"

namespace tokenview {

/// What a difference means between values of a narrow type where the model is not known, so that
/// there is no error model of it: which limits were used, and which to pass (unless the command
/// line `has_limits`); and that no limit excuses other experts. Empty where the model is known, for
/// float32, and where nothing differs.
std::vector<std::string> notes_on_narrow_types(const TrustedSide& side, const DumpFile& dump,
                                               bool has_limits, const DumpDiffResult& result);

}  // namespace tokenview
