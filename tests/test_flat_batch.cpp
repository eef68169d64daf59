// SPDX-License-Identifier: Apache-2.0
// The whole model over flat batches: what a sequence gets depends on that sequence alone.
#include <algorithm>
#include <numeric>

#include "tests/support.hpp"

namespace tokenview {
namespace {

using Ids = std::vector<std::int64_t>;
using Ops = EigenOps<float>;

struct Variant {
  const char* name;
  ModelConfig config;
  Ops ops;
};

/// Every model family under every way to evaluate it.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const ModelConfig& config :
       {*preset("qwen3-next"), *preset("qwen3.5-moe"), mixed_config()}) {
    all.push_back({"recurrent", config, Ops()});
    all.push_back({"chunked", config, Ops(1, Rounding::none, GdnForm::chunked)});
    all.push_back({"hf", config, Ops(1, Rounding::hf)});
    all.push_back({"vllm", config, Ops(1, Rounding::vllm)});
    all.push_back({"two threads", config, Ops(2)});
  }
  return all;
}

struct Fixture {
  SerialModel<float> model;
  SerialModel<float>::State state;

  explicit Fixture(const Variant& variant) : Fixture(variant, EditableWeights(variant.config)) {}
  Fixture(const Variant& variant, const WeightSource& weights)
      : model(variant.config, weights, variant.ops), state(model.empty_state()) {}

  Matrix<float> run(const std::vector<Sequence>& sequences) {
    return model.forward(state, batch_of(sequences));
  }
};

/// A sequence of the tests: a context, and the step after it.
struct Story {
  Ids context, step;
};

/// A decode, prefills of several lengths (one over a chunk of 64), a continued prefill.
std::vector<Story> stories() {
  std::mt19937_64 random(1);
  const auto ids = [&](std::int64_t count) { return random_ids(random, count, 160); };
  return {{ids(7), ids(1)}, {{}, ids(5)}, {{}, ids(70)}, {ids(4), ids(3)}, {{}, ids(1)}};
}

struct Outcome {
  Matrix<float> context, step;
};

