// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/config.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// What one rank of `tp` computes of each module: its heads and widths.
struct RankShapes {
  AttentionShape attention;
  RopeShape rope;
  GdnShape gdn;
};

/// Throws ConfigError where the heads do not divide.
RankShapes rank_shapes(const ModelConfig& config, std::int64_t tp_rank, std::int64_t tp_size);

/// For each of the rotary_dim / 2 frequencies, which of the three M-RoPE rows (0 time, 1 height,
/// 2 width) turns it. All 0 for a plain rotary embedding.
/// Source: vllm mrope.py, transformers modeling_qwen3_5_moe.py.
std::vector<int> mrope_axes(const ModelConfig& config);

}  // namespace tokenview
