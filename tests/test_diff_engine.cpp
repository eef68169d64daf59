// SPDX-License-Identifier: Apache-2.0
// Faults of a real engine, made in copies of a right dump of one (data/engine) by the same change
// of values.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/boost_test.hpp"
#include "tests/dumps_of_run.hpp"
#include "tests/edited_dump.hpp"
#include "verify/trusted_dump.hpp"

namespace tokenview {
namespace {

const std::string engine = TOKENVIEW_SOURCE_DIR "/data/engine/";
const std::vector<std::string> originals = {engine + "dump.rank0.h5", engine + "dump.rank1.h5"};
const std::string taps = "steps/0/taps/";
constexpr std::int64_t hidden = 64, share = 9, tokens = 17;  // share: rows of a shard

DumpDiffResult diff(const EditedDump& dump) {
  static const GoldenFile golden = GoldenFile::open(engine + "golden.h5");
  return diff_with_golden(dump.paths(), golden);
}

const TapDiff& first_of(const DumpDiffResult& result) {
  BOOST_REQUIRE(result.first_difference() != nullptr);
  return *result.first_difference();
}

/// The tap's trusted values in step 0.
HostTensor trusted(const std::string& tap) {
  return GoldenFile::open(engine + "golden.h5").tap("tp2_mtp2.step0", tap);
}

/// What the experts of `from` to `to` add to a token in layer 1, for its trusted input.
/// Source: transformers modeling_qwen3_next.py, Qwen3NextExperts.
std::vector<double> part_of_experts(std::int64_t token, std::int64_t from, std::int64_t to,
                                    std::int64_t places_further = 0) {
  const GoldenFile golden = GoldenFile::open(engine + "golden.h5");
  const auto weight = [&](const std::string& name) {
    const std::string full = "model.layers.1.mlp.experts." + name;
    return golden.weight(full, golden.weight_shapes().at(full));
  };
  const HostTensor gate_up = weight("gate_up_proj"), down = weight("down_proj"),
                   x = trusted("model.layers.1.post_attention_layernorm"),
                   scales = trusted("model.layers.1.mlp.gate.weights");
  const IntegerTensor ids = golden.tap_ids("tp2_mtp2.step0", "model.layers.1.mlp.gate.ids");
  const std::int64_t width = down.shape[2];
  std::vector<double> sum(hidden, 0);
  for (std::int64_t k = 0; k < scales.cols(); ++k) {
    const std::int64_t chosen = ids.values[std::size_t(token * scales.cols() + k)];
    if (chosen < from || chosen >= to) continue;
    const std::int64_t e = (chosen + places_further) % down.shape[0];
    const auto product = [&](std::int64_t row) {
      double value = 0;
      for (std::int64_t c = 0; c < hidden; ++c)
        value += double(gate_up.values[std::size_t((e * 2 * width + row) * hidden + c)]) *
                 double(x.values[std::size_t(token * hidden + c)]);
      return value;
    };
    for (std::int64_t i = 0; i < width; ++i) {
      const double gate = product(i);
      const double active = gate / (1 + std::exp(-gate)) * product(width + i) *
                            double(scales.values[std::size_t(token * scales.cols() + k)]);
      for (std::int64_t c = 0; c < hidden; ++c)
        sum[std::size_t(c)] +=
            active * double(down.values[std::size_t((e * hidden + c) * width + i)]);
    }
  }
  return sum;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_packed_projection_is_made_of_all_its_parts) {
  const GoldenFile golden = GoldenFile::open(engine + "golden.h5");
  const GoldenStep step(golden, "tp2_mtp2.step0",
                        golden.inputs("tp2_mtp2.step0", std::numeric_limits<std::int64_t>::max()));
  const std::string attention = "step0/mtp.layers.0.self_attn.";
  const auto found =
      counterpart_of(attention + "qkv_proj", {attention + "qkv_proj"}, step, nullptr);
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(found->tap == attention + "q_proj");
  BOOST_TEST(
      found->beside == std::vector<std::string>({attention + "k_proj", attention + "v_proj"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_dump_against_itself_matches_in_its_sampled_rows_too) {
  const DumpFile dump = DumpFile::open(originals);
  DumpSide side(dump);
  const DumpDiffResult result = diff_dump(side, dump, DumpDiffOptions());
  BOOST_TEST(result.failed == 0);
  for (const TapDiff& tap : result.taps)
    if (may_be_sampled(tap.tap)) BOOST_TEST(tap.kind == "full", tap.tap);
}

BOOST_AUTO_TEST_CASE(shards_of_the_embedding_that_changed_places) {
  EditedDump dump(originals);
  const std::string name = taps + "model.layers.0.input.hidden_states";
  const std::vector<float> first = dump.values(0, name), second = dump.values(1, name);
  dump.set(0, name, second);
  dump.set(1, name, first);
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).tap == "target/model.layers.0.input.hidden_states");
  BOOST_TEST(first_of(result).called == "reversed rank order");
  BOOST_TEST(first_of(result).ranks.front().required == "[0,1,2,3,4,5,6,7,8]");
}

BOOST_AUTO_TEST_CASE(positions_that_are_off_by_one) {
  EditedDump dump(originals);
  dump.change<std::int64_t>("steps/1/mtp/step0/positions",
                            [](std::vector<std::int64_t>& positions, std::size_t) {
                              for (std::int64_t& position : positions) ++position;
                            });
  const DumpDiffResult all = diff(dump);
  BOOST_TEST(first_of(all).called == "all shifted by 1");
  dump.change<std::int64_t>("steps/1/mtp/step0/positions", [](std::vector<std::int64_t>& positions,
                                                              std::size_t) { --positions[4]; });
  const DumpDiffResult some = diff(dump);
  BOOST_TEST(first_of(some).called == "other ids");
}

BOOST_AUTO_TEST_CASE(one_ranks_router_is_another) {
  EditedDump dump(originals);
  dump.change(taps + "model.layers.1.mlp.gate.logits",
              [](std::vector<float>& logits, std::size_t rank) {
                if (rank == 0) return;
                for (std::size_t i = 0; i + 8 < logits.size(); ++i)  // the pad stays
                  logits[i] += 0.3F * float(i % 7) - 1;
              });
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).tap == "target/model.layers.1.mlp.gate.logits");
  BOOST_TEST(first_of(result).called == "other values on tp=1 alone");
}

BOOST_AUTO_TEST_CASE(not_a_number_has_its_name_and_place) {
  EditedDump dump(originals);
  dump.change(taps + "model.layers.2.mlp", [](std::vector<float>& values, std::size_t rank) {
    if (rank == 0) values[3 * hidden + 5] = NAN;
  });
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).called == "NaN or infinity in 1 row of tokens");
  BOOST_TEST(first_of(result).ranks.front().held == "[0,1,2,NaN,4,5,6,7,8]");
}

