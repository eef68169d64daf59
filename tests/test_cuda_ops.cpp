// SPDX-License-Identifier: Apache-2.0
// Every operation on the GPU against EigenOps<float>, then the program: serial, and on virtual
// ranks that share the GPU.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <cstdio>
#include <memory>

#include "comm_sim/run_ranks.hpp"
#include "comm_sim/sim_mesh.hpp"
#include "device/cuda_ops.hpp"
#include "device/device_info.hpp"
#include "reference/program/protocols.hpp"
#include "tests/boost_test.hpp"
#include "tests/skip.hpp"
#include "tests/support.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Cpu = EigenOps<float>;
using Gpu = CudaOps<float>;
using Host = Matrix<float>;
using HostIds = Matrix<std::int64_t>;
constexpr double eps = 1e-6;

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
  }
};

/// One for all cases: starting cuBLAS takes a while.
const Gpu& gpu() {
  static const Gpu ops;
  return ops;
}
const Cpu cpu;

Gpu::Tensor to_gpu(const Host& x) {
  return gpu().upload({x.data(), std::size_t(x.size())}, x.rows(), x.cols());
}
Gpu::Routing to_gpu(const Cpu::Routing& x) {
  return gpu().upload({x.weights.data(), std::size_t(x.weights.size())},
                      {x.ids.data(), std::size_t(x.ids.size())}, x.ids.rows(), x.ids.cols());
}
Host to_host(const Gpu::Tensor& x) {
  return Eigen::Map<const Host>(gpu().download(x).data(), x.rows(), x.cols());
}
HostIds to_host(const DeviceMatrix<std::int64_t>& x) {
  return Eigen::Map<const HostIds>(gpu().download(x).data(), x.rows(), x.cols());
}

/// Both sides may be wrong by what a sum of `contraction` terms rounds.
Claim close(const Gpu::Tensor& found, const Host& expected, std::int64_t contraction) {
  return within(to_host(found), expected, 2 * tolerance<float>(contraction));
}
Claim same(const Gpu::Tensor& found, const Host& expected) {
  return same_bits(to_host(found), expected);
}

/// A handful of elementary functions, each within two units.
constexpr std::int64_t elementwise = 4;

/// One weight of any shape, for load().
class OneWeight final : public WeightSource {
 public:
  OneWeight(std::mt19937_64& random, std::vector<std::int64_t> shape) {
    tensor_.shape = std::move(shape);
    const Host values = random_matrix<float>(random, 1, element_count(tensor_.shape));
    tensor_.values.assign(values.data(), values.data() + values.size());
  }
  bool contains(const std::string&) const override { return true; }
  HostTensor weight(const std::string&, const std::vector<std::int64_t>&) const override {
    return tensor_;
  }
  template <class Ops>
  typename Ops::Weight in(const Ops& ops) const {
    WeightBlock block;
    block.name = "w";
    block.shape = tensor_.shape;
    return ops.load(*this, block);
  }

 private:
  HostTensor tensor_;
};

const auto row_counts = data::make({0, 1, 3, 17, 70});

/// Rows of three sequences, the middle one without any, and two pads where there are rows to spare.
Batch mixed_batch(std::int64_t rows) {
  const std::int64_t real = rows > 3 ? rows - 2 : rows, first = real / 3;
  Batch batch = batch_of({{std::vector<std::int64_t>(std::size_t(first)), 0, 2},
                          {{}, 0, 0},
                          {std::vector<std::int64_t>(std::size_t(real - first)), 0, 1}});
  append_runner_pads(batch, rows);
  return batch;
}

/// One more row for each sequence that has some.
Batch next_batch(const Batch& batch, std::int64_t rows_each = 1) {
  std::vector<Sequence> sequences;
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s) {
    const std::int32_t rows = batch.query_start_loc[s + 1] - batch.query_start_loc[s];
    if (rows > 0)
      sequences.push_back({std::vector<std::int64_t>(std::size_t(rows_each)),
                           batch.num_computed[s] + rows, batch.slots[s]});
  }
  return batch_of(sequences);
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_DATA_TEST_CASE(values_go_to_the_gpu_and_back, row_counts, rows) {
  std::mt19937_64 random(1);
  const Host x = random_matrix<float>(random, rows, 7);
  BOOST_TEST(same(to_gpu(x), x));
}

