// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include "verify/cli.hpp"

/// A file must not get the number of a standard stream that was closed: what is printed would go to
/// it, and it would be read as damaged. Writes to a stream opened here for reading fail, and are
/// said.
static void keep_standard_streams() {
  for (int descriptor = 0; descriptor < 3; ++descriptor)
    if (fcntl(descriptor, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDONLY));
}

int main(int argc, char** argv) {
  using namespace tokenview;
  keep_standard_streams();
  static constexpr const Verb* verbs[] = {
      &check_verb, &diff_verb,     &record_verb, &info_verb,   &run_verb,    &repro_verb,
      &cost_verb,  &affected_verb, &sweep_verb,  &shrink_verb, &report_verb, &devices_verb,
  };
  return run_command_line(verbs, argc, argv);
}
