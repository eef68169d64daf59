// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "verify/dump_file.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_draft.hpp"

namespace tokenview {

/// What one rank had in one step, to be written.
struct DumpedStep {
  std::int64_t number = 0;
  std::int64_t num_tokens = 0;  // T of this dp rank
  bool dummy = false;
  std::string stopped = {};  // what ended the run in this step; empty: nothing
  GoldenInputs inputs;
  std::map<std::string, HostTensor> taps;    // "target/model.norm", [rows, columns]; float32
  std::map<std::string, IntegerTensor> ids;  // "target/model.layers.0.mlp.gate.ids"
  std::map<std::string, TokenView> views;    // of taps; those without one are not annotated
  std::vector<DumpCollective> collectives;
};

/// Writes the dump of one rank, schema version 1, which takes the place of `path` at commit(), as
/// Hdf5Draft says. Every step has a manifest of all that is written in it.
///
/// Every failure is a FileError that names file, path inside, found and expected.
class DumpWriter {
 public:
  /// `label`: what tells this dump from others, DumpFile::label(); empty: not said.
  DumpWriter(const std::string& path, const std::string& producer, const std::string& label = {});

  /// The rank comes before its steps. `num_tokens`: of its first step.
  void write_rank(const RankCoordinates& at, const ParallelConfig& parallel,
                  std::int64_t num_tokens);
  void write_step(const RankCoordinates& at, const DumpedStep& step);
  void commit() { draft_.move_into_place(); }

 private:
  Hdf5Draft draft_;
};

}  // namespace tokenview
