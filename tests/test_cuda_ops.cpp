// SPDX-License-Identifier: Apache-2.0
// Every operation on the GPU against EigenOps<float>, then the program: serial, and on virtual
// ranks that share the GPU. In float32, and in bfloat16 with the rounding points of hf and vllm.
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
#include "tests/few.hpp"
#include "tests/skip.hpp"
#include "tests/support.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Bf16 = __nv_bfloat16;
using Cpu = EigenOps<float>;
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

// One for all cases: starting cuBLAS takes a while.
const CudaOps<float>& float_gpu() {
  static const CudaOps<float> ops;
  return ops;
}
const CudaOps<Bf16>& bfloat16_gpu(Rounding rounding) {
  static const CudaOps<Bf16> hf(0, Rounding::hf), vllm(0, Rounding::vllm);
  return rounding == Rounding::hf ? hf : vllm;
}

/// A handful of elementary functions, each within two units.
constexpr std::int64_t elementwise = 4;

/// Of |x|, the distance to the next bfloat16.
double step(double x) { return x == 0 ? 0 : std::ldexp(1, std::ilogb(x) - 7); }

/// Both sides round to bfloat16, at `points` in a row, what differs by sums in fp32 of
/// `contraction` terms. Each rounding gives equal values, or neighbours where a sum lies that near
/// to the middle between them. So a value may be off by
///   one step of its own, from the last rounding; twice what fp32 may lose, of its terms; and for
///   each earlier point a step of an intermediate, at most 2^-7 of it;
/// terms and intermediates being as large as the value or as the root of the mean square. fp32
/// loses less than a step / 64 of nearly all values, so that per point at most one in 64 is off at
/// all, and one more.
Claim rounds_to(const Host& found, const Host& expected, std::int64_t contraction, int points) {
  if (found.rows() != expected.rows() || found.cols() != expected.cols())
    return refuted(text("[", found.rows(), ", ", found.cols(), "] is not [", expected.rows(), ", ",
                        expected.cols(), "]"));
  const auto n = double(expected.size());
  const double rms = expected.cast<double>().norm() / std::sqrt(std::max(n, 1.0));
  const double relative = 2 * tolerance<float>(contraction) + (points - 1) * 0x1p-7;
  std::int64_t differing = 0;
  for (Eigen::Index i = 0; i < expected.size(); ++i) {
    const double a = double(found.data()[i]), b = double(expected.data()[i]);
    const double larger = std::max(std::abs(a), std::abs(b));
    differing += a != b;
    if (!(std::abs(a - b) <= step(larger) + relative * std::max(larger, rms)))
      return refuted(text("row ", i / expected.cols(), ", column ", i % expected.cols(), ": ", a,
                          " is not ", b, ", root of the mean square ", rms));
  }
  if (double(differing) <= 1 + n * points / 64) return true;
  return refuted(
      text(differing, " of ", n, " values differ, expected at most one in ", 64 / points));
}

