// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tokenview {

/// Leaves the program from the inside out after Ctrl-C or a termination request, so that files
/// being written are removed. No std::exception: no handler for errors takes it for one.
struct Interrupted {
  int signal;
};

/// From now on the first SIGINT or SIGTERM only makes throw_if_interrupted() throw; the second one
/// ends the program.
void catch_interrupts();

/// Throws Interrupted after a signal. Long work calls it between its parts.
void throw_if_interrupted();

}  // namespace tokenview
