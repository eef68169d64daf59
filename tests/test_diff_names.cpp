// SPDX-License-Identifier: Apache-2.0
// What a tensor that was changed by hand in the dump of a right run is called.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/boost_test.hpp"
#include "tests/dumps_of_run.hpp"
#include "tests/edited_dump.hpp"
#include "tests/temporary_folder.hpp"

namespace tokenview {
namespace {

const std::string path = TOKENVIEW_SOURCE_DIR "/data/golden/qwen3_next_tp8.h5";
constexpr std::size_t tokens = 10, hidden = 64, share = 3, num_ranks = 4;
const std::string taps = "steps/0/taps/";

/// A right run of ten tokens on four ranks, and its dump.
class RightRun {
 public:
  explicit RightRun(ProtocolId protocol) {
    const LoadedGolden golden(path);
    paths = dumps_of({}, run_of_case(golden, "prefill_t10", protocol, num_ranks), golden, {},
                     folder_.file("dump"));
  }
  std::vector<std::string> paths;

 private:
  TemporaryFolder folder_;
};

/// Protocol D: the layers' streams are shards. Protocol S: they are full.
EditedDump shards() {
  static const RightRun run(ProtocolId::D);
  return EditedDump(run.paths);
}
EditedDump fulls() {
  static const RightRun run(ProtocolId::S);
  return EditedDump(run.paths);
}

DumpDiffResult diff(const EditedDump& dump) {
  static const GoldenFile golden = GoldenFile::open(path);
  return diff_with_golden(dump.paths(), golden);
}

/// What the first difference, which is to be at `tap`, is called.
TapDiff first_at(const EditedDump& dump, const std::string& tap) {
  const DumpDiffResult result = diff(dump);
  const TapDiff* const first = result.first_difference();
  BOOST_REQUIRE_MESSAGE(first != nullptr, "nothing differs");
  BOOST_TEST(first->tap == tap, in_words(result));
  return *first;
}

std::vector<float> first_rows(std::vector<float> values, std::size_t rows, std::size_t columns) {
  values.resize(rows * columns);
  return values;
}

/// Changes rows i and k.
void swap_rows(std::vector<float>& values, std::size_t i, std::size_t k) {
  std::swap_ranges(values.begin() + std::ptrdiff_t(i * hidden),
                   values.begin() + std::ptrdiff_t((i + 1) * hidden),
                   values.begin() + std::ptrdiff_t(k * hidden));
}

const std::string layer = "model.layers.2";

}  // namespace

// Rows -------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_row_that_no_rank_holds_is_missing) {
  EditedDump full = fulls(), shard = shards();
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    full.replace(rank, taps + layer, first_rows(full.values(rank, taps + layer), 9, hidden), 9);
    shard.replace(rank, taps + layer, first_rows(shard.values(rank, taps + layer), 2, hidden), 2);
  }
  const TapDiff nine = first_at(full, "target/" + layer);
  BOOST_TEST(nine.called == "row 9 is missing");
  BOOST_TEST(nine.ranks[0].held == "[0,1,2,3,4,5,6,7,8]");
  BOOST_TEST(first_at(shard, "target/" + layer).called == "rows 2, 5, 8 are missing");
}

BOOST_AUTO_TEST_CASE(ranks_with_the_rows_of_another_are_named) {
  EditedDump copies = shards(), one = shards(), two = shards();
  const std::vector<float> first = copies.values(0, taps + layer),
                           second = copies.values(1, taps + layer),
                           third = copies.values(2, taps + layer);
  for (std::size_t rank = 1; rank < num_ranks; ++rank) copies.set(rank, taps + layer, first);
  BOOST_TEST(first_at(copies, "target/" + layer).called ==
             "tp=1, 2, 3 hold the rows of tp=0: rows 3-9 are missing");
  one.set(2, taps + layer, second);
  BOOST_TEST(first_at(one, "target/" + layer).called ==
             "tp=2 holds the rows of tp=1: rows 6-8 are missing");
  two.set(1, taps + layer, third);
  two.set(2, taps + layer, second);
  BOOST_TEST(first_at(two, "target/" + layer).called == "tp=1 and tp=2 hold each other's rows");
}

