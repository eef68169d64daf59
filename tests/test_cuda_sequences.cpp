// SPDX-License-Identifier: Apache-2.0
// The pools behind attention and Gated DeltaNet on a GPU, and the chunked delta rule.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "device/cuda_ops.hpp"
#include "device/device_info.hpp"
#include "tests/boost_test.hpp"
#include "tests/few.hpp"
#include "tests/skip.hpp"
#include "tests/support.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Host = Matrix<float>;

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
  }
};

const CudaOps<float>& gpu() {
  static const CudaOps<float> ops;
  return ops;
}
const EigenOps<float> cpu;

template <class T>
Host to_host(const CudaOps<T>& ops, const DeviceMatrix<T>& x) {
  return Eigen::Map<const Host>(ops.download(x).data(), x.rows(), x.cols());
}
template <class T>
DeviceMatrix<T> to_gpu(const CudaOps<T>& ops, const Host& x) {
  return ops.upload({x.data(), std::size_t(x.size())}, x.rows(), x.cols());
}
DeviceMatrix<float> floats(const Host& x) { return to_gpu(gpu(), x); }

constexpr float poison = 12345;

/// Attention of 2 heads over 1, 8 features each, on both sides.
struct Attention {
  static constexpr AttentionShape heads{.num_heads = 2, .num_kv_heads = 1, .head_dim = 8};

  Claim agrees_on(const Batch& batch) {
    const std::int64_t rows = batch.num_tokens();
    const Host q = random_matrix<float>(random, rows, 16),
               k = random_matrix<float>(random, rows, 8);
    const Host v = random_matrix<float>(random, rows, 8);
    const auto found = gpu().attention(floats(q), floats(k), floats(v), heads, on_gpu, batch);
    return within(to_host(gpu(), found), cpu.attention(q, k, v, heads, on_cpu, batch),
                  tolerance<float>(8 + rows));
  }

  std::mt19937_64 random{1};
  CudaOps<float>::KvCache on_gpu = gpu().kv_cache(heads);
  EigenOps<float>::KvCache on_cpu = cpu.kv_cache(heads);
};

std::vector<std::int64_t> ids(std::int64_t count) {
  return std::vector<std::int64_t>(std::size_t(count));
}

/// The convolution and the delta rule in the order of the program, on the GPU and in float64 row by
/// row on the CPU.
template <class T>
struct DeltaNet {
  using Ops = CudaOps<T>;
  DeltaNet(const Ops& arithmetic, const EigenOps<float>& emulation, const GdnShape& heads)
      : ops(arithmetic),
        same_roundings(emulation),
        shape(heads),
        on_gpu(ops.gdn_state(shape, 4)),
        emulated(same_roundings.gdn_state(shape, 4)),
        exact(wide.gdn_state(shape, 4)) {}

  /// The error of the GPU and of the emulation, both as parts of the exact reads.
  struct Errors {
    double from_emulation, of_emulation, of_gpu;
  };
  Errors errors(const Batch& batch) {
    const std::int64_t rows = batch.num_tokens();
    Host qkv = random_matrix<float>(random, rows, shape.conv_dim());
    if (!std::is_same_v<T, float>) qkv = qkv.unaryExpr([](float x) { return round_to_bf16(x); });
    const Host beta = random_matrix<float>(random, rows, shape.num_value_heads).cwiseAbs();
    const Host g = -random_matrix<float>(random, rows, shape.num_value_heads).cwiseAbs();
    const Host found = to_host(
        ops, ops.gated_delta_rule(to_gpu(ops, qkv), floats(beta), floats(g), shape, on_gpu, batch));
    const Host near = same_roundings.gated_delta_rule(qkv, beta, g, shape, emulated, batch);
    const Matrix<double> reads = wide.gated_delta_rule(qkv.cast<double>(), beta.cast<double>(),
                                                       g.cast<double>(), shape, exact, batch);
    const auto error = [&](const auto& x, const auto& y) {
      return (x.template cast<double>() - y.template cast<double>()).norm() / reads.norm();
    };
    return {error(found, near), error(near, reads), error(found, reads)};
  }

  const Ops& ops;
  const EigenOps<float>& same_roundings;
  EigenOps<double> wide;
  std::mt19937_64 random{11};
  GdnShape shape;
  typename Ops::GdnState on_gpu;
  EigenOps<float>::GdnState emulated;
  EigenOps<double>::GdnState exact;
};

GdnShape heads_of(std::int64_t dk, std::int64_t dv) {
  return {.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = dk, .value_head_dim = dv};
}

