// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/host_tensor.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_file.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// A tensor that a rank had in one step.
struct DumpTap {
  std::size_t file = 0;             // of the dump's
  std::string inside;               // path in it
  std::vector<std::int64_t> shape;  // without the axis of one that batch-first hooks add: [1, T, H]
  std::string type_name;            // "float32", "bfloat16", "int64"
  std::optional<TokenView> view;    // what the producer believes
  std::optional<ColumnBlock> columns;

  std::int64_t rows() const { return shape[0]; }
  std::int64_t cols() const;  // trailing axes flattened
};

/// One entry of a step's table of collectives.
struct DumpCollective {
  std::string op, group, module;
  std::int64_t count = 0;  // elements that the rank passed
  std::string dtype;
  std::int64_t seq = 0;

  bool operator==(const DumpCollective&) const = default;
};

/// Inputs of a step, as far as they are known.
struct DumpInputs {
  std::optional<std::vector<std::int64_t>> input_ids, positions, query_start_loc, context_ids,
      context_start_loc;

  bool operator==(const DumpInputs&) const = default;

  /// The first list that is known and differs from `golden`; null: none.
  const char* difference(const GoldenInputs& golden) const;
};

/// What one rank wrote in one engine step.
struct DumpStep {
  std::int64_t num_tokens = -1;  // T of this dp rank; -1: not said
  bool dummy = false;            // a pass of an idle dp rank: never compared
  std::optional<DumpInputs> inputs;
  bool has_manifest = false;
  std::string stopped;                  // what ended the run in this step; empty: nothing
  std::vector<std::string> lost;        // names of the manifest without data, as written there
  std::map<std::string, DumpTap> taps;  // "target/model.norm", "step1/mtp.fc"; ids included
  std::vector<DumpCollective> collectives;
};

/// One rank of the world.
struct DumpRank {
  RankCoordinates at;
  std::int64_t tp_size = 1, dp_size = 1, pp_size = 1, ep_size = 1;
  std::size_t file = 0;
  std::map<std::int64_t, DumpStep> steps;
};

/// A dump, schema version 1: what each rank of a run really had, in any number of files. Names,
/// shapes and attributes are read when it is opened, tensors when asked for.
///
/// Everything here throws FileError, with file, path inside, found and expected, for what is not as
/// described: also for a rank that is there twice, and for ranks of two worlds. What a dump lacks
/// (a name of the manifest, a rank, a tap that other ranks have) is no error of the file; it is
/// told, and a comparison fails.
class DumpFile {
 public:
  static constexpr std::int64_t schema_version = 1;

  /// True for an HDF5 file whose schema is "tokenview.dump".
  static bool is_dump(const Hdf5File& file);

  static DumpFile open(const std::vector<std::string>& paths);

  /// The first file, and how many others: for messages.
  std::string name() const;
  const std::string& producer() const { return producer_; }
  /// What its producer says tells it from others; may be empty.
  const std::string& label() const { return label_; }
  const Hdf5File& file(std::size_t index) const { return files_[index]; }

  const std::vector<DumpRank>& ranks() const { return ranks_; }  // by their number
  std::int64_t world_size() const { return world_size_; }
  ParallelConfig parallel() const;

  /// Ranks of the world that no file has.
  std::vector<std::int64_t> missing_ranks() const;

  /// The numbers of all steps, of any rank.
  std::vector<std::int64_t> steps() const;

  HostTensor values(const DumpTap& tap) const;  // [rows, cols]
  IntegerTensor ids(const DumpTap& tap) const;  // as stored

 private:
  void read_file(std::size_t file);
  void read_rank(std::size_t file, const std::string& inside);
  DumpStep read_step(std::size_t file, const std::string& inside, const DumpRank& rank,
                     std::optional<std::int64_t> num_tokens) const;
  void read_taps(std::size_t file, const std::string& inside, const std::string& pass,
                 const DumpRank& rank, DumpStep& step) const;
  DumpTap read_tap(std::size_t file, const std::string& inside, bool holds_ids,
                   const DumpRank& rank) const;
  DumpInputs read_inputs(std::size_t file, const std::string& inside) const;

  std::vector<Hdf5File> files_;
  std::string producer_, label_;
  std::int64_t world_size_ = 0;
  std::vector<DumpRank> ranks_;
};

}  // namespace tokenview
