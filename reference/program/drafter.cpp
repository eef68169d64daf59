// SPDX-License-Identifier: Apache-2.0
#include "reference/program/drafter.hpp"

namespace tokenview {

SampleRows sample_rows(const Batch& batch, const std::vector<std::int32_t>& rejected) {
  SampleRows sampled;
  for (std::size_t s = 0; s + 1 < batch.query_start_loc.size(); ++s) {
    if (batch.query_start_loc[s] == batch.query_start_loc[s + 1]) continue;
    sampled.requests.push_back(std::int64_t(s));
    sampled.rows.push_back(batch.query_start_loc[s + 1] - 1 - (rejected.empty() ? 0 : rejected[s]));
  }
  return sampled;
}

Batch next_draft_batch(const Batch& previous, const SampleRows& sampled,
                       const std::vector<std::int32_t>& rejected) {
  Batch next;
  next.query_start_loc.push_back(0);
  for (std::size_t i = 0; i < sampled.rows.size(); ++i) {
    const auto s = std::size_t(sampled.requests[i]);
    const auto row = std::size_t(sampled.rows[i]);
    const std::int32_t rows_of_request =
        previous.query_start_loc[s + 1] - previous.query_start_loc[s];
    next.positions.push_back(previous.positions[row] + 1);
    next.num_computed.push_back(previous.num_computed[s] + rows_of_request -
                                (rejected.empty() ? 0 : rejected[s]));
    next.slots.push_back(previous.slots[s]);
    next.query_start_loc.push_back(std::int32_t(i + 1));
  }
  for (const std::int64_t row : sampled.rows)
    next.row_tokens.push_back(previous.row_tokens.empty() ? row
                                                          : previous.row_tokens[std::size_t(row)]);
  next.tokens_across_dp = next.requests_across_dp = previous.requests_across_dp;
  next.input_ids.assign(next.positions.size(), 0);  // the ids are the drafts, handed over apart
  if (!previous.mrope_positions.empty())            // text: all three rows advance alike
    for (int axis = 0; axis < 3; ++axis)
      for (const std::int64_t row : sampled.rows)
        next.mrope_positions.push_back(
            previous.mrope_positions[std::size_t(axis) * std::size_t(previous.num_tokens()) +
                                     std::size_t(row)] +
            1);
  return next;
}

Batch accepted_rows(const Batch& batch, const std::vector<std::int32_t>& rejected,
                    std::vector<std::int64_t>& kept) {
  Batch next = batch;
  next.input_ids.clear();
  next.positions.clear();
  next.mrope_positions.clear();
  next.row_tokens.clear();
  next.query_start_loc = {0};
  kept.clear();
  for (std::size_t s = 0; s + 1 < batch.query_start_loc.size(); ++s) {
    for (std::int64_t row = batch.query_start_loc[s];
         row < batch.query_start_loc[s + 1] - (rejected.empty() ? 0 : rejected[s]); ++row) {
      kept.push_back(row);
      next.input_ids.push_back(batch.input_ids[std::size_t(row)]);
      next.positions.push_back(batch.positions[std::size_t(row)]);
      next.row_tokens.push_back(batch.row_tokens.empty() ? row
                                                         : batch.row_tokens[std::size_t(row)]);
    }
    next.query_start_loc.push_back(std::int32_t(kept.size()));
  }
  if (!batch.mrope_positions.empty())
    for (std::int64_t axis = 0; axis < 3; ++axis)
      for (const std::int64_t row : kept)
        next.mrope_positions.push_back(
            batch.mrope_positions[std::size_t(axis * batch.num_tokens() + row)]);
  next.tokens_across_dp = batch.accepted_across_dp;
  return next;
}

void append_runner_pads(Batch& batch, std::int64_t rows) {
  const auto now = batch.num_tokens();
  if (rows <= now) return;
  if (!batch.mrope_positions.empty()) {
    std::vector<std::int64_t> wider;
    for (std::int64_t axis = 0; axis < 3; ++axis) {
      const auto begin = batch.mrope_positions.begin() + axis * now;
      wider.insert(wider.end(), begin, begin + now);
      wider.insert(wider.end(), std::size_t(rows - now), 0);
    }
    batch.mrope_positions = std::move(wider);
  }
  batch.input_ids.resize(std::size_t(rows), 0);
  batch.positions.resize(std::size_t(rows), 0);
}

}  // namespace tokenview
