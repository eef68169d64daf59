// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cuda_context.hpp"
#include "device/device_info.hpp"
#include "device/grouped_gemm.hpp"
#include "device/sorted_pairs.hpp"
#include "tests/boost_test.hpp"
#include "tests/skip.hpp"

using namespace tokenview;

namespace {

using Bf16 = __nv_bfloat16;

std::shared_ptr<CudaContext> gpu;

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
    gpu = CudaContext::create(0);
  }
  ~RequireGpu() { gpu.reset(); }
};

constexpr std::int64_t first_expert = 3;  // of this rank
const float untouched = 1234;

/// Rows of the experts of one rank, shuffled among pairs of other ranks' experts.
struct Case {
  std::vector<std::int64_t> rows;  // of each expert
  std::int64_t inputs, outputs, k;
  bool by_token = true;  // whether a row is found through its token
  bool gated = false;
  Rounding rounding = Rounding::hf;
  bool weighted = false;
  bool has_equal_experts = false;
};

/// What the kernel made of a case, and the order it was given.
struct Run {
  std::vector<std::int32_t> pair_at, offsets;
  std::vector<float> in, w, out;    // values of bfloat16
  std::vector<float> pair_weights;  // of every pair
  std::int64_t pairs;
};

std::vector<std::int64_t> shuffled_ids(const Case& c, std::mt19937& random) {
  std::vector<std::int64_t> ids;
  for (std::size_t e = 0; e < c.rows.size(); ++e)
    ids.insert(ids.end(), std::size_t(c.rows[e]), first_expert + std::int64_t(e));
  ids.insert(ids.end(), 5, first_expert - 1);
  ids.insert(ids.end(), 4, first_expert + std::int64_t(c.rows.size()));
  ids.resize((ids.size() + std::size_t(c.k) - 1) / std::size_t(c.k) * std::size_t(c.k), -1);
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

std::vector<Bf16> values(std::int64_t n, std::mt19937& random, bool exact) {
  std::vector<Bf16> result;
  std::uniform_int_distribution<int> integer(-2, 2);
  std::normal_distribution<float> real;
  for (std::int64_t i = 0; i < n; ++i)
    result.push_back(Bf16(exact ? float(integer(random)) : real(random)));
  return result;
}

std::vector<float> floats(const std::vector<Bf16>& x) { return {x.begin(), x.end()}; }

/// `exact`: small integers, whose sums are exact in fp32 in any order. Rows of no expert are NaN.
Run run(const Case& c, bool exact, unsigned seed = 1) {
  std::mt19937 random(seed);
  const auto ids = shuffled_ids(c, random);
  const auto count = std::int64_t(c.rows.size()), pairs = std::int64_t(ids.size());
  const auto device_ids = gpu->upload(ids);
  const SortedPairs sorted(*gpu, device_ids.get(), pairs, first_expert, count);
  const kernels::ExpertOrder& order = sorted.order();
  Run result;
  result.pairs = pairs;
  result.pair_at = gpu->download(order.pair_at, pairs);
  result.offsets = gpu->download(order.offsets, count + 1);

  const std::int64_t in_rows = c.by_token ? pairs / c.k : pairs;
  const std::int64_t w_rows = count * c.outputs * (c.gated ? 2 : 1);
  auto in = values(in_rows * c.inputs, random, exact);
  if (!c.by_token)
    std::fill(in.begin() + result.offsets.back() * c.inputs, in.end(), Bf16(std::nanf("")));
  auto w = values(w_rows * c.inputs, random, exact);
  if (c.has_equal_experts)
    for (std::size_t i = w.size() / c.rows.size(); i < w.size(); ++i)
      w[i] = w[i - w.size() / c.rows.size()];
  const auto device_in = gpu->upload(in), device_w = gpu->upload(w);
  std::uniform_real_distribution<float> weight;
  for (std::int64_t i = 0; i < pairs; ++i) result.pair_weights.push_back(weight(random));
  const auto device_weights = gpu->upload(result.pair_weights);
  const auto out = gpu->upload(std::vector<Bf16>(std::size_t(pairs * c.outputs), Bf16(untouched)));
  const MatrixRef<Bf16> to{out.get(), pairs, c.outputs};
  const MatrixRef<const Bf16> from{device_in.get(), in_rows, c.inputs};
  const std::int64_t k = c.by_token ? c.k : 0;
  if (c.gated)
    kernels::grouped_gemm_silu_mul(to, from, device_w.get(), order, k, c.rounding, gpu->stream());
  else
    kernels::grouped_gemm(to, from, device_w.get(), order, k,
                          c.weighted ? device_weights.get() : nullptr, c.rounding, gpu->stream());
  result.out = floats(gpu->download(out.get(), pairs * c.outputs));
  result.in = floats(in);
  result.w = floats(w);
  return result;
}

double rounded(double x) { return float(Bf16(float(x))); }

/// The products of position p, which belongs to expert e, with row `output` of its weights.
double product(const Case& c, const Run& r, std::int64_t e, std::int64_t p, std::int64_t output) {
  const std::int64_t row = c.by_token ? r.pair_at[std::size_t(p)] / c.k : p;
  const std::int64_t height = c.outputs * (c.gated ? 2 : 1);
  const float* x = r.in.data() + row * c.inputs;
  const float* w = r.w.data() + (e * height + output) * c.inputs;
  double sum = 0;
  for (std::int64_t i = 0; i < c.inputs; ++i) sum += double(x[i]) * double(w[i]);
  return sum;
}

double expected(const Case& c, const Run& r, std::int64_t e, std::int64_t p, std::int64_t output) {
  const double sum = product(c, r, e, p, output);
  if (!c.gated) {
    if (!c.weighted) return rounded(sum);
    const double weight = double(r.pair_weights[std::size_t(r.pair_at[std::size_t(p)])]);
    return rounded((c.rounding == Rounding::hf ? rounded(sum) : sum) * weight);
  }
  const double gate = rounded(sum), up = rounded(product(c, r, e, p, c.outputs + output));
  const double silu = gate / (1 + std::exp(-gate));
  return rounded((c.rounding == Rounding::hf ? rounded(silu) : silu) * up);
}

/// Every output within `tolerance` of its own size, and rows of no expert untouched.
void require_products(const Case& c, double tolerance) {
  BOOST_TEST_CONTEXT("inputs " << c.inputs << ", outputs " << c.outputs << ", k " << c.k
                               << ", by token " << c.by_token) {
    const Run r = run(c, true);
    std::int64_t wrong = 0;
    for (std::size_t e = 0; e < c.rows.size(); ++e) {
      BOOST_REQUIRE_EQUAL(r.offsets[e + 1] - r.offsets[e], c.rows[e]);
      for (std::int64_t p = r.offsets[e]; p < r.offsets[e + 1]; ++p)
        for (std::int64_t o = 0; o < c.outputs; ++o) {
          const double want = expected(c, r, std::int64_t(e), p, o);
          const double got = double(r.out[std::size_t(p * c.outputs + o)]);
          if (std::abs(got - want) <= tolerance * std::abs(want)) continue;
          if (wrong++ == 0)
            BOOST_ERROR("expert " << e << ", row " << p - r.offsets[e] << ", output " << o << ": "
                                  << got << ", expected " << want);
        }
    }
    BOOST_TEST(wrong == 0);
    for (std::int64_t i = r.offsets.back() * c.outputs; i < r.pairs * c.outputs; ++i)
      wrong += r.out[std::size_t(i)] != float(Bf16(untouched));
    BOOST_TEST(wrong == 0, "rows of no expert were written");
  }
}

/// Tiles hold 32, 64 or 192 rows, in steps of 16; the 32nd expert begins another look of a warp.
std::vector<std::int64_t> rows_at_every_edge() {
  std::vector<std::int64_t> rows = {0,  1,  2,  7, 8,   9,   15,  16,  17,  31,  32,  33,
                                    63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 385, 0};
  rows.resize(35, 3);
  rows.push_back(0);
  return rows;
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_AUTO_TEST_CASE(every_height_of_an_expert_is_multiplied) {
  for (const bool by_token : {true, false})
    require_products({rows_at_every_edge(), 128, 256, 10, by_token}, 0);
}

BOOST_AUTO_TEST_CASE(inputs_and_outputs_that_fill_no_tile) {
  for (const std::int64_t inputs : {8, 56, 72, 320})
    for (const std::int64_t outputs : {8, 136, 248, 520})
      require_products({{3, 0, 40, 1}, inputs, outputs, 2}, 0);
}

BOOST_AUTO_TEST_CASE(shapes_that_the_copy_engine_cannot_load) {
  for (const std::int64_t inputs : {1, 13, 36, 64})
    for (const std::int64_t outputs : {1, 63, 66})
      for (const bool by_token : {true, false})
        require_products({{3, 0, 70, 1, 33}, inputs, outputs, 3, by_token}, 0);
  require_products({rows_at_every_edge(), 36, 40, 10}, 0);
}

BOOST_AUTO_TEST_CASE(one_expert_has_all_rows_or_none) {
  require_products({{1000}, 64, 256, 1}, 0);
  require_products({{0, 0, 0, 700, 0}, 64, 256, 1, false}, 0);
  require_products({{0, 0}, 64, 256, 1}, 0);
}

/// A unit of bfloat16 is at most 2^-7 of a value; the gate and the product may each fall on the
/// other side of a tie.
BOOST_AUTO_TEST_CASE(gate_and_up_are_multiplied_where_both_are_known) {
  for (const Rounding rounding : {Rounding::hf, Rounding::vllm}) {
    require_products({rows_at_every_edge(), 64, 128, 10, true, true, rounding}, 2 * 0x1p-7);
    require_products({{3, 0, 40, 1}, 72, 136, 2, false, true, rounding}, 2 * 0x1p-7);
    require_products({{3, 0, 40, 1}, 13, 45, 2, true, true, rounding}, 2 * 0x1p-7);
  }
}

BOOST_AUTO_TEST_CASE(a_product_is_weighted_after_it_is_rounded_or_before) {
  for (const Rounding rounding : {Rounding::hf, Rounding::vllm}) {
    require_products({rows_at_every_edge(), 320, 256, 10, false, false, rounding, true}, 0);
    require_products({{3, 0, 40, 1}, 13, 45, 2, true, false, rounding, true}, 0);
  }
}

BOOST_AUTO_TEST_CASE(a_sum_is_rounded_once) {
  const Case c{{1, 20, 200}, 2048, 64, 1};
  const Run r = run(c, false);
  double worst = 0;
  for (std::size_t e = 0; e < c.rows.size(); ++e)
    for (std::int64_t p = r.offsets[e]; p < r.offsets[e + 1]; ++p)
      for (std::int64_t o = 0; o < c.outputs; ++o) {
        const double want = product(c, r, std::int64_t(e), p, o);
        const double got = double(r.out[std::size_t(p * c.outputs + o)]);
        // Half a unit of the result, and fp32's for 2048 addends of size 1.
        const double bound = 0x1p-8 * std::abs(want) + 2048 * 0x1p-24 * std::sqrt(2048.0);
        worst = std::max(worst, std::abs(got - want) / bound);
      }
  BOOST_TEST(worst <= 1);
}

/// One token, chosen by all pairs, and experts with the same weights.
BOOST_AUTO_TEST_CASE(the_bits_of_a_row_do_not_depend_on_the_rows_beside_it) {
  for (const bool gated : {false, true}) {
    const Case c{{1, 20, 100, 190, 500}, 2048,  256, 1 + 20 + 100 + 190 + 500 + 9, true, gated,
                 Rounding::hf,           false, true};
    const Run r = run(c, false);
    const std::vector<float> first(r.out.begin(), r.out.begin() + c.outputs);
    std::int64_t others = 0;
    for (std::int64_t p = 0; p < r.offsets.back(); ++p)
      others += !std::equal(first.begin(), first.end(), r.out.begin() + p * c.outputs);
    BOOST_TEST(others == 0);
  }
}

BOOST_AUTO_TEST_CASE(no_pair_is_a_call_without_effect) {
  kernels::grouped_gemm({nullptr, 0, 256}, {nullptr, 0, 64}, nullptr, {.count = 4}, 2, nullptr,
                        Rounding::hf, gpu->stream());
  BOOST_TEST(cudaDeviceSynchronize() == cudaSuccess);
}