/// One weight of any shape, for load().
class OneWeight final : public WeightSource {
 public:
  OneWeight(const Host& values, std::vector<std::int64_t> shape) {
    tensor_.shape = std::move(shape);
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

/// One arithmetic on both sides, and random values that both have.
template <class T>
struct Sides {
  using Gpu = CudaOps<T>;
  using Tensor = DeviceMatrix<T>;
  static constexpr bool is_float = std::is_same_v<T, float>;

  explicit Sides(const Gpu& ops) : gpu(ops), cpu(1, ops.rounding()) {}

  const Gpu& gpu;
  const Cpu cpu;
  std::mt19937_64 random{1};

  /// Uniform in [-scale, scale).
  Host matrix(std::int64_t rows, std::int64_t cols, float scale = 1) {
    Host x = scale * random_matrix<float>(random, rows, cols);
    if (!is_float)
      for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = round_to_bf16(x.data()[i]);
    return x;
  }
  OneWeight weight(const std::vector<std::int64_t>& shape) {
    return {matrix(1, element_count(shape)), shape};
  }

  Tensor to_gpu(const Host& x) const {
    return gpu.upload({x.data(), std::size_t(x.size())}, x.rows(), x.cols());
  }
  DeviceMatrix<float> floats_to_gpu(const Host& x) const {
    const HostIds ids = HostIds::Zero(x.rows(), x.cols());
    return to_gpu(Cpu::Routing{x, ids}).weights;
  }
  typename Gpu::Routing to_gpu(const Cpu::Routing& x) const {
    return gpu.upload({x.weights.data(), std::size_t(x.weights.size())},
                      {x.ids.data(), std::size_t(x.ids.size())}, x.ids.rows(), x.ids.cols());
  }
  template <class X>
  Host to_host(const DeviceMatrix<X>& x) const {
    return Eigen::Map<const Host>(gpu.download(x).data(), x.rows(), x.cols());
  }
  HostIds to_host(const DeviceMatrix<std::int64_t>& x) const {
    return Eigen::Map<const HostIds>(gpu.download(x).data(), x.rows(), x.cols());
  }

  template <class X>
  Claim same(const DeviceMatrix<X>& found, const Host& expected) const {
    return same_bits(to_host(found), expected);
  }
  /// Both sides may be wrong by what a sum of `contraction` terms rounds, in fp32 ...
  Claim close_in_float(const DeviceMatrix<float>& found, const Host& expected,
                       std::int64_t contraction) const {
    return within(to_host(found), expected, 2 * tolerance<float>(contraction));
  }
  /// ... and where bfloat16 is rounded after that, at `points` in a row.
  template <class X>
  Claim close(const DeviceMatrix<X>& found, const Host& expected, std::int64_t contraction,
              int points = 1) const {
    if (is_float) return within(to_host(found), expected, 2 * tolerance<float>(contraction));
    return rounds_to(to_host(found), expected, contraction, points);
  }
  bool rounds_as(Rounding rounding) const { return gpu.rounding() == rounding; }
};

/// Calls body(sides) with the sides of an arithmetic.
template <class Body>
void on_both(const std::string& arithmetic, Body body) {
  if (arithmetic == "float32") {
    Sides<float> sides(float_gpu());
    body(sides);
  } else {
    Sides<Bf16> sides(bfloat16_gpu(arithmetic == "hf" ? Rounding::hf : Rounding::vllm));
    body(sides);
  }
}

using Names = std::vector<std::string>;

const auto arithmetics = some(2, Names{"float32", "hf", "vllm"});
const auto row_counts = some(1, {5, 0, 1, 3, 17, 70});
const auto cases = arithmetics * row_counts;

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

/// An expert's weights, in two shapes: one that fills no tile, one for the tensor cores of sm_90.
struct ExpertShape {
  std::int64_t hidden, width;
  friend std::ostream& operator<<(std::ostream& out, const ExpertShape& shape) {
    return out << shape.hidden << " x " << shape.width;
  }
};
const auto expert_shapes = some<ExpertShape>(2, {{45, 19}, {128, 64}});

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_DATA_TEST_CASE(values_go_to_the_gpu_and_back, cases, arithmetic, rows) {
  on_both(arithmetic, [&](auto& s) {
    const Host x = s.matrix(rows, 7);
    BOOST_TEST(s.same(s.to_gpu(x), x));
  });
}

BOOST_AUTO_TEST_CASE(values_are_rounded_to_bfloat16_on_their_way) {
  Sides<Bf16> s(bfloat16_gpu(Rounding::hf));
  const Host x = random_matrix<float>(s.random, 9, 7);
  BOOST_TEST(s.same(s.to_gpu(x), x.unaryExpr(&round_to_bf16)));
}

BOOST_AUTO_TEST_CASE(a_gpu_that_is_not_there_is_named) {
  std::string reason;
  const int count = int(devices(reason).size());
  BOOST_CHECK_EXCEPTION(CudaOps<float>{count}, DeviceError, [&](const DeviceError& error) {
    return std::string(error.what()) == text("no GPU ", count, ": this machine has ", count);
  });
}

BOOST_AUTO_TEST_CASE(values_are_rounded_as_their_type_says) {
  BOOST_CHECK_THROW(CudaOps<float>(0, Rounding::hf), ConfigError);
  BOOST_CHECK_THROW(CudaOps<Bf16>(0, Rounding::none), ConfigError);
}

BOOST_AUTO_TEST_CASE(more_memory_than_the_gpu_has_is_one_error_and_the_next_call_works) {
  Sides<float> s(float_gpu());
  BOOST_CHECK_EXCEPTION(s.gpu.blank(1 << 20, 1 << 20), DeviceError, [](const DeviceError& error) {
    return std::string(error.what()).find("out of memory: 4398046511104 bytes asked for") !=
           std::string::npos;
  });
  BOOST_TEST(s.same(s.gpu.blank(2, 3), Host::Zero(2, 3)));
}

BOOST_DATA_TEST_CASE(a_lookup_is_the_row_of_the_table, cases* some(2, {33, 64, 8200}), arithmetic,
                     rows, width) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight table = s.weight({90, width});
    const auto ids = random_ids(s.random, rows, 130);  // some below the shard, some beyond it
    BOOST_TEST(
        s.same(s.gpu.embed(ids, table.in(s.gpu), 20), s.cpu.embed(ids, table.in(s.cpu), 20)));
  });
}

BOOST_AUTO_TEST_CASE(an_id_beyond_an_unmasked_table_is_refused) {
  Sides<float> s(float_gpu());
  const OneWeight table = s.weight({90, 33});
  BOOST_CHECK_THROW(s.gpu.embed({90}, table.in(s.gpu), unmasked_vocabulary), ShapeError);
}

BOOST_DATA_TEST_CASE(a_product_is_the_product, cases, arithmetic, rows) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight w = s.weight({37, 129});
    const Host x = s.matrix(rows, 129);
    BOOST_TEST(s.close(s.gpu.linear(s.to_gpu(x), w.in(s.gpu)), s.cpu.linear(x, w.in(s.cpu)), 129));
  });
}

