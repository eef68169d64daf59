// SPDX-License-Identifier: Apache-2.0
// Where the two bfloat16 implementations round: model.md 8.2, one operation after the other. The
// expected values are made from fp32 operations with the roundings written out.
#include <algorithm>

#include "tests/support.hpp"

namespace tokenview {
namespace {

using Ops = EigenOps<float>;
const Ops fp32, hf(1, Rounding::hf), vllm(1, Rounding::vllm);

float r(float x) { return round_to_bf16(x); }
Matrix<float> r(const Matrix<float>& x) {
  return x.unaryExpr([](float v) { return r(v); });
}
bool is_bf16(const Matrix<float>& x) { return same_bits(r(x), x); }

/// Random bfloat16 values.
Matrix<float> values(std::uint64_t seed, std::int64_t rows, std::int64_t cols) {
  std::mt19937_64 random(seed);
  return r(random_matrix<float>(random, rows, cols) * 3);
}
Matrix<float> ones_like(const Matrix<float>& x) { return Matrix<float>::Ones(x.rows(), x.cols()); }

}  // namespace

BOOST_AUTO_TEST_CASE(both_round_once_after_products_sums_and_norms) {
  const Matrix<float> x = values(1, 9, 40), y = values(2, 9, 40);
  const auto w = linear_weight(values(3, 24, 40));
  const auto norm = plain_weight(values(4, 40, 1)), head_norm = plain_weight(values(5, 8, 1));
  BOOST_TEST(!is_bf16(fp32.linear(x, w)));
  for (const Ops& ops : {hf, vllm}) {
    BOOST_TEST(same_bits(ops.linear(x, w), r(fp32.linear(x, w))));
    BOOST_TEST(same_bits(ops.add(x, y), r(fp32.add(x, y))));
    BOOST_TEST(same_bits(ops.rms_norm(x, norm, 1e-6), r(fp32.rms_norm(x, norm, 1e-6))));
    BOOST_TEST(same_bits(ops.head_rms_norm(x, head_norm, 1e-6),
                         r(fp32.head_rms_norm(x, head_norm, 1e-6))));
  }
}

BOOST_AUTO_TEST_CASE(both_round_a_reduction_after_every_addition) {
  const Matrix<float> parts[] = {values(1, 4, 30), values(2, 4, 30) / 8, values(3, 4, 30) / 8};
  const Matrix<float> expected = r(Matrix<float>(r(Matrix<float>(parts[0] + parts[1])) + parts[2]));
  const Matrix<float>* const in_order[] = {&parts[0], &parts[1], &parts[2]};
  const auto sum = [&](const Ops& ops) { return ops.sum(in_order, Axis::rows, 0, 4); };
  BOOST_TEST(!same_bits(r(sum(fp32)), expected));
  BOOST_TEST(same_bits(sum(hf), expected));
  BOOST_TEST(same_bits(sum(vllm), expected));
}

BOOST_AUTO_TEST_CASE(both_round_a_sigmoid_and_its_product) {
  const Matrix<float> x = values(1, 9, 40), gate = values(2, 9, 40), scale = values(3, 9, 1);
  const Matrix<float> sigmoid = r(fp32.sigmoid_mul(ones_like(gate), gate));
  const Matrix<float> of_row = r(fp32.sigmoid_mul(ones_like(scale), scale));
  for (const Ops& ops : {hf, vllm}) {
    BOOST_TEST(same_bits(ops.sigmoid_mul(x, gate), r(Matrix<float>(x.cwiseProduct(sigmoid)))));
    BOOST_TEST(
        same_bits(ops.sigmoid_scale(x, scale), r(Matrix<float>(of_row.col(0).asDiagonal() * x))));
  }
}

BOOST_AUTO_TEST_CASE(hf_rounds_the_silu_before_the_product) {
  const Matrix<float> gate = values(1, 9, 40), up = values(2, 9, 40);
  const Matrix<float> silu = fp32.silu_mul(gate, ones_like(gate));
  BOOST_TEST(same_bits(hf.silu_mul(gate, up), r(Matrix<float>(r(silu).cwiseProduct(up)))));
  BOOST_TEST(same_bits(vllm.silu_mul(gate, up), r(fp32.silu_mul(gate, up))));
  BOOST_TEST(!same_bits(hf.silu_mul(gate, up), vllm.silu_mul(gate, up)));
}

BOOST_AUTO_TEST_CASE(hf_rounds_frequencies_and_both_products_of_a_rotation) {
  const RopeShape shape{16, 16, 1e4, std::vector<int>(8, 0)};
  const Matrix<float> x = values(1, 30, 16);
  const Batch batch = rows_of_one(30);
  Matrix<float> of_hf(30, 16), of_vllm(30, 16);
  for (Eigen::Index j = 0; j < 8; ++j) {
    const float frequency = 1 / std::pow(1e4f, float(2 * j) / 16.0f);
    for (Eigen::Index t = 0; t < 30; ++t) {
      const float a = x(t, j), b = x(t, j + 8);
      float cos = r(std::cos(float(t) * frequency)), sin = r(std::sin(float(t) * frequency));
      of_vllm(t, j) = r(a * cos - b * sin);
      of_vllm(t, j + 8) = r(b * cos + a * sin);
      cos = r(std::cos(float(t) * r(frequency)));
      sin = r(std::sin(float(t) * r(frequency)));
      of_hf(t, j) = r(r(a * cos) - r(b * sin));
      of_hf(t, j + 8) = r(r(b * cos) + r(a * sin));
    }
  }
  BOOST_TEST(same_bits(hf.rope(x, batch, shape), of_hf));
  BOOST_TEST(same_bits(vllm.rope(x, batch, shape), of_vllm));
  BOOST_TEST(!same_bits(of_hf, of_vllm));
}

BOOST_AUTO_TEST_CASE(hf_rounds_scores_and_probabilities) {
  const AttentionShape heads{1, 1, 8};
  const Matrix<float> q = values(1, 12, 8), k = values(2, 12, 8), v = values(3, 12, 8);
  const auto attended = [&](const Ops& ops) {
    auto cache = ops.kv_cache(heads);
    return ops.attention(q, k, v, heads, cache, rows_of_one(12));
  };
  const float scale = 1 / std::sqrt(8.0f);
  Matrix<float> p = r(Matrix<float>(r(fp32.linear(q, linear_weight(k))) * scale));
  for (Eigen::Index t = 0; t < 12; ++t) {
    const float largest = p.row(t).head(t + 1).maxCoeff();
    float total = 0;
    for (Eigen::Index j = 0; j < 12; ++j) p(t, j) = j <= t ? std::exp(p(t, j) - largest) : 0;
    for (Eigen::Index j = 0; j <= t; ++j) total += p(t, j);
    p.row(t) /= total;
  }
  const Matrix<float> columns = v.transpose();
  BOOST_TEST(same_bits(attended(hf), r(fp32.linear(r(p), linear_weight(columns)))));
  BOOST_TEST(same_bits(attended(vllm), r(attended(fp32))));
  BOOST_TEST(!same_bits(attended(hf), attended(vllm)));
}

BOOST_AUTO_TEST_CASE(hf_rounds_the_convolution_before_its_silu) {
  const GdnShape shape{1, 1, 8, 8};
  const Matrix<float> x = values(1, 20, 24), kernel = values(2, 24, 4);
  const auto convolved = [&](const Ops& ops) {
    auto state = ops.gdn_state(shape, 4);
    return ops.causal_conv(x, plain_weight(kernel), state, rows_of_one(20));
  };
  Matrix<float> expected(20, 24);
  for (Eigen::Index t = 0; t < 20; ++t)
    for (Eigen::Index c = 0; c < 24; ++c) {
      float sum = 0;
      for (Eigen::Index m = std::max<Eigen::Index>(0, 3 - t); m < 4; ++m)
        sum += kernel(c, m) * x(t - 3 + m, c);
      sum = r(sum);
      expected(t, c) = r(sum / (1 + std::exp(-sum)));
    }
  BOOST_TEST(same_bits(convolved(hf), expected));
  BOOST_TEST(same_bits(convolved(vllm), r(convolved(fp32))));
  BOOST_TEST(!same_bits(convolved(hf), convolved(vllm)));
}

BOOST_AUTO_TEST_CASE(hf_rounds_beta_and_nobody_rounds_the_decay) {
  const Matrix<float> b = values(1, 9, 6), a = values(2, 9, 6);
  const auto A_log = plain_weight(values(3, 6, 1)), dt_bias = plain_weight(values(4, 6, 1));
  const auto exact = fp32.delta_gates(b, a, A_log, dt_bias);
  const auto of_hf = hf.delta_gates(b, a, A_log, dt_bias);
  const auto of_vllm = vllm.delta_gates(b, a, A_log, dt_bias);
  BOOST_TEST(!is_bf16(exact.first));
  BOOST_TEST(!is_bf16(exact.second));
  BOOST_TEST(same_bits(of_hf.first, r(exact.first)));
  BOOST_TEST(same_bits(of_vllm.first, exact.first));
  BOOST_TEST(same_bits(of_hf.second, exact.second));
  BOOST_TEST(same_bits(of_vllm.second, exact.second));
}

BOOST_AUTO_TEST_CASE(the_delta_rule_is_exact_in_hf_and_in_decodes_and_chunks_round_in_vllm) {
  const GdnShape shape{2, 4, 16, 16};
  const Matrix<float> qkv = values(1, 70, shape.conv_dim());
  const Matrix<float> beta = r(Matrix<float>(values(2, 70, 4).array() / 6 + 0.5f));
  const Matrix<float> g = values(3, 70, 4).array() / 6 - 0.5f;
  const auto read = [&](const Ops& ops, Eigen::Index rows) {
    auto state = ops.gdn_state(shape, 4);
    return ops.gated_delta_rule(qkv.topRows(rows), beta.topRows(rows), g.topRows(rows), shape,
                                state, rows_of_one(rows));
  };
  BOOST_TEST(same_bits(read(hf, 70), r(read(fp32, 70))));
  BOOST_TEST(same_bits(read(vllm, 1), r(read(fp32, 1))));
  BOOST_TEST(!same_bits(read(vllm, 70), read(hf, 70)));
  // Rounded one after the other: k and q, Tm, its operands, U and W, S, the deltas twice, the
  // intra-chunk matrix, the read. Each moves a value by at most 2^-8 of itself, of random sign.
  BOOST_TEST(is_bf16(read(vllm, 70)));
  BOOST_TEST(within(read(vllm, 70), read(fp32, 70), std::sqrt(9.0) / 256));
}

BOOST_AUTO_TEST_CASE(hf_rounds_thrice_in_the_gated_norm) {
  const Matrix<float> x = values(1, 9, 24), z = values(2, 9, 24), w = values(3, 8, 1);
  Matrix<float> expected(9, 24);
  for (Eigen::Index t = 0; t < 9; ++t)
    for (Eigen::Index head = 0; head < 24; head += 8) {
      float squares = 0;
      for (Eigen::Index i = 0; i < 8; ++i) squares += x(t, head + i) * x(t, head + i);
      const float scale = 1 / std::sqrt(squares / 8 + 1e-6f);
      for (Eigen::Index i = 0; i < 8; ++i) {
        const float gate = z(t, head + i) / (1 + std::exp(-z(t, head + i)));
        expected(t, head + i) = r(r(r(x(t, head + i) * scale) * w(i, 0)) * gate);
      }
    }
  const auto weight = plain_weight(w);
  BOOST_TEST(same_bits(hf.gated_rms_norm(x, z, weight, 1e-6), expected));
  BOOST_TEST(same_bits(vllm.gated_rms_norm(x, z, weight, 1e-6),
                       r(fp32.gated_rms_norm(x, z, weight, 1e-6))));
  BOOST_TEST(!same_bits(vllm.gated_rms_norm(x, z, weight, 1e-6), expected));
}

BOOST_AUTO_TEST_CASE(hf_rounds_the_routing_weights) {
  const Matrix<float> logits = values(1, 30, 16);
  for (const bool renormalise : {false, true}) {
    const auto exact = fp32.route(logits, 4, renormalise);
    BOOST_TEST(!is_bf16(exact.weights));
    BOOST_TEST(same_bits(hf.route(logits, 4, renormalise).weights, r(exact.weights)));
    BOOST_TEST(same_bits(vllm.route(logits, 4, renormalise).weights, exact.weights));
    BOOST_TEST(same_bits(hf.route(logits, 4, renormalise).ids, exact.ids));
    BOOST_TEST(same_bits(vllm.route(logits, 4, renormalise).ids, exact.ids));
  }
}

BOOST_AUTO_TEST_CASE(hf_rounds_an_expert_where_vllm_fuses) {
  const std::int64_t hidden = 24, width = 10, rows = 6;
  const Matrix<float> x = values(1, rows, hidden);
  Ops::Weight gate_up, down;
  gate_up.packed = PackedMatrix<float>(2, 2 * width, hidden);
  down.packed = PackedMatrix<float>(2, hidden, width);
  Matrix<float> gate_up_of[2], down_of[2];
  for (std::int64_t e = 0; e < 2; ++e) {
    const auto seed = std::uint64_t(10 + 2 * e);
    gate_up_of[e] = values(seed, 2 * width, hidden) / 8;
    down_of[e] = values(seed + 1, hidden, width) / 4;
    gate_up.packed.pack(e, gate_up_of[e].data(), hidden);
    down.packed.pack(e, down_of[e].data(), width);
  }
  Ops::Routing routing{Matrix<float>(rows, 2), Matrix<std::int64_t>(rows, 2)};
  for (Eigen::Index t = 0; t < rows; ++t) {
    routing.ids.row(t) << t % 2, 1 - t % 2;
    routing.weights.row(t) << r(0.7f), 0.3f;
  }
  const auto expected = [&](bool fused) {
    Matrix<float> sum = Matrix<float>::Zero(rows, hidden);
    for (Eigen::Index j = 0; j < 2; ++j)
      for (Eigen::Index t = 0; t < rows; ++t) {
        const auto e = std::size_t(routing.ids(t, j));
        const Matrix<float> row = x.row(t);
        const Matrix<float> both = r(fp32.linear(row, linear_weight(gate_up_of[e])));
        const Matrix<float> gate = both.leftCols(width), up = both.rightCols(width);
        Matrix<float> inner(1, width);
        for (Eigen::Index c = 0; c < width; ++c) {
          const float silu = gate(0, c) / (1 + std::exp(-gate(0, c)));
          inner(0, c) = r((fused ? silu : r(silu)) * up(0, c));
        }
        const Matrix<float> out = fp32.linear(inner, linear_weight(down_of[e]));
        sum.row(t) += r(Matrix<float>((fused ? out : r(out)) * routing.weights(t, j)));
      }
    return r(sum);
  };
  BOOST_TEST(same_bits(hf.experts(x, routing, gate_up, down, 0), expected(false)));
  BOOST_TEST(same_bits(vllm.experts(x, routing, gate_up, down, 0), expected(true)));
  BOOST_TEST(!same_bits(expected(false), expected(true)));
}

BOOST_AUTO_TEST_CASE(every_value_of_a_bfloat16_model_is_a_bfloat16) {
  for (const ModelConfig& config :
       {*preset("qwen3-next"), *preset("qwen3.5-moe"), mixed_config()}) {
    const EditableWeights weights(config, 1, DType::bfloat16);
    std::mt19937_64 random(1);
    const Batch batch =
        batch_of({{random_ids(random, 70, 160)}, {random_ids(random, 3, 160), 0, 1}});
    for (const Ops& ops : {hf, vllm}) {
      const SerialModel<float> model(config, weights, ops);
      auto state = model.empty_state();
      Taps<float> taps;
      const Matrix<float> hidden = model.forward(state, batch, &taps);
      model.draft(state, batch, hidden, sample_rows(batch), {1, 2}, 2, {}, &taps);
      BOOST_TEST(is_bf16(model.logits(hidden)));
      for (const auto& [name, value] : taps.values) BOOST_TEST(is_bf16(value), name);
      for (const auto& [name, routing] : taps.routings)
        BOOST_TEST(is_bf16(routing.weights) == (ops.rounding() == Rounding::hf), name);
    }
  }
}

/// The second opinion: the same program in float64. Teacher forcing is not needed: no two experts
/// of these seeds are near a tie.
BOOST_AUTO_TEST_CASE(float32_is_float64_within_its_roundings) {
  for (const ModelConfig& config :
       {*preset("qwen3-next"), *preset("qwen3.5-moe"), mixed_config()}) {
    const EditableWeights weights(config);
    const SerialModel<float> model(config, weights, EigenOps<float>());
    const SerialModel<double> model64(config, weights, EigenOps<double>());
    auto state = model.empty_state();
    auto state64 = model64.empty_state();
    Taps<float> taps;
    Taps<double> taps64;
    std::mt19937_64 random(2);
    const Batch batch = batch_of({{random_ids(random, 20, 160)}});
    model.forward(state, batch, &taps);
    model64.forward(state64, batch, &taps64);
    BOOST_TEST(taps.values.size() == taps64.values.size());
    for (const auto& [name, routing] : taps.routings)
      BOOST_TEST(same_bits(routing.ids, taps64.routings.at(name).ids), name);
    // Four layers, each of a dozen contractions of 64 or fewer terms. A tap of one column is a sum
    // that may cancel to any small number.
    for (const auto& [name, value] : taps.values)
      if (value.cols() > 1)
        BOOST_TEST(within(value, taps64.values.at(name), tolerance<float>(4 * 12 * 64)), name);
  }
}

}  // namespace tokenview
