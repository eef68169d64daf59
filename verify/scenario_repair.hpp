// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "verify/repair.hpp"
#include "verify/scenario.hpp"

namespace tokenview {

/// A repair beside the one that was merged, the scenario's repaired variant.
enum class RepairVerdict {
  agree,  // the same collectives, of the same size and in the same order, on every rank, and the
          // same view at every named tensor
  equivalent,  // clean here and at every row count at which the merged one is, and no more is sent
  differs,
  none  // no repair was found
};
const char* to_string(RepairVerdict verdict);

struct RepairComparison {
  RepairVerdict verdict = RepairVerdict::none;
  std::string why;  // what differs, or why there is none
};

/// `repair` null: none was found. Row counts are those of RepairSearch: prefills of a few tokens.
RepairComparison compare_with_merged(const Scenario& scenario, const Repair* repair);

/// A scenario's suggestion, how it was found, and what it is beside the merged one.
struct ScenarioRepair {
  std::string scenario;
  RepairSearch search;
  RepairComparison comparison;  // of the first
  std::string merged;           // the note of the repaired variant
  double seconds = 0;           // of the search
};
ScenarioRepair repair_of(const Scenario& scenario);

/// How many there are of each verdict, and of those that agree or are equivalent of each kind.
struct RepairScore {
  std::array<std::int64_t, 4> verdicts{};
  std::array<std::int64_t, 4> right_by_kind{};
};
RepairScore score_of(std::span<const ScenarioRepair> repairs);

/// docs/repairs.md: every scenario, its suggestion beside the merged repair, and the score.
std::string repairs_page(std::span<const ScenarioRepair> repairs);

}  // namespace tokenview