BOOST_AUTO_TEST_CASE(a_gpu_that_is_not_there_is_named) {
  std::string reason;
  const int count = int(devices(reason).size());
  BOOST_CHECK_EXCEPTION(Gpu{count}, DeviceError, [&](const DeviceError& error) {
    return std::string(error.what()) == text("no GPU ", count, ": this machine has ", count);
  });
}

BOOST_AUTO_TEST_CASE(more_memory_than_the_gpu_has_is_one_error_and_the_next_call_works) {
  BOOST_CHECK_EXCEPTION(gpu().blank(1 << 20, 1 << 20), DeviceError, [](const DeviceError& error) {
    return std::string(error.what()).find("out of memory: 4398046511104 bytes asked for") !=
           std::string::npos;
  });
  BOOST_TEST(same(gpu().blank(2, 3), Host::Zero(2, 3)));
}

BOOST_DATA_TEST_CASE(a_lookup_is_the_row_of_the_table, row_counts, rows) {
  std::mt19937_64 random(2);
  const OneWeight table(random, {90, 33});
  const auto ids = random_ids(random, rows, 130);  // some below the shard, some beyond it
  BOOST_TEST(same(gpu().embed(ids, table.in(gpu()), 20), cpu.embed(ids, table.in(cpu), 20)));
}

BOOST_AUTO_TEST_CASE(an_id_beyond_an_unmasked_table_is_refused) {
  std::mt19937_64 random(2);
  const OneWeight table(random, {90, 33});
  BOOST_CHECK_THROW(gpu().embed({90}, table.in(gpu()), unmasked_vocabulary), ShapeError);
}

BOOST_DATA_TEST_CASE(a_product_is_the_product, row_counts, rows) {
  std::mt19937_64 random(3);
  const OneWeight w(random, {37, 129});
  const Host x = random_matrix<float>(random, rows, 129);
  BOOST_TEST(close(gpu().linear(to_gpu(x), w.in(gpu())), cpu.linear(x, w.in(cpu)), 129));
}

BOOST_AUTO_TEST_CASE(a_product_keeps_all_bits_of_float32) {  // TF32 would drop 13 of 23
  std::mt19937_64 random(3);
  const OneWeight w(random, {256, 256});
  const Host x = random_matrix<float>(random, 256, 256);
  BOOST_TEST(close(gpu().linear(to_gpu(x), w.in(gpu())), cpu.linear(x, w.in(cpu)), 256));
}

BOOST_DATA_TEST_CASE(elementwise_operations_are_those_of_the_reference, row_counts, rows) {
  std::mt19937_64 random(4);
  const Host x = 8 * random_matrix<float>(random, rows, 37);
  const Host y = 8 * random_matrix<float>(random, rows, 37);
  const Host gate = random_matrix<float>(random, rows, 1);
  BOOST_TEST(same(gpu().add(to_gpu(x), to_gpu(y)), cpu.add(x, y)));
  BOOST_TEST(close(gpu().silu_mul(to_gpu(x), to_gpu(y)), cpu.silu_mul(x, y), elementwise));
  BOOST_TEST(close(gpu().sigmoid_mul(to_gpu(x), to_gpu(y)), cpu.sigmoid_mul(x, y), elementwise));
  BOOST_TEST(
      close(gpu().sigmoid_scale(to_gpu(x), to_gpu(gate)), cpu.sigmoid_scale(x, gate), elementwise));
}

