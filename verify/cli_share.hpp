// SPDX-License-Identifier: Apache-2.0
// Work that is spread over the processes of mpirun, the tasks of a Slurm array, or by hand, and
// what its parts found, put together.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "verify/report.hpp"

namespace tokenview {

/// One part of a run: every item whose number leaves the remainder `index`.
struct Share {
  std::int64_t index = 0, count = 1;
  bool is_mpirun = false;  // the parts are gathered: rank 0 tells what all of them found

  bool has(std::int64_t item) const { return item % count == index; }
  /// "2/8", from 1.
  std::string str() const;
};

/// The part of this process: `option`, "2/8", where it is not empty; else that of a process of
/// mpirun; else that of a task of a Slurm array (SLURM_ARRAY_TASK_ID, _COUNT, _MIN, _STEP); else
/// the whole. Throws UsageError.
Share share_of(const std::optional<std::string>& option);

/// What one part found: lines of a report, the last one its summary.
struct Part {
  std::string source;  // where it is from, for messages
  std::vector<nlohmann::json> cases;
  nlohmann::json summary;
};

/// What the summary of a part says of it beside its verb: which part, with `items` of `all` of the
/// run.
void add_share(ReportRecord& summary, const Share& share, std::int64_t items, std::int64_t all);

/// Reads parts that `verb` printed as JSON Lines, in their order. Throws FileError, naming the file
/// and the part, for one that is missing, there twice, incomplete, or of another run.
std::vector<Part> read_parts(const std::string& verb, const std::vector<std::string>& files);

/// Runs `work`, this process' part, which returns its lines; the parts of all processes of mpirun,
/// on each of them. An error of one is the error of all.
std::vector<Part> gathered_parts(const std::string& verb, const Share& share,
                                 const std::function<std::vector<std::string>()>& work);

/// A string of a record; empty: it has none.
std::string word_in(const nlohmann::json& record, const char* key);

/// The sum, and the largest, of a number of the summaries. Throws FileError where one has none.
std::int64_t sum_of(const std::vector<Part>& parts, const char* key);
double largest_of(const std::vector<Part>& parts, const char* key);

}  // namespace tokenview
