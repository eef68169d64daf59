// SPDX-License-Identifier: Apache-2.0
// The sharded program against the serial one: shards of weights, padding and collectives. The
// shapes of model.md 10, "Parallel".
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "comm_sim/run_ranks.hpp"
#include "comm_sim/sim_mesh.hpp"
#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/protocols.hpp"
#include "reference/program/seeded_weights.hpp"
#include "reference/serial_model.hpp"
#include "tests/boost_test.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Ops = EigenOps<double>;
using Comm = SimComm<Ops>;
using ShardedRank = Rank<Ops, Comm>;

ModelConfig config_of(const std::string& family) {
  ModelConfig config = *preset(family);
  if (family == "qwen3-next") config.mlp_only_layers = {1};  // a dense layer among the sparse ones
  config.num_hidden_layers = 4;
  return config;
}

Batch two_requests(const ModelConfig& config) {
  Batch batch;
  for (std::int64_t i = 0; i < 7; ++i) batch.input_ids.push_back((37 * i + 63) % config.vocab_size);
  batch.positions = {0, 1, 2, 0, 1, 2, 3};
  batch.query_start_loc = {0, 3, 7};
  batch.num_computed = {0, 0};
  batch.slots = {0, 1};
  return batch;
}

struct Outputs {
  Matrix<double> hidden, logits;
  std::vector<std::vector<std::int64_t>> drafts;
};

Outputs run_serial(const ModelConfig& config, const WeightSource& source, const Batch& batch) {
  const SerialModel<double> model(config, source, Ops{});
  auto state = model.empty_state();
  Outputs out;
  out.hidden = model.forward(state, batch);
  out.logits = model.logits(out.hidden);
  const SampleRows sampled = sample_rows(batch);
  const auto next = Ops{}.argmax(Ops{}.index_rows(out.logits, sampled.rows));
  out.drafts = model.draft(state, batch, out.hidden, sampled, next, 3);
  return out;
}

/// Every data-parallel rank runs its own batch.
std::vector<Outputs> run_sharded(const ModelConfig& config, const WeightSource& source,
                                 std::vector<Batch> batches, const ParallelConfig& parallel,
                                 ProtocolId protocol_id, std::size_t draft_steps = 3) {
  const ParallelPlan plan = plan_for(config, parallel, protocol_id);
  std::vector<std::int64_t> tokens, requests;
  for (const Batch& batch : batches) {
    tokens.push_back(batch.num_tokens());
    requests.push_back(batch.num_sequences());
  }
  for (Batch& batch : batches) {
    batch.tokens_across_dp = tokens;
    batch.requests_across_dp = requests;
  }

  const Ops ops;
  const auto protocol = make_protocol<ShardedRank>(plan);
  SimMesh mesh(parallel);
  return mesh.run([&](const RankCoordinates&) -> const Ops& { return ops; },
                  [&](SimComms<Ops>& comms) {
                    ShardedRank rank(ops, comms.tp, comms.dp, comms.ep, comms.pp);
                    const auto weights =
                        WeightLoader<Ops>(ops, source, config,
                                          placement_of(plan, comms.at.tp, comms.at.ep))
                            .model();
                    const Batch& batch = batches[std::size_t(comms.at.dp)];
                    const RankShapes shapes = rank_shapes(config, comms.at.tp, parallel.tp);
                    auto state = empty_state(ops, config, shapes);
                    Outputs out;
                    out.hidden = forward(rank, *protocol, weights, config, shapes, state, batch);
                    out.logits = compute_logits(rank, weights, config, out.hidden);
                    const SampleRows sampled = sample_rows(batch);
                    const auto next = ops.argmax(ops.index_rows(out.logits, sampled.rows));
                    out.drafts = draft(rank, *protocol, weights, config, shapes, state, batch,
                                       out.hidden, sampled, next, {.num_steps = draft_steps});
                    return out;
                  });
}

double relative(const Matrix<double>& x, const Matrix<double>& y) {
  return (x - y).norm() / y.norm();
}

// Sums of at most H = 64 terms, split differently, through 4 layers; norms keep magnitudes at one.
constexpr double bound = 1e-12;

}  // namespace

BOOST_DATA_TEST_CASE(the_sharded_model_is_the_serial_model,
                     data::make({"qwen3-next", "qwen3.5-moe"}) * data::make({1, 2, 4, 8}) *
                         data::make({false, true}),
                     family, tp, expert_parallel) {
  const ModelConfig config = config_of(family);  // 2 key/value heads: tp = 4 and 8 share them
  const SeededWeights weights(config, 7);
  const Batch batch = two_requests(config);
  const Outputs serial = run_serial(config, weights, batch);
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = expert_parallel};
  for (const Outputs& rank : run_sharded(config, weights, {batch}, parallel, ProtocolId::S)) {
    BOOST_TEST(relative(rank.hidden, serial.hidden) <= bound);
    BOOST_TEST(relative(rank.logits, serial.logits) <= bound);
    BOOST_TEST((rank.drafts == serial.drafts));
  }
}

