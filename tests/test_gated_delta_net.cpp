// SPDX-License-Identifier: Apache-2.0
#include "tests/support.hpp"

namespace tokenview {
namespace {

/// Operands of the delta rule for one sequence. Keys and queries need not be normalised.
template <class S>
struct DeltaRule {
  GdnShape shape;
  Matrix<S> qkv, beta, g;

  DeltaRule(const GdnShape& of, std::int64_t rows, std::uint64_t seed = 1) : shape(of) {
    std::mt19937_64 random(seed);
    qkv = random_matrix<S>(random, rows, shape.conv_dim());
    beta = random_matrix<S>(random, rows, shape.num_value_heads).array() * S(0.5) + S(0.5);
    g = random_matrix<S>(random, rows, shape.num_value_heads).array() * S(0.5) - S(0.5);
  }

  std::int64_t rows() const { return qkv.rows(); }
  auto q(std::int64_t t, std::int64_t key_head) {
    return qkv.block(t, key_head * shape.key_head_dim, 1, shape.key_head_dim);
  }
  auto k(std::int64_t t, std::int64_t key_head) {
    return qkv.block(t, shape.key_dim() + key_head * shape.key_head_dim, 1, shape.key_head_dim);
  }
  auto v(std::int64_t t, std::int64_t head) {
    return qkv.block(t, 2 * shape.key_dim() + head * shape.value_head_dim, 1, shape.value_head_dim);
  }

  using State = typename EigenOps<S>::GdnState;
  State new_state() const { return EigenOps<S>().gdn_state(shape, 4); }

