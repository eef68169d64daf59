// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/view_run.hpp"

namespace tokenview {

/// One configuration of the legal matrix by the place of each of its axes' values; what cannot
/// change a view (element type, engine era and backend behind the same gate, what has no effect
/// without drafts) is folded away, so equal keys are equal runs.
struct SweepKey {
  std::uint8_t model = 0, protocol = 0, tp = 0, dp = 0, pp = 0, expert_parallel = 0;
  std::uint8_t dispatch = 0, draft_steps = 0, runner = 0, graphs = 0, padded_drafter = 0, aux = 0;
  std::uint16_t batch = 0;

  auto operator<=>(const SweepKey&) const = default;
};

/// The matrix, enumerated and collapsed.
struct SweepMatrix {
  std::vector<SweepKey> distinct;  // in order
  std::int64_t covered = 0;        // legal configurations that they stand for
  std::int64_t refused = 0;        // that an engine refuses at construction
};
SweepMatrix sweep_matrix();

/// How a distinct configuration came out.
struct SweepResult {
  SweepKey key;
  bool has_finding = false;
  std::string known_fault;  // why it must have one; empty: it must be clean
  std::string first;        // the first finding, or what stopped the run

  bool is_as_expected() const { return has_finding == !known_fault.empty(); }
};

/// Runs sweep configurations one after the other; one a thread.
class Sweeper {
 public:
  Sweeper();
  SweepResult run(const SweepKey& key);

 private:
  std::vector<ModelConfig> models_;
  std::vector<ViewWeights> weights_;  // of each model
};

/// `qwen3-next C tp=4 dp=2 ep requests 17/1 K=2 V1`: as `tokenview run` would be asked for it.
std::string in_words(const SweepKey& key);

}  // namespace tokenview