BOOST_AUTO_TEST_CASE(a_product_keeps_all_bits_of_float32) {  // TF32 would drop 13 of 23
  Sides<float> s(float_gpu());
  const OneWeight w = s.weight({256, 256});
  const Host x = s.matrix(256, 256);
  BOOST_TEST(s.close(s.gpu.linear(s.to_gpu(x), w.in(s.gpu)), s.cpu.linear(x, w.in(s.cpu)), 256));
}

/// Few rows and a long sum: the shape whose sum cuBLAS cuts into parts.
BOOST_AUTO_TEST_CASE(a_product_of_bfloat16_is_rounded_once) {
  Sides<Bf16> s(bfloat16_gpu(Rounding::hf));
  const OneWeight w = s.weight({64, 8192});
  const Host x = s.matrix(8, 8192);
  BOOST_TEST(s.close(s.gpu.linear(s.to_gpu(x), w.in(s.gpu)), s.cpu.linear(x, w.in(s.cpu)), 8192));
}

BOOST_DATA_TEST_CASE(elementwise_operations_are_those_of_the_reference, cases* some(2, {37, 64}),
                     arithmetic, rows, width) {
  on_both(arithmetic, [&](auto& s) {
    const Host x = s.matrix(rows, width, 8), y = s.matrix(rows, width, 8);
    const Host gate = s.matrix(rows, 1);
    const auto a = s.to_gpu(x), b = s.to_gpu(y);
    BOOST_TEST(s.same(s.gpu.add(a, b), s.cpu.add(x, y)));
    BOOST_TEST(s.close(s.gpu.silu_mul(a, b), s.cpu.silu_mul(x, y), elementwise, 2));
    BOOST_TEST(s.close(s.gpu.sigmoid_mul(a, b), s.cpu.sigmoid_mul(x, y), elementwise, 2));
    BOOST_TEST(s.close(s.gpu.sigmoid_scale(a, s.to_gpu(gate)), s.cpu.sigmoid_scale(x, gate),
                       elementwise, 2));
  });
}

BOOST_DATA_TEST_CASE(norms_are_those_of_the_reference, cases* some(1, {48, 1, 1000, 1001}),
                     arithmetic, rows, width) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight w = s.weight({width}), whole = s.weight({3 * width});
    const Host x = s.matrix(rows, 3 * width), z = s.matrix(rows, 3 * width);
    BOOST_TEST(s.close(s.gpu.rms_norm(s.to_gpu(x), whole.in(s.gpu), eps),
                       s.cpu.rms_norm(x, whole.in(s.cpu), eps), 3 * width));
    BOOST_TEST(s.close(s.gpu.head_rms_norm(s.to_gpu(x), w.in(s.gpu), eps),
                       s.cpu.head_rms_norm(x, w.in(s.cpu), eps), width + elementwise));
    BOOST_TEST(s.close(s.gpu.gated_rms_norm(s.to_gpu(x), s.to_gpu(z), w.in(s.gpu), eps),
                       s.cpu.gated_rms_norm(x, z, w.in(s.cpu), eps), width + elementwise, 3));
  });
}

/// Of one vector, of a warp's, of two warps', of the most, and of single values.
const auto norm_widths = some(2, {4096, 1001, 8, 1024, 16384, 4095});

BOOST_DATA_TEST_CASE(the_sum_and_its_norm_in_one_are_the_two, arithmetics* norm_widths, arithmetic,
                     width) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight w = s.weight({width});
    for (const std::int64_t rows : {0, 1, 9}) {
      const auto x = s.to_gpu(s.matrix(rows, width)), y = s.to_gpu(s.matrix(rows, width));
      const auto [sum, normed] = s.gpu.add_rms_norm(x, y, w.in(s.gpu), eps);
      const auto expected = s.gpu.add(x, y);
      BOOST_TEST(s.same(sum, s.to_host(expected)));
      BOOST_TEST(s.same(normed, s.to_host(s.gpu.rms_norm(expected, w.in(s.gpu), eps))));
    }
  });
}

BOOST_DATA_TEST_CASE(the_bits_of_a_norm_do_not_depend_on_the_rows_beside_it,
                     arithmetics* norm_widths, arithmetic, width) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight w = s.weight({width});
    const auto x = s.to_gpu(s.matrix(9, width));
    const auto all = s.gpu.rms_norm(x, w.in(s.gpu), eps);
    const auto some = s.gpu.rms_norm(s.gpu.slice(x, Axis::rows, 4, 7), w.in(s.gpu), eps);
    BOOST_TEST(s.same(some, s.to_host(s.gpu.slice(all, Axis::rows, 4, 7))));
  });
}

BOOST_AUTO_TEST_CASE(a_norm_over_more_than_a_block_holds_is_refused) {
  Sides<float> s(float_gpu());
  const OneWeight w = s.weight({4097});
  BOOST_CHECK_EXCEPTION(s.gpu.rms_norm(s.gpu.blank(1, 4097), w.in(s.gpu), eps), ShapeError,
                        [](const ShapeError& error) {
                          return std::string(error.what()) ==
                                 "a norm over 4097 features: expected at most 4096";
                        });
}

