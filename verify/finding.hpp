// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm_sim/sim_mesh.hpp"

namespace tokenview {

/// Which requirement a finding violates.
enum class FindingKind {
  rows,          // other rows than required: a shard where full rows are due, pads, mixed tokens
  completeness,  // a partial sum used as complete, or a value summed more than once
  columns,       // a column block that does not fit
  bounds,        // an index beyond the rows held: a device-side assert, or a silent read outside
  state,         // a cache that holds rows of another view
  routing,       // a token without its experts, twice with them, or a pad with some
  pads,          // garbage in pad rows where zeros, or rows of an earlier step, are due
  side,          // positions, boundaries, slots or counts that are not the step's
  stage,         // a value from before a norm where one from after it is due
  numeric,       // numbers that differ from the right run's
};
inline constexpr FindingKind finding_kinds[] = {
    FindingKind::rows,  FindingKind::completeness, FindingKind::columns, FindingKind::bounds,
    FindingKind::state, FindingKind::routing,      FindingKind::pads,    FindingKind::side,
    FindingKind::stage, FindingKind::numeric};
const char* to_string(FindingKind kind);

/// A requirement of an operation that its operand does not meet.
struct Finding {
  RankCoordinates at;
  FindingKind kind = FindingKind::rows;
  std::string operation;  // "rms_norm", "all_reduce"
  std::string module;     // "model.layers.1.self_attn"
  std::string tensor;     // which operand
  std::string expected;   // views as to_string() writes them
  std::string actual;
  std::int64_t first_bad_row = -1;
  std::string origin;      // the collective that gave the operand its rows, where it is known
  std::int32_t step = 0;   // engine step
  std::int64_t order = 0;  // operations of this rank before it: program order in a pipeline stage

  bool operator==(const Finding& other) const;
};

/// "tp=1 dp=0 model.norm rms_norm: x: expected 0-9, actual 3-5 (first bad row 0)"
std::string to_string(const Finding& finding);

}  // namespace tokenview
