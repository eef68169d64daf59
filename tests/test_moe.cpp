// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "tests/support.hpp"

namespace tokenview {
namespace {

/// One sparse layer: 8 experts of width 10, a shared one of width 14.
ModelConfig moe_config(std::int64_t k = 3, bool renormalise = true) {
  ModelConfig config = *preset("qwen3-next");
  config.num_hidden_layers = 1;
  config.num_mtp_layers = 0;
  config.layer_types = {LayerType::full_attention};
  config.hidden_size = 24;
  config.num_experts = 8;
  config.num_experts_per_tok = k;
  config.moe_intermediate_size = 10;
  config.shared_expert_intermediate_size = 14;
  config.norm_topk_prob = renormalise;
  return config;
}
const std::string prefix = "model.layers.0.mlp.";
const std::string expert_weights[] = {prefix + "experts.gate_up_proj", prefix + "experts.down_proj",
                                      prefix + "gate.weight"};

template <class S>
struct MoeRun {
  Matrix<S> out;
  Taps<S> taps;
  const Matrix<S>& value(const std::string& name) const { return taps.values.at("mlp" + name); }
  const typename EigenOps<S>::Routing& routing() const { return taps.routings.at("mlp.gate"); }
};

template <class S>
MoeRun<S> run_module(const ModelConfig& config, const WeightSource& weights, const Matrix<S>& x) {
  Solo<S> solo(config, weights);
  MoeRun<S> run;
  solo.rank.taps = &run.taps;
  run.out = solo.feed_forward(x);
  return run;
}

Matrix<double> silu(const Matrix<double>& x) {
  return (x.array() / (1 + (-x.array()).exp())).matrix();
}

/// down(silu(gate(x)) * up(x)) in plain double.
Matrix<double> swiglu_of(const Matrix<double>& x, const Matrix<double>& gate,
                         const Matrix<double>& up, const Matrix<double>& down) {
  return silu(x * gate.transpose()).cwiseProduct(x * up.transpose()) * down.transpose();
}

/// Expert `e` of the fused weights on every row: [T, H].
Matrix<double> expert_of(EditableWeights& weights, std::int64_t e, const Matrix<double>& x) {
  const Matrix<double> gate_up = weights[prefix + "experts.gate_up_proj"]
                                     .row(e)
                                     .reshaped<Eigen::RowMajor>(20, 24)
                                     .cast<double>();
  const Matrix<double> down =
      weights[prefix + "experts.down_proj"].row(e).reshaped<Eigen::RowMajor>(24, 10).cast<double>();
  return swiglu_of(x, gate_up.topRows(10), gate_up.bottomRows(10), down);
}

/// The contractions of an expert one after the other, and the sum over k of them.
template <class S>
double moe_tolerance(std::int64_t k) {
  return tolerance<S>(24 + 10 + k + 8);
}

template <class S>
Matrix<S> random_input(std::int64_t rows, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  return random_matrix<S>(random, rows, 24);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(router)

BOOST_AUTO_TEST_CASE_TEMPLATE(renormalised_weights_sum_to_one, S, FloatAndDouble) {
  std::mt19937_64 random(1);
  const Matrix<S> logits = random_matrix<S>(random, 20, 16) * S(5);
  for (const std::int64_t k : {1, 2, 5, 16}) {
    const auto routing = EigenOps<S>().route(logits, k, true);
    for (Eigen::Index t = 0; t < 20; ++t)
      BOOST_TEST(std::abs(double(routing.weights.row(t).sum()) - 1) <= tolerance<S>(k));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(raw_weights_are_the_largest_of_a_softmax_over_all, S,
                              FloatAndDouble) {
  std::mt19937_64 random(2);
  const Matrix<S> logits = random_matrix<S>(random, 20, 16) * S(5);
  const auto routing = EigenOps<S>().route(logits, 4, false);
  const auto renormalised = EigenOps<S>().route(logits, 4, true);
  BOOST_TEST(same_bits(routing.ids, renormalised.ids));
  for (Eigen::Index t = 0; t < 20; ++t) {
    const Matrix<double> exps = logits.row(t).template cast<double>().array().exp().matrix();
    std::vector<std::int64_t> order(16);
    for (std::size_t e = 0; e < 16; ++e) order[e] = std::int64_t(e);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return exps(0, a) > exps(0, b); });
    Matrix<double> expected(1, 4);
    for (Eigen::Index j = 0; j < 4; ++j) {
      BOOST_TEST(routing.ids(t, j) == order[std::size_t(j)]);
      expected(0, j) = exps(0, order[std::size_t(j)]) / exps.sum();
    }
    BOOST_TEST(within(routing.weights.row(t), expected, tolerance<S>(16)));
    BOOST_TEST(within(renormalised.weights.row(t), expected / expected.sum(), tolerance<S>(16)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(equal_logits_choose_the_first_experts, S, FloatAndDouble) {
  for (const std::int64_t k : {1, 3, 8}) {
    const auto routing = EigenOps<S>().route(Matrix<S>::Constant(2, 8, S(0.3)), k, true);
    for (Eigen::Index t = 0; t < 2; ++t)
      for (Eigen::Index j = 0; j < k; ++j) {
        BOOST_TEST(routing.ids(t, j) == j);
        BOOST_TEST(std::abs(double(routing.weights(t, j)) - 1.0 / double(k)) <= tolerance<S>(8));
      }
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_tie_goes_to_the_lower_index, S, FloatAndDouble) {
  Matrix<S> logits(1, 8);
  logits << 0, 2, 1, 2, 3, 2, 1, 2;
  const auto routing = EigenOps<S>().route(logits, 4, true);
  Matrix<std::int64_t> expected(1, 4);
  expected << 4, 1, 3, 5;
  BOOST_TEST(same_bits(routing.ids, expected));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(large_logits_do_not_overflow, S, FloatAndDouble) {
  Matrix<S> logits(1, 4);
  logits << 5000, -5000, 5000, 4000;
  const auto routing = EigenOps<S>().route(logits, 3, true);
  BOOST_TEST(routing.weights(0, 0) == S(0.5));
  BOOST_TEST(routing.weights(0, 1) == S(0.5));
  BOOST_TEST(routing.weights(0, 2) == S(0));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(weights_of_given_ids_are_those_of_the_route, S, FloatAndDouble) {
  std::mt19937_64 random(3);
  const Matrix<S> logits = random_matrix<S>(random, 9, 16);
  for (const bool renormalise : {false, true}) {
    const auto routing = EigenOps<S>().route(logits, 5, renormalise);
    BOOST_TEST(same_bits(EigenOps<S>().routing_weights(logits, routing.ids, renormalise),
                         routing.weights));
  }
}

BOOST_AUTO_TEST_CASE(an_id_that_is_no_expert_has_no_weight) {
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{8}, std::int64_t{1} << 40})
    BOOST_CHECK_THROW(
        EigenOps<float>().routing_weights(Matrix<float>::Zero(2, 8),
                                          Matrix<std::int64_t>::Constant(2, 3, id), true),
        ShapeError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(experts_of_a_row)

BOOST_AUTO_TEST_CASE_TEMPLATE(all_experts_together_are_the_dense_mixture, S, FloatAndDouble) {
  const ModelConfig config = moe_config(8);
  EditableWeights weights(config);
  const Matrix<S> x = random_input<S>(6);
  const Matrix<double> wide = x.template cast<double>();
  const Matrix<double> exps =
      (wide * weights[prefix + "gate.weight"].cast<double>().transpose()).array().exp().matrix();
  Matrix<double> expected = Matrix<double>::Zero(6, 24);
  for (std::int64_t e = 0; e < 8; ++e)
    expected += (exps.col(e).array() / exps.rowwise().sum().array()).matrix().asDiagonal() *
                expert_of(weights, e, wide);
  BOOST_TEST(
      within(run_module(config, weights, x).value(".experts"), expected, moe_tolerance<S>(8)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(grouped_rows_are_the_loop_over_tokens, S, FloatAndDouble) {
  for (const std::int64_t k : {1, 3, 8}) {
    const ModelConfig config = moe_config(k);
    EditableWeights weights(config);
    const Matrix<S> x = random_input<S>(13, std::uint64_t(k));
    const MoeRun<S> run = run_module(config, weights, x);
    Matrix<double> expected = Matrix<double>::Zero(13, 24);
    for (Eigen::Index t = 0; t < 13; ++t)
      for (Eigen::Index j = 0; j < k; ++j)
        expected.row(t) +=
            double(run.routing().weights(t, j)) *
            expert_of(weights, run.routing().ids(t, j), x.row(t).template cast<double>());
    BOOST_TEST(within(run.value(".experts"), expected, moe_tolerance<S>(k)));
    for (Eigen::Index t = 0; t < 13; ++t) {
      const Matrix<S> alone = x.row(t);
      BOOST_TEST(same_bits<S>(run_module(config, weights, alone).out, run.out.row(t)));
    }
  }
}

/// Experts that see no token and one that sees all of them.
BOOST_AUTO_TEST_CASE_TEMPLATE(one_expert_can_take_every_token, S, FloatAndDouble) {
  const ModelConfig config = moe_config(1);
  EditableWeights weights(config);
  weights[prefix + "gate.weight"].setZero();  // a tie: expert 0, weight 1
  const Matrix<S> x = random_input<S>(30);
  const MoeRun<S> run = run_module(config, weights, x);
  BOOST_TEST((run.routing().ids.array() == 0).all());
  BOOST_TEST((run.routing().weights.array() == 1).all());
  BOOST_TEST(within(run.value(".experts"), expert_of(weights, 0, x.template cast<double>()),
                    moe_tolerance<S>(1)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(two_threads_give_the_bits_of_one, S, FloatAndDouble) {
  const ModelConfig config = moe_config();
  EditableWeights weights(config);
  const Matrix<S> x = random_input<S>(2000);
  Solo<S> one(config, weights), two(config, weights, EigenOps<S>(2));
  BOOST_TEST(same_bits(two.feed_forward(x), one.feed_forward(x)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(no_tokens_give_no_rows, S, FloatAndDouble) {
  const ModelConfig config = moe_config();
  EditableWeights weights(config);
  const MoeRun<S> run = run_module<S>(config, weights, Matrix<S>(0, 24));
  BOOST_TEST(run.out.rows() == 0);
  BOOST_TEST(run.out.cols() == 24);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(permuted_experts_give_the_same, S, FloatAndDouble) {
  const ModelConfig config = moe_config();
  EditableWeights weights(config), permuted(config);
  const std::int64_t from[] = {3, 0, 7, 1, 6, 2, 5, 4};
  for (std::int64_t e = 0; e < 8; ++e)
    for (const std::string& name : expert_weights)
      permuted[name].row(e) = weights[name].row(from[e]);
  const Matrix<S> x = random_input<S>(11);
  const MoeRun<S> before = run_module(config, weights, x), after = run_module(config, permuted, x);
  for (Eigen::Index i = 0; i < before.routing().ids.size(); ++i)
    BOOST_TEST(from[after.routing().ids.data()[i]] == before.routing().ids.data()[i]);
  BOOST_TEST(within(after.out, before.out, moe_tolerance<S>(3)));
  permuted[prefix + "gate.weight"] = weights[prefix + "gate.weight"];  // the router alone
  BOOST_TEST(!within(run_module(config, permuted, x).out, before.out, 0.01));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(raw_weights_scale_the_routed_part_by_their_sum, S, FloatAndDouble) {
  EditableWeights weights(moe_config());
  const Matrix<S> x = random_input<S>(9);
  const MoeRun<S> renormalised = run_module(moe_config(3, true), weights, x);
  const MoeRun<S> raw = run_module(moe_config(3, false), weights, x);
  const Matrix<double> routed = renormalised.value(".experts").template cast<double>();
  const Matrix<double> sums = raw.routing().weights.template cast<double>().rowwise().sum();
  BOOST_TEST((sums.array() < 0.99).all());
  BOOST_TEST(within(raw.value(".experts"), sums.col(0).asDiagonal() * routed, moe_tolerance<S>(3)));
  BOOST_TEST(same_bits(raw.value(".shared_expert"), renormalised.value(".shared_expert")));
}

BOOST_AUTO_TEST_CASE(operands_that_do_not_fit_are_refused) {
  const ModelConfig config = moe_config();
  EditableWeights weights(config);
  Solo<float> solo(config, weights);
  const auto& moe = *solo.w.layers[0].moe;
  const Matrix<float> x = random_input<float>(4);
  const auto routing = solo.ops.route(Matrix<float>::Zero(4, 8), 3, true);
  const auto shorter = solo.ops.route(Matrix<float>::Zero(3, 8), 3, true);
  BOOST_CHECK_THROW(solo.ops.experts(x, shorter, moe.experts_gate_up, moe.experts_down, 0),
                    ShapeError);
  BOOST_CHECK_THROW(solo.ops.experts(x, routing, moe.experts_down, moe.experts_gate_up, 0),
                    ShapeError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(block)

BOOST_AUTO_TEST_CASE_TEMPLATE(without_down_projections_the_block_is_its_shared_part, S,
                              FloatAndDouble) {
  const ModelConfig config = moe_config();
  EditableWeights weights(config);
  weights[prefix + "experts.down_proj"].setZero();
  const Matrix<S> x = random_input<S>(7);
  const MoeRun<S> run = run_module(config, weights, x);
  BOOST_TEST((run.value(".experts").array() == 0).all());
  const Matrix<double> wide = x.template cast<double>();
  const auto shared = [&](const char* name) -> Matrix<double> {
    return weights[prefix + "shared_expert." + name + "_proj.weight"].template cast<double>();
  };
  const Matrix<double> logit =
      wide * weights[prefix + "shared_expert_gate.weight"].template cast<double>().transpose();
  const Matrix<double> expected = (1 / (1 + (-logit.col(0).array()).exp())).matrix().asDiagonal() *
                                  swiglu_of(wide, shared("gate"), shared("up"), shared("down"));
  BOOST_TEST(within(run.out, expected, tolerance<S>(24 + 14 + 24)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_shared_gate_of_zero_halves_the_shared_expert, S, FloatAndDouble) {
  const ModelConfig config = moe_config();
  EditableWeights weights(config);
  weights[prefix + "shared_expert_gate.weight"].setZero();
  const MoeRun<S> run = run_module(config, weights, random_input<S>(7));
  const Matrix<S> expected = run.value(".experts") + run.value(".shared_expert") / S(2);
  BOOST_TEST(same_bits(run.out, expected));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(without_a_shared_expert_the_routed_part_is_all, S, FloatAndDouble) {
  ModelConfig config = moe_config();
  config.shared_expert_intermediate_size = 0;
  const EditableWeights weights(config);
  const MoeRun<S> run = run_module(config, weights, random_input<S>(7));
  BOOST_TEST(same_bits(run.out, run.value(".experts")));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_dense_layer_is_one_swiglu, S, FloatAndDouble) {
  ModelConfig config = moe_config();
  config.mlp_only_layers = {0};
  config.intermediate_size = 18;
  EditableWeights weights(config);
  const Matrix<S> x = random_input<S>(7);
  const auto dense = [&](const char* name) -> Matrix<double> {
    return weights[prefix + name + "_proj.weight"].template cast<double>();
  };
  BOOST_TEST(within(run_module(config, weights, x).out,
                    swiglu_of(x.template cast<double>(), dense("gate"), dense("up"), dense("down")),
                    tolerance<S>(24 + 18)));
}

/// Layer i is sparse when (i + 1) is a multiple of the step and i is not in the list.
BOOST_AUTO_TEST_CASE(the_sparse_step_and_the_dense_list_decide_which_layers_are_sparse) {
  ModelConfig config = moe_config();
  config.num_hidden_layers = 6;
  config.layer_types.assign(6, LayerType::full_attention);
  config.decoder_sparse_step = 2;
  config.mlp_only_layers = {3};
  config.intermediate_size = 18;
  config.num_mtp_layers = 1;  // counts as layer 0
  Solo<float> solo(config, EditableWeights(config));
  const bool sparse[] = {false, true, false, false, false, true};
  for (std::size_t i = 0; i < 6; ++i) {
    BOOST_TEST(solo.w.layers[i].moe.has_value() == sparse[i]);
    BOOST_TEST(solo.w.layers[i].dense.has_value() != sparse[i]);
  }
  BOOST_TEST(solo.w.mtp->layer.dense.has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
