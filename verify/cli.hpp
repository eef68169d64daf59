// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <iosfwd>
#include <span>
#include <string>

namespace CLI {
class App;
}

namespace tokenview {

/// How the program ends.
enum class Exit {
  match = 0,
  difference = 1,
  usage = 2,  // or input that cannot be read
  nothing_compared = 3,
  collective_mismatch = 4,
  device_assert = 5,
  scenario = 6,
  skipped = 77,
  interrupted = 130,
};

struct ExitMeaning {
  Exit code;
  const char* meaning;
};
std::span<const ExitMeaning> exit_meanings();

/// Of two ends of parts of one run the one to report: the first that applies of 2, 5, 4, 1, 3.
Exit more_important(Exit a, Exit b);

/// A verb of the program: `tokenview check`.
struct Verb {
  const char* name;
  const char* summary;   // one line, without a full stop
  const char* examples;  // a command line, and below it, indented, what it does; and so on

  /// Adds the verb's options, and returns what runs when the command line has set them.
  std::function<Exit()> (*add_options)(CLI::App& app);
};
extern const Verb check_verb, record_verb, info_verb, run_verb, repro_verb, cost_verb,
    affected_verb, sweep_verb, shrink_verb, devices_verb, diff_verb, report_verb;

/// The whole program: reads the command line, runs a verb, turns an error into one line on standard
/// error and everything into an exit code.
int run_command_line(std::span<const Verb* const> verbs, int argc, char** argv);

/// "tokenview: error: ..." on standard error, on one line whatever `problem` holds.
void print_error(const std::string& problem);

/// "tokenview: note: ..." likewise.
void print_note(const std::string& remark);

/// Flushes standard output. Throws FileError when what was written did not arrive.
void finish_output();

/// Cores that this process may use, at most max_threads.
inline constexpr int max_threads = 256;
int available_threads();

/// True when standard output is a terminal that shows colours and NO_COLOR is not set.
bool use_colour();

}  // namespace tokenview