/// Story `story` alone in slot 0: outputs, and the state in `fixture`.
Outcome alone(Fixture& fixture, const Story& story) {
  const Matrix<float> context = fixture.run({{story.context}});
  return {context, fixture.run({{story.step, std::int32_t(story.context.size())}})};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_sequence_has_the_same_bits_alone_and_at_any_place_among_others) {
  const auto all = stories();
  for (const Variant& variant : variants()) {
    std::vector<Fixture> solo;
    std::vector<Outcome> expected;
    for (const Story& story : all) {
      solo.emplace_back(variant);
      expected.push_back(alone(solo.back(), story));
    }
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(2);
    for (int permutation = 0; permutation < 3; ++permutation) {
      // Slots are in another order than the rows, with a gap.
      std::vector<Sequence> contexts, steps;
      for (const std::size_t i : order) {
        const auto slot = std::int32_t((i * 3 + std::size_t(permutation)) % 7);
        contexts.push_back({all[i].context, 0, slot});
        steps.push_back({all[i].step, std::int32_t(all[i].context.size()), slot});
      }
      Fixture batch(variant);
      const Matrix<float> context = batch.run(contexts), step = batch.run(steps);
      Eigen::Index context_row = 0, step_row = 0;
      for (std::size_t at = 0; at < order.size(); ++at) {
        const std::size_t i = order[at];
        const auto c = expected[i].context.rows(), s = expected[i].step.rows();
        BOOST_TEST_INFO(text(variant.name, ", sequence ", i, " at place ", at));
        BOOST_TEST(same_bits<float>(context.middleRows(context_row, c), expected[i].context));
        BOOST_TEST(same_bits<float>(step.middleRows(step_row, s), expected[i].step));
        BOOST_TEST(
            same_state<float>(batch.state, std::size_t(steps[at].slot), solo[i].state, 0, c + s));
        context_row += c;
        step_row += s;
      }
      std::shuffle(order.begin(), order.end(), random);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_mixed_batch_is_its_decodes_and_its_prefills_apart) {
  std::mt19937_64 random(3);
  const Ids a = random_ids(random, 6, 160), b = random_ids(random, 3, 160),
            c = random_ids(random, 66, 160), d = random_ids(random, 4, 160);
  for (const Variant& variant : variants()) {
    Fixture mixed(variant), apart(variant);
    for (Fixture* f : {&mixed, &apart}) f->run({{a, 0, 0}, {b, 0, 1}});
    const Matrix<float> all = mixed.run({{c, 0, 2}, {{9}, 6, 0}, {d, 0, 3}, {{8}, 3, 1}});
    const Matrix<float> decodes = apart.run({{{9}, 6, 0}, {{8}, 3, 1}});
    const Matrix<float> prefills = apart.run({{c, 0, 2}, {d, 0, 3}});
    BOOST_TEST_INFO(variant.name);
    BOOST_TEST(same_bits<float>(all.topRows(66), prefills.topRows(66)));
    BOOST_TEST(same_bits<float>(all.row(66), decodes.row(0)));
    BOOST_TEST(same_bits<float>(all.middleRows(67, 4), prefills.bottomRows(4)));
    BOOST_TEST(same_bits<float>(all.row(71), decodes.row(1)));
    const std::int64_t lengths[] = {7, 4, 66, 4};
    for (std::size_t slot = 0; slot < 4; ++slot)
      BOOST_TEST(same_state<float>(mixed.state, slot, apart.state, slot, lengths[slot]));
  }
}

/// Token by token, and in two parts. Chunks lie elsewhere then: equal within the roundings only.
BOOST_AUTO_TEST_CASE(decoding_the_whole_model_is_its_prefill) {
  std::mt19937_64 random(4);
  const Ids ids = random_ids(random, 12, 160);
  for (const Variant& variant : variants()) {
    if (variant.ops.rounding() != Rounding::none) continue;  // a step apart in bfloat16, and no law
    Fixture whole(variant), decode(variant), halves(variant);
    const Matrix<float> expected = whole.run({{ids}});
    Matrix<float> decoded(12, 64), halved(12, 64);
    for (std::int32_t t = 0; t < 12; ++t) decoded.row(t) = decode.run({{part(ids, t, t + 1), t}});
    halved.topRows(5) = halves.run({{part(ids, 0, 5)}});
    halved.bottomRows(7) = halves.run({{part(ids, 5, 12), 5}});
    if (variant.name == std::string("chunked")) {
      // Four layers, each of a dozen contractions of 64 or fewer terms.
      const double allowed = tolerance<float>(4 * 12 * 64);
      BOOST_TEST(within(decoded, expected, allowed));
      BOOST_TEST(within(halved, expected, allowed));
    } else {
      BOOST_TEST(same_bits(decoded, expected));
      BOOST_TEST(same_bits(halved, expected));
      BOOST_TEST(same_state<float>(decode.state, 0, whole.state, 0, 12));
    }
  }
}

BOOST_AUTO_TEST_CASE(an_empty_sequence_changes_nothing) {
  std::mt19937_64 random(5);
  const Ids a = random_ids(random, 5, 160), b = random_ids(random, 3, 160);
  for (const Variant& variant : variants()) {
    Fixture with(variant), without(variant);
    for (Fixture* f : {&with, &without}) f->run({{a, 0, 0}, {b, 0, 1}});
    const auto before = with.state;
    const Matrix<float> out =
        with.run({{{}, 0, 4}, {{5, 6}, 5, 0}, {{}, 3, 1}, {{7}, 0, 2}, {{}, 0, 3}});
    BOOST_TEST_INFO(variant.name);
    BOOST_TEST(same_bits(out, without.run({{{5, 6}, 5, 0}, {{7}, 0, 2}})));
    BOOST_TEST(same_state<float>(with.state, 1, before, 1, 3));
    BOOST_TEST(same_state<float>(with.state, 0, without.state, 0, 7));
  }
}

BOOST_AUTO_TEST_CASE(no_tokens_give_no_rows_and_no_drafts) {
  for (const Variant& variant : variants()) {
    Fixture f(variant);
    f.run({{{1, 2, 3}}});
    const auto before = f.state;
    for (const Batch& batch : {batch_of({}), batch_of({{{}, 3, 0}})}) {
      Taps<float> taps;
      const Matrix<float> hidden = f.model.forward(f.state, batch, &taps);
      BOOST_TEST(hidden.rows() == 0);
      BOOST_TEST(hidden.cols() == 64);
      BOOST_TEST(f.model.logits(hidden).cols() == 160);
      for (const auto& [name, value] : taps.values) BOOST_TEST(value.rows() == 0);
      const auto drafts = f.model.draft(f.state, batch, hidden, sample_rows(batch), {}, 2);
      BOOST_TEST(drafts == std::vector<Ids>(2));
      BOOST_TEST(same_state<float>(f.state, 0, before, 0, 3));
    }
  }
}

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// NaN in everything that no sequence may read: slots that are not in `computed`, slots with 0
/// computed tokens, keys and values past the computed ones, and states kept for a commit.
void poison(SerialModel<float>::State& state, const std::map<std::size_t, std::int64_t>& computed) {
  const std::size_t num_slots = 9;
  const auto of_kv = [&](Ops::KvCache& kv) {
    kv.slots.resize(num_slots);
    for (std::size_t i = 0; i < num_slots; ++i)
      for (auto* values : {&kv.slots[i].keys, &kv.slots[i].values}) {
        const std::int64_t kept = computed.count(i) ? computed.at(i) * kv.width : 0;
        values->resize(std::size_t(kept));
        values->resize(std::size_t(kept + 100 * kv.width), nan);
      }
  };
  for (auto& layer : state.layers) {
    if (layer.kv) of_kv(*layer.kv);
    if (!layer.gdn) continue;
    Ops::GdnState& gdn = *layer.gdn;
    gdn.slots.resize(num_slots);
    Ops::GdnState::Column poisoned;
    poisoned.conv = Matrix<float>::Constant(gdn.kernel - 1, gdn.shape.conv_dim(), nan);
    poisoned.recurrent.assign(std::size_t(gdn.shape.value_dim() * gdn.shape.key_head_dim), nan);
    for (std::size_t i = 0; i < num_slots; ++i) {
      gdn.slots[i].after_row.assign(5, poisoned);
      if (!computed.count(i) || computed.at(i) == 0) gdn.slots[i].now = poisoned;
    }
  }
  of_kv(*state.mtp.kv);
}

}  // namespace

BOOST_AUTO_TEST_CASE(poison_in_unused_memory_and_pad_rows_reaches_no_real_row) {
  const std::int64_t poisoned_id = 159;
  const auto story_ids = [] {
    std::mt19937_64 random(6);
    return random_ids(random, 100, poisoned_id);
  }();
  for (const Variant& variant : variants()) {
    EditableWeights weights(variant.config);
    weights["model.embed_tokens.weight"].row(poisoned_id).setConstant(nan);
    Fixture clean(variant, weights), poisoned(variant, weights);
    for (Fixture* f : {&clean, &poisoned}) {
      const Batch context =
          batch_of({{part(story_ids, 0, 6), 0, 4}, {part(story_ids, 6, 9), 0, 1}});
      const Matrix<float> hidden = f->model.forward(f->state, context);
      f->model.mtp_forward(f->state, context, context.input_ids, hidden);
    }
    poison(poisoned.state, {{4, 6}, {1, 3}, {2, 0}});
    BOOST_REQUIRE(same_state<float>(poisoned.state, 4, clean.state, 4, 6, 6));

    const std::vector<Sequence> step = {{part(story_ids, 9, 10), 6, 4},
                                        {part(story_ids, 10, 80), 0, 2},
                                        {part(story_ids, 80, 83), 3, 1}};
    const Batch plain = batch_of(step);
    Batch padded = plain;
    for (int pad = 0; pad < 5; ++pad) {
      padded.input_ids.push_back(poisoned_id);
      padded.positions.push_back(0);
    }
    const Matrix<float> expected = clean.model.forward(clean.state, plain);
    const Matrix<float> out = poisoned.model.forward(poisoned.state, padded);
    const std::int64_t lengths[] = {7, 70, 6};
    BOOST_TEST_INFO(variant.name);
    BOOST_TEST(out.rows() == 79);
    BOOST_TEST(expected.allFinite());
    BOOST_TEST(same_bits<float>(out.topRows(74), expected));
    for (std::size_t s = 0; s < 3; ++s)
      BOOST_TEST(same_state<float>(poisoned.state, std::size_t(step[s].slot), clean.state,
                                   std::size_t(step[s].slot), lengths[s]));

    const auto expected_drafts =
        clean.model.draft(clean.state, plain, expected, sample_rows(plain), {3, 4, 5}, 3);
    const auto drafts =
        poisoned.model.draft(poisoned.state, padded, out, sample_rows(padded), {3, 4, 5}, 3);
    BOOST_TEST(drafts == expected_drafts);
    for (std::size_t s = 0; s < 3; ++s)
      BOOST_TEST(same_state<float>(poisoned.state, std::size_t(step[s].slot), clean.state,
                                   std::size_t(step[s].slot), lengths[s], lengths[s] + 2));
  }
}

/// An idle data-parallel rank runs rows that belong to nobody.
BOOST_AUTO_TEST_CASE(a_batch_of_pad_rows_alone_touches_no_state) {
  for (const Variant& variant : variants()) {
    Fixture f(variant);
    f.run({{{1, 2, 3}}});
    const auto before = f.state;
    Batch idle = batch_of({});
    idle.input_ids = {4, 5};
    idle.positions = {0, 0};
    BOOST_TEST(f.model.forward(f.state, idle).rows() == 2);
    BOOST_TEST(same_state<float>(f.state, 0, before, 0, 3));
    for (const auto& layer : f.state.layers) {
      if (layer.kv) BOOST_TEST(layer.kv->slots.size() == 1u);
      if (layer.gdn) BOOST_TEST(layer.gdn->slots.size() == 1u);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_reused_slot_starts_anew) {
  for (const Variant& variant : variants()) {
    Fixture reused(variant), fresh(variant);
    reused.run({{{1, 2, 3, 4, 5}}});
    BOOST_TEST(same_bits(reused.run({{{6, 7}}}), fresh.run({{{6, 7}}})));
    BOOST_TEST(same_state<float>(reused.state, 0, fresh.state, 0, 2));
  }
}

}  // namespace tokenview