BOOST_DATA_TEST_CASE(splits_and_joins_of_features_move_every_value, cases* some(2, {5, 16}),
                     arithmetic, rows, head_dim) {
  on_both(arithmetic, [&](auto& s) {
    const GdnShape shape{.num_key_heads = 3,
                         .num_value_heads = 6,
                         .key_head_dim = head_dim,
                         .value_head_dim = head_dim + 8};
    const auto both_same = [&](const auto& found, const auto& expected) {
      BOOST_TEST(s.same(found.first, expected.first));
      BOOST_TEST(s.same(found.second, expected.second));
    };
    const Host heads = s.matrix(rows, 4 * 2 * head_dim);
    both_same(s.gpu.split_query_gate(s.to_gpu(heads), head_dim),
              s.cpu.split_query_gate(heads, head_dim));
    const Host qkvz = s.matrix(rows, shape.conv_dim() + shape.value_dim());
    both_same(s.gpu.split_qkvz(s.to_gpu(qkvz), shape), s.cpu.split_qkvz(qkvz, shape));
    const Host ba = s.matrix(rows, 2 * shape.num_value_heads);
    both_same(s.gpu.split_ba(s.to_gpu(ba), shape), s.cpu.split_ba(ba, shape));
    BOOST_TEST(s.same(s.gpu.concat_features(s.to_gpu(heads), s.to_gpu(ba)),
                      s.cpu.concat_features(heads, ba)));
  });
}

BOOST_DATA_TEST_CASE(rotary_embeddings_are_those_of_the_reference, cases, arithmetic, rows) {
  on_both(arithmetic, [&](auto& s) {
    const Host x = s.matrix(rows, 3 * 20);
    RopeShape shape{.head_dim = 20, .rotary_dim = 12, .theta = 1e7, .axis = {0, 0, 0, 0, 0, 0}};
    Batch batch = rows_of_one(rows, 100'000);
    const auto agrees = [&] {
      return s.close(s.gpu.rope(s.to_gpu(x), batch, shape), s.cpu.rope(x, batch, shape),
                     elementwise, 3);
    };
    BOOST_TEST(agrees());
    shape.axis = {0, 1, 2, 0, 1, 2};
    batch.mrope_positions = random_ids(s.random, 3 * rows, 10'000);
    BOOST_TEST(agrees());
  });
}

/// hf rounds the scores. A step of one between 4 and 8 is four of 2^-7 of its probability, twice.
BOOST_DATA_TEST_CASE(attention_is_that_of_the_reference_over_several_passes,
                     cases* some(1, {40, 16, 256}), arithmetic, rows, head_dim) {
  on_both(arithmetic, [&](auto& s) {
    const AttentionShape heads{.num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim};
    auto on_gpu = s.gpu.kv_cache(heads);
    auto on_cpu = s.cpu.kv_cache(heads);
    Batch batch = mixed_batch(rows);
    for (int pass = 0; pass < 3; ++pass) {  // a prefill and two decodes
      const Host q = s.matrix(batch.num_tokens(), 6 * head_dim, 4);
      const Host k = s.matrix(batch.num_tokens(), 2 * head_dim);
      const Host v = s.matrix(batch.num_tokens(), 2 * head_dim);
      BOOST_TEST_CONTEXT("pass " << pass)
      BOOST_TEST(
          s.close(s.gpu.attention(s.to_gpu(q), s.to_gpu(k), s.to_gpu(v), heads, on_gpu, batch),
                  s.cpu.attention(q, k, v, heads, on_cpu, batch), rows + head_dim,
                  s.rounds_as(Rounding::hf) ? 10 : 1));
      batch = next_batch(batch);
    }
  });
}

BOOST_AUTO_TEST_CASE(attention_over_a_cache_that_was_not_written_is_refused) {
  const AttentionShape heads{.num_heads = 1, .num_kv_heads = 1, .head_dim = 4};
  auto cache = float_gpu().kv_cache(heads);
  const auto x = float_gpu().blank(1, 4);
  BOOST_CHECK_THROW(float_gpu().attention(x, x, x, heads, cache, rows_of_one(1, 5)), ShapeError);
}

BOOST_DATA_TEST_CASE(the_convolution_is_that_of_the_reference_over_several_passes,
                     cases* some(1, {4, 1, 2}), arithmetic, rows, kernel) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight w = s.weight({41, 1, kernel});
    const GdnShape shape{1, 1, 1, 39};
    auto on_gpu = s.gpu.gdn_state(shape, kernel);
    auto on_cpu = s.cpu.gdn_state(shape, kernel);
    Batch batch = mixed_batch(rows);
    for (int pass = 0; pass < 3; ++pass) {
      const Host x = s.matrix(batch.num_tokens(), 41);
      BOOST_TEST_CONTEXT("pass " << pass)
      BOOST_TEST(s.close(s.gpu.causal_conv(s.to_gpu(x), w.in(s.gpu), on_gpu, batch),
                         s.cpu.causal_conv(x, w.in(s.cpu), on_cpu, batch), kernel + elementwise,
                         2));
      batch = next_batch(batch);
    }
  });
}

