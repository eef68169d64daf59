// SPDX-License-Identifier: Apache-2.0
#include "tests/support.hpp"

namespace tokenview {
namespace {

/// Six query heads that share three key/value heads.
const AttentionShape heads{6, 3, 8};

template <class S>
struct Qkv {
  Matrix<S> q, k, v;

  Qkv(std::uint64_t seed, std::int64_t rows) {
    std::mt19937_64 random(seed);
    q = random_matrix<S>(random, rows, heads.num_heads * heads.head_dim);
    k = random_matrix<S>(random, rows, heads.num_kv_heads * heads.head_dim);
    v = random_matrix<S>(random, rows, heads.num_kv_heads * heads.head_dim);
  }

  /// Rows [begin, end) after those before them.
  Matrix<S> attend(typename EigenOps<S>::KvCache& cache, std::int64_t begin,
                   std::int64_t end) const {
    const std::int64_t n = end - begin;
    return EigenOps<S>().attention(q.middleRows(begin, n), k.middleRows(begin, n),
                                   v.middleRows(begin, n), heads, cache, rows_of_one(n, begin));
  }
  Matrix<S> attend() const {
    auto cache = EigenOps<S>().kv_cache(heads);
    return attend(cache, 0, q.rows());
  }
};

/// The attention module by itself: one full-attention layer, 4 heads in 2 groups, width 8.
ModelConfig module_config() {
  ModelConfig config = *preset("qwen3-next");
  config.num_hidden_layers = 1;
  config.num_mtp_layers = 0;
  config.layer_types = {LayerType::full_attention};
  config.hidden_size = 24;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  return config;
}
const std::string prefix = "model.layers.0.self_attn.";

template <class S>
Matrix<S> run_module(const WeightSource& weights, const Matrix<S>& x,
                     TapSink<EigenOps<S>>* taps = nullptr) {
  Solo<S> solo(module_config(), weights);
  solo.rank.taps = taps;
  auto cache = solo.ops.kv_cache(solo.shapes.attention);
  return attention(solo.rank, *solo.w.layers[0].self_attn, solo.shapes, solo.config.rms_norm_eps,
                   cache, rows_of_one(x.rows()), x);
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(one_token_attends_to_its_own_value, S, FloatAndDouble) {
  const Qkv<S> x(1, 1);
  const Matrix<S> out = x.attend();
  for (Eigen::Index head = 0; head < 6; ++head)
    BOOST_TEST(same_bits<S>(out.middleCols(head * 8, 8), x.v.middleCols(head / 2 * 8, 8)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(scores_are_divided_by_the_root_of_the_head_width, S, FloatAndDouble) {
  // q . k / sqrt(4) is 0 and ln 3: weights 1/4 and 3/4
  const AttentionShape one_head{1, 1, 4};
  Matrix<S> q(2, 4), k(2, 4), v(2, 4);
  const S ln3 = S(std::log(3.0));
  q << 0, 0, 0, 0, 2, 0, 0, 0;
  k << 0, 1, 0, 0, ln3, 0, 0, 1;
  v << 4, 0, 8, 0, 0, 4, 8, 0;
  auto cache = EigenOps<S>().kv_cache(one_head);
  const Matrix<S> out = EigenOps<S>().attention(q, k, v, one_head, cache, rows_of_one(2));
  Matrix<S> expected(2, 4);
  expected << 4, 0, 8, 0, 1, 3, 8, 0;
  BOOST_TEST(within(out, expected, tolerance<S>(4)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(attention_is_a_softmax_over_the_sequence_so_far, S, FloatAndDouble) {
  const std::int64_t rows = 11;
  const Qkv<S> x(2, rows);
  Matrix<double> expected(rows, 48);
  for (Eigen::Index t = 0; t < rows; ++t)
    for (Eigen::Index head = 0; head < 6; ++head) {
      const Matrix<double> q = x.q.block(t, head * 8, 1, 8).template cast<double>();
      const Matrix<double> k = x.k.block(0, head / 2 * 8, t + 1, 8).template cast<double>();
      const Matrix<double> v = x.v.block(0, head / 2 * 8, t + 1, 8).template cast<double>();
      const Matrix<double> weights = ((q * k.transpose()) / std::sqrt(8.0)).array().exp().matrix();
      expected.block(t, head * 8, 1, 8) = weights * v / weights.sum();
    }
  BOOST_TEST(within(x.attend(), expected, tolerance<S>(rows * 8)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_later_token_changes_no_earlier_row, S, FloatAndDouble) {
  Qkv<S> x(3, 9);
  const Matrix<S> before = x.attend();
  x.k.row(6).array() += S(1);
  x.v.row(6).array() -= S(2);
  const Matrix<S> after = x.attend();
  BOOST_TEST(same_bits<S>(after.topRows(6), before.topRows(6)));
  for (Eigen::Index t = 6; t < 9; ++t) BOOST_TEST(!same_bits<S>(after.row(t), before.row(t)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(decoding_from_the_cache_is_the_full_pass_for_every_split, S,
                              FloatAndDouble) {
  const std::int64_t rows = 9;
  const Qkv<S> x(4, rows);
  const Matrix<S> full = x.attend();
  for (std::int64_t split = 0; split <= rows; ++split) {
    auto cache = EigenOps<S>().kv_cache(heads);
    BOOST_TEST(same_bits<S>(x.attend(cache, 0, split), full.topRows(split)));
    BOOST_TEST(same_bits<S>(x.attend(cache, split, rows), full.bottomRows(rows - split)));
  }
  auto cache = EigenOps<S>().kv_cache(heads);
  for (std::int64_t t = 0; t < rows; ++t)
    BOOST_TEST(same_bits<S>(x.attend(cache, t, t + 1), full.row(t)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(rejected_positions_are_written_over, S, FloatAndDouble) {
  const Qkv<S> drafts(5, 8), x(6, 8);
  auto cache = EigenOps<S>().kv_cache(heads);
  x.attend(cache, 0, 3);
  drafts.attend(cache, 3, 8);
  const Matrix<S> full = x.attend();
  BOOST_TEST(same_bits<S>(x.attend(cache, 3, 5), full.middleRows(3, 2)));
  BOOST_TEST(same_bits<S>(x.attend(cache, 5, 8), full.bottomRows(3)));
}

BOOST_AUTO_TEST_CASE(a_cache_that_is_too_short_is_refused) {
  const Qkv<float> x(7, 8);
  auto cache = EigenOps<float>().kv_cache(heads);
  BOOST_CHECK_THROW(x.attend(cache, 4, 5), ShapeError);  // nothing there
  x.attend(cache, 0, 3);
  BOOST_CHECK_THROW(x.attend(cache, 4, 5), ShapeError);  // one is missing
  BOOST_CHECK_NO_THROW(x.attend(cache, 3, 5));
}

BOOST_AUTO_TEST_CASE(operands_of_other_shapes_are_refused) {
  const EigenOps<float> ops;
  const Qkv<float> x(8, 4);
  auto cache = ops.kv_cache(heads);
  BOOST_CHECK_THROW(ops.attention(x.k, x.k, x.v, heads, cache, rows_of_one(4)), ShapeError);
  BOOST_CHECK_THROW(ops.attention(x.q, x.q, x.v, heads, cache, rows_of_one(4)), ShapeError);
  BOOST_CHECK_THROW(ops.attention(x.q, x.k, x.q, heads, cache, rows_of_one(4)), ShapeError);
  BOOST_CHECK_THROW(ops.attention(x.q, x.k, x.v, heads, cache, rows_of_one(3)), ShapeError);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(two_threads_attend_as_one_does, S, FloatAndDouble) {
  const Qkv<S> x(9, 60);
  auto cache = EigenOps<S>().kv_cache(heads);
  const Matrix<S> out = EigenOps<S>(2).attention(x.q, x.k, x.v, heads, cache, rows_of_one(60));
  BOOST_TEST(same_bits(out, x.attend()));
}

BOOST_AUTO_TEST_CASE(the_query_of_each_head_comes_before_its_gate) {
  Matrix<float> x(1, 12);
  x << 1, 2, 3, 10, 20, 30, 4, 5, 6, 40, 50, 60;
  const auto [query, gate] = EigenOps<float>().split_query_gate(x, 3);
  Matrix<float> expected_query(1, 6), expected_gate(1, 6);
  expected_query << 1, 2, 3, 4, 5, 6;
  expected_gate << 10, 20, 30, 40, 50, 60;
  BOOST_TEST(same_bits(query, expected_query));
  BOOST_TEST(same_bits(gate, expected_gate));
  BOOST_CHECK_THROW(EigenOps<float>().split_query_gate(x, 4), ShapeError);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_gate_of_zero_halves_the_attention, S, FloatAndDouble) {
  std::mt19937_64 random(20);
  const Matrix<S> x = random_matrix<S>(random, 7, 24);
  EditableWeights weights(module_config());
  for (int head = 0; head < 4; ++head)
    weights[prefix + "q_proj.weight"].middleRows(head * 16 + 8, 8).setZero();
  Taps<S> taps;
  const Matrix<S> gated = run_module(weights, x, &taps);

  Solo<S> solo(module_config(), weights);
  const auto& values = taps.values;
  const auto rotated = [&](const char* name) {
    return solo.ops.rope(values.at("self_attn." + std::string(name)), rows_of_one(7),
                         solo.shapes.rope);
  };
  auto cache = solo.ops.kv_cache(solo.shapes.attention);
  const Matrix<S> attended =
      solo.ops.attention(rotated("q_norm"), rotated("k_norm"), values.at("self_attn.v_proj"),
                         solo.shapes.attention, cache, rows_of_one(7));
  const Matrix<S> ungated = solo.ops.linear(attended, solo.w.layers[0].self_attn->o_proj);
  BOOST_TEST(same_bits<S>(gated * S(2), ungated));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(an_open_gate_passes_and_a_shut_one_stops_its_head, S,
                              FloatAndDouble) {
  Matrix<S> x(1, 3), gate(1, 3);
  x << 2, 2, 2;
  gate << 200, S(-std::log(3.0)), -80;
  const Matrix<S> y = EigenOps<S>().sigmoid_mul(x, gate);
  BOOST_TEST(y(0, 0) == S(2));
  BOOST_TEST(std::abs(y(0, 1) - S(0.5)) <= 4 * unit_roundoff<S>);
  BOOST_TEST(y(0, 2) <= S(2e-34));
  BOOST_TEST(y(0, 2) > S(0));
}

namespace {

/// Exchanges heads a and b: their query and gate rows together with their columns of o_proj.
void exchange_heads(EditableWeights& weights, int a, int b) {
  auto q = weights[prefix + "q_proj.weight"];
  const Matrix<float> rows = q.middleRows(a * 16, 16);
  q.middleRows(a * 16, 16) = Matrix<float>(q.middleRows(b * 16, 16));
  q.middleRows(b * 16, 16) = rows;
  auto o = weights[prefix + "o_proj.weight"];
  const Matrix<float> columns = o.middleCols(a * 8, 8);
  o.middleCols(a * 8, 8) = Matrix<float>(o.middleCols(b * 8, 8));
  o.middleCols(b * 8, 8) = columns;
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(heads_of_one_group_can_be_exchanged, S, FloatAndDouble) {
  std::mt19937_64 random(21);
  const Matrix<S> x = random_matrix<S>(random, 7, 24);
  EditableWeights weights(module_config());
  const Matrix<S> before = run_module(weights, x);
  exchange_heads(weights, 2, 3);  // both read key/value head 1
  BOOST_TEST(within(run_module(weights, x), before, tolerance<S>(4 * 8)));
  exchange_heads(weights, 1, 2);  // of two groups
  BOOST_TEST(!within(run_module(weights, x), before, 0.01));
}

/// Section by section against the formulas, in plain loops and double: norms before the rotation,
/// gate before the output projection.
BOOST_AUTO_TEST_CASE_TEMPLATE(the_module_is_norm_rotation_attention_gate_projection, S,
                              FloatAndDouble) {
  std::mt19937_64 random(22);
  const std::int64_t rows = 6, half = 2;
  ModelConfig config = module_config();
  EditableWeights weights(config);
  const Matrix<S> x = random_matrix<S>(random, rows, 24);
  const auto project = [&](const char* name) -> Matrix<double> {
    return x.template cast<double>() * weights[prefix + name].template cast<double>().transpose();
  };
  const auto norm_and_turn = [&](Matrix<double> head, const char* norm) {
    const Matrix<double> w = weights[prefix + norm].template cast<double>();
    for (Eigen::Index t = 0; t < rows; ++t) {
      const double scale = 1 / std::sqrt(head.row(t).squaredNorm() / 8 + config.rms_norm_eps);
      for (Eigen::Index i = 0; i < 8; ++i) head(t, i) *= scale * (1 + w(i, 0));
      for (Eigen::Index j = 0; j < half; ++j) {
        const double angle = double(t) * std::pow(config.rope_theta, -2.0 * double(j) / 4);
        const double a = head(t, j), b = head(t, j + half);
        head(t, j) = a * std::cos(angle) - b * std::sin(angle);
        head(t, j + half) = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return head;
  };
  const Matrix<double> query_gate = project("q_proj.weight"), keys = project("k_proj.weight"),
                       values = project("v_proj.weight");
  Matrix<double> gated(rows, 32);
  for (Eigen::Index head = 0; head < 4; ++head) {
    const auto q = norm_and_turn(query_gate.middleCols(head * 16, 8), "q_norm.weight");
    const auto k = norm_and_turn(keys.middleCols(head / 2 * 8, 8), "k_norm.weight");
    for (Eigen::Index t = 0; t < rows; ++t) {
      const Matrix<double> p =
          (k.topRows(t + 1) * q.row(t).transpose() / std::sqrt(8.0)).array().exp().matrix();
      for (Eigen::Index i = 0; i < 8; ++i)
        gated(t, head * 8 + i) = p.col(0).dot(values.block(0, head / 2 * 8 + i, t + 1, 1).col(0)) /
                                 p.sum() / (1 + std::exp(-query_gate(t, head * 16 + 8 + i)));
    }
  }
  const Matrix<double> expected =
      gated * weights[prefix + "o_proj.weight"].template cast<double>().transpose();
  // Contractions one after the other: projection, norm, score, softmax and read, projection.
  BOOST_TEST(within(run_module(weights, x), expected, tolerance<S>(24 + 8 + 8 + 2 * rows + 32)));
}

}  // namespace tokenview