/// Three sequences, one without rows, and two pads; then a continuation of both others.
Batch first_pass(std::int64_t rows) {
  Batch batch = batch_of({{ids(rows), 0, 2}, {{}, 0, 0}, {ids(rows / 2 + 2), 0, 1}});
  append_runner_pads(batch, batch.num_tokens() + 2);
  return batch;
}
Batch second_pass(std::int64_t rows) {
  return batch_of({{ids(3), std::int32_t(rows), 2}, {ids(1), std::int32_t(rows / 2 + 2), 1}});
}

const auto lengths = some(1, {65, 2, 63, 64, 200});

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_AUTO_TEST_CASE(blocks_of_sequences_that_grow_in_turn_are_apart) {
  Attention attention;
  std::int32_t computed = 0;
  for (const std::int32_t rows : {10, 10, 1, 30}) {
    BOOST_TEST(attention.agrees_on(
        batch_of({{ids(rows), computed, 0}, {ids(rows), computed, 1}, {ids(rows), computed, 2}})));
    computed += rows;
  }
  const std::vector<std::int32_t> blocks{0, 3, 6, 7};
  BOOST_TEST(attention.on_gpu.slots[0].blocks == blocks, boost::test_tools::per_element());
  BOOST_TEST(attention.on_gpu.used_blocks == 12);
}

BOOST_AUTO_TEST_CASE(a_slot_is_taken_over_by_a_shorter_sequence) {
  Attention attention;
  BOOST_TEST(attention.agrees_on(batch_of({{ids(40), 0, 0}, {ids(5), 0, 1}})));
  BOOST_TEST(attention.agrees_on(batch_of({{ids(3), 0, 0}, {ids(2), 5, 1}})));
  BOOST_TEST(attention.agrees_on(batch_of({{ids(20), 3, 0}})));
  BOOST_TEST(attention.on_gpu.used_blocks == 4);  // the three of the first sequence serve again
  const auto x = gpu().blank(1, 8);
  BOOST_CHECK_THROW(gpu().attention(gpu().blank(1, 16), x, x, Attention::heads, attention.on_gpu,
                                    batch_of({{ids(1), 24, 0}})),
                    ShapeError);  // 23 positions are written, whatever the blocks hold
}

BOOST_AUTO_TEST_CASE(pads_write_no_state) {
  Attention attention;
  const GdnShape shape = heads_of(8, 12);
  auto state = gpu().gdn_state(shape, 4);
  gpu().reserve(attention.on_gpu, 4);
  gpu().reserve(state, 3);
  attention.on_gpu.keys = floats(Host::Constant(64, 8, poison));
  attention.on_gpu.values = floats(Host::Constant(64, 8, poison));
  state.conv = floats(Host::Constant(3, state.conv_size(), poison));
  state.recurrent = floats(Host::Constant(3, state.recurrent_size(), poison));

  Batch batch = batch_of({{ids(3), 0, 1}});
  append_runner_pads(batch, 8);
  BOOST_TEST(attention.agrees_on(batch));
  std::mt19937_64 random(2);
  const Host x = random_matrix<float>(random, 8, shape.conv_dim());
  const Host gates = random_matrix<float>(random, 8, 4).cwiseAbs();
  const DeviceMatrix<float> kernel = floats(random_matrix<float>(random, shape.conv_dim(), 4));
  const auto y = gpu().causal_conv(floats(x), {kernel, 1}, state, batch);
  const auto read = gpu().gated_delta_rule(y, floats(gates), floats(-gates), shape, state, batch);
  BOOST_TEST(to_host(gpu(), read).bottomRows(5).isZero(0));

  const auto untouched = [](const Host& pool, std::int64_t begin, std::int64_t end) {
    return (pool.middleRows(begin, end - begin).array() == poison).all();
  };
  const auto written = [](const Host& pool, std::int64_t begin, std::int64_t end) {
    return (pool.middleRows(begin, end - begin).array() != poison).all();
  };
  for (const auto& pool : {attention.on_gpu.keys, attention.on_gpu.values}) {
    BOOST_TEST(written(to_host(gpu(), pool), 0, 3));
    BOOST_TEST(untouched(to_host(gpu(), pool), 3, 64));
  }
  for (const auto& pool : {state.conv, state.recurrent}) {
    BOOST_TEST(untouched(to_host(gpu(), pool), 0, 1));
    BOOST_TEST(written(to_host(gpu(), pool), 1, 2));
    BOOST_TEST(untouched(to_host(gpu(), pool), 2, 3));
  }
}