  /// Rows [begin, end), from and to `state`.
  Matrix<S> run(State& state, GdnForm form, std::int64_t begin, std::int64_t end) const {
    const std::int64_t n = end - begin;
    return EigenOps<S>(1, Rounding::none, form)
        .gated_delta_rule(qkv.middleRows(begin, n), beta.middleRows(begin, n),
                          g.middleRows(begin, n), shape, state, rows_of_one(n, begin));
  }
  Matrix<S> run(State& state, GdnForm form = GdnForm::recurrent) const {
    return run(state, form, 0, rows());
  }
};

/// The state of one value head, [dk, dv].
template <class S>
Eigen::Map<Matrix<S>> head_state(typename EigenOps<S>::GdnState& state, std::int64_t head) {
  const GdnShape& shape = state.shape;
  const std::int64_t size = shape.key_head_dim * shape.value_head_dim;
  return {state.slots[0].now.recurrent.data() + head * size, shape.key_head_dim,
          shape.value_head_dim};
}
template <class S>
Matrix<S> all_states(typename EigenOps<S>::GdnState& state) {
  auto& values = state.slots[0].now.recurrent;
  return Eigen::Map<Matrix<S>>(values.data(), 1, Eigen::Index(values.size()));
}

template <class X>
Matrix<double> normalised(const X& x) {
  const Matrix<double> wide = x.template cast<double>();
  return wide / std::sqrt(wide.squaredNorm() + 1e-6);
}

/// Each of a chunk's values comes from sums over dk and over the 64 rows of a chunk; the state
/// passes through all rows.
template <class S>
double form_tolerance(std::int64_t rows, std::int64_t dk) {
  return tolerance<S>((rows + 64) * dk);
}

constexpr GdnForm both_forms[] = {GdnForm::recurrent, GdnForm::chunked};

GdnShape shape_with(std::int64_t group) { return {2, 2 * group, 8, 12}; }

}  // namespace

BOOST_AUTO_TEST_SUITE(delta_rule)

BOOST_AUTO_TEST_CASE_TEMPLATE(the_chunked_form_is_the_recurrent_form, S, FloatAndDouble) {
  for (const std::int64_t group : {1, 2, 4})
    for (const std::int64_t rows : {1, 2, 63, 64, 65, 127, 128, 130})
      for (const std::int64_t earlier : {0, 3}) {  // with an initial state, and without
        const DeltaRule<S> x(shape_with(group), earlier + rows);
        auto a = x.new_state(), b = x.new_state();
        x.run(a, GdnForm::recurrent, 0, earlier);
        x.run(b, GdnForm::recurrent, 0, earlier);
        const Matrix<S> recurrent = x.run(a, GdnForm::recurrent, earlier, earlier + rows);
        const Matrix<S> chunked = x.run(b, GdnForm::chunked, earlier, earlier + rows);
        BOOST_TEST_INFO(text("group ", group, ", rows ", rows, " after ", earlier));
        BOOST_TEST(within(chunked, recurrent, form_tolerance<S>(rows, 8)));
        BOOST_TEST(within(all_states<S>(b), all_states<S>(a), form_tolerance<S>(rows, 8)));
      }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(chunks_of_any_length_give_the_same, S, FloatAndDouble) {
  const std::int64_t rows = 130;
  const DeltaRule<S> x(shape_with(2), rows);
  auto whole_state = x.new_state();
  const Matrix<S> whole = x.run(whole_state);
  for (const std::int64_t chunk : {1, 16, 32, 64}) {  // a call begins a chunk
    auto state = x.new_state();
    Matrix<S> out(rows, x.shape.value_dim());
    for (std::int64_t at = 0; at < rows; at += chunk) {
      const std::int64_t end = std::min(rows, at + chunk);
      out.middleRows(at, end - at) = x.run(state, GdnForm::chunked, at, end);
    }
    BOOST_TEST(within(out, whole, form_tolerance<S>(rows, 8)));
    BOOST_TEST(
        within(all_states<S>(state), all_states<S>(whole_state), form_tolerance<S>(rows, 8)));
  }
}

/// Decay, predict, write, read; key head h / r; q scaled by dk^(-1/2): model.md 4.4 and 4.5.
BOOST_AUTO_TEST_CASE_TEMPLATE(the_rule_is_decay_then_delta_then_read, S, FloatAndDouble) {
  DeltaRule<S> x(shape_with(2), 20);
  auto state = x.new_state();
  const Matrix<S> out = x.run(state);
  Matrix<double> expected(20, x.shape.value_dim());
  for (std::int64_t head = 0; head < 4; ++head) {
    Matrix<double> s = Matrix<double>::Zero(8, 12);
    for (std::int64_t t = 0; t < 20; ++t) {
      const Matrix<double> q = normalised(x.q(t, head / 2)) / std::sqrt(8.0);
      const Matrix<double> k = normalised(x.k(t, head / 2));
      s *= std::exp(double(x.g(t, head)));
      const Matrix<double> delta =
          double(x.beta(t, head)) * (x.v(t, head).template cast<double>() - k * s);
      s += k.transpose() * delta;
      expected.block(t, head * 12, 1, 12) = q * s;
    }
    BOOST_TEST(within(head_state<S>(state, head), s, form_tolerance<S>(20, 8)));
  }
  BOOST_TEST(within(out, expected, form_tolerance<S>(20, 8)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(without_beta_the_state_only_decays, S, FloatAndDouble) {
  for (const GdnForm form : both_forms) {
    DeltaRule<S> x(shape_with(2), 25);
    auto state = x.new_state();
    x.run(state, GdnForm::recurrent, 0, 5);
    const auto before = state;
    x.beta.setZero();
    const Matrix<S> out = x.run(state, form, 5, 25);
    for (std::int64_t head = 0; head < 4; ++head) {
      auto start = before;
      Matrix<double> s = head_state<S>(start, head).template cast<double>();
      Matrix<double> expected(20, 12);
      for (std::int64_t t = 5; t < 25; ++t) {
        s *= std::exp(double(x.g(t, head)));
        expected.row(t - 5) = normalised(x.q(t, head / 2)) / std::sqrt(8.0) * s;
      }
      BOOST_TEST(within(head_state<S>(state, head), s, form_tolerance<S>(20, 8)));
      BOOST_TEST(within(out.middleCols(head * 12, 12), expected, form_tolerance<S>(20, 8)));
    }
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_written_value_is_read_back_by_its_key, S, FloatAndDouble) {
  for (const GdnForm form : both_forms) {
    DeltaRule<S> x(shape_with(2), 12);
    auto state = x.new_state();
    x.run(state, GdnForm::recurrent, 0, 10);
    x.qkv.leftCols(2 * x.shape.key_dim()) *= S(1 << 20);  // next to |k|^2 the 1e-6 is nothing
    x.beta.setOnes();
    x.g.setZero();
    x.run(state, form, 10, 12);
    for (std::int64_t head = 0; head < 4; ++head) {
      const Matrix<double> read =
          normalised(x.k(11, head / 2)) * head_state<S>(state, head).template cast<double>();
      BOOST_TEST(within(read, x.v(11, head), form_tolerance<S>(12, 8)));
    }
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(writing_the_same_twice_changes_nothing, S, FloatAndDouble) {
  for (const GdnForm form : both_forms) {
    DeltaRule<S> x(shape_with(2), 12);
    x.qkv.row(11) = x.qkv.row(10);
    x.qkv.leftCols(2 * x.shape.key_dim()) *= S(1 << 20);
    x.beta.setOnes();
    x.g.setZero();
    auto once = x.new_state(), twice = x.new_state();
    x.run(once, form, 0, 11);
    x.run(twice, form, 0, 12);
    BOOST_TEST(within(all_states<S>(twice), all_states<S>(once), form_tolerance<S>(12, 8)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(orthogonal_keys_without_decay_are_linear_attention, S,
                              FloatAndDouble) {
  for (const GdnForm form : both_forms) {
    DeltaRule<S> x(shape_with(2), 8);
    x.g.setZero();
    for (std::int64_t t = 0; t < 8; ++t)
      for (std::int64_t key_head = 0; key_head < 2; ++key_head) {
        x.k(t, key_head).setZero();
        x.k(t, key_head)(0, (t + key_head) % 8) = S(1 << 20);
      }
    auto state = x.new_state();
    const Matrix<S> out = x.run(state, form);
    Matrix<double> expected = Matrix<double>::Zero(8, x.shape.value_dim());
    for (std::int64_t head = 0; head < 4; ++head)
      for (std::int64_t t = 0; t < 8; ++t) {
        const Matrix<double> q = normalised(x.q(t, head / 2)) / std::sqrt(8.0);
        for (std::int64_t j = 0; j <= t; ++j)
          expected.block(t, head * 12, 1, 12) += double(x.beta(j, head)) *
                                                 q(0, (j + head / 2) % 8) *
                                                 x.v(j, head).template cast<double>();
      }
    BOOST_TEST(within(out, expected, form_tolerance<S>(8, 8)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_very_negative_g_leaves_the_token_itself, S, FloatAndDouble) {
  for (const GdnForm form : both_forms) {
    DeltaRule<S> x(shape_with(2), 70);
    x.g.setConstant(S(-1000));
    auto state = x.new_state();
    const Matrix<S> out = x.run(state, form);
    Matrix<double> expected(70, x.shape.value_dim());
    for (std::int64_t head = 0; head < 4; ++head)
      for (std::int64_t t = 0; t < 70; ++t)
        expected.block(t, head * 12, 1, 12) =
            double(x.beta(t, head)) / std::sqrt(8.0) *
            normalised(x.k(t, head / 2)).row(0).dot(normalised(x.q(t, head / 2)).row(0)) *
            x.v(t, head).template cast<double>();
    BOOST_TEST(within(out, expected, form_tolerance<S>(1, 8)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_decay_of_50_a_token_gives_no_nan, S, FloatAndDouble) {
  DeltaRule<S> x(shape_with(2), 130);
  x.g.setConstant(S(-50));
  auto a = x.new_state(), b = x.new_state();
  const Matrix<S> recurrent = x.run(a, GdnForm::recurrent);
  const Matrix<S> chunked = x.run(b, GdnForm::chunked);
  BOOST_TEST(recurrent.allFinite());
  BOOST_TEST(within(chunked, recurrent, form_tolerance<S>(130, 8)));
  BOOST_TEST(within(all_states<S>(b), all_states<S>(a), form_tolerance<S>(130, 8)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_tail_of_zeros_changes_neither_reads_nor_state, S, FloatAndDouble) {
  for (const std::int64_t rows : {1, 5, 63, 64, 70}) {
    DeltaRule<S> x(shape_with(2), rows + 9);
    for (auto* zero : {&x.qkv, &x.beta, &x.g}) zero->bottomRows(9).setZero();
    for (const GdnForm form : both_forms) {
      auto plain = x.new_state(), padded = x.new_state();
      const Matrix<S> without = x.run(plain, form, 0, rows), with = x.run(padded, form);
      BOOST_TEST(within(with.topRows(rows), without, form_tolerance<S>(rows, 8)));
      BOOST_TEST((with.bottomRows(9).array() == 0).all());
      BOOST_TEST(within(all_states<S>(padded), all_states<S>(plain), form_tolerance<S>(rows, 8)));
    }
  }
}

/// [value head][dk][dv]; an engine that keeps [value head][dv][dk] has the transpose of each head.
BOOST_AUTO_TEST_CASE_TEMPLATE(a_head_of_the_state_is_key_by_value, S, FloatAndDouble) {
  DeltaRule<S> x(shape_with(2), 1);
  x.beta.setOnes();
  auto state = x.new_state();
  x.run(state);
  const auto& values = state.slots[0].now.recurrent;
  BOOST_TEST(values.size() == 4u * 8 * 12);
  for (std::int64_t head = 0; head < 4; ++head) {
    const Matrix<double> k = normalised(x.k(0, head / 2));
    Matrix<double> transposed(12, 8);
    for (std::int64_t i = 0; i < 8; ++i)
      for (std::int64_t j = 0; j < 12; ++j)
        transposed(j, i) = double(values[std::size_t((head * 8 + i) * 12 + j)]);
    const Matrix<double> expected = x.v(0, head).template cast<double>().transpose() * k;
    BOOST_TEST(within(transposed, expected, form_tolerance<S>(1, 8)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(two_threads_give_the_bits_of_one, S, FloatAndDouble) {
  const DeltaRule<S> x(GdnShape{4, 8, 16, 32}, 80);
  for (const GdnForm form : both_forms) {
    auto a = x.new_state(), b = x.new_state();
    const EigenOps<S> two(2, Rounding::none, form);
    const Matrix<S> out = two.gated_delta_rule(x.qkv, x.beta, x.g, x.shape, b, rows_of_one(80));
    BOOST_TEST(same_bits(out, x.run(a, form)));
    BOOST_TEST(same_bits(all_states<S>(b), all_states<S>(a)));
  }
}

BOOST_AUTO_TEST_CASE(a_state_that_was_never_written_is_refused) {
  const DeltaRule<float> x(shape_with(1), 4);
  auto state = x.new_state();
  BOOST_CHECK_THROW(x.run(state, GdnForm::recurrent, 2, 4), ShapeError);
  BOOST_CHECK_THROW(x.run(state, GdnForm::chunked, 2, 4), ShapeError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(gates)

namespace {

template <class S>
std::pair<S, S> gates_of(double b, double a, double A_log, double dt_bias) {
  const auto one = [](double value) -> Matrix<S> { return Matrix<S>::Constant(1, 1, S(value)); };
  const auto [beta, g] = EigenOps<S>().delta_gates(one(b), one(a), plain_weight<S>(one(A_log)),
                                                   plain_weight<S>(one(dt_bias)));
  return {beta(0, 0), g(0, 0)};
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(beta_is_a_sigmoid_and_g_a_negative_softplus, S, FloatAndDouble) {
  // sigmoid(ln 3) = 3/4; softplus(ln 3) = ln 4; exp(ln 2) = 2
  const auto [beta, g] = gates_of<S>(std::log(3.0), 1, std::log(2.0), std::log(3.0) - 1);
  BOOST_TEST(std::abs(double(beta) - 0.75) <= 4 * unit_roundoff<S>);
  BOOST_TEST(std::abs(double(g) + 2 * std::log(4.0)) <= 16 * unit_roundoff<S>);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(softplus_neither_overflows_nor_vanishes, S, FloatAndDouble) {
  for (const double x : {20.5, 100.0, 1000.0}) BOOST_TEST(gates_of<S>(0, x, 0, 0).second == S(-x));
  for (const double x : {-17.0, -30.0, -80.0}) {
    const double g = double(gates_of<S>(0, x, 0, 0).second);
    BOOST_TEST(std::abs(g / -std::log1p(std::exp(x)) - 1) <= 8 * unit_roundoff<S>);
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(each_head_has_its_own_decay, S, FloatAndDouble) {
  std::mt19937_64 random(30);
  const Matrix<S> a = random_matrix<S>(random, 3, 5), A_log = random_matrix<S>(random, 5, 1),
                  dt_bias = random_matrix<S>(random, 5, 1);
  const Matrix<S> g =
      EigenOps<S>().delta_gates(a, a, plain_weight(A_log), plain_weight(dt_bias)).second;
  for (Eigen::Index t = 0; t < 3; ++t)
    for (Eigen::Index h = 0; h < 5; ++h) {
      const S alone =
          gates_of<S>(0, double(a(t, h)), double(A_log(h, 0)), double(dt_bias(h, 0))).second;
      BOOST_TEST(g(t, h) == alone);
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(convolution)

namespace {

template <class S>
S silu(S x) {
  return x / (S(1) + std::exp(-x));
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(an_impulse_is_answered_with_the_kernel_backwards, S, FloatAndDouble) {
  std::mt19937_64 random(40);
  for (const std::int64_t kernel : {1, 2, 3, 4}) {
    const GdnShape shape{1, 1, 2, 2};
    const Matrix<S> w = random_matrix<S>(random, 6, kernel);
    Matrix<S> x = Matrix<S>::Zero(6, 6);
    x.row(1).setOnes();
    auto state = EigenOps<S>().gdn_state(shape, kernel);
    const Matrix<S> y = EigenOps<S>().causal_conv(x, plain_weight(w), state, rows_of_one(6));
    Matrix<S> expected = Matrix<S>::Zero(6, 6);
    for (std::int64_t m = 0; m < kernel; ++m)
      for (Eigen::Index c = 0; c < 6; ++c) expected(1 + m, c) = silu(w(c, kernel - 1 - m));
    BOOST_TEST(within(y, expected, tolerance<S>(kernel)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(the_state_is_the_last_inputs_before_the_convolution, S,
                              FloatAndDouble) {
  std::mt19937_64 random(41);
  for (const std::int64_t kernel : {1, 2, 3, 4})
    for (const std::int64_t rows : {1, 2, 3, 7}) {
      const Matrix<S> w = random_matrix<S>(random, 6, kernel),
                      x = random_matrix<S>(random, rows, 6);
      auto state = EigenOps<S>().gdn_state({1, 1, 2, 2}, kernel);
      EigenOps<S>().causal_conv(x, plain_weight(w), state, rows_of_one(rows));
      Matrix<S> expected = Matrix<S>::Zero(kernel - 1, 6);
      const std::int64_t kept = std::min(rows, kernel - 1);
      expected.bottomRows(kept) = x.bottomRows(kept);
      BOOST_TEST(same_bits(state.slots[0].now.conv, expected));
    }
}

BOOST_AUTO_TEST_CASE(rows_of_another_width_are_refused) {
  auto state = EigenOps<float>().gdn_state({1, 1, 2, 2}, 4);
  const auto w = plain_weight<float>(Matrix<float>::Zero(6, 4));
  BOOST_CHECK_THROW(
      EigenOps<float>().causal_conv(Matrix<float>::Zero(3, 5), w, state, rows_of_one(3)),
      ShapeError);
  BOOST_CHECK_THROW(
      EigenOps<float>().causal_conv(Matrix<float>::Zero(3, 6), w, state, rows_of_one(3, 2)),
      ShapeError);  // continues what was never written
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(module)

namespace {

/// One Gated DeltaNet layer, dk != dv, with `group` value heads a key head.
ModelConfig module_config(ModelType type, std::int64_t kernel, std::int64_t group = 2) {
  ModelConfig config = *preset("qwen3-next");
  config.model_type = type;
  config.num_hidden_layers = 1;
  config.num_mtp_layers = 0;
  config.layer_types = {LayerType::linear_attention};
  config.hidden_size = 24;
  config.linear_num_key_heads = 2;
  config.linear_num_value_heads = 2 * group;
  config.linear_key_head_dim = 8;
  config.linear_value_head_dim = 12;
  config.linear_conv_kernel_dim = kernel;
  return config;
}

/// The module over consecutive parts of x, each part a call.
template <class S>
Matrix<S> run_module(Solo<S>& solo, typename EigenOps<S>::GdnState& state, const Matrix<S>& x,
                     const std::vector<std::int64_t>& ends) {
  Matrix<S> out(x.rows(), x.cols());
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    const Matrix<S> rows = x.middleRows(begin, end - begin);
    out.middleRows(begin, end - begin) =
        gated_delta_net(solo.rank, *solo.w.layers[0].linear_attn, solo.shapes.gdn,
                        solo.config.rms_norm_eps, state, rows_of_one(end - begin, begin), rows);
    begin = end;
  }
  return out;
}

}  // namespace

/// Also where the first part is shorter than the kernel, or empty.
BOOST_AUTO_TEST_CASE_TEMPLATE(a_prefill_in_two_parts_is_the_prefill_at_once, S, FloatAndDouble) {
  std::mt19937_64 random(50);
  const std::int64_t rows = 9;
  const Matrix<S> x = random_matrix<S>(random, rows, 24);
  for (const std::int64_t kernel : {1, 2, 3, 4}) {
    const ModelConfig config = module_config(ModelType::qwen3_next, kernel);
    const EditableWeights weights(config);
    for (const GdnForm form : both_forms) {
      Solo<S> solo(config, weights, EigenOps<S>(1, Rounding::none, form));
      auto whole_state = solo.ops.gdn_state(solo.shapes.gdn, kernel);
      const Matrix<S> whole = run_module(solo, whole_state, x, {rows});
      for (std::int64_t split = 0; split <= rows; ++split) {
        auto state = solo.ops.gdn_state(solo.shapes.gdn, kernel);
        const Matrix<S> out = run_module(solo, state, x, {split, rows});
        BOOST_TEST_INFO(text("kernel ", kernel, ", split ", split));
        BOOST_TEST(same_bits(state.slots[0].now.conv, whole_state.slots[0].now.conv));
        if (form == GdnForm::recurrent) {
          BOOST_TEST(same_bits(out, whole));
          BOOST_TEST(same_bits(all_states<S>(state), all_states<S>(whole_state)));
        } else {  // the chunks lie elsewhere
          BOOST_TEST(within(out, whole, form_tolerance<S>(rows, 8 + 12 + 48)));
          BOOST_TEST(
              within(all_states<S>(state), all_states<S>(whole_state), form_tolerance<S>(rows, 8)));
        }
      }
      auto state = solo.ops.gdn_state(solo.shapes.gdn, kernel);
      const Matrix<S> decoded = run_module(solo, state, x, {1, 2, 3, 4, 5, 6, 7, 8, 9});
      if (form == GdnForm::recurrent) BOOST_TEST(same_bits(decoded, whole));
    }
  }
}

namespace {

/// Row of the grouped matrix (model.md 4.1) that holds row `row` of [q | k | v | z].
std::int64_t grouped_row(const GdnShape& shape, std::int64_t row) {
  const std::int64_t dk = shape.key_head_dim, dv = shape.value_head_dim, r = shape.group();
  const std::int64_t group = 2 * dk + 2 * r * dv;
  if (row < shape.key_dim()) return row / dk * group + row % dk;
  if ((row -= shape.key_dim()) < shape.key_dim()) return row / dk * group + dk + row % dk;
  if ((row -= shape.key_dim()) < shape.value_dim())
    return row / (r * dv) * group + 2 * dk + row % (r * dv);
  row -= shape.value_dim();
  return row / (r * dv) * group + 2 * dk + r * dv + row % (r * dv);
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(grouped_and_plain_projections_are_rows_in_another_order, S,
                              FloatAndDouble) {
  const std::string prefix = "model.layers.0.linear_attn.";
  for (const std::int64_t group : {1, 2, 4}) {
    const ModelConfig next = module_config(ModelType::qwen3_next, 4, group);
    const ModelConfig next_5 = module_config(ModelType::qwen3_5_moe, 4, group);
    const GdnShape shape = rank_shapes(next, 0, 1).gdn;
    EditableWeights grouped(next), plain(next_5), regrouped(next);
    // All other weights have the same names, and so the same values.
    for (std::int64_t row = 0; row < shape.conv_dim(); ++row)
      plain[prefix + "in_proj_qkv.weight"].row(row) =
          grouped[prefix + "in_proj_qkvz.weight"].row(grouped_row(shape, row));
    for (std::int64_t row = 0; row < shape.value_dim(); ++row)
      plain[prefix + "in_proj_z.weight"].row(row) =
          grouped[prefix + "in_proj_qkvz.weight"].row(grouped_row(shape, shape.conv_dim() + row));
    for (std::int64_t head = 0; head < shape.num_value_heads; ++head) {
      const std::int64_t row = head / group * 2 * group + head % group;
      const auto ba = grouped[prefix + "in_proj_ba.weight"];
      plain[prefix + "in_proj_b.weight"].row(head) = ba.row(row);
      plain[prefix + "in_proj_a.weight"].row(head) = ba.row(row + group);
    }
    // And back.
    regrouped[prefix + "in_proj_qkvz.weight"].setZero();
    for (std::int64_t row = 0; row < shape.conv_dim(); ++row)
      regrouped[prefix + "in_proj_qkvz.weight"].row(grouped_row(shape, row)) =
          plain[prefix + "in_proj_qkv.weight"].row(row);
    for (std::int64_t row = 0; row < shape.value_dim(); ++row)
      regrouped[prefix + "in_proj_qkvz.weight"].row(grouped_row(shape, shape.conv_dim() + row)) =
          plain[prefix + "in_proj_z.weight"].row(row);

    std::mt19937_64 random(51);
    const Matrix<S> x = random_matrix<S>(random, 7, 24);
    const auto output = [&](const ModelConfig& config, const WeightSource& weights) {
      Solo<S> solo(config, weights);
      auto state = solo.ops.gdn_state(solo.shapes.gdn, 4);
      return run_module(solo, state, x, {7});
    };
    const Matrix<S> expected = output(next, grouped);
    BOOST_TEST(same_bits(output(next_5, plain), expected));
    BOOST_TEST(same_bits(output(next, regrouped), expected));
  }
}

BOOST_AUTO_TEST_CASE(projections_of_another_width_are_refused) {
  const GdnShape shape = shape_with(2);
  const EigenOps<float> ops;
  BOOST_CHECK_THROW(ops.split_qkvz(Matrix<float>::Zero(2, 127), shape), ShapeError);
  BOOST_CHECK_THROW(ops.split_ba(Matrix<float>::Zero(2, 7), shape), ShapeError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