namespace {

Batch prefill(std::int64_t tokens, const ModelConfig& config, std::int64_t seed) {
  Batch batch;
  for (std::int64_t i = 0; i < tokens; ++i) {
    batch.input_ids.push_back((53 * i + 17 * seed + 5) % config.vocab_size);
    batch.positions.push_back(i);
  }
  batch.query_start_loc = {0, std::int32_t(tokens)};
  batch.num_computed = {0};
  batch.slots = {0};
  return batch;
}

}  // namespace

BOOST_DATA_TEST_CASE(every_protocol_gives_the_serial_model_with_two_tokens_or_more,
                     data::make({"qwen3-next", "qwen3.5-moe"}) * data::make({2, 4}) *
                         data::make({1, 2}) * data::make({2, 3, 5, 10}),
                     family, tp, dp, tokens) {
  const ModelConfig config = config_of(family);
  const SeededWeights weights(config, 11);
  std::vector<Batch> batches;
  for (std::int64_t d = 0; d < dp; ++d) batches.push_back(prefill(tokens + d, config, d));
  std::vector<Outputs> serial;
  for (const Batch& batch : batches) serial.push_back(run_serial(config, weights, batch));
  const ParallelConfig parallel{.tp = tp, .dp = dp, .enable_expert_parallel = true};
  for (const ProtocolId layout : {ProtocolId::S, ProtocolId::A, ProtocolId::C, ProtocolId::D}) {
    const auto ranks = run_sharded(config, weights, batches, parallel, layout);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const Outputs& expected = serial[i / std::size_t(tp)];
      BOOST_TEST(relative(ranks[i].hidden, expected.hidden) <= bound);
      BOOST_TEST(relative(ranks[i].logits, expected.logits) <= bound);
      BOOST_TEST((ranks[i].drafts == expected.drafts));
    }
  }
}

BOOST_DATA_TEST_CASE(one_token_is_wrong_under_b_and_right_under_a_and_d, data::make({2, 4}), tp) {
  const ModelConfig config = config_of("qwen3.5-moe");
  const SeededWeights weights(config, 11);
  const Batch batch = prefill(1, config, 0);
  const Outputs serial = run_serial(config, weights, batch);
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = true};
  for (const ProtocolId layout : {ProtocolId::A, ProtocolId::D})
    for (const Outputs& rank : run_sharded(config, weights, {batch}, parallel, layout))
      BOOST_TEST(relative(rank.hidden, serial.hidden) <= bound);
  const auto ranks = run_sharded(config, weights, {batch}, parallel, ProtocolId::B, 1);
  BOOST_TEST(relative(ranks[0].hidden, serial.hidden) > 1e-3);  // contaminated by the pad ranks
  for (std::size_t i = 1; i < ranks.size(); ++i) BOOST_TEST(ranks[i].hidden.norm() == 0);
}

BOOST_DATA_TEST_CASE(without_the_mtp_gather_the_sampled_row_is_out_of_range,
                     data::make({2, 4}) * data::make({2, 5, 10}), tp, tokens) {
  const ModelConfig config = config_of("qwen3.5-moe");
  const SeededWeights weights(config, 11);
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = true};
  BOOST_CHECK_EXCEPTION(
      run_sharded(config, weights, {prefill(tokens, config, 0)}, parallel, ProtocolId::B, 1),
      ShapeError, [&](const ShapeError& error) {
        const auto shard = (tokens + tp - 1) / tp;
        return std::string(error.what())
                   .find(text("index_rows: index ", tokens - 1, " is out of range for ", shard,
                              " rows")) != std::string::npos;
      });
}