BOOST_AUTO_TEST_CASE(a_shared_expert_at_half_is_named_where_an_engine_fuses_it) {
  EditedDump dump(originals);
  const std::string block = taps + "model.layers.1.mlp";
  dump.change(block + ".experts_and_shared", [&](std::vector<float>& values, std::size_t rank) {
    const std::vector<float> shared = dump.values(rank, block + ".shared_expert.gated");
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= shared[i] / 2;
  });
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).tap == "target/model.layers.1.mlp.experts_and_shared");
  BOOST_TEST(first_of(result).called == "model.layers.1.mlp.shared_expert.gated 1/2 of the value");
}

BOOST_AUTO_TEST_CASE(a_residual_that_is_not_added) {
  EditedDump dump(originals);
  dump.change(taps + "model.layers.2.residual",
              [](std::vector<float>& values, std::size_t) { std::ranges::fill(values, 0.0F); });
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).tap == "target/model.layers.2.hidden");
  BOOST_TEST(first_of(result).called == "model.layers.2.residual left out");
}

BOOST_AUTO_TEST_CASE(a_wrong_mixer_is_no_missing_sum_behind_its_norm) {
  // Both ranks have the same wrong summand of layer 3's mixer, and a norm of what it gives.
  EditedDump dump(originals);
  for (const char* const name : {"self_attn.o_proj", "self_attn"})
    dump.change(taps + "model.layers.3." + name, [](std::vector<float>& values, std::size_t) {
      for (float& value : values) value *= 1.5F;
    });
  const std::vector<float> mixer[] = {dump.values(0, taps + "model.layers.3.self_attn"),
                                      dump.values(1, taps + "model.layers.3.self_attn")};
  const HostTensor before = trusted("model.layers.2");
  const GoldenFile golden = GoldenFile::open(engine + "golden.h5");
  const HostTensor scale =
      golden.weight("model.layers.3.post_attention_layernorm.weight", {hidden});
  dump.change(taps + "model.layers.3.post_attention_layernorm", [&](std::vector<float>& values,
                                                                    std::size_t rank) {
    for (std::int64_t row = 0; row < share; ++row) {
      const std::int64_t token = std::int64_t(rank) * share + row;
      if (token >= tokens) continue;
      double squares = 0;
      for (std::int64_t c = 0; c < hidden; ++c) {
        const auto i = std::size_t(token * hidden + c);
        const double x = double(before.values[i]) + double(mixer[rank][i]);
        values[std::size_t(row * hidden + c)] = float(x);
        squares += x * x;
      }
      for (std::int64_t c = 0; c < hidden; ++c)
        values[std::size_t(row * hidden + c)] *= float((1 + double(scale.values[std::size_t(c)])) /
                                                       std::sqrt(squares / double(hidden) + 1e-6));
    }
  });
  const DumpDiffResult result = diff(dump);
  const auto norm = std::ranges::find(result.taps, "target/model.layers.3.post_attention_layernorm",
                                      &TapDiff::tap);
  BOOST_REQUIRE((norm != result.taps.end() && norm->failed()));
  BOOST_TEST(norm->called.find("never reduced") == std::string::npos, norm->called);
}

