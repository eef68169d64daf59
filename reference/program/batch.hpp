// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

namespace tokenview {

/// One forward pass of several sequences in a flat batch. Sequence s owns the rows
/// query_start_loc[s] .. query_start_loc[s+1]-1; rows past query_start_loc.back() are pads that the
/// runner added (CUDA graph bucket, data-parallel maximum): they belong to no sequence, read and
/// write no state. Source: vllm gdn_attn.py, llm_base_proposer.py.
struct Batch {
  std::vector<std::int64_t> input_ids;        // [T]
  std::vector<std::int64_t> positions;        // [T]
  std::vector<std::int32_t> query_start_loc;  // [S+1], from 0, non-decreasing
  std::vector<std::int32_t> num_computed;     // [S] tokens of the sequence already in its caches
  std::vector<std::int32_t> slots;            // [S] where the sequence's caches live
  std::vector<std::int64_t> mrope_positions;  // [3, T] time, height, width; empty: positions thrice
  std::vector<std::int64_t>
      tokens_across_dp;  // [dp] T of every data-parallel rank; empty: dp is one
  std::vector<std::int64_t> requests_across_dp;  // [dp] rows of every rank in a later draft pass
  std::vector<std::int64_t> accepted_across_dp;  // [dp] rows of every rank less rejected drafts
  std::vector<std::int64_t> row_tokens;  // which token of the step each row is; empty: 0, 1, ...
  bool keep_states = false;  // keep the recurrent state after every row, for commit_accepted()

  bool operator==(const Batch&) const = default;

  std::int64_t num_tokens() const { return std::int64_t(input_ids.size()); }
  std::int64_t num_sequences() const { return std::int64_t(query_start_loc.size()) - 1; }
  std::int64_t num_real_tokens() const { return query_start_loc.back(); }
};

}  // namespace tokenview