BOOST_AUTO_TEST_CASE(pads_that_were_left_on_are_no_other_order) {
  const LoadedGolden golden(path);
  const TemporaryFolder folder;
  const EditedDump dump(dumps_of({}, run_of_case(golden, "prefill_t10", ProtocolId::D, num_ranks),
                                 golden, {"drop:trim@model.layers.1"}, folder.file("dump")));
  const TapDiff first = first_at(dump, "target/model.layers.1.linear_attn.in_proj_qkvz");
  BOOST_TEST(first.called == "not trimmed: pads left on");
  BOOST_TEST(first.ranks[0].held == "[0,1,2,3,4,5,6,7,8,9,PAD,PAD] columns 0/4");
}

BOOST_AUTO_TEST_CASE(rows_of_an_earlier_draft_pass_are_stale) {
  for (const std::string name : {"mtp.fc", "mtp.layers.0", "mtp.norm"}) {
    EditedDump dump = fulls();
    for (std::size_t rank = 0; rank < num_ranks; ++rank)
      dump.set(rank, "steps/0/mtp/step2/" + name, dump.values(rank, "steps/0/mtp/step1/" + name));
    const TapDiff first = first_at(dump, "step2/" + name);
    BOOST_TEST(first.called == "rows of another pass: draft step 1");
    BOOST_TEST(first.ranks[0].held == "[draft1:0]");
  }
}

BOOST_AUTO_TEST_CASE(rows_that_are_nothing_known_are_counted_at_least) {
  EditedDump dump = fulls();
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<float> values = first_rows(dump.values(rank, taps + layer), 7, hidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(float(i * i));
    dump.replace(rank, taps + layer, values, 7);
  }
  BOOST_TEST(first_at(dump, "target/" + layer).called == "7 rows where 10 are due");
}

// Numbers ----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(factors_of_any_size_are_named) {
  for (const auto& [factor, called] :
       {std::pair(1e20F, "1e+20 times the value"), std::pair(1e-20F, "1e-20 times the value"),
        std::pair(-3.0F, "-3 times the value"), std::pair(0.3F, "0.3 times the value")}) {
    EditedDump dump = fulls();
    dump.change(taps + layer, [factor = factor](std::vector<float>& values, std::size_t) {
      for (float& value : values) value *= factor;
    });
    BOOST_TEST_CONTEXT(called) BOOST_TEST(first_at(dump, "target/" + layer).called == called);
  }
}

BOOST_AUTO_TEST_CASE(another_norm_weight_is_named) {
  const std::string norm = "model.layers.2.input_layernorm";
  const GoldenFile golden = GoldenFile::open(path);
  const HostTensor weight = golden.weight(norm + ".weight", {std::int64_t(hidden)});
  const auto with = [&](const std::function<float(std::size_t column)>& factor) {
    EditedDump dump = fulls();
    dump.change(taps + norm, [&](std::vector<float>& values, std::size_t) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] *= factor(i % hidden);
    });
    return first_at(dump, "target/" + norm).called;
  };
  BOOST_TEST(with([](std::size_t c) { return 1 + 0.3F * std::sin(float(c)); }) ==
             "every row times the same factors by column: another norm weight");
  BOOST_TEST(with([&](std::size_t c) { return weight.values[c] / (1 + weight.values[c]); }) ==
             "multiplied by the weight where 1 + weight is due");
  BOOST_TEST(with([&](std::size_t c) { return 1 / (1 + weight.values[c]); }) ==
             "not multiplied by 1 + weight");
}

BOOST_AUTO_TEST_CASE(the_first_element_that_is_no_number_is_named) {
  EditedDump dump = shards();
  dump.change(taps + layer, [](std::vector<float>& values, std::size_t rank) {
    if (rank == 1) values[2 * hidden + 7] = values[2 * hidden + 9] = INFINITY;
  });
  const TapDiff first = first_at(dump, "target/" + layer);
  BOOST_TEST(first.called == "NaN or infinity in 1 row of tokens");
  BOOST_TEST(first.detail == "first at tp=1 row 2 column 7: inf");
}

// Experts ----------------------------------------------------------------------------------------