BOOST_AUTO_TEST_CASE(experts_of_other_ranks_are_missing) {
  EditedDump dump(originals);
  for (const char* const name : {"mlp.experts_and_shared", "mlp"})
    dump.change(taps + "model.layers.1." + name, [](std::vector<float>& values, std::size_t rank) {
      for (std::int64_t row = 0; row < share; ++row) {
        const std::int64_t token = std::int64_t(rank) * share + row;
        if (token >= tokens) continue;
        const std::vector<double> others =
            rank == 0 ? part_of_experts(token, 4, 8) : part_of_experts(token, 0, 4);
        for (std::int64_t c = 0; c < hidden; ++c)
          values[std::size_t(row * hidden + c)] -= float(others[std::size_t(c)]);
      }
    });
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).tap == "target/model.layers.1.mlp.experts_and_shared");
  BOOST_TEST(first_of(result).called ==
             "experts of other ranks left out: each rank has its own experts' part alone");
}

BOOST_AUTO_TEST_CASE(other_experts_than_chosen) {
  EditedDump dump(originals);
  dump.change(taps + "model.layers.1.mlp.experts_and_shared", [](std::vector<float>& values,
                                                                 std::size_t rank) {
    if (rank != 0) return;
    const std::vector<double> right = part_of_experts(2, 0, 8), wrong = part_of_experts(2, 0, 8, 4);
    for (std::size_t c = 0; c < std::size_t(hidden); ++c)
      values[2 * std::size_t(hidden) + c] += float(wrong[c] - right[c]);
  });
  const DumpDiffResult result = diff(dump);
  BOOST_TEST(first_of(result).called == "other experts than chosen");
  BOOST_TEST(first_of(result).detail.starts_with("token 2: expert "), first_of(result).detail);
}

}  // namespace tokenview
