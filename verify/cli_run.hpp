// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "verify/cli_options.hpp"
#include "verify/scenario.hpp"

namespace tokenview {

/// What the options of `run` ask for, for another verb that takes them.
struct RunOptions {
  std::function<Scenario()> scenario;  // throws UsageError for what a scenario cannot say
  std::function<OutputFormat()> format;
};
RunOptions add_run_options(CLI::App& app);

}  // namespace tokenview