BOOST_DATA_TEST_CASE(norms_are_those_of_the_reference, row_counts* data::make({1, 48, 1000}), rows,
                     width) {
  std::mt19937_64 random(5);
  const OneWeight w(random, {width}), whole(random, {3 * width});
  const Host x = random_matrix<float>(random, rows, 3 * width);
  const Host z = random_matrix<float>(random, rows, 3 * width);
  BOOST_TEST(close(gpu().rms_norm(to_gpu(x), whole.in(gpu()), eps),
                   cpu.rms_norm(x, whole.in(cpu), eps), 3 * width));
  BOOST_TEST(close(gpu().head_rms_norm(to_gpu(x), w.in(gpu()), eps),
                   cpu.head_rms_norm(x, w.in(cpu), eps), width + elementwise));
  BOOST_TEST(close(gpu().gated_rms_norm(to_gpu(x), to_gpu(z), w.in(gpu()), eps),
                   cpu.gated_rms_norm(x, z, w.in(cpu), eps), width + elementwise));
}

BOOST_DATA_TEST_CASE(splits_and_joins_of_features_move_every_value, row_counts, rows) {
  std::mt19937_64 random(6);
  const GdnShape shape{
      .num_key_heads = 3, .num_value_heads = 6, .key_head_dim = 5, .value_head_dim = 7};
  const auto both_same = [](const auto& found, const auto& expected) {
    BOOST_TEST(same(found.first, expected.first));
    BOOST_TEST(same(found.second, expected.second));
  };
  const Host heads = random_matrix<float>(random, rows, 4 * 2 * 5);
  both_same(gpu().split_query_gate(to_gpu(heads), 5), cpu.split_query_gate(heads, 5));
  const Host qkvz = random_matrix<float>(random, rows, shape.conv_dim() + shape.value_dim());
  both_same(gpu().split_qkvz(to_gpu(qkvz), shape), cpu.split_qkvz(qkvz, shape));
  const Host ba = random_matrix<float>(random, rows, 2 * shape.num_value_heads);
  both_same(gpu().split_ba(to_gpu(ba), shape), cpu.split_ba(ba, shape));
  BOOST_TEST(
      same(gpu().concat_features(to_gpu(heads), to_gpu(ba)), cpu.concat_features(heads, ba)));
}

