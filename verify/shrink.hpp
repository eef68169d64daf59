// SPDX-License-Identifier: Apache-2.0
// From a configuration that fails to the smallest that fails alike.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/scenario.hpp"

namespace tokenview {

/// How large the configuration of a scenario is.
struct ConfigurationSize {
  std::int64_t ranks = 0;
  std::int64_t tokens = 0;  // new rows of all steps, of the dp rank that has most
  std::int64_t context = 0;
  std::int64_t layers = 0;
  std::int64_t experts = 0;
  std::int64_t draft_steps = 0;
};
ConfigurationSize size_of(const Scenario& scenario);

/// "2 ranks, 4 tokens, 1 layer, 2 experts, 1 draft step"
std::string to_string(const ConfigurationSize& size);

/// What a configuration is known by while it shrinks: which check fails where, layer numbers, rows
/// and ranks aside; and whether it is loud: stopped, or an index out of bounds.
struct FailureMark {
  std::string what;
  bool loud = false;
  ExpectedFinding expect;  // in full, as this configuration has it

  bool operator==(const FailureMark& other) const {
    return what == other.what && loud == other.loud;
  }
};

/// Of the broken variant; nothing where it is clean. Throws ConfigError for one that cannot run.
std::optional<FailureMark> failure_of(const Scenario& scenario);

struct Shrunk {
  Scenario scenario;               // "<name>-shrunk", with what it fails by and a clean repair
  std::vector<std::string> steps;  // what was made smaller, in order
  std::int64_t tried = 0;          // runs
};

/// Makes one thing smaller at a time, in a fixed order, as long as the failure stays the same,
/// until nothing can be: engine steps, dp ranks, pipeline stages, tp ranks, draft steps, the
/// target, auxiliary states, requests, their rows and contexts, layers, experts, the runner,
/// faults, placed weights, plan flags. Throws UsageError for a scenario that is clean.
Shrunk shrink(const Scenario& scenario);

/// A Boost.Test program of one case, which fails as long as the configuration does: to be linked
/// with tokenview::verify alone.
std::string boost_test_of(const Scenario& scenario);

}  // namespace tokenview