BOOST_DATA_TEST_CASE(gates_are_those_of_the_reference, cases, arithmetic, rows) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight A_log = s.weight({5}), dt_bias = s.weight({5});
    const Host b = s.matrix(rows, 5), a = s.matrix(rows, 5, 30);  // some over softplus's threshold
    const auto found =
        s.gpu.delta_gates(s.to_gpu(b), s.to_gpu(a), A_log.in(s.gpu), dt_bias.in(s.gpu));
    const auto expected = s.cpu.delta_gates(b, a, A_log.in(s.cpu), dt_bias.in(s.cpu));
    BOOST_TEST((s.rounds_as(Rounding::hf)
                    ? s.close(found.first, expected.first, elementwise)
                    : s.close_in_float(found.first, expected.first, elementwise)));
    BOOST_TEST(s.close_in_float(found.second, expected.second, elementwise));
  });
}

namespace {

/// The convolution and the delta rule in the order of the program, on both sides.
template <class T>
struct DeltaNet {
  DeltaNet(Sides<T>& sides, const GdnShape& heads)
      : s(sides),
        shape(heads),
        w(s.weight({heads.conv_dim(), 1, 4})),
        on_gpu(s.gpu.gdn_state(shape, 4)),
        on_cpu(s.cpu.gdn_state(shape, 4)) {}

  Claim agrees_on(const Batch& batch, std::int64_t contraction) {
    const std::int64_t rows = batch.num_tokens();
    const Host x = s.matrix(rows, shape.conv_dim());
    const Host beta = s.matrix(rows, shape.num_value_heads).cwiseAbs();
    const Host g = -random_matrix<float>(s.random, rows, shape.num_value_heads).cwiseAbs();
    const Host qkv = s.cpu.causal_conv(x, w.in(s.cpu), on_cpu, batch);
    s.gpu.causal_conv(s.to_gpu(x), w.in(s.gpu), on_gpu, batch);
    const auto found = s.gpu.gated_delta_rule(s.to_gpu(qkv), s.floats_to_gpu(beta),
                                              s.floats_to_gpu(g), shape, on_gpu, batch);
    return s.close(found, s.cpu.gated_delta_rule(qkv, beta, g, shape, on_cpu, batch), contraction);
  }

  Sides<T>& s;
  GdnShape shape;
  OneWeight w;
  typename CudaOps<T>::GdnState on_gpu;
  Cpu::GdnState on_cpu;
};

/// Those whose prefill is recurrent; vllm's chunks have bounds of their own.
const auto recurrent_arithmetics = some(2, Names{"float32", "hf"});

}  // namespace

BOOST_DATA_TEST_CASE(the_delta_rule_is_that_of_the_reference_over_several_passes,
                     recurrent_arithmetics* row_counts* some(1, {8, 128}) * some(1, {12, 128}),
                     arithmetic, rows, dk, dv) {
  on_both(arithmetic, [&](auto& s) {
    DeltaNet net(
        s, {.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = dk, .value_head_dim = dv});
    Batch batch = mixed_batch(rows);
    for (int pass = 0; pass < 3; ++pass) {
      BOOST_TEST_CONTEXT("pass " << pass) BOOST_TEST(net.agrees_on(batch, dk + 2 * rows));
      batch = next_batch(batch);
    }
  });
}

BOOST_DATA_TEST_CASE(a_verified_pass_goes_on_from_the_last_accepted_row,
                     recurrent_arithmetics* some(1, {2, 1, 3}), arithmetic, accepted) {
  on_both(arithmetic, [&](auto& s) {
    DeltaNet net(
        s, {.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = 8, .value_head_dim = 12});
    const Batch prefill = rows_of_one(5);
    Batch verify = rows_of_one(3, 5);
    verify.keep_states = true;
    BOOST_TEST(net.agrees_on(prefill, 8 + 2 * 8));
    BOOST_TEST(net.agrees_on(verify, 8 + 2 * 8));
    s.gpu.commit_accepted(net.on_gpu, 0, accepted);
    s.cpu.commit_accepted(net.on_cpu, 0, accepted);
    BOOST_TEST(net.agrees_on(rows_of_one(2, 5 + accepted), 8 + 2 * 8));
    BOOST_CHECK_THROW(s.gpu.commit_accepted(net.on_gpu, 0, 1), ShapeError);  // kept nothing
  });
}

BOOST_DATA_TEST_CASE(the_router_chooses_as_the_reference_does, cases* data::make({false, true}),
                     arithmetic, rows, renormalise) {
  on_both(arithmetic, [&](auto& s) {
    const Host logits = s.matrix(rows, 70);
    const auto found = s.gpu.route(s.to_gpu(logits), 5, renormalise);
    const auto expected = s.cpu.route(logits, 5, renormalise);
    BOOST_TEST((s.to_host(found.ids) == expected.ids));
    BOOST_TEST((s.rounds_as(Rounding::hf) ? s.close(found.weights, expected.weights, 70)
                                          : s.close_in_float(found.weights, expected.weights, 70)));
  });
}

