// SPDX-License-Identifier: Apache-2.0
#include "verify/finding.hpp"

#include "reference/program/error.hpp"

namespace tokenview {

const char* to_string(FindingKind kind) {
  switch (kind) {
    case FindingKind::rows:
      return "rows";
    case FindingKind::completeness:
      return "completeness";
    case FindingKind::columns:
      return "columns";
    case FindingKind::bounds:
      return "bounds";
    case FindingKind::state:
      return "state";
    case FindingKind::routing:
      return "routing";
    case FindingKind::pads:
      return "pads";
    case FindingKind::side:
      return "side";
    case FindingKind::stage:
      return "stage";
    case FindingKind::numeric:
      return "numeric";
  }
  return "";
}

bool Finding::operator==(const Finding& other) const {
  return at.world == other.at.world && kind == other.kind && operation == other.operation &&
         module == other.module && tensor == other.tensor && expected == other.expected &&
         actual == other.actual && first_bad_row == other.first_bad_row;
}

std::string to_string(const Finding& f) {
  std::string line = text("tp=", f.at.tp, " dp=", f.at.dp, ' ', f.module, ' ', f.operation, ": ",
                          f.tensor, ": expected ", f.expected, ", actual ", f.actual);
  if (f.first_bad_row >= 0) line += text(" (first bad row ", f.first_bad_row, ')');
  if (!f.origin.empty()) line += text("; rows from ", f.origin);
  return line;
}

}  // namespace tokenview
