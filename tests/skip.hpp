// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

namespace tokenview {

/// Ends the whole test program as skipped, saying why: what it tests is not on this machine.
[[noreturn]] inline void skip_program(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  std::exit(77);
}

}  // namespace tokenview
