// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <iosfwd>

#include "verify/blame.hpp"
#include "verify/repair.hpp"
#include "verify/report.hpp"

namespace tokenview {

/// What a finding hangs on, and the repairs that were found, best first, one line each.
void print_repairs(std::ostream& out, const Blame& blame, const RepairSearch& search);

/// The same as records: one of kind "blame", and one of kind "repair" for each repair.
std::vector<ReportRecord> repair_records(const Blame& blame, const RepairSearch& search);

}  // namespace tokenview
