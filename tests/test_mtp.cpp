// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/support.hpp"

namespace tokenview {
namespace {

using Ids = std::vector<std::int64_t>;

struct Models {
  ModelConfig config;
  EditableWeights weights;
  SerialModel<float> model;

  explicit Models(const ModelConfig& of, std::uint64_t seed = 0)
      : config(of), weights(config, seed), model(config, weights, EigenOps<float>()) {}
};

std::vector<ModelConfig> configs() {
  return {*preset("qwen3-next"), *preset("qwen3.5-moe"), mixed_config()};
}

/// The greedy token of the last row.
std::int64_t greedy(const SerialModel<float>& model, const Matrix<float>& hidden) {
  const Matrix<float> last = hidden.bottomRows(1);
  return EigenOps<float>().argmax(model.logits(last))[0];
}

/// `ids` without the first, then `last`: what the MTP layer is fed.
Ids shifted(const Ids& ids, std::int64_t last) {
  Ids next(ids.begin() + 1, ids.end());
  next.push_back(last);
  return next;
}

/// Sees what every draft pass is fed, and gives.
struct Watcher : DraftObserver<SerialRank<float>> {
  std::vector<Ids> ids;
  std::vector<Batch> batches;
  std::vector<Matrix<float>> logits;
  void before_step(std::size_t, Ids& of_step, const Batch& batch) override {
    ids.push_back(of_step);
    batches.push_back(batch);
  }
  void after_step(std::size_t, const Matrix<float>& of_step) override { logits.push_back(of_step); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(forward_pass)

namespace {

Matrix<float> mtp_output(const EditableWeights& weights, const ModelConfig& config, const Ids& ids,
                         const Matrix<float>& hidden, Taps<float>* taps = nullptr) {
  Solo<float> solo(config, weights);
  solo.rank.taps = taps;
  auto state = empty_state(solo.ops, config, solo.shapes);
  return mtp_forward(solo.rank, solo.protocol, solo.w, config, solo.shapes, state,
                     batch_of({{ids}}), ids, hidden);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_left_half_of_fc_is_fed_by_the_embedding) {
  const ModelConfig config = *preset("qwen3-next");
  EditableWeights weights(config);
  weights["mtp.fc.weight"].setZero();
  weights["mtp.fc.weight"].leftCols(64).setIdentity();
  std::mt19937_64 random(1);
  const Ids ids = random_ids(random, 6, 160), others = random_ids(random, 6, 160);
  const Matrix<float> hidden = random_matrix<float>(random, 6, 64);
  Taps<float> taps;
  const Matrix<float> out = mtp_output(weights, config, ids, hidden, &taps);
  BOOST_TEST(same_bits(taps.values["mtp.fc"], taps.values["mtp.pre_fc_norm_embedding"]));
  BOOST_TEST(same_bits(mtp_output(weights, config, ids, -hidden), out));
  BOOST_TEST(!same_bits(mtp_output(weights, config, others, hidden), out));
}

BOOST_AUTO_TEST_CASE(the_right_half_of_fc_is_fed_by_the_hidden_state) {
  const ModelConfig config = *preset("qwen3-next");
  EditableWeights weights(config);
  weights["mtp.fc.weight"].setZero();
  weights["mtp.fc.weight"].rightCols(64).setIdentity();
  std::mt19937_64 random(2);
  const Ids ids = random_ids(random, 6, 160), others = random_ids(random, 6, 160);
  const Matrix<float> hidden = random_matrix<float>(random, 6, 64);
  Taps<float> taps;
  const Matrix<float> out = mtp_output(weights, config, ids, hidden, &taps);
  BOOST_TEST(same_bits(taps.values["mtp.fc"], taps.values["mtp.pre_fc_norm_hidden"]));
  BOOST_TEST(same_bits(mtp_output(weights, config, others, hidden), out));
  BOOST_TEST(!same_bits(mtp_output(weights, config, ids, -hidden), out));
}

BOOST_AUTO_TEST_CASE(each_input_has_its_own_norm) {
  const ModelConfig config = *preset("qwen3-next");
  const EditableWeights weights(config);
  std::mt19937_64 random(3);
  const Ids ids = random_ids(random, 4, 160);
  const Matrix<float> hidden = random_matrix<float>(random, 4, 64);
  Taps<float> taps;
  mtp_output(weights, config, ids, hidden, &taps);
  const Solo<float> solo(config, weights);
  const auto& ops = solo.ops;
  BOOST_TEST(same_bits(taps.values["mtp.pre_fc_norm_embedding"],
                       ops.rms_norm(ops.embed(ids, solo.w.embed_tokens, 0),
                                    solo.w.mtp->pre_fc_norm_embedding, config.rms_norm_eps)));
  BOOST_TEST(same_bits(taps.values["mtp.pre_fc_norm_hidden"],
                       ops.rms_norm(hidden, solo.w.mtp->pre_fc_norm_hidden, config.rms_norm_eps)));
  BOOST_TEST(
      same_bits(taps.values["mtp.norm"],
                ops.rms_norm(taps.values["mtp.layers.0"], solo.w.mtp->norm, config.rms_norm_eps)));
}

BOOST_AUTO_TEST_CASE(the_first_pass_at_once_is_the_first_pass_in_two_parts) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(4);
    const Ids prompt = random_ids(random, 9, config.vocab_size);
    auto state = m.model.empty_state();
    const Matrix<float> hidden = m.model.forward(state, batch_of({{prompt}}));
    const Ids ids = shifted(prompt, 17);
    const Matrix<float> whole = m.model.mtp_forward(state, batch_of({{prompt}}), ids, hidden);
    for (std::int32_t split = 0; split <= 9; ++split) {
      auto in_parts = m.model.empty_state();
      m.model.mtp_forward(in_parts, batch_of({{part(prompt, 0, split)}}), part(ids, 0, split),
                          hidden.topRows(split));
      const Matrix<float> rest =
          m.model.mtp_forward(in_parts, batch_of({{part(prompt, split, 9), split}}),
                              part(ids, split, 9), hidden.bottomRows(9 - split));
      BOOST_TEST(same_bits<float>(rest, whole.bottomRows(9 - split)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(drafting)

/// Prompt t0 t1 t2, sampled t3: rows (t1, 0, h0), (t2, 1, h1), (t3, 2, h2) -> d4 -> (d4, 3, m2) ...
BOOST_AUTO_TEST_CASE(step_j_is_a_full_pass_over_the_extended_sequence) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(5);
    const Ids prompt = random_ids(random, 7, config.vocab_size);
    const Batch batch = batch_of({{prompt}});
    auto state = m.model.empty_state();
    const Matrix<float> hidden = m.model.forward(state, batch);
    const std::int64_t sampled = greedy(m.model, hidden);
    Watcher watcher;
    const auto drafts = m.model.draft(state, batch, hidden, sample_rows(batch), {sampled}, 4, {},
                                      nullptr, &watcher);

    Ids ids = shifted(prompt, sampled);
    Matrix<float> fed = hidden;
    for (std::size_t step = 0; step < 4; ++step) {
      auto fresh = m.model.empty_state();
      const Matrix<float> out = m.model.mtp_forward(fresh, batch_of({{ids}}), ids, fed);
      const Matrix<float> last = out.bottomRows(1);
      const Matrix<float> logits = m.model.logits(last);
      BOOST_TEST(same_bits<float>(watcher.logits[step].bottomRows(1), logits));
      BOOST_TEST(drafts[step].size() == 1u);
      BOOST_TEST(drafts[step][0] == EigenOps<float>().argmax(logits)[0]);
      ids.push_back(drafts[step][0]);
      fed.conservativeResize(fed.rows() + 1, Eigen::NoChange);
      fed.bottomRows(1) = last;
    }
    BOOST_TEST(watcher.ids[0] == shifted(prompt, sampled));
    BOOST_TEST(watcher.batches[0].positions == batch.positions);
    for (std::size_t step = 1; step < 4; ++step) {
      BOOST_TEST(watcher.ids[step] == drafts[step - 1]);
      BOOST_TEST(watcher.batches[step].positions == Ids{6 + std::int64_t(step)});
    }
  }
}

/// Also requests without rows in this pass, and of different histories.
BOOST_AUTO_TEST_CASE(drafts_of_a_batch_are_those_of_its_requests_alone) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(6);
    const Ids a = random_ids(random, 5, config.vocab_size),
              b = random_ids(random, 1, config.vocab_size),
              c = random_ids(random, 8, config.vocab_size);
    const auto next_of = [](const Ids& ids) { return (ids[0] * 7 + 3) % 160; };
    const auto drafts_of = [&](const std::vector<Sequence>& sequences, const Ids& next) {
      auto state = m.model.empty_state();
      const Batch batch = batch_of(sequences);
      return m.model.draft(state, batch, m.model.forward(state, batch), sample_rows(batch), next,
                           3);
    };
    const auto together =
        drafts_of({{{}, 0, 4}, {a, 0, 2}, {{}, 0, 3}, {b, 0, 0}, {c, 0, 1}, {{}, 0, 5}},
                  {next_of(a), next_of(b), next_of(c)});
    const Ids* requests[] = {&a, &b, &c};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto alone = drafts_of({{*requests[i]}}, {next_of(*requests[i])});
      for (std::size_t step = 0; step < 3; ++step) BOOST_TEST(together[step][i] == alone[step][0]);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_batch_without_requests_drafts_nothing) {
  const Models m(*preset("qwen3-next"));
  for (const Batch& batch : {batch_of({}), batch_of({{{}, 0, 0}, {{}, 0, 1}})}) {
    auto state = m.model.empty_state();
    const Matrix<float> hidden = m.model.forward(state, batch);
    const auto drafts = m.model.draft(state, batch, hidden, sample_rows(batch), {}, 2);
    BOOST_TEST(drafts.size() == 2u);
    for (const Ids& step : drafts) BOOST_TEST(step.empty());
  }
}

BOOST_AUTO_TEST_CASE(a_request_samples_at_its_last_row_less_the_rejected) {
  const Batch batch = batch_of({{{1, 2, 3}}, {{}}, {{4}}, {{5, 6, 7, 8}}});
  const SampleRows all = sample_rows(batch);
  BOOST_TEST(all.requests == (Ids{0, 2, 3}));
  BOOST_TEST(all.rows == (Ids{2, 3, 7}));
  const SampleRows accepted = sample_rows(batch, {1, 0, 0, 3});
  BOOST_TEST(accepted.requests == (Ids{0, 2, 3}));
  BOOST_TEST(accepted.rows == (Ids{1, 3, 4}));
}

BOOST_AUTO_TEST_CASE(the_next_draft_continues_after_the_accepted_rows) {
  Batch batch = batch_of({{{1, 2, 3}, 10, 6}, {{}, 4, 5}, {{4, 5, 6, 7}, 0, 9}});
  const std::vector<std::int32_t> rejected = {1, 0, 2};
  const Batch next = next_draft_batch(batch, sample_rows(batch, rejected), rejected);
  BOOST_TEST(next.positions == (Ids{12, 2}));
  BOOST_TEST(next.num_computed == (std::vector<std::int32_t>{12, 2}));
  BOOST_TEST(next.slots == (std::vector<std::int32_t>{6, 9}));
  BOOST_TEST(next.query_start_loc == (std::vector<std::int32_t>{0, 1, 2}));
  BOOST_TEST(next.num_tokens() == 2);
  BOOST_TEST(next.mrope_positions.empty());
  const Batch after = next_draft_batch(next, sample_rows(next));
  BOOST_TEST(after.positions == (Ids{13, 3}));
  BOOST_TEST(after.num_computed == (std::vector<std::int32_t>{13, 3}));
}

BOOST_AUTO_TEST_CASE(all_three_rows_of_mrope_positions_advance) {
  Batch batch = batch_of({{{1, 2}}, {{3}}});
  batch.mrope_positions = {20, 21, 5, 30, 31, 6, 40, 41, 7};
  const Batch next = next_draft_batch(batch, sample_rows(batch));
  BOOST_TEST(next.mrope_positions == (Ids{22, 6, 32, 7, 42, 8}));
}

BOOST_AUTO_TEST_CASE(ids_are_shifted_inside_each_request_only) {
  const Batch batch = batch_of({{{1, 2, 3}}, {{}}, {{4}}, {{5, 6}}});
  const Ids next = EigenOps<float>().next_ids(batch.input_ids, batch, {2, 3, 5}, {70, 80, 90});
  BOOST_TEST(next == (Ids{2, 3, 70, 80, 6, 90}));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verification)

namespace {

using State = SerialModel<float>::State;

/// Makes the state after `rows` rows of the last pass the state of every Gated DeltaNet.
void accept(State& state, std::int32_t slot, std::int64_t rows) {
  for (auto& layer : state.layers)
    if (layer.gdn) EigenOps<float>().commit_accepted(*layer.gdn, slot, rows);
}

/// One token a pass, without MTP: every token after the prompt, and the state after each.
struct PlainDecode {
  Ids tokens;                 // greedy, one a pass
  std::vector<State> states;  // after the pass that made tokens[i]

  PlainDecode(const SerialModel<float>& model, const Ids& prompt, std::int64_t count) {
    State state = model.empty_state();
    Matrix<float> hidden = model.forward(state, batch_of({{prompt}}));
    auto computed = std::int32_t(prompt.size());
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(greedy(model, hidden));
      states.push_back(state);
      hidden = model.forward(state, batch_of({{{tokens.back()}, computed++}}));
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(accepted_drafts_leave_the_state_of_decoding_without_them) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(7);
    const Ids prompt = random_ids(random, 6, config.vocab_size);
    const PlainDecode plain(m.model, prompt, 5);
    State state = m.model.empty_state();
    m.model.forward(state, batch_of({{prompt}}));
    Batch verified = batch_of({{part(plain.tokens, 0, 4), 6}});
    verified.keep_states = true;
    m.model.forward(state, verified);
    BOOST_TEST(same_state<float>(state, 0, plain.states[4], 0, 10));  // without a commit, too
    accept(state, 0, 4);
    BOOST_TEST(same_state<float>(state, 0, plain.states[4], 0, 10));
  }
}

BOOST_AUTO_TEST_CASE(a_rejection_restores_the_state_of_the_accepted_drafts) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(8);
    const Ids prompt = random_ids(random, 6, config.vocab_size);
    const PlainDecode plain(m.model, prompt, 8);
    for (std::int64_t accepted = 0; accepted < 4; ++accepted) {  // of four drafts
      State state = m.model.empty_state();
      m.model.forward(state, batch_of({{prompt}}));
      Ids verified = part(plain.tokens, 0, 1 + accepted);
      while (verified.size() < 5) verified.push_back((plain.tokens[verified.size()] + 11) % 160);
      Batch pass = batch_of({{verified, 6}});
      pass.keep_states = true;
      const Matrix<float> hidden = m.model.forward(state, pass);
      const Matrix<float> sampled_row = hidden.topRows(1 + accepted);
      BOOST_TEST(greedy(m.model, sampled_row) == plain.tokens[std::size_t(1 + accepted)]);

      const auto rows = 1 + accepted;  // the sampled token before the drafts, and they
      BOOST_TEST(!same_state<float>(state, 0, plain.states[std::size_t(rows)], 0, 6 + rows));
      accept(state, 0, rows);
      BOOST_TEST(same_state<float>(state, 0, plain.states[std::size_t(rows)], 0, 6 + rows));

      // Decoding goes on over the keys and values of the rejected drafts.
      for (std::int64_t i = rows; i < 7; ++i)
        m.model.forward(state, batch_of({{{plain.tokens[std::size_t(i)]}, std::int32_t(6 + i)}}));
      BOOST_TEST(same_state<float>(state, 0, plain.states[7], 0, 13));
    }
  }
}

/// Prompt, then rounds of draft and verification with the real drafts, accepted as far as they are
/// the greedy tokens. To see acceptances too, every second round drafts the greedy tokens.
BOOST_AUTO_TEST_CASE(speculative_decoding_gives_the_tokens_of_plain_decoding) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(9);
    const Ids prompt = random_ids(random, 5, config.vocab_size);
    const std::size_t wanted = 14;
    const PlainDecode plain(m.model, prompt, std::int64_t(wanted) + 4);

    State state = m.model.empty_state();
    Batch pass = batch_of({{prompt}});
    std::vector<std::int32_t> rejected = {0};
    Ids tokens;
    for (int round = 0; tokens.size() < wanted; ++round) {
      const Matrix<float> hidden = m.model.forward(state, pass);
      // The greedy token after each row, as far as the row's own token was right.
      const Ids after = EigenOps<float>().argmax(m.model.logits(hidden));
      std::size_t row = pass.input_ids.size() - 1;
      if (pass.keep_states) {
        row = 0;
        while (row + 1 < after.size() && pass.input_ids[row + 1] == after[row])
          tokens.push_back(after[row++]);
        rejected = {std::int32_t(after.size() - 1 - row)};
        accept(state, 0, std::int64_t(row) + 1);
      }
      tokens.push_back(after[row]);
      const auto drafts = m.model.draft(state, pass, hidden, sample_rows(pass, rejected),
                                        {tokens.back()}, 3, rejected);
      Ids verified = {tokens.back()};
      for (std::size_t j = 0; j < 3; ++j)
        verified.push_back(round % 2 == 0 ? drafts[j][0] : plain.tokens[tokens.size() + j]);
      const auto computed =
          std::int32_t(pass.num_computed[0] + std::int32_t(pass.input_ids.size()) - rejected[0]);
      pass = batch_of({{verified, computed}});
      pass.keep_states = true;
    }
    tokens.resize(wanted);
    BOOST_TEST(tokens == part(plain.tokens, 0, std::int64_t(wanted)));
  }
}

/// A draft after a verification with rejections is the draft after a pass over what was accepted.
BOOST_AUTO_TEST_CASE(rejected_rows_do_not_change_the_drafts) {
  for (const ModelConfig& config : configs()) {
    const Models m(config);
    std::mt19937_64 random(10);
    const Ids prompt = random_ids(random, 6, config.vocab_size),
              verified = random_ids(random, 4, config.vocab_size);
    const auto drafts_after = [&](const Ids& pass_ids, std::int32_t rejected, State& state) {
      const Batch first = batch_of({{prompt}});
      const Matrix<float> hidden = m.model.forward(state, first);
      m.model.draft(state, first, hidden, sample_rows(first), {pass_ids[0]}, 4);
      Batch pass = batch_of({{pass_ids, 6}});
      pass.keep_states = true;
      const Matrix<float> out = m.model.forward(state, pass);
      return m.model.draft(state, pass, out, sample_rows(pass, {rejected}), {77}, 3, {rejected});
    };
    for (std::int32_t rejected = 1; rejected < 4; ++rejected) {
      State padded = m.model.empty_state(), exact = m.model.empty_state();
      const auto found = drafts_after(verified, rejected, padded);
      const auto expected = drafts_after(part(verified, 0, 4 - rejected), 0, exact);
      BOOST_TEST(found == expected);
      accept(padded, 0, 4 - rejected);
      BOOST_TEST(same_state<float>(padded, 0, exact, 0, 10 - rejected, 10 - rejected + 2));
    }
  }
}

BOOST_AUTO_TEST_CASE(each_request_commits_its_own_rows) {
  const Models m(*preset("qwen3-next"));
  std::mt19937_64 random(11);
  const Ids a = random_ids(random, 4, 160), b = random_ids(random, 3, 160),
            more = random_ids(random, 3, 160);
  State state = m.model.empty_state();
  m.model.forward(state, batch_of({{a, 0, 0}, {b, 0, 1}}));
  Batch pass = batch_of({{more, 4, 0}, {more, 3, 1}});
  pass.keep_states = true;
  m.model.forward(state, pass);
  accept(state, 0, 1);
  accept(state, 1, 2);
  State expected = m.model.empty_state();
  m.model.forward(expected, batch_of({{a, 0, 0}, {b, 0, 1}}));
  m.model.forward(expected, batch_of({{part(more, 0, 1), 4, 0}}));
  m.model.forward(expected, batch_of({{part(more, 0, 2), 3, 1}}));
  BOOST_TEST(same_state<float>(state, 0, expected, 0, 5));
  BOOST_TEST(same_state<float>(state, 1, expected, 1, 5));
}

BOOST_AUTO_TEST_CASE(rows_that_were_not_kept_cannot_be_accepted) {
  const Models m(*preset("qwen3-next"));
  State state = m.model.empty_state();
  Batch pass = batch_of({{{1, 2, 3}}});
  m.model.forward(state, pass);
  auto& gdn = *state.layers[0].gdn;
  BOOST_CHECK_THROW(EigenOps<float>().commit_accepted(gdn, 0, 1), ShapeError);  // none were kept
  pass.keep_states = true;
  m.model.forward(state, pass);
  BOOST_CHECK_THROW(EigenOps<float>().commit_accepted(gdn, 0, 0), ShapeError);
  BOOST_CHECK_THROW(EigenOps<float>().commit_accepted(gdn, 0, 4), ShapeError);
  BOOST_CHECK_NO_THROW(EigenOps<float>().commit_accepted(gdn, 0, 3));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
