// SPDX-License-Identifier: Apache-2.0
#include "reference/program/shapes.hpp"

#include "reference/program/weight_block.hpp"

namespace tokenview {

std::vector<int> mrope_axes(const ModelConfig& config) {
  std::vector<int> axes(std::size_t(config.rotary_dim / 2), 0);
  const auto& section = config.mrope_section;
  if (section.size() != 3) return axes;
  if (config.mrope_interleaved) {  // T H W T H W ..., then what is left of T
    for (std::size_t f = 0; f < axes.size(); ++f)
      for (const int axis : {1, 2})
        if (int(f % 3) == axis && std::int64_t(f) < 3 * section[std::size_t(axis)]) axes[f] = axis;
  } else {  // all T, all H, all W
    for (std::size_t f = 0; f < axes.size(); ++f) {
      const auto index = std::int64_t(f);
      axes[f] = index < section[0] ? 0 : index < section[0] + section[1] ? 1 : 2;
    }
  }
  return axes;
}

RankShapes rank_shapes(const ModelConfig& config, std::int64_t tp_rank, std::int64_t tp_size) {
  const auto share = [&](std::int64_t heads) { return block_of(heads, tp_rank, tp_size).size(); };
  return {
      .attention = {share(config.num_attention_heads),
                    kv_head_block(config.num_key_value_heads, tp_rank, tp_size).size(),
                    config.head_dim},
      .rope = {config.head_dim, config.rotary_dim, config.rope_theta, mrope_axes(config)},
      .gdn = {share(config.linear_num_key_heads), share(config.linear_num_value_heads),
              config.linear_key_head_dim, config.linear_value_head_dim},
  };
}

}  // namespace tokenview
