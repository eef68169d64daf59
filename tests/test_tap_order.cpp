// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <vector>

#include "tests/boost_test.hpp"
#include "verify/tap_order.hpp"

namespace tokenview {
namespace {

/// Names of a program, in its order.
using Program = std::vector<std::string>;

void check_order(const Program& program) {
  Program found = program;
  std::ranges::shuffle(found, std::mt19937(1));
  std::ranges::sort(found, InProgramOrder());
  BOOST_TEST(found == program, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(latent_attention_and_shared_experts) {
  const std::string layer = "target/model.layers.1";
  check_order({"target/model.embed_tokens",
               layer + ".input_layernorm.residual",
               layer + ".input_layernorm",
               layer + ".self_attn.fused_qkv_a_proj",
               layer + ".self_attn.kv_a_layernorm",
               layer + ".self_attn.q_a_layernorm",
               layer + ".self_attn.kv_b_proj",
               layer + ".self_attn.q_b_proj",
               layer + ".self_attn.mla_attn.mla_attn",
               layer + ".self_attn.o_proj",
               layer + ".self_attn.mla_attn",
               layer + ".self_attn",
               layer + ".post_attention_layernorm.residual",
               layer + ".post_attention_layernorm",
               layer + ".mlp.gate.logits",
               layer + ".mlp.gate.ids",
               layer + ".mlp.gate.weights",
               layer + ".mlp.shared_experts.gate_up_proj",
               layer + ".mlp.shared_experts.down_proj",
               layer + ".mlp.shared_experts",
               layer + ".mlp.experts",
               layer + ".mlp",
               layer + ".hidden",
               layer + ".residual",
               layer,
               "target/model.norm.residual",
               "target/model.norm",
               "target/model",
               "target/lm_head"});
}

BOOST_AUTO_TEST_CASE(other_names_of_mixer_and_feed_forward) {
  const std::string layer = "target/model.layers.0";
  for (const auto& [mixer, block] :
       {std::pair("attn", "block_sparse_moe"), std::pair("attention", "feed_forward"),
        std::pair("token_mixer", "moe"), std::pair("mamba", "ffn")})
    check_order({layer + ".input_layernorm", layer + "." + mixer + ".qkv_proj",
                 layer + "." + mixer + ".o_proj", layer + "." + mixer,
                 layer + ".post_attention_layernorm", layer + "." + block + ".gate.logits",
                 layer + "." + block + ".experts", layer + "." + block, layer});
}

BOOST_AUTO_TEST_CASE(a_second_call_comes_after_the_first) {
  check_order({"target/model.layers.0.self_attn.x.y", "target/model.layers.0.self_attn.x",
               "target/model.layers.0.self_attn.x#2", "target/model.layers.0.self_attn.xy"});
}

}  // namespace
}  // namespace tokenview