BOOST_DATA_TEST_CASE(rotary_embeddings_are_those_of_the_reference, row_counts, rows) {
  std::mt19937_64 random(7);
  const Host x = random_matrix<float>(random, rows, 3 * 20);
  RopeShape shape{.head_dim = 20, .rotary_dim = 12, .theta = 1e7, .axis = {0, 0, 0, 0, 0, 0}};
  Batch batch = rows_of_one(rows, 100'000);
  BOOST_TEST(close(gpu().rope(to_gpu(x), batch, shape), cpu.rope(x, batch, shape), elementwise));
  shape.axis = {0, 1, 2, 0, 1, 2};
  batch.mrope_positions = random_ids(random, 3 * rows, 10'000);
  BOOST_TEST(close(gpu().rope(to_gpu(x), batch, shape), cpu.rope(x, batch, shape), elementwise));
}

BOOST_DATA_TEST_CASE(attention_is_that_of_the_reference_over_several_passes,
                     row_counts* data::make({16, 40, 256}), rows, head_dim) {
  std::mt19937_64 random(8);
  const AttentionShape heads{.num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim};
  auto on_gpu = gpu().kv_cache(heads);
  auto on_cpu = cpu.kv_cache(heads);
  Batch batch = mixed_batch(rows);
  for (int pass = 0; pass < 3; ++pass) {  // a prefill and two decodes
    const Host q = 4 * random_matrix<float>(random, batch.num_tokens(), 6 * head_dim);
    const Host k = random_matrix<float>(random, batch.num_tokens(), 2 * head_dim);
    const Host v = random_matrix<float>(random, batch.num_tokens(), 2 * head_dim);
    BOOST_TEST_CONTEXT("pass " << pass)
    BOOST_TEST(close(gpu().attention(to_gpu(q), to_gpu(k), to_gpu(v), heads, on_gpu, batch),
                     cpu.attention(q, k, v, heads, on_cpu, batch), rows + head_dim));
    batch = next_batch(batch);
  }
}

BOOST_AUTO_TEST_CASE(attention_over_a_cache_that_was_not_written_is_refused) {
  const AttentionShape heads{.num_heads = 1, .num_kv_heads = 1, .head_dim = 4};
  auto cache = gpu().kv_cache(heads);
  const auto x = gpu().blank(1, 4);
  BOOST_CHECK_THROW(gpu().attention(x, x, x, heads, cache, rows_of_one(1, 5)), ShapeError);
}

BOOST_DATA_TEST_CASE(the_convolution_is_that_of_the_reference_over_several_passes,
                     row_counts* data::make({1, 2, 4}), rows, kernel) {
  std::mt19937_64 random(9);
  const OneWeight w(random, {41, 1, kernel});
  const GdnShape shape{1, 1, 1, 39};
  auto on_gpu = gpu().gdn_state(shape, kernel);
  auto on_cpu = cpu.gdn_state(shape, kernel);
  Batch batch = mixed_batch(rows);
  for (int pass = 0; pass < 3; ++pass) {
    const Host x = random_matrix<float>(random, batch.num_tokens(), 41);
    BOOST_TEST_CONTEXT("pass " << pass)
    BOOST_TEST(close(gpu().causal_conv(to_gpu(x), w.in(gpu()), on_gpu, batch),
                     cpu.causal_conv(x, w.in(cpu), on_cpu, batch), kernel + elementwise));
    batch = next_batch(batch);
  }
}

BOOST_DATA_TEST_CASE(gates_are_those_of_the_reference, row_counts, rows) {
  std::mt19937_64 random(10);
  const OneWeight A_log(random, {5}), dt_bias(random, {5});
  const Host b = random_matrix<float>(random, rows, 5);
  const Host a = 30 * random_matrix<float>(random, rows, 5);  // some over softplus's threshold
  const auto found = gpu().delta_gates(to_gpu(b), to_gpu(a), A_log.in(gpu()), dt_bias.in(gpu()));
  const auto expected = cpu.delta_gates(b, a, A_log.in(cpu), dt_bias.in(cpu));
  BOOST_TEST(close(found.first, expected.first, elementwise));
  BOOST_TEST(close(found.second, expected.second, elementwise));
}

namespace {

/// The convolution and the delta rule in the order of the program, on both sides.
struct DeltaNet {
  explicit DeltaNet(const GdnShape& heads)
      : shape(heads),
        w(random, {heads.conv_dim(), 1, 4}),
        on_gpu(gpu().gdn_state(shape, 4)),
        on_cpu(cpu.gdn_state(shape, 4)) {}

  Claim agrees_on(const Batch& batch, std::int64_t contraction) {
    const std::int64_t rows = batch.num_tokens();
    const Host x = random_matrix<float>(random, rows, shape.conv_dim());
    const Host beta = random_matrix<float>(random, rows, shape.num_value_heads).cwiseAbs();
    const Host g = -random_matrix<float>(random, rows, shape.num_value_heads).cwiseAbs();
    const Host qkv = cpu.causal_conv(x, w.in(cpu), on_cpu, batch);
    gpu().causal_conv(to_gpu(x), w.in(gpu()), on_gpu, batch);
    return close(gpu().gated_delta_rule(to_gpu(qkv), to_gpu(beta), to_gpu(g), shape, on_gpu, batch),
                 cpu.gated_delta_rule(qkv, beta, g, shape, on_cpu, batch), contraction);
  }

  std::mt19937_64 random{11};
  GdnShape shape;
  OneWeight w;
  Gpu::GdnState on_gpu;
  Cpu::GdnState on_cpu;
};

}  // namespace

BOOST_DATA_TEST_CASE(the_delta_rule_is_that_of_the_reference_over_several_passes,
                     row_counts* data::make({8, 128}) * data::make({12, 128}), rows, dk, dv) {
  DeltaNet net(
      {.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = dk, .value_head_dim = dv});
  Batch batch = mixed_batch(rows);
  for (int pass = 0; pass < 3; ++pass) {
    BOOST_TEST_CONTEXT("pass " << pass) BOOST_TEST(net.agrees_on(batch, dk + 2 * rows));
    batch = next_batch(batch);
  }
}

BOOST_DATA_TEST_CASE(a_verified_pass_goes_on_from_the_last_accepted_row, data::make({1, 2, 3}),
                     accepted) {
  DeltaNet net({.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = 8, .value_head_dim = 12});
  const Batch prefill = rows_of_one(5);
  Batch verify = rows_of_one(3, 5);
  verify.keep_states = true;
  BOOST_TEST(net.agrees_on(prefill, 8 + 2 * 8));
  BOOST_TEST(net.agrees_on(verify, 8 + 2 * 8));
  gpu().commit_accepted(net.on_gpu, 0, accepted);
  cpu.commit_accepted(net.on_cpu, 0, accepted);
  BOOST_TEST(net.agrees_on(rows_of_one(2, 5 + accepted), 8 + 2 * 8));
  BOOST_CHECK_THROW(gpu().commit_accepted(net.on_gpu, 0, 1), ShapeError);  // kept nothing
}

BOOST_DATA_TEST_CASE(the_router_chooses_as_the_reference_does,
                     row_counts* data::make({false, true}), rows, renormalise) {
  std::mt19937_64 random(12);
  const Host logits = random_matrix<float>(random, rows, 70);
  const auto found = gpu().route(to_gpu(logits), 5, renormalise);
  const auto expected = cpu.route(logits, 5, renormalise);
  BOOST_TEST((to_host(found.ids) == expected.ids));
  BOOST_TEST(close(found.weights, expected.weights, 70));
}

BOOST_AUTO_TEST_CASE(equal_logits_go_to_the_lower_expert) {
  Host logits = Host::Zero(2, 70);
  logits(1, 69) = logits(1, 33) = logits(1, 64) = 1;
  HostIds expected(2, 4);
  expected << 0, 1, 2, 3, 33, 64, 69, 0;
  BOOST_TEST((to_host(gpu().route(to_gpu(logits), 4, true).ids) == expected));
}

BOOST_DATA_TEST_CASE(experts_of_a_rank_are_those_of_the_reference,
                     row_counts* data::make({0, 3, 7}), rows, first_expert) {
  std::mt19937_64 random(13);
  const OneWeight gate_up(random, {5, 2 * 19, 45}), down(random, {5, 45, 19});
  const Host x = random_matrix<float>(random, rows, 45);
  const auto routing = cpu.route(random_matrix<float>(random, rows, 9), 3, true);
  BOOST_TEST(close(
      gpu().experts(to_gpu(x), to_gpu(routing), gate_up.in(gpu()), down.in(gpu()), first_expert),
      cpu.experts(x, routing, gate_up.in(cpu), down.in(cpu), first_expert), 45 + 19 + elementwise));
}

BOOST_AUTO_TEST_CASE(an_expert_may_receive_every_row) {  // several tiles of one expert
  std::mt19937_64 random(13);
  const OneWeight gate_up(random, {5, 2 * 19, 45}), down(random, {5, 45, 19});
  const Host x = random_matrix<float>(random, 70, 45);
  const Cpu::Routing routing{Host::Constant(70, 1, 0.5f), HostIds::Constant(70, 1, 3)};
  BOOST_TEST(close(gpu().experts(to_gpu(x), to_gpu(routing), gate_up.in(gpu()), down.in(gpu()), 0),
                   cpu.experts(x, routing, gate_up.in(cpu), down.in(cpu), 0),
                   45 + 19 + elementwise));
}

BOOST_DATA_TEST_CASE(pads_masks_and_rows_are_those_of_the_reference, row_counts, rows) {
  std::mt19937_64 random(14);
  const Host x = random_matrix<float>(random, rows, 11);
  const auto routing = cpu.route(random_matrix<float>(random, rows, 9), 3, true);
  const auto x_gpu = to_gpu(x);
  const auto routing_gpu = to_gpu(routing);
  BOOST_TEST(same(gpu().pad_rows(x_gpu, 4), cpu.pad_rows(x, 4)));
  BOOST_TEST(same(gpu().into_buffer(x_gpu, rows + 2), cpu.into_buffer(x, rows + 2)));
  BOOST_TEST(same(gpu().trim(x_gpu, rows / 2), cpu.trim(x, rows / 2)));
  BOOST_TEST((to_host(gpu().pad_rows(routing_gpu, 4).ids) == cpu.pad_rows(routing, 4).ids));

  const Batch batch = mixed_batch(rows);
  BOOST_TEST((gpu().pad_mask(batch) == cpu.pad_mask(batch)));
  const auto skipped = gpu().skip_pads(routing_gpu, gpu().pad_mask(batch), true);
  const auto expected = cpu.skip_pads(routing, cpu.pad_mask(batch), true);
  BOOST_TEST((to_host(skipped.ids) == expected.ids));
  BOOST_TEST(same(skipped.weights, expected.weights));
  BOOST_TEST((to_host(routing_gpu.ids) == routing.ids));  // a copy was written, not the original

  BOOST_TEST((gpu().rows_for(routing_gpu, {2, 4}) == cpu.rows_for(routing, {2, 4})));
  const auto index = rows == 0 ? std::vector<std::int64_t>() : random_ids(random, 2 * rows, rows);
  BOOST_TEST(same(gpu().take_rows(x_gpu, index), cpu.take_rows(x, index)));
  BOOST_TEST(
      (to_host(gpu().take_rows(routing_gpu, index).ids) == cpu.take_rows(routing, index).ids));
  BOOST_TEST(same(gpu().index_rows(x_gpu, index), cpu.index_rows(x, index)));
  const Host twice = cpu.take_rows(x, index);
  BOOST_TEST(same(gpu().add_rows(to_gpu(twice), index, rows), cpu.add_rows(twice, index, rows)));
  BOOST_TEST(same(gpu().first_rows(x_gpu, rows, false), x));
  BOOST_CHECK_THROW(gpu().first_rows(x_gpu, rows + 1, false), ShapeError);
}

/// Kills the CUDA context of its process; run by the next case in a process of its own.
BOOST_AUTO_TEST_CASE(child_samples_row_3_of_3, *boost::unit_test::disabled()) {
  const auto sampled = gpu().index_rows(gpu().blank(3, 4), {0, 3});  // the host goes on
  BOOST_TEST_MESSAGE("the host went on");
  gpu().argmax(sampled);
}

BOOST_AUTO_TEST_CASE(an_index_beyond_the_rows_is_a_device_side_assert_that_shows_later) {
  const std::string program = boost::unit_test::framework::master_test_suite().argv[0];
  const std::string command =
      program + " --run_test=child_samples_row_3_of_3 --log_level=message 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> child(popen(command.c_str(), "r"), pclose);
  BOOST_REQUIRE(child);
  std::string output;
  for (int c = fgetc(child.get()); c != EOF; c = fgetc(child.get())) output.push_back(char(c));
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("the host went on") != std::string::npos);
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("index out of bounds") != std::string::npos);
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("cudaErrorAssert") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(flat_slices_join_to_the_matrix) {
  std::mt19937_64 random(15);
  const Host x = random_matrix<float>(random, 6, 10);
  std::vector<Gpu::Tensor> slices;
  for (std::int64_t part = 0; part < 4; ++part) {
    slices.push_back(gpu().flat_slice(to_gpu(x), part, 4));
    BOOST_TEST(same(slices.back(), cpu.flat_slice(x, part, 4)));
    BOOST_TEST(gpu().is_flat(slices.back(), 10));
  }
  const Gpu::Tensor* const parts[] = {&slices[0], &slices[1], &slices[2], &slices[3]};
  BOOST_TEST(same(gpu().unflatten(gpu().concat(parts, Axis::rows), 10), x));
}

BOOST_DATA_TEST_CASE(the_greedy_token_is_the_lowest_of_the_largest, row_counts, rows) {
  std::mt19937_64 random(16);
  Host logits = random_matrix<float>(random, rows, 1000);
  if (rows > 1) {
    logits(0, 999) = logits(0, 300) = logits(0, 44) = 2;
    logits.row(1).setConstant(-3);
  }
  BOOST_TEST(gpu().argmax(to_gpu(logits)) == cpu.argmax(logits), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(shared_rows_are_not_overwritten_when_a_parent_goes) {
  std::mt19937_64 random(17);
  const Host x = random_matrix<float>(random, 8, 4);
  Gpu::Tensor whole = to_gpu(x);
  const auto slice = gpu().slice(whole, Axis::rows, 3, 5);
  whole = {};
  const auto other = gpu().blank(8, 4);  // would take the memory that was freed
  BOOST_TEST(same(slice, x.middleRows(3, 2)));
}

BOOST_DATA_TEST_CASE(the_algebra_of_collectives_is_that_of_the_reference, data::make({2, 3, 5}),
                     ranks) {
  std::mt19937_64 random(18);
  std::vector<Host> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(random_matrix<float>(random, 7, 9));
  std::vector<Gpu::Tensor> on_gpu;
  for (const Host& x : values) on_gpu.push_back(to_gpu(x));
  std::vector<const Host*> parts;
  std::vector<const Gpu::Tensor*> gpu_parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(&values[std::size_t(rank)]);
    gpu_parts.push_back(&on_gpu[std::size_t(rank)]);
  }
  for (const Axis axis : {Axis::rows, Axis::cols}) {
    BOOST_TEST(same(gpu().slice(on_gpu[0], axis, 2, 6), cpu.slice(values[0], axis, 2, 6)));
    BOOST_TEST(same(gpu().concat(gpu_parts, axis), cpu.concat(parts, axis)));
    BOOST_TEST(same(gpu().sum(gpu_parts, axis, 2, 6), cpu.sum(parts, axis, 2, 6)));
  }
  BOOST_CHECK_THROW(gpu().slice(on_gpu[0], Axis::rows, 2, 8), ShapeError);
}

namespace {

ModelConfig config_of(const std::string& family) {
  ModelConfig config = *preset(family);
  if (family == "qwen3-next") config.mlp_only_layers = {1};  // a dense layer among the sparse ones
  config.num_hidden_layers = 4;
  return config;
}

Batch two_requests(const ModelConfig& config) {
  std::mt19937_64 random(19);
  return batch_of({{random_ids(random, 3, config.vocab_size), 0, 0},
                   {random_ids(random, 4, config.vocab_size), 0, 1}});
}

struct Outputs {
  Host hidden, logits;
  std::vector<std::vector<std::int64_t>> drafts;
};

Host on_host(const Host& x) { return x; }
Host on_host(const Gpu::Tensor& x) { return to_host(x); }

/// The target and two draft steps of one rank.
template <class R>
Outputs run_rank(R& rank, const ParallelPlan& plan, const WeightPlacement& placement,
                 std::int64_t tp_rank, const ModelConfig& config, const WeightSource& source,
                 const Batch& batch) {
  using Ops = typename R::Ops;
  const auto protocol = make_protocol<R>(plan);
  const auto weights = WeightLoader<Ops>(rank.ops, source, config, placement).model();
  const RankShapes shapes = rank_shapes(config, tp_rank, plan.parallel.tp);
  auto state = empty_state(rank.ops, config, shapes);
  const auto hidden = forward(rank, *protocol, weights, config, shapes, state, batch);
  const auto logits = compute_logits(rank, weights, config, hidden);
  const SampleRows sampled = sample_rows(batch);
  const auto next = rank.ops.argmax(rank.ops.index_rows(logits, sampled.rows));
  return {on_host(hidden), on_host(logits),
          draft(rank, *protocol, weights, config, shapes, state, batch, hidden, sampled, next,
                {.num_steps = 2})};
}

template <class Ops>
Outputs run_serial(const Ops& ops, const ModelConfig& config, const WeightSource& source,
                   const Batch& batch) {
  SoloComm solo;
  Rank<Ops, SoloComm> rank(ops, solo);
  return run_rank(rank, plan_for(config, {}, ProtocolId::S), {}, 0, config, source, batch);
}

/// Ranks that share the GPU.
std::vector<Outputs> run_virtual(const ModelConfig& config, const WeightSource& source,
                                 std::vector<Batch> batches, const ParallelConfig& parallel,
                                 const std::string& protocol) {
  const ParallelPlan plan = plan_for(config, parallel, parse_protocol(protocol));
  std::vector<std::int64_t> tokens, requests;
  for (const Batch& batch : batches) {
    tokens.push_back(batch.num_tokens());
    requests.push_back(batch.num_sequences());
  }
  for (Batch& batch : batches) {
    batch.tokens_across_dp = tokens;
    batch.requests_across_dp = requests;
  }
  SimMesh mesh(parallel);
  return mesh.run([](const RankCoordinates&) -> const Gpu& { return gpu(); },
                  [&](SimComms<Gpu>& comms) {
                    Rank<Gpu, SimComm<Gpu>> rank(gpu(), comms.tp, comms.dp, comms.ep,
                                                         comms.pp);
                    return run_rank(rank, plan, placement_of(plan, comms.at.tp, comms.at.ep),
                                    comms.at.tp, config, source, batches[std::size_t(comms.at.dp)]);
                  });
}

/// Largest error <= 1e-4 * max(1, largest magnitude): the acceptance of two float32 runs of a whole
/// model, as of golden files.
Claim accepted(const Host& found, const Host& expected) {
  if (found.rows() != expected.rows() || found.cols() != expected.cols())
    return refuted(text("[", found.rows(), ", ", found.cols(), "] is not [", expected.rows(), ", ",
                        expected.cols(), "]"));
  const float largest = std::max(1.0f, expected.cwiseAbs().maxCoeff());
  const float error = (found - expected).cwiseAbs().maxCoeff();
  if (error <= 1e-4f * largest) return true;
  return refuted(text("largest error ", error, " of ", largest));
}

}  // namespace

BOOST_DATA_TEST_CASE(the_serial_model_on_the_gpu_is_that_on_the_cpu,
                     data::make({"qwen3-next", "qwen3.5-moe"}), family) {
  const ModelConfig config = config_of(family);
  const SeededWeights weights(config, 7);
  const Batch batch = two_requests(config);
  const Outputs expected = run_serial(cpu, config, weights, batch);
  const Outputs found = run_serial(gpu(), config, weights, batch);
  BOOST_TEST(accepted(found.hidden, expected.hidden));
  BOOST_TEST(accepted(found.logits, expected.logits));
  BOOST_TEST((found.drafts == expected.drafts));
}

BOOST_DATA_TEST_CASE(virtual_ranks_give_the_serial_model,
                     data::make({"qwen3-next", "qwen3.5-moe"}) * data::make({2, 4}) *
                         data::make({"S", "A", "C", "D", "E"}),
                     family, tp, protocol) {
  const ModelConfig config = config_of(family);
  const SeededWeights weights(config, 7);
  const Batch batch = two_requests(config);
  const Outputs serial = run_serial(cpu, config, weights, batch);
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = true};
  for (const Outputs& rank : run_virtual(config, weights, {batch}, parallel, protocol)) {
    BOOST_TEST(accepted(rank.hidden, serial.hidden));
    BOOST_TEST(accepted(rank.logits, serial.logits));
    BOOST_TEST((rank.drafts == serial.drafts));
  }
}

BOOST_DATA_TEST_CASE(virtual_ranks_of_two_requests_in_parallel_give_both,
                     data::make({"S", "A", "D"}), protocol) {
  const ModelConfig config = config_of("qwen3.5-moe");
  const SeededWeights weights(config, 7);
  std::mt19937_64 random(20);
  const std::vector<Batch> batches = {batch_of({{random_ids(random, 6, config.vocab_size), 0, 0}}),
                                      batch_of({{random_ids(random, 3, config.vocab_size), 0, 0}})};
  const ParallelConfig parallel{.tp = 2, .dp = 2, .enable_expert_parallel = true};
  const auto ranks = run_virtual(config, weights, batches, parallel, protocol);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Outputs serial = run_serial(cpu, config, weights, batches[rank / 2]);
    BOOST_TEST(accepted(ranks[rank].hidden, serial.hidden));
    BOOST_TEST((ranks[rank].drafts == serial.drafts));
  }
}

}  // namespace tokenview
