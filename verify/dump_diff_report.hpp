// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <iosfwd>
#include <string>

#include "verify/dump_diff.hpp"

namespace tokenview {

/// Who is compared, for reports.
struct DiffSides {
  std::string trusted, dump;  // files, as given
  std::string parallel;       // "tp=2 dp=1"
  std::string label;          // what tells this comparison from others, wherever its files lie
};

/// What a person reads: the first difference with the rows of every rank, the others in a line
/// each, what was not compared, and a summary; it fits a screen. `verbosity` 1 lists every tap that
/// differs, 2 every tap.
void print_dump_diff(std::ostream& out, const DiffSides& sides, const DumpDiffResult& result,
                     int verbosity, bool colour);

/// The same as records, schema "tokenview.report" version 1: a tap each, and a summary.
void write_dump_diff(std::ostream& out, const DiffSides& sides, const DumpDiffResult& result);

/// "match", "difference" or "nothing compared".
std::string verdict_of(const DumpDiffResult& result);

}  // namespace tokenview
