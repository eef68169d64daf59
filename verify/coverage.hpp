// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "verify/scenario.hpp"

namespace tokenview {

/// How far the scenarios tell a catalogue of published bugs.
struct Coverage {
  std::int64_t entries = 0, in_scope = 0;
  std::int64_t told = 0, exact = 0;  // of those in scope, by a scenario; exactly
  std::int64_t places = 0;           // distinct (protocol, module, check and operation) among them
  std::string page;                  // docs/coverage.md
};

/// The catalogue of `file` (data/coverage.json): its entries, those out of scope, and those that no
/// scenario tells, each with the reason. Throws FileError or ConfigError for an entry that is
/// neither told nor explained or both, and for an alias of a scenario that the catalogue does not
/// have.
Coverage coverage_of(const std::vector<Scenario>& scenarios, const std::string& file);

}  // namespace tokenview
