// SPDX-License-Identifier: Apache-2.0
#include "verify/cli.hpp"

int main(int argc, char** argv) {
  using namespace tokenview;
  static constexpr const Verb* verbs[] = {
      &check_verb, &record_verb, &info_verb, &run_verb, &repro_verb, &cost_verb,
  };
  return run_command_line(verbs, argc, argv);
}
