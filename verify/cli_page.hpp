// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace tokenview {

/// What the option table of the program, or of one verb, says in three ways. `app` holds a verb's
/// examples as its footer. Options of the group "" are hidden.

/// The text of --help, at most 100 columns wide.
std::string help_page(const CLI::App& app);

/// A page for man(1), section 1.
std::string man_page(const CLI::App& program, const std::string& version);

/// A script for bash-completion. What an option takes is read from its type name: words in small
/// letters are offered as they are, PRESET stands for the names of the presets, and anything else
/// for a file.
std::string bash_completion(const CLI::App& program);

}  // namespace tokenview
