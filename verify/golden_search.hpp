// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace tokenview {

/// The golden files that an argument of the command line names: every `*.h5` of a folder, in order
/// of names, and anything else as it is. Throws FileError for a folder that has none or cannot be
/// listed.
std::vector<std::string> golden_files(const std::string& argument);

/// The folder of golden files when the command line names none, the first that has a file:
///  1. data/golden in the current folder or one above it;
///  2. the same from the folder of the program upwards;
///  3. the installed data: `installed`, or the share folder beside the program's;
///  4. $TOKENVIEW_DATA, or golden in it.
/// Throws UsageError, naming them all, when there is none.
std::string default_golden_folder(const std::string& installed);

}  // namespace tokenview
