// SPDX-License-Identifier: Apache-2.0
// The smallest change of the program after which a configuration is clean, found by trying.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "verify/view_run.hpp"

namespace tokenview {

/// A flag of the plan by name: plan_flag_names() in verify/scenario.hpp.
struct PlanFlag {
  std::string name;
  bool value = false;

  bool operator==(const PlanFlag&) const = default;
};

/// One change: of an operation at a place of the program, by the means by which faults are
/// injected; of how weights lie; or of what the plan switches on.
using RepairEdit = std::variant<InjectedFault, PlacedWeights, PlanFlag>;

/// In the form that `run --fault` reads, or `weights:GLOB=whole`, `plan:FLAG=1`.
std::string to_string(const RepairEdit& edit);

/// How a repair goes about it, in the order in which repairs are preferred.
enum class RepairKind {
  move,        // a collective or a local move of rows is inserted, left out, or changed
  as_written,  // what the protocol has at a place is done there: the place deviates from it
  decision,    // the program decides otherwise at a place
  placement    // weights are whole or split; a flag of the plan
};
inline constexpr RepairKind repair_kinds[] = {RepairKind::move, RepairKind::as_written,
                                              RepairKind::decision, RepairKind::placement};
const char* to_string(RepairKind kind);

struct Repair {
  std::vector<RepairEdit> edits;
  RepairKind kind = RepairKind::move;  // of the edit that is preferred least
  std::string words;                   // what to do and where
  double elements = 0;                 // that all ranks send then
  bool holds = true;                   // at other row counts too: see find_repairs()
};

struct RepairSearch {
  std::vector<Repair> repairs;  // best first; empty: none was found
  std::int64_t tried = 0;       // runs
  bool complete = true;         // false: a limit ended it
};

struct RepairLimits {
  std::size_t repairs = 3;   // how many are wanted
  std::size_t edits = 4;     // of one repair, at most
  std::size_t branches = 8;  // partial repairs that are followed for each further edit
  double seconds = 20;       // in all
  bool as_written = true;    // false: what the protocol itself has at a place is not tried
};

/// Repairs of a run that has a finding or is stopped; none for a clean one.
///
/// Places are those that the ranks came by up to the first finding; at each, in this module, in all
/// layers, in target and drafter, or everywhere, operations are inserted, left out and changed, and
/// the run is tried. What makes it clean is a repair; what only moves the first finding on is
/// followed with further edits. Preferred are fewer edits; then what leaves more of the named
/// tensors before the first finding, which were right, as they were; then the kind, fewer modules,
/// the earlier place in the program, and fewer elements sent.
///
/// A repair must not make other row counts wrong: prefills of 1, 2, 3, 5 and 8 tokens on every rank
/// that were clean stay clean, and others get no earlier finding. One that does is given only where
/// there is no other, with holds = false.
RepairSearch find_repairs(const ParallelRun& run, const RepairLimits& limits = {});

/// The row counts at which a repair must hold beside those of `run`: none where there are several
/// steps.
std::vector<std::vector<StepInputs>> neighbouring_inputs(const ParallelRun& run);

/// `run` with `edits`; `faults` receives its faults and outlives the result.
ParallelRun repaired(const ParallelRun& run, const std::vector<RepairEdit>& edits,
                     std::vector<InjectedFault>& faults);

}  // namespace tokenview
