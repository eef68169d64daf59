// SPDX-License-Identifier: Apache-2.0
#include "reference/program/runner.hpp"

#include <algorithm>
#include <numeric>

namespace tokenview {
namespace {

/// Padded counts of all ranks: to a capture size and the largest of all, or as they are.
std::vector<std::int64_t> padded(std::vector<std::int64_t> counts,
                                 const std::vector<std::int64_t>& sizes) {
  if (sizes.empty()) return counts;
  std::vector<std::int64_t> captured;
  for (const std::int64_t count : counts) {
    const auto size = std::ranges::lower_bound(sizes, count);
    if (size == sizes.end()) return counts;  // one rank runs eagerly, so all do
    captured.push_back(*size);
  }
  const std::int64_t most = *std::ranges::max_element(captured);
  return std::vector<std::int64_t>(counts.size(), most);
}

}  // namespace

std::vector<std::int64_t> effective_graph_sizes(const RunnerOptions& options) {
  std::vector<std::int64_t> sizes;
  const std::int64_t unit = options.version == RunnerVersion::V1 ? options.draft_steps + 1 : 1;
  for (const std::int64_t size : options.graph_sizes) {
    const std::int64_t rounded = (size + unit - 1) / unit * unit;
    if (sizes.empty() || sizes.back() < rounded) sizes.push_back(rounded);
  }
  return sizes;
}

void prepare_step(std::vector<Batch*> batches,
                  const std::vector<std::vector<std::int32_t>>& rejected,
                  const RunnerOptions& options) {
  std::vector<std::int64_t> tokens, requests, accepted;
  bool any = false;
  for (const Batch* batch : batches) any = any || batch->num_tokens() > 0;
  const std::int64_t dummy = options.idle_rows >= 0    ? options.idle_rows
                             : options.draft_steps > 0 ? options.draft_steps + 1
                                                       : 1;
  for (std::size_t dp = 0; dp < batches.size(); ++dp) {
    const Batch& batch = *batches[dp];
    const bool is_idle = batch.num_tokens() == 0 && any && batches.size() > 1;
    const auto of_rank = std::int64_t(sample_rows(batch).rows.size());
    tokens.push_back(is_idle ? dummy : batch.num_tokens());
    // An idle rank drafts as many rows as its dummy has, in V2 as many as the busiest rank.
    requests.push_back(is_idle && options.version == RunnerVersion::V1 ? dummy : of_rank);
    std::int64_t left_out = 0;
    if (dp < rejected.size())
      left_out = std::accumulate(rejected[dp].begin(), rejected[dp].end(), std::int64_t{0});
    accepted.push_back(tokens.back() - left_out);
  }
  // Without a request anywhere there is no step.
  const auto sizes = any ? effective_graph_sizes(options) : std::vector<std::int64_t>();
  tokens = padded(std::move(tokens), sizes);
  accepted = options.padded_drafter ? tokens : padded(std::move(accepted), sizes);
  if (options.version == RunnerVersion::V1) {
    requests = padded(std::move(requests), sizes);
  } else if (options.loop_of_most || !sizes.empty() ||
             std::ranges::find(requests, 0) != requests.end()) {
    std::ranges::fill(requests, *std::ranges::max_element(requests));
  }
  for (std::size_t dp = 0; dp < batches.size(); ++dp) {
    Batch& batch = *batches[dp];
    if (batch.query_start_loc.empty()) batch.query_start_loc = {0};
    append_runner_pads(batch, tokens[dp]);
    batch.tokens_across_dp = tokens;
    batch.requests_across_dp = requests;
    batch.accepted_across_dp = accepted;
  }
}

}  // namespace tokenview
