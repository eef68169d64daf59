// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace tokenview {

/// The golden files that an argument of the command line names: every `*.h5` of a folder, in order
/// of names, and anything else as it is. Throws FileError for a folder that has none or cannot be
/// listed.
std::vector<std::string> golden_files(const std::string& argument);

/// The folder `name` of the shipped data ("golden", "scenarios") when the command line names none,
/// the first that has a file with this extension:
///  1. data/NAME in the current folder or one above it;
///  2. the same from the folder of the program upwards;
///  3. the installed data: `installed`, or the share folder beside the program's;
///  4. $TOKENVIEW_DATA, or NAME in it.
/// Throws UsageError, naming them all, when there is none.
std::string default_data_folder(const std::string& name, const std::string& extension,
                                const std::string& installed);

/// Two names of one file, which may not be there yet. What is no regular file is not lost when it
/// is written twice.
bool is_same_file(const std::string& a, const std::string& b);

/// The files of a folder with this extension, in order of names, hidden ones (files being written)
/// apart. Throws FileError when the folder cannot be listed.
std::vector<std::string> files_of(const std::string& folder, const std::string& extension);

}  // namespace tokenview
