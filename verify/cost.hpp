// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/view_run.hpp"

namespace tokenview {

/// Calls and bytes that one rank sends for one purpose.
struct CostLine {
  std::string purpose;
  std::int64_t calls = 0;
  double bytes = 0;  // ring volume
};

/// What a configuration sends, counted from the calls of a symbolic run on rank 0: the layers' own
/// collectives over tp, the target's exit, and apart from them embedding, fc, logits and the expert
/// dispatch. `element_bytes`: 2 for bfloat16.
struct Cost {
  std::vector<CostLine> lines;  // with calls, in this order: layers, exit, MTP layer, MTP exit, ...
  const CostLine& line(const std::string& purpose) const;  // of no calls where there is none
};
Cost cost_of(const ParallelRun& run, double element_bytes);

}  // namespace tokenview
