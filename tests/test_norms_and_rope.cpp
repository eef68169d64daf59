// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "tests/support.hpp"

namespace tokenview {
namespace {

template <class S>
Matrix<S> matrix(std::initializer_list<std::initializer_list<S>> rows) {
  Matrix<S> m(Eigen::Index(rows.size()), Eigen::Index(rows.begin()->size()));
  Eigen::Index r = 0;
  for (const auto& row : rows) std::copy(row.begin(), row.end(), m.data() + m.cols() * r++);
  return m;
}

template <class S>
typename EigenOps<S>::Weight vector(std::initializer_list<S> values) {
  return plain_weight<S>(
      Eigen::Map<const Matrix<S>>(values.begin(), Eigen::Index(values.size()), 1));
}

template <class S>
typename EigenOps<S>::Weight zeros(std::int64_t n) {
  return plain_weight<S>(Matrix<S>::Zero(n, 1));
}

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace

BOOST_AUTO_TEST_SUITE(norms)

BOOST_AUTO_TEST_CASE_TEMPLATE(weight_zero_gives_mean_square_s_over_s_plus_eps, S, FloatAndDouble) {
  std::mt19937_64 random(1);
  const Matrix<S> x = random_matrix<S>(random, 5, 40);
  const double eps = 0.25;
  const Matrix<S> y = EigenOps<S>().rms_norm(x, zeros<S>(40), eps);
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    const double s = x.row(t).template cast<double>().squaredNorm() / 40;
    const double mean_square = y.row(t).template cast<double>().squaredNorm() / 40;
    BOOST_TEST(std::abs(mean_square / (s / (s + eps)) - 1) <= tolerance<S>(40));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_power_of_two_is_normed_away, S, FloatAndDouble) {
  std::mt19937_64 random(2);
  const Matrix<S> x = random_matrix<S>(random, 5, 40);
  const auto w = plain_weight(random_matrix<S>(random, 40, 1));
  const EigenOps<S> ops;
  const Matrix<S> larger = x * S(64), smaller = x / S(8);
  BOOST_TEST(same_bits(ops.rms_norm(larger, w, 0), ops.rms_norm(x, w, 0)));
  BOOST_TEST(same_bits(ops.rms_norm(smaller, w, 0), ops.rms_norm(x, w, 0)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(rms_norm_multiplies_by_one_plus_the_weight, S, FloatAndDouble) {
  // mean(x^2) + eps = 12.5 + 3.5 = 16
  const Matrix<S> y = EigenOps<S>().rms_norm(matrix<S>({{3, -4}}), vector<S>({-3, 0.5}), 3.5);
  BOOST_TEST(same_bits(y, matrix<S>({{3 / S(4) * -2, -1 * S(1.5)}})));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(each_head_is_normed_by_itself, S, FloatAndDouble) {
  std::mt19937_64 random(3);
  const Matrix<S> x = random_matrix<S>(random, 4, 3 * 20);
  const auto w = plain_weight(random_matrix<S>(random, 20, 1));
  const EigenOps<S> ops;
  const Matrix<S> y = ops.head_rms_norm(x, w, 1e-6);
  for (Eigen::Index head = 0; head < 3; ++head) {
    const Matrix<S> alone = x.middleCols(head * 20, 20);
    BOOST_TEST(same_bits<S>(y.middleCols(head * 20, 20), ops.rms_norm(alone, w, 1e-6)));
  }
}

BOOST_AUTO_TEST_CASE(a_norm_of_another_width_is_refused) {
  const EigenOps<float> ops;
  BOOST_CHECK_THROW(ops.rms_norm(Matrix<float>::Zero(2, 8), zeros<float>(4), 1e-6), ShapeError);
  BOOST_CHECK_THROW(ops.head_rms_norm(Matrix<float>::Zero(2, 8), zeros<float>(3), 1e-6),
                    ShapeError);
  BOOST_CHECK_THROW(ops.head_rms_norm(Matrix<float>::Zero(2, 8), zeros<float>(0), 1e-6),
                    ShapeError);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(the_gated_norm_with_weight_zero_is_zero, S, FloatAndDouble) {
  std::mt19937_64 random(4);
  const Matrix<S> x = random_matrix<S>(random, 3, 24), z = random_matrix<S>(random, 3, 24);
  BOOST_TEST((EigenOps<S>().gated_rms_norm(x, z, zeros<S>(8), 1e-6).array() == 0).all());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(the_gate_is_a_silu_after_the_norm, S, FloatAndDouble) {
  // x * rsqrt(12.5 + 3.5) = {0.75, -1}; silu(ln 3) = ln 3 * 3 / 4
  const S ln3 = S(std::log(3.0));
  const Matrix<S> y = EigenOps<S>().gated_rms_norm(matrix<S>({{3, -4}}), matrix<S>({{ln3, -ln3}}),
                                                   vector<S>({2, 5}), 3.5);
  const double expected[] = {0.75 * 2 * std::log(3.0) * 0.75, -1 * 5 * -std::log(3.0) * 0.25};
  BOOST_TEST(within(y, Eigen::Map<const Matrix<double>>(expected, 1, 2), tolerance<S>(2)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(each_value_head_is_gated_by_its_own_z, S, FloatAndDouble) {
  std::mt19937_64 random(5);
  const Matrix<S> x = random_matrix<S>(random, 4, 30), z = random_matrix<S>(random, 4, 30);
  const auto w = plain_weight(random_matrix<S>(random, 10, 1));
  const EigenOps<S> ops;
  const Matrix<S> y = ops.gated_rms_norm(x, z, w, 1e-6);
  for (Eigen::Index head = 0; head < 30; head += 10) {
    const Matrix<S> of_x = x.middleCols(head, 10), of_z = z.middleCols(head, 10);
    BOOST_TEST(same_bits<S>(y.middleCols(head, 10), ops.gated_rms_norm(of_x, of_z, w, 1e-6)));
  }
}

/// The program adds a branch at the start of the next norm. The plain chain adds it at the branch's
/// end: h <- h + mixer(norm(h)); h <- h + ffn(norm(h)).
BOOST_AUTO_TEST_CASE(the_fused_chain_of_norms_is_the_plain_residual_chain_in_bfloat16) {
  for (const Rounding rounding : {Rounding::none, Rounding::hf, Rounding::vllm}) {
    const ModelConfig config = *preset("qwen3-next");
    const EditableWeights weights(config, 6, DType::bfloat16);
    const EigenOps<float> ops(1, rounding);
    Solo<float> solo(config, weights, ops);
    const SerialModel<float> model(config, weights, ops);
    auto state = model.empty_state();
    Taps<float> taps;
    std::mt19937_64 random(6);
    const Matrix<float> out =
        model.forward(state, batch_of({{random_ids(random, 7, config.vocab_size)}}), &taps);

    Matrix<float> h = taps.values["model.embed_tokens"];
    for (std::size_t i = 0; i < solo.w.layers.size(); ++i) {
      const std::string layer = text("model.layers.", i);
      const auto& w = solo.w.layers[i];
      const auto normed = [&](const auto& weight) {
        return ops.rms_norm(h, weight, config.rms_norm_eps);
      };
      BOOST_TEST(same_bits(taps.values[layer + ".input_layernorm"], normed(w.input_layernorm)));
      h = ops.add(h, taps.values[layer + (w.self_attn ? ".self_attn" : ".linear_attn")]);
      BOOST_TEST(same_bits(taps.values[layer + ".post_attention_layernorm"],
                           normed(w.post_attention_layernorm)));
      h = ops.add(h, taps.values[layer + ".mlp"]);
      BOOST_TEST(same_bits(taps.values[layer], h));
    }
    BOOST_TEST(same_bits(out, ops.rms_norm(h, solo.w.norm, config.rms_norm_eps)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(rotary)

namespace {

/// Two heads of 20, of which 12 features turn.
const RopeShape shape{20, 12, 10000.0, std::vector<int>(6, 0)};

Batch at_positions(const std::vector<std::int64_t>& positions) {
  Batch batch = rows_of_one(std::int64_t(positions.size()));
  batch.positions = positions;
  return batch;
}

/// Relative error of a turn by position * frequency: the angle is off by a few units of itself.
template <class S>
double turn_error(double largest_angle) {
  return (4 + 2 * largest_angle) * unit_roundoff<S>;
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(each_pair_keeps_its_norm_and_the_rest_is_untouched, S,
                              FloatAndDouble) {
  std::mt19937_64 random(10);
  const Matrix<S> x = random_matrix<S>(random, 4, 40);
  const Matrix<S> y = EigenOps<S>().rope(x, at_positions({0, 1, 77, 262143}), shape);
  for (Eigen::Index t = 0; t < 4; ++t)
    for (Eigen::Index head = 0; head < 40; head += 20) {
      for (Eigen::Index j = head; j < head + 6; ++j) {
        const double before = std::hypot(double(x(t, j)), double(x(t, j + 6)));
        const double after = std::hypot(double(y(t, j)), double(y(t, j + 6)));
        BOOST_TEST(std::abs(after - before) <= 8 * unit_roundoff<S> * before);
      }
      BOOST_TEST(same_bits<S>(y.block(t, head + 12, 1, 8), x.block(t, head + 12, 1, 8)));
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(position_zero_is_the_identity, S, FloatAndDouble) {
  std::mt19937_64 random(11);
  const Matrix<S> x = random_matrix<S>(random, 2, 40);
  BOOST_TEST((EigenOps<S>().rope(x, at_positions({0, 0}), shape).array() == x.array()).all());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(feature_j_turns_with_feature_j_plus_half, S, FloatAndDouble) {
  std::mt19937_64 random(12);
  const Matrix<S> x = random_matrix<S>(random, 1, 40);
  Matrix<double> expected = x.template cast<double>();
  for (int head = 0; head < 40; head += 20)
    for (int j = 0; j < 6; ++j) {
      const double angle = 5 * std::pow(10000.0, -2.0 * j / 12);
      const double a = x(0, head + j), b = x(0, head + j + 6);
      expected(0, head + j) = a * std::cos(angle) - b * std::sin(angle);
      expected(0, head + j + 6) = b * std::cos(angle) + a * std::sin(angle);
    }
  BOOST_TEST(within(EigenOps<S>().rope(x, at_positions({5}), shape), expected, turn_error<S>(5)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_product_of_query_and_key_depends_on_their_distance_only, S,
                              FloatAndDouble) {
  std::mt19937_64 random(13);
  const RopeShape one_head{20, 12, 10000.0, std::vector<int>(6, 0)};
  const Matrix<S> q = random_matrix<S>(random, 1, 20), k = random_matrix<S>(random, 1, 20);
  const EigenOps<S> ops;
  const auto product = [&](std::int64_t at_q, std::int64_t at_k) {
    return double(ops.rope(q, at_positions({at_q}), one_head)
                      .row(0)
                      .dot(ops.rope(k, at_positions({at_k}), one_head).row(0)));
  };
  const double scale = double(q.norm()) * double(k.norm());
  for (const std::int64_t shift : {1, 10, 100}) {
    const double allowed = (2 * turn_error<S>(double(shift + 9)) + tolerance<S>(20)) * scale;
    BOOST_TEST(std::abs(product(9 + shift, 4 + shift) - product(9, 4)) <= allowed);
  }
  BOOST_TEST(std::abs(product(9, 5) - product(9, 4)) > 1e-3 * scale);
}

BOOST_AUTO_TEST_CASE(the_sections_11_11_10_pick_time_height_width_in_turn) {
  ModelConfig config = *preset("qwen3.5-35b");
  const std::vector<int> axes = mrope_axes(config);
  BOOST_TEST(axes.size() == 32u);
  BOOST_TEST(std::count(axes.begin(), axes.end(), 0) == 11);
  BOOST_TEST(std::count(axes.begin(), axes.end(), 1) == 11);
  BOOST_TEST(std::count(axes.begin(), axes.end(), 2) == 10);
  for (std::size_t f = 0; f < 32; ++f) BOOST_TEST(axes[f] == int(f % 3));

  config.mrope_interleaved = false;
  std::vector<int> blocks(11, 0);
  blocks.insert(blocks.end(), 11, 1);
  blocks.insert(blocks.end(), 10, 2);
  BOOST_TEST(mrope_axes(config) == blocks);
  config.mrope_section.clear();
  BOOST_TEST(mrope_axes(config) == std::vector<int>(32, 0));
}

BOOST_AUTO_TEST_CASE(uneven_sections_leave_the_last_frequencies_to_time) {
  ModelConfig config = *preset("qwen3.5-moe");
  config.rotary_dim = 16;
  config.mrope_section = {5, 2, 1};
  BOOST_TEST(mrope_axes(config) == (std::vector<int>{0, 1, 2, 0, 1, 0, 0, 0}));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(three_equal_rows_of_positions_are_plain_rotary, S, FloatAndDouble) {
  std::mt19937_64 random(14);
  const Matrix<S> x = random_matrix<S>(random, 3, 40);
  const RopeShape three_axes{20, 12, 10000.0, {0, 1, 2, 0, 1, 2}};
  Batch batch = at_positions({4, 5, 1000});
  const Matrix<S> plain = EigenOps<S>().rope(x, batch, shape);
  for (int axis = 0; axis < 3; ++axis)
    batch.mrope_positions.insert(batch.mrope_positions.end(), {4, 5, 1000});
  BOOST_TEST(same_bits(EigenOps<S>().rope(x, batch, three_axes), plain));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(another_row_of_positions_turns_its_own_frequencies_only, S,
                              FloatAndDouble) {
  std::mt19937_64 random(15);
  const Matrix<S> x = random_matrix<S>(random, 3, 40);
  const RopeShape three_axes{20, 12, 10000.0, {0, 1, 2, 0, 1, 0}};
  const Matrix<S> text_only = EigenOps<S>().rope(x, at_positions({4, 5, 6}), three_axes);
  const Matrix<S> elsewhere = EigenOps<S>().rope(x, at_positions({14, 25, 36}), three_axes);
  for (int moved = 0; moved < 3; ++moved) {
    Batch batch = at_positions({4, 5, 6});
    for (int axis = 0; axis < 3; ++axis)
      for (const std::int64_t position : {4, 5, 6})
        batch.mrope_positions.push_back(axis == moved ? (position - 3) * 11 + 3 : position);
    const Matrix<S> y = EigenOps<S>().rope(x, batch, three_axes);
    for (Eigen::Index col = 0; col < 40; ++col) {
      const Eigen::Index i = col % 20;
      const bool turned = i < 12 && three_axes.axis[std::size_t(i % 6)] == moved;
      BOOST_TEST_INFO(text("row ", moved, " moved, feature ", col));
      BOOST_TEST(same_bits<S>(y.col(col), (turned ? elsewhere : text_only).col(col)));
      if (turned) BOOST_TEST(!same_bits<S>(y.col(col), text_only.col(col)));
    }
  }
}

BOOST_AUTO_TEST_CASE(positions_of_another_count_are_refused) {
  BOOST_CHECK_THROW(EigenOps<float>().rope(Matrix<float>::Zero(3, 40), at_positions({0, 1}), shape),
                    ShapeError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(bfloat16)

BOOST_AUTO_TEST_CASE(hand_picked_values_round_to_the_nearest_even) {
  const std::pair<std::uint32_t, std::uint32_t> rounded[] = {
      {0x3f800000, 0x3f800000},  // 1
      {0x3f808000, 0x3f800000},  // 1 + 2^-8: a tie, 1 is even
      {0x3f808001, 0x3f810000},  // just over the tie
      {0x3f807fff, 0x3f800000},  // just under it
      {0x3f818000, 0x3f820000},  // 1 + 3 * 2^-8: a tie, the upper one is even
      {0xbf818000, 0xbf820000},  // the same, negative
      {0xbf808000, 0xbf800000}, {0x3fffffff, 0x40000000},  // into the next power of two
      {0x00000000, 0x00000000},                            // 0
      {0x80000000, 0x80000000},                            // -0
      {0x00000001, 0x00000000},                            // the smallest denormal
      {0x00008000, 0x00000000},                            // a tie of denormals
      {0x00008001, 0x00010000}, {0x00018000, 0x00020000},
      {0x007fffff, 0x00800000},                            // the largest denormal becomes normal
      {0x80018000, 0x80020000}, {0x7f7f0000, 0x7f7f0000},  // the largest bfloat16
      {0x7f7f7fff, 0x7f7f0000}, {0x7f7f8000, 0x7f800000},  // a tie with what would follow: infinity
      {0x7f7fffff, 0x7f800000},                            // the largest float
      {0xff7fffff, 0xff800000}, {0x7f800000, 0x7f800000},  // infinity
      {0xff800000, 0xff800000},
  };
  for (const auto& [value, expected] : rounded)
    BOOST_TEST(bits_of(round_to_bf16(from_bits(value))) == expected);
}

BOOST_AUTO_TEST_CASE(nan_stays_nan) {
  for (const std::uint32_t bits :
       {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7f808000u})
    BOOST_TEST(std::isnan(round_to_bf16(from_bits(bits))));
}

BOOST_AUTO_TEST_CASE(every_bfloat16_is_its_own_rounding_and_draws_what_is_nearer) {
  int wrong = 0;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    if ((high & 0x7fff) >= 0x7f80) continue;  // infinities and NaN
    const std::uint32_t here = high << 16, next = here + 0x10000;
    for (const std::uint32_t low : {0u, 1u, 0x4000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const bool up = low > 0x8000 || (low == 0x8000 && (high & 1) == 1);
      wrong += bits_of(round_to_bf16(from_bits(here + low))) != (up ? next : here);
    }
  }
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