BOOST_DATA_TEST_CASE(a_slot_that_is_used_again_starts_from_zero, data::make({1, 9}), rows) {
  const GdnShape shape = heads_of(8, 12);
  auto used = gpu().gdn_state(shape, 4), fresh = gpu().gdn_state(shape, 4);
  std::mt19937_64 random(3);
  const DeviceMatrix<float> kernel = floats(random_matrix<float>(random, shape.conv_dim(), 4));
  const auto run = [&](auto& state, const Host& x, const Host& gates) {
    const Batch batch = rows_of_one(x.rows());
    const auto y = gpu().causal_conv(floats(x), {kernel, 1}, state, batch);
    return to_host(gpu(),
                   gpu().gated_delta_rule(y, floats(gates), floats(-gates), shape, state, batch));
  };
  run(used, random_matrix<float>(random, 5, shape.conv_dim()),
      random_matrix<float>(random, 5, 4).cwiseAbs());
  const Host x = random_matrix<float>(random, rows, shape.conv_dim());
  const Host gates = random_matrix<float>(random, rows, 4).cwiseAbs();
  BOOST_TEST(same_bits(run(used, x, gates), run(fresh, x, gates)));
  BOOST_TEST(same_bits(to_host(gpu(), used.conv), to_host(gpu(), fresh.conv)));
  BOOST_TEST(same_bits(to_host(gpu(), used.recurrent), to_host(gpu(), fresh.recurrent)));
}

BOOST_AUTO_TEST_CASE(pools_keep_what_they_hold_when_they_grow) {
  Attention attention;
  for (std::int32_t slot = 0; slot < 9; ++slot)
    BOOST_TEST(attention.agrees_on(batch_of({{ids(17), 0, slot}})));
  for (std::int32_t slot = 0; slot < 9; ++slot)
    BOOST_TEST(attention.agrees_on(batch_of({{ids(1), 17, slot}})));
}

BOOST_DATA_TEST_CASE(chunks_without_roundings_are_the_recurrence,
                     lengths* some(1, {40, 8, 128}) * some(1, {12, 128}), rows, dk, dv) {
  static const CudaOps<float> chunked(0, Rounding::none, GdnForm::chunked);
  DeltaNet<float> net(chunked, cpu, heads_of(dk, dv));
  BOOST_TEST(net.errors(first_pass(rows)).of_gpu <= 2 * tolerance<float>(dk + 2 * rows));
  BOOST_TEST(net.errors(second_pass(rows)).of_gpu <= 2 * tolerance<float>(dk + 2 * rows));
}

/// Rounded where the CPU rounds, so much nearer to it than to the exact result: what is left are
/// values that fall to the other side of a rounding.
BOOST_DATA_TEST_CASE(chunks_with_the_roundings_of_vllm_are_those_of_the_reference,
                     lengths* some(2, {40, 256, 8, 128}) * some(1, {12, 128}), rows, dk, dv) {
  static const CudaOps<__nv_bfloat16> vllm(0, Rounding::vllm);
  static const EigenOps<float> emulation(1, Rounding::vllm);
  DeltaNet<__nv_bfloat16> net(vllm, emulation, heads_of(dk, dv));
  for (const Batch& batch : {first_pass(rows), second_pass(rows)}) {
    const auto errors = net.errors(batch);
    BOOST_TEST_MESSAGE("rows " << rows << ", dk " << dk << ", dv " << dv << ": GPU to CPU "
                               << errors.from_emulation << ", CPU to exact " << errors.of_emulation
                               << ", GPU to exact " << errors.of_gpu);
    BOOST_TEST(errors.of_gpu <= 1e-2);  // model.md 8.1, 4
    BOOST_TEST(errors.from_emulation <= 0.5 * errors.of_emulation);
  }
}

/// hf's prefill is the recurrence in fp32, rounded once, in either form.
BOOST_AUTO_TEST_CASE(chunks_of_a_bfloat16_model_round_their_result_only_with_hf) {
  const CudaOps<__nv_bfloat16> chunked(0, Rounding::hf, GdnForm::chunked);
  const EigenOps<float> emulation(1, Rounding::hf);
  DeltaNet<__nv_bfloat16> net(chunked, emulation, heads_of(128, 128));
  for (const Batch& batch : {first_pass(130), second_pass(130)}) {
    const auto errors = net.errors(batch);
    BOOST_TEST(errors.of_gpu <= 0x1p-8);  // of a rounding to eight bits: half a unit
    BOOST_TEST(errors.from_emulation <= 0.25 * errors.of_emulation);
  }
}

BOOST_AUTO_TEST_CASE(a_key_head_too_wide_for_chunks_is_refused) {
  static const CudaOps<float> chunked(0, Rounding::none, GdnForm::chunked);
  const GdnShape shape = heads_of(256, 16);
  auto state = chunked.gdn_state(shape, 4);
  const auto gates = chunked.blank(2, 4);
  BOOST_CHECK_EXCEPTION(chunked.gated_delta_rule(chunked.blank(2, shape.conv_dim()), gates, gates,
                                                 shape, state, rows_of_one(2)),
                        ShapeError, [](const ShapeError& error) {
                          return std::string(error.what()).find("bytes of shared memory") !=
                                 std::string::npos;
                        });
}

}  // namespace tokenview