BOOST_DATA_TEST_CASE(experts_that_do_not_divide_by_the_ranks_are_placed_once,
                     data::make({3, 5, 6, 7}), size) {
  std::vector<int> owners(16, 0);
  for (std::int64_t rank = 0; rank < size; ++rank) {
    const Range mine = expert_block(16, rank, size);
    BOOST_TEST(mine.size() == 16 / size + (rank < 16 % size ? 1 : 0));  // the first ranks hold more
    for (std::int64_t e = mine.begin; e < mine.end; ++e) ++owners[std::size_t(e)];
  }
  BOOST_TEST(owners == std::vector<int>(16, 1), boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(the_shards_of_a_weight_join_to_the_weight, data::make({1, 2, 4, 8}), tp) {
  HostTensor whole;
  whole.shape = {16, 8};
  for (int i = 0; i < 128; ++i) whole.values.push_back(float(i));
  std::vector<float> rows;
  for (std::int64_t rank = 0; rank < tp; ++rank) {
    const auto part = sliced(whole, {"w", {16, 8}, {block_of(16, rank, tp)}, {}, {}, 0});
    rows.insert(rows.end(), part.values.begin(), part.values.end());
    const auto cols = sliced(whole, {"w", {16, 8}, {}, {block_of(8, rank, tp)}, {}, 0});
    for (std::int64_t o = 0; o < 16; ++o)
      for (std::int64_t i = 0; i < 8 / tp; ++i)
        BOOST_TEST(cols.values[std::size_t(o * 8 / tp + i)] == float(o * 8 + rank * 8 / tp + i));
  }
  BOOST_TEST(rows == whole.values, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(key_value_heads_are_shared_by_neighbouring_ranks) {
  std::vector<std::int64_t> heads;
  for (std::int64_t rank = 0; rank < 8; ++rank) heads.push_back(kv_head_block(2, rank, 8).begin);
  BOOST_TEST(heads == (std::vector<std::int64_t>{0, 0, 0, 0, 1, 1, 1, 1}),
             boost::test_tools::per_element());
  BOOST_TEST((kv_head_block(6, 1, 3) == Range{2, 4}));
}

BOOST_DATA_TEST_CASE(a_vocabulary_parallel_lookup_sums_to_the_lookup, data::make({1, 2, 4, 8}),
                     tp) {
  ModelConfig config = config_of("qwen3-next");
  config.vocab_size = 150;  // padded to 192: shards end inside, at the edge of, and beyond it
  const SeededWeights source(config, 3);
  const HostTensor table = source.weight("model.embed_tokens.weight");
  const std::int64_t edge = 192 / tp;
  const std::vector<std::int64_t> ids = {0, edge - 1, edge % 150, 149, 63, 64};
  const Ops ops;
  const auto found = run_ranks(ops, tp, [&](Comm& comm) {
    const Range mine = block_of(padded_vocab_size(config), comm.rank(), tp);
    const auto shard = ops.load(source, {"model.embed_tokens.weight",
                                         {150, config.hidden_size},
                                         {mine},
                                         {},
                                         {},
                                         padded_vocab_size(config)});
    return comm.all_reduce(ops.embed(ids, shard, mine.begin));
  });
  for (const auto& rows : found)
    for (std::size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] >= 150) continue;
      for (std::int64_t i = 0; i < config.hidden_size; ++i)
        BOOST_TEST(rows(Eigen::Index(t), i) ==
                   double(table.values[std::size_t(ids[t] * config.hidden_size + i)]));
    }
}

BOOST_DATA_TEST_CASE(chunk_gather_trim_is_the_identity,
                     data::make({1, 2, 3, 4, 8}) * data::make({0, 1, 2, 3, 4, 5, 7, 8, 9}), tp,
                     tokens) {
  const Ops ops;
  Matrix<double> x(tokens, 3);
  for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = double(i + 1);
  const std::int64_t shard = (tokens + tp - 1) / tp;
  const auto gathered = run_ranks(ops, tp, [&](Comm& comm) {
    const Matrix<double> padded = ops.pad_rows(x, shard * tp - tokens);
    const auto mine = ops.slice(padded, Axis::rows, comm.rank() * shard, (comm.rank() + 1) * shard);
    return ops.slice(comm.all_gather(mine, Axis::rows), Axis::rows, 0, tokens);
  });
  for (const auto& back : gathered) BOOST_TEST((back == x));
}

BOOST_DATA_TEST_CASE(a_column_parallel_product_is_the_whole_one_to_the_bit,
                     data::make({1, 2, 4, 8}), tp) {
  const ModelConfig config = config_of("qwen3-next");
  const SeededWeights source(config, 5);
  const std::vector<std::int64_t> shape = {config.hidden_size, 2 * config.hidden_size};
  const EigenOps<float> ops;
  const Matrix<float> x = Matrix<float>::Random(5, 2 * config.hidden_size);
  const auto whole = ops.linear(x, ops.load(source, {"mtp.fc.weight", shape, {}, {}, {}, 0}));
  const auto gathered = run_ranks(ops, tp, [&](SimComm<EigenOps<float>>& comm) {
    const auto shard = ops.load(
        source, {"mtp.fc.weight", shape, {block_of(shape[0], comm.rank(), tp)}, {}, {}, 0});
    return comm.all_gather(ops.linear(x, shard), Axis::cols);
  });
  for (const auto& y : gathered) BOOST_TEST((y == whole));
}

BOOST_AUTO_TEST_CASE(a_size_that_does_not_divide_names_both_numbers) {
  BOOST_CHECK_EXCEPTION(block_of(10, 0, 4), ConfigError, [](const ConfigError& error) {
    return std::string(error.what()) == "10 is not divisible by 4";
  });
  BOOST_CHECK_THROW(kv_head_block(3, 0, 4), ConfigError);
}

}  // namespace tokenview