BOOST_DATA_TEST_CASE(equal_logits_go_to_the_lower_expert, arithmetics, arithmetic) {
  on_both(arithmetic, [&](auto& s) {
    Host logits = Host::Zero(2, 70);
    logits(1, 69) = logits(1, 33) = logits(1, 64) = 1;
    HostIds expected(2, 4);
    expected << 0, 1, 2, 3, 33, 64, 69, 0;
    BOOST_TEST((s.to_host(s.gpu.route(s.to_gpu(logits), 4, true).ids) == expected));
  });
}

/// Roundings in a row: gate and up, silu, their product, down, weighted, the sum.
constexpr int expert_points = 6;

BOOST_DATA_TEST_CASE(experts_of_a_rank_are_those_of_the_reference,
                     cases* some(1, {3, 0, 7}) * expert_shapes, arithmetic, rows, first_expert,
                     shape) {
  on_both(arithmetic, [&](auto& s) {
    const OneWeight gate_up = s.weight({5, 2 * shape.width, shape.hidden});
    const OneWeight down = s.weight({5, shape.hidden, shape.width});
    const Host x = s.matrix(rows, shape.hidden);
    const auto routing = s.cpu.route(s.matrix(rows, 9), 3, true);
    const auto found = s.gpu.experts(s.to_gpu(x), s.to_gpu(routing), gate_up.in(s.gpu),
                                     down.in(s.gpu), first_expert);
    BOOST_TEST(s.close(found,
                       s.cpu.experts(x, routing, gate_up.in(s.cpu), down.in(s.cpu), first_expert),
                       shape.hidden + shape.width + elementwise, expert_points));
  });
}

BOOST_DATA_TEST_CASE(an_expert_may_receive_every_row, arithmetics* expert_shapes, arithmetic,
                     shape) {  // several tiles of one expert
  on_both(arithmetic, [&](auto& s) {
    const OneWeight gate_up = s.weight({5, 2 * shape.width, shape.hidden});
    const OneWeight down = s.weight({5, shape.hidden, shape.width});
    const Host x = s.matrix(230, shape.hidden);
    const Cpu::Routing routing{Host::Constant(230, 1, 0.5f), HostIds::Constant(230, 1, 3)};
    BOOST_TEST(
        s.close(s.gpu.experts(s.to_gpu(x), s.to_gpu(routing), gate_up.in(s.gpu), down.in(s.gpu), 0),
                s.cpu.experts(x, routing, gate_up.in(s.cpu), down.in(s.cpu), 0),
                shape.hidden + shape.width + elementwise, expert_points));
  });
}

BOOST_DATA_TEST_CASE(pads_masks_and_rows_are_those_of_the_reference, cases* some(2, {11, 16}),
                     arithmetic, rows, width) {
  on_both(arithmetic, [&](auto& s) {
    const Host x = s.matrix(rows, width);
    const auto routing = s.cpu.route(s.matrix(rows, 9), 3, true);
    const auto x_gpu = s.to_gpu(x);
    const auto routing_gpu = s.to_gpu(routing);
    BOOST_TEST(s.same(s.gpu.pad_rows(x_gpu, 4), s.cpu.pad_rows(x, 4)));
    BOOST_TEST(s.same(s.gpu.into_buffer(x_gpu, rows + 2), s.cpu.into_buffer(x, rows + 2)));
    BOOST_TEST(s.same(s.gpu.trim(x_gpu, rows / 2), s.cpu.trim(x, rows / 2)));
    const auto padded = s.gpu.pad_rows(routing_gpu, 4);
    BOOST_TEST((s.to_host(padded.ids) == s.cpu.pad_rows(routing, 4).ids));
    BOOST_TEST(s.same(padded.weights, s.cpu.pad_rows(routing, 4).weights));

    const Batch batch = mixed_batch(rows);
    BOOST_TEST((s.gpu.pad_mask(batch) == s.cpu.pad_mask(batch)));
    const auto skipped = s.gpu.skip_pads(routing_gpu, s.gpu.pad_mask(batch), true);
    const auto expected = s.cpu.skip_pads(routing, s.cpu.pad_mask(batch), true);
    BOOST_TEST((s.to_host(skipped.ids) == expected.ids));
    BOOST_TEST(s.same(skipped.weights, expected.weights));
    BOOST_TEST((s.to_host(routing_gpu.ids) == routing.ids));  // a copy was written

    BOOST_TEST((s.gpu.rows_for(routing_gpu, {2, 4}) == s.cpu.rows_for(routing, {2, 4})));
    const auto index =
        rows == 0 ? std::vector<std::int64_t>() : random_ids(s.random, 2 * rows, rows);
    BOOST_TEST(s.same(s.gpu.take_rows(x_gpu, index), s.cpu.take_rows(x, index)));
    const auto taken = s.gpu.take_rows(routing_gpu, index);
    BOOST_TEST((s.to_host(taken.ids) == s.cpu.take_rows(routing, index).ids));
    BOOST_TEST(s.same(taken.weights, s.cpu.take_rows(routing, index).weights));
    BOOST_TEST(s.same(s.gpu.index_rows(x_gpu, index), s.cpu.index_rows(x, index)));
    const Host twice = s.cpu.take_rows(x, index);
    BOOST_TEST(
        s.same(s.gpu.add_rows(s.to_gpu(twice), index, rows), s.cpu.add_rows(twice, index, rows)));
    BOOST_TEST(s.same(s.gpu.first_rows(x_gpu, rows, false), x));
    BOOST_CHECK_THROW(s.gpu.first_rows(x_gpu, rows + 1, false), ShapeError);
  });
}

