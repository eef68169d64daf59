// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/result_case.hpp"

namespace tokenview {

/// Reads report files (JSON Lines, see report.hpp), each of one or more runs. A line is read and
/// dropped: memory holds what the formats need of it. "-" is standard input. Blank lines, and
/// records of kinds that are not known here, are passed over. A run without its last summary did
/// not come to its end, and is a case with Outcome::error; so is a file from its first line on that
/// is no record. Throws FileError for a file that cannot be opened.
Results read_results(const std::vector<std::string>& files);

}  // namespace tokenview
