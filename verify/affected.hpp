// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "reference/program/engine_release.hpp"
#include "verify/view_run.hpp"

namespace tokenview {

/// A fault of the catalogue, as a run on token views shows it.
struct KnownFault {
  const char* id;  // "F3"; "F?": a finding that the catalogue does not explain
  const char* title;
  const char* source;  // issue or PR
  bool is_loud;        // a device-side assert, else wrong values without an error
  bool is_derived;     // follows from the releases' text, and was not seen to happen
};

/// A fault that a configuration can meet.
struct MetFault {
  const KnownFault* fault = nullptr;
  std::set<std::int64_t> tokens;  // rows T of the dp ranks that met it
  std::int64_t batches = 0;       // of those tried
  std::string first_batch;        // as an argument of --requests
  Finding first;                  // in that batch
  std::string detail;             // that finding in words, or what stopped the run
  std::string gone_from;          // the first later release from which on it is gone; empty: none
};

/// A configuration that is to be served.
struct ServedModel {
  ModelConfig config;
  ParallelConfig parallel;
  std::string backend = default_backend;
  std::int64_t draft_steps = 0;
};

/// "vllm-0.27.1 (2026-08-11): gate G2 open, allgather_reducescatter; protocol C, MTP gathers hidden
/// and residual, runner V1; an idle dp rank runs 3 dummy rows": what a release makes of it.
std::string in_words(const EngineRelease& release, const ServedModel& served);

/// What a release does with it.
struct Affected {
  Gate gate;
  ParallelPlan plan;
  std::int64_t batches = 0;      // tried
  std::vector<MetFault> faults;  // in the catalogue's order
};

/// Runs the configuration on token views under the plan of `release` and sorts the first finding of
/// each batch into the catalogue. The batches: one prefill of T tokens a dp rank for the T that
/// tell the known faults apart, unequal T on the dp ranks, and requests that verify their drafts
/// with any number of them rejected. The drafter is fed a correct target's rows, so that its faults
/// are told from the target's. Later releases are run too, for MetFault::gone_from. Throws
/// ConfigError for a configuration that the release refuses or that cannot be simulated.
Affected affected(const ServedModel& served, const EngineRelease& release);

/// Every release against the supported configurations, as a Markdown document: docs/releases.md.
std::string release_matrix();

}  // namespace tokenview