/// Kills the CUDA context of its process; run by the next case in a process of its own.
BOOST_AUTO_TEST_CASE(child_samples_row_3_of_3, *boost::unit_test::disabled()) {
  const CudaOps<float>& gpu = float_gpu();
  const auto sampled = gpu.index_rows(gpu.blank(3, 4), {0, 3});  // the host goes on
  BOOST_TEST_MESSAGE("the host went on");
  gpu.argmax(sampled);
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

BOOST_DATA_TEST_CASE(flat_slices_join_to_the_matrix, arithmetics, arithmetic) {
  on_both(arithmetic, [&](auto& s) {
    const Host x = s.matrix(6, 10);
    std::vector<std::decay_t<decltype(s.to_gpu(x))>> slices;
    for (std::int64_t part = 0; part < 4; ++part) {
      slices.push_back(s.gpu.flat_slice(s.to_gpu(x), part, 4));
      BOOST_TEST(s.same(slices.back(), s.cpu.flat_slice(x, part, 4)));
      BOOST_TEST(s.gpu.is_flat(slices.back(), 10));
    }
    const decltype(slices.data()) parts[] = {&slices[0], &slices[1], &slices[2], &slices[3]};
    BOOST_TEST(s.same(s.gpu.unflatten(s.gpu.concat(parts, Axis::rows), 10), x));
  });
}

BOOST_DATA_TEST_CASE(the_greedy_token_is_the_lowest_of_the_largest, cases, arithmetic, rows) {
  on_both(arithmetic, [&](auto& s) {
    Host logits = s.matrix(rows, 1000);
    if (rows > 1) {
      logits(0, 999) = logits(0, 300) = logits(0, 44) = 2;
      logits.row(1).setConstant(-3);
    }
    BOOST_TEST(s.gpu.argmax(s.to_gpu(logits)) == s.cpu.argmax(logits),
               boost::test_tools::per_element());
  });
}

BOOST_AUTO_TEST_CASE(shared_rows_are_not_overwritten_when_a_parent_goes) {
  Sides<float> s(float_gpu());
  const Host x = s.matrix(8, 4);
  auto whole = s.to_gpu(x);
  const auto slice = s.gpu.slice(whole, Axis::rows, 3, 5);
  whole = {};
  const auto other = s.gpu.blank(8, 4);  // would take the memory that was freed
  BOOST_TEST(s.same(slice, x.middleRows(3, 2)));
}

BOOST_DATA_TEST_CASE(the_algebra_of_collectives_is_that_of_the_reference,
                     arithmetics* some(1, {3, 2, 5}), arithmetic, ranks) {
  on_both(arithmetic, [&](auto& s) {
    std::vector<Host> values;
    for (int rank = 0; rank < ranks; ++rank) values.push_back(s.matrix(7, 9));
    std::vector<std::decay_t<decltype(s.to_gpu(values[0]))>> on_gpu;
    for (const Host& x : values) on_gpu.push_back(s.to_gpu(x));
    std::vector<const Host*> parts;
    std::vector<decltype(&std::as_const(on_gpu[0]))> gpu_parts;
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(&values[std::size_t(rank)]);
      gpu_parts.push_back(&on_gpu[std::size_t(rank)]);
    }
    for (const Axis axis : {Axis::rows, Axis::cols}) {
      BOOST_TEST(s.same(s.gpu.slice(on_gpu[0], axis, 2, 6), s.cpu.slice(values[0], axis, 2, 6)));
      BOOST_TEST(s.same(s.gpu.concat(gpu_parts, axis), s.cpu.concat(parts, axis)));
      BOOST_TEST(s.same(s.gpu.sum(gpu_parts, axis, 2, 6), s.cpu.sum(parts, axis, 2, 6)));
    }
    BOOST_CHECK_THROW(s.gpu.slice(on_gpu[0], Axis::rows, 2, 8), ShapeError);
  });
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

Host on_host(const Cpu&, const Host& x) { return x; }
template <class T>
Host on_host(const CudaOps<T>& ops, const DeviceMatrix<T>& x) {
  return Eigen::Map<const Host>(ops.download(x).data(), x.rows(), x.cols());
}

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
  return {on_host(rank.ops, hidden), on_host(rank.ops, logits),
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
template <class Ops>
std::vector<Outputs> run_virtual(const Ops& ops, const ModelConfig& config,
                                 const WeightSource& source, std::vector<Batch> batches,
                                 const ParallelConfig& parallel, const std::string& protocol) {
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
  return mesh.run([&](const RankCoordinates&) -> const Ops& { return ops; },
                  [&](SimComms<Ops>& comms) {
                    Rank<Ops, SimComm<Ops>> rank(ops, comms.tp, comms.dp, comms.ep, comms.pp);
                    return run_rank(rank, plan, placement_of(plan, comms.at.tp, comms.at.ep),
                                    comms.at.tp, config, source, batches[std::size_t(comms.at.dp)]);
                  });
}

/// The most roundings to bfloat16 in a row of one layer of the presets here (model.md 8.2): two
/// norms, a mixer, a feed-forward with experts, two sums.
constexpr int layer_points = 24;

/// Of two runs of a whole model, with its MTP layer. float32: largest error <= 1e-4 * max(1,
/// largest magnitude), as of golden files. bfloat16: relative error in the Frobenius norm <=
/// sqrt(n) 2^-8 after n roundings in a row, were each to move every value by a step of random sign;
/// `parts` times that where partial sums of tensor-parallel ranks are rounded, too (model.md 8.1,
/// 22).
Claim accepted(Rounding rounding, const Host& found, const Host& expected, int parts) {
  if (rounding != Rounding::none)
    return within(found, expected, parts * std::sqrt(double(5 * layer_points)) * 0x1p-8);
  if (found.rows() != expected.rows() || found.cols() != expected.cols())
    return refuted(text("[", found.rows(), ", ", found.cols(), "] is not [", expected.rows(), ", ",
                        expected.cols(), "]"));
  const float largest = std::max(1.0f, expected.cwiseAbs().maxCoeff());
  const float error = (found - expected).cwiseAbs().maxCoeff();
  if (error <= 1e-4f * largest) return true;
  return refuted(text("largest error ", error, " of ", largest));
}

/// Draft tokens as well in float32; in bfloat16 the largest of two equal logits may be another.
void require_accepted(Rounding rounding, const Outputs& found, const Outputs& expected, int parts) {
  BOOST_TEST(accepted(rounding, found.hidden, expected.hidden, parts));
  BOOST_TEST(accepted(rounding, found.logits, expected.logits, parts));
  if (rounding == Rounding::none) BOOST_TEST((found.drafts == expected.drafts));
}

DType dtype_of(Rounding rounding) {
  return rounding == Rounding::none ? DType::float32 : DType::bfloat16;
}

const auto families = some(1, Names{"qwen3-next", "qwen3.5-moe"});

}  // namespace

BOOST_DATA_TEST_CASE(the_serial_model_on_the_gpu_is_that_on_the_cpu, arithmetics* families,
                     arithmetic, family) {
  on_both(arithmetic, [&](auto& s) {
    const ModelConfig config = config_of(family);
    const Rounding rounding = s.gpu.rounding();
    const SeededWeights weights(config, 7, dtype_of(rounding));
    const Batch batch = two_requests(config);
    require_accepted(rounding, run_serial(s.gpu, config, weights, batch),
                     run_serial(s.cpu, config, weights, batch), 1);
  });
}

BOOST_DATA_TEST_CASE(virtual_ranks_give_the_serial_model,
                     arithmetics* families* some(1, {2, 4}) *
                         some(1, Names{"D", "A", "C", "E", "S"}),
                     arithmetic, family, tp, protocol) {
  on_both(arithmetic, [&](auto& s) {
    const ModelConfig config = config_of(family);
    const Rounding rounding = s.gpu.rounding();
    const SeededWeights weights(config, 7, dtype_of(rounding));
    const Batch batch = two_requests(config);
    const Outputs serial = run_serial(s.cpu, config, weights, batch);
    const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = true};
    for (const Outputs& rank : run_virtual(s.gpu, config, weights, {batch}, parallel, protocol))
      require_accepted(rounding, rank, serial, 2);
  });
}

BOOST_DATA_TEST_CASE(virtual_ranks_of_two_requests_in_parallel_give_both,
                     arithmetics* some(1, Names{"S", "A", "D"}), arithmetic, protocol) {
  on_both(arithmetic, [&](auto& s) {
    const ModelConfig config = config_of("qwen3.5-moe");
    const Rounding rounding = s.gpu.rounding();
    const SeededWeights weights(config, 7, dtype_of(rounding));
    std::mt19937_64 random(20);
    const std::vector<Batch> batches = {
        batch_of({{random_ids(random, 6, config.vocab_size), 0, 0}}),
        batch_of({{random_ids(random, 3, config.vocab_size), 0, 0}})};
    const ParallelConfig parallel{.tp = 2, .dp = 2, .enable_expert_parallel = true};
    const auto ranks = run_virtual(s.gpu, config, weights, batches, parallel, protocol);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      require_accepted(rounding, ranks[rank], run_serial(s.cpu, config, weights, batches[rank / 2]),
                       2);
  });
}

}  // namespace tokenview