namespace {

const std::string gate = "model.layers.1.mlp.gate.";
constexpr std::size_t per_token = 4;  // experts

/// Puts the experts of each row in reversed order.
template <class T>
void reverse_experts(EditedDump& dump, const std::string& tap) {
  dump.change<T>(taps + gate + tap, [](std::vector<T>& values, std::size_t) {
    for (std::size_t row = 0; row < values.size() / per_token; ++row)
      std::reverse(values.begin() + std::ptrdiff_t(row * per_token),
                   values.begin() + std::ptrdiff_t((row + 1) * per_token));
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(experts_in_another_order_with_their_weights_match) {
  for (const bool are_shards : {true, false}) {
    EditedDump dump = are_shards ? shards() : fulls();
    reverse_experts<std::int64_t>(dump, "ids");
    reverse_experts<float>(dump, "weights");
    const DumpDiffResult result = diff(dump);
    BOOST_TEST(result.failed == 0, in_words(result));
    BOOST_REQUIRE(result.notes.size() == 1);
    BOOST_TEST(result.notes.front().find("in another order") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(experts_in_another_order_than_their_weights_differ) {
  for (const bool are_shards : {true, false}) {
    EditedDump dump = are_shards ? shards() : fulls();
    reverse_experts<std::int64_t>(dump, "ids");
    BOOST_TEST(first_at(dump, "target/" + gate + "weights")
                   .called.starts_with("weights of other experts"));
    EditedDump weights = shards();
    reverse_experts<float>(weights, "weights");
    BOOST_TEST(first_at(weights, "target/" + gate + "weights")
                   .called.starts_with("weights of other experts"));
  }
}

BOOST_AUTO_TEST_CASE(another_expert_differs_in_any_order) {
  EditedDump dump = shards();
  reverse_experts<std::int64_t>(dump, "ids");
  reverse_experts<float>(dump, "weights");
  dump.change<std::int64_t>(
      taps + gate + "ids", [](std::vector<std::int64_t>& ids, std::size_t rank) {
        if (rank != 0) return;
        std::int64_t other = 0;
        while (std::find(ids.begin(), ids.begin() + per_token, other) != ids.begin() + per_token)
          ++other;
        ids.front() = other;
      });
  BOOST_TEST(first_at(dump, "target/" + gate + "ids").called == "other ids");
}

// Summands ---------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(one_ranks_summands_are_blamed_alone) {
  const std::string product = "model.layers.1.linear_attn.out_proj";
  EditedDump dump = fulls();
  dump.change(taps + product, [](std::vector<float>& values, std::size_t rank) {
    if (rank == 2) swap_rows(values, 3, 6);
  });
  const TapDiff swapped = first_at(dump, "target/" + product);
  BOOST_TEST(swapped.called == "summands of other rows on tp=2 alone");
  BOOST_TEST(swapped.ranks[2].held == "[0,1,2,6,4,5,3,7,8,9] partial 2/4");
  BOOST_TEST(swapped.ranks[1].held == "[0,1,2,3,4,5,6,7,8,9] partial 1/4");
  EditedDump doubled = fulls();
  doubled.change(taps + product, [](std::vector<float>& values, std::size_t rank) {
    if (rank == 1)
      for (float& value : values) value *= 2;
  });
  BOOST_TEST(first_at(doubled, "target/" + product).called ==
             "the summand of tp=1 alone 2 times the value");
}

BOOST_AUTO_TEST_CASE(summands_that_any_rank_may_have_wrong_blame_none) {
  const std::string product = "model.layers.1.linear_attn.out_proj";
  EditedDump dump = fulls();
  dump.change(taps + product, [](std::vector<float>& values, std::size_t rank) {
    if (rank == 2)
      for (std::size_t c = 0; c < hidden; ++c) values[3 * hidden + c] += std::cos(float(c * c));
  });
  const TapDiff first = first_at(dump, "target/" + product);
  BOOST_TEST(first.called.find("alone") == std::string::npos, first.called);
}

BOOST_AUTO_TEST_CASE(two_rows_of_one_rank_are_another_order) {
  EditedDump full = fulls();
  const std::string tap = layer + ".post_attention_layernorm";
  std::vector<float> values = full.values(2, taps + tap);
  swap_rows(values, 4, 9);
  full.set(2, taps + tap, values);
  BOOST_TEST(first_at(full, "target/" + tap).called == "rows in another order");
}

// Which summand of a row is wrong cannot be told; and that all ranks have theirs is right.
BOOST_AUTO_TEST_CASE(a_wrong_sum_blames_no_rank) {
  const std::string tap = "model.layers.0.mlp.shared_expert";
  for (const bool is_zero : {false, true}) {
    EditedDump full = fulls();
    std::vector<float> values = full.values(3, taps + tap);
    if (is_zero)
      std::fill_n(values.begin() + 8 * hidden, hidden, 0.0F);
    else
      values[2 * hidden + 54] += 1e-3F;
    full.set(3, taps + tap, values);
    const std::string called = first_at(full, "target/" + tap).called;
    BOOST_TEST(called.find("alone") == std::string::npos, called);
    BOOST_TEST(called.find("never added") == std::string::npos, called);
  }
}

}  // namespace tokenview
