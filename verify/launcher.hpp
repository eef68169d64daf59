// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

namespace tokenview {

/// How one of the launched processes ended.
struct LaunchedEnd {
  int exit_code = -1;        // -1: it did not exit by itself
  int signal = 0;            // that ended it; 0: none
  bool timed_out = false;    // ended here, at the end of the time
  bool ended_early = false;  // ended here, because another one had failed
  std::string out, err;      // the first max_launched_output bytes of each stream

  bool succeeded() const { return exit_code == 0; }
};
inline constexpr std::size_t max_launched_output = std::size_t{1} << 20;

/// What is started, and how long it may run.
struct Launch {
  std::vector<std::string> command;                                     // program and arguments
  std::vector<std::map<std::string, std::string>> environments = {{}};  // one process each: what is
                                                                        // set beyond our own
  double timeout = 120;                                                 // seconds, of all together
  double grace = 10;  // seconds that the others have left when one has failed
};

/// Runs a copy of the command for each environment, at the same time, to the end of all of them.
/// None outlives this call, nor this process. Throws std::system_error when one cannot be started,
/// and Interrupted.
std::vector<LaunchedEnd> launch(const Launch& launch);

/// The variables that torchrun sets, for `world_size` processes of this machine: RANK, LOCAL_RANK,
/// WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and a free MASTER_PORT.
std::vector<std::map<std::string, std::string>> torchrun_environments(int world_size);

/// This program, to be started again.
std::string this_program();

}  // namespace tokenview
