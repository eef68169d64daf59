// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "verify/parallel_run.hpp"

namespace tokenview {

/// One request of a step: `tokens` new rows after `context` computed ones. Of the new rows, the
/// last `verified` are drafts that this step verifies, of which `rejected` turn out wrong.
struct Request {
  std::int64_t context = 0;
  std::int64_t tokens = 1;
  std::int64_t verified = 0;
  std::int64_t rejected = 0;
};

/// The requests of each data-parallel rank. `10` is one prefill of ten tokens on every rank, `3,5`
/// one of three on rank 0 and one of five on rank 1; in full, `4+6/2+3c8v2r1`: `+` between
/// requests, `/` between dp ranks, c context, v drafts verified, r rejected. A verify request of v
/// drafts has v + 1 rows. Throws UsageError with the text, the place and what was expected.
std::vector<std::vector<Request>> parse_requests(std::string_view text, std::int64_t dp);

/// In the full form that parse_requests() reads: "4+6/2+3c8v2r1".
std::string to_string(const std::vector<std::vector<Request>>& requests);

/// The flat batches of each dp rank: a pass over the contexts, then the step. Ids count the rows.
std::vector<StepInputs> inputs_of(const std::vector<std::vector<Request>>& requests);

/// Ids that differ between ranks, steps and rows, so that numbers can tell rows apart.
void spread_ids(Batch& batch, std::int64_t dp, std::int64_t step, std::int64_t vocab_size);

}  // namespace tokenview
