// SPDX-License-Identifier: Apache-2.0
// Placement by values alone on dumps of every protocol and mutant, ranks shuffled and without
// names, beside the views that the program itself carries.
#include <Eigen/QR>
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "reference/program/bfloat16.hpp"
#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "verify/infer.hpp"
#include "verify/number_run.hpp"
#include "verify/placed_tap.hpp"
#include "verify/requests.hpp"
#include "verify/scenario.hpp"
#include "verify/unsharded.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Values = Matrix<float>;

/// A tap of a run: what each rank holds, what the program says of it, and the trusted tensors.
struct TapDump {
  std::string name;
  std::vector<RankCoordinates> at = {};
  std::vector<Values> values = {};
  std::vector<const ViewOps::Tensor*> views = {};
  struct Trusted {
    std::int16_t dp;
    std::int32_t step;
    Values values;
    Rows rows;  // which token each is
  };
  std::vector<Trusted> trusted = {};
  std::function<std::vector<std::int64_t>(const ColumnBlock&)> columns_of = {};
  std::int32_t step = 0;
};

std::span<const float> span_of(const Values& values) {
  return {values.data(), std::size_t(values.size())};
}

enum class Verdict { right, ambiguous, missed, wrong };

/// Judges what was inferred of a tap by its views as far as they are true of the numbers, and by
/// the numbers alone where they are not.
class Judge {
 public:
  Judge(const TapDump& tap, double tolerance) : tap_(tap), tolerance_(tolerance) {}

  /// `places` of a group's members are places in the tap.
  Verdict verdict(std::size_t rank, std::int64_t i, const InferredRow& found) const {
    const RowRun claim = tap_.views[rank]->rows.at(i);
    const auto is_claim = [&](const RowExplanation& e) { return is_as(rank, claim, e); };
    const bool is_zero = row(rank, i).cwiseAbs().maxCoeff() == 0;
    if (claim.kind == RowKind::token && is_true(rank, i, claim)) {
      if (is_claim(found.best)) return found.is_ambiguous() ? Verdict::ambiguous : Verdict::right;
      if (std::ranges::any_of(found.others, is_claim)) return Verdict::ambiguous;
      return found.best.reading == RowReading::unknown ? Verdict::missed : Verdict::wrong;
    }
    if (claim.kind == RowKind::pad && is_zero) {
      const auto is_pad = [](const RowExplanation& e) { return e.reading == RowReading::pad; };
      if (is_pad(found.best)) return found.is_ambiguous() ? Verdict::ambiguous : Verdict::right;
      return std::ranges::any_of(found.others, is_pad) ? Verdict::ambiguous : Verdict::wrong;
    }
    if (claim.kind == RowKind::pad && found.best.reading == RowReading::pad) return Verdict::right;
    // No token, as a row is that the program calls MIX, or of which it says what is not so.
    if (found.best.reading == RowReading::unknown) return Verdict::right;
    return holds(rank, i, found.best) ? Verdict::right : Verdict::wrong;
  }

  std::string in_words(std::size_t rank, std::int64_t i) const {
    TokenView view = *tap_.views[rank];
    view.rows = view.rows.slice(i, i + 1);
    return to_string(view, tap_.step);
  }
  /// What kind of row the program says it is.
  const char* kind(std::size_t rank, std::int64_t i) const {
    const RowRun claim = tap_.views[rank]->rows.at(i);
    if (claim.kind == RowKind::pad) return "pad";
    if (claim.kind == RowKind::mix) return "mix";
    if (!is_true(rank, i, claim)) return "untrue";
    if (claim.step != tap_.step) return "stale";
    const Completeness& sum = tap_.views[rank]->sum;
    return sum.is_partial() ? "partial" : sum.is_complete() ? "token" : "multiple";
  }

 private:
  using Row = Eigen::RowVectorXd;

  Row row(std::size_t rank, std::int64_t i) const {
    return tap_.values[rank].row(i).cast<double>();
  }
  /// The trusted value, of whole width; without columns where there is none.
  Row trusted(const RowRun& token) const {
    for (const TapDump::Trusted& trusted : tap_.trusted)
      if (trusted.dp == token.dp && trusted.step == token.step)
        if (const auto place =
                place_of({token.first, 1, 0, RowKind::token, {}, token.step}, named(trusted));
            place >= 0)
          return trusted.values.row(place).cast<double>();
    return {};
  }
  static Rows named(const TapDump::Trusted& trusted) { return trusted.rows; }

  Row block(const Row& whole, const ColumnBlock& columns) const {
    const auto held = tap_.columns_of(columns);
    Row out(std::ssize(held));
    for (std::size_t c = 0; c < held.size(); ++c)
      out[Eigen::Index(c)] = held[c] < whole.size() ? whole[held[c]] : NAN;
    return out;
  }
  bool near(const Row& a, const Row& b, double slack = 1) const {
    return a.size() == b.size() &&
           ((a - b).array().abs() <= slack * tolerance_ * std::max(a.cwiseAbs().maxCoeff(), 1e-30))
               .all();
  }

  /// Whether the numbers are what the program's view says of a token row.
  bool is_true(std::size_t rank, std::int64_t i, const RowRun& claim) const {
    const Row whole = trusted(claim);
    if (whole.size() == 0) return false;
    const ViewOps::Tensor& view = *tap_.views[rank];
    const Row value = block(whole, view.columns);
    if (!view.sum.is_partial())
      return near(row(rank, i), value * view.sum.times() / view.sum.divisor());
    // Row by row over all ranks, in the proportions in which every summand is there once.
    std::vector<std::size_t> holders;
    for (std::size_t r = 0; r < tap_.views.size(); ++r)
      if (i < tap_.views[r]->rows.size() && tap_.views[r]->rows.at(i) == claim &&
          tap_.views[r]->columns == view.columns && tap_.views[r]->sum.size() == view.sum.size())
        holders.push_back(r);
    Eigen::MatrixXd counts(view.sum.size(), std::ssize(holders));
    for (std::size_t h = 0; h < holders.size(); ++h)
      for (std::int64_t s = 0; s < view.sum.size(); ++s)
        counts(s, Eigen::Index(h)) =
            double(tap_.views[holders[h]]->sum.count(s)) / tap_.views[holders[h]]->sum.divisor();
    const Eigen::VectorXd once = Eigen::VectorXd::Ones(view.sum.size());
    const Eigen::VectorXd share = counts.completeOrthogonalDecomposition().solve(once);
    if ((counts * share - once).norm() > 1e-9) return false;
    Row sum = Row::Zero(value.size());
    for (std::size_t h = 0; h < holders.size(); ++h) {
      if (row(holders[h], i).size() != sum.size()) return false;
      sum += share[Eigen::Index(h)] * row(holders[h], i);
    }
    return near(sum, value);
  }

  /// Whether an explanation is what the program's view says.
  bool is_as(std::size_t rank, const RowRun& claim, const RowExplanation& e) const {
    const ViewOps::Tensor& view = *tap_.views[rank];
    if (e.reading != (view.sum.is_partial() ? RowReading::partial : RowReading::token))
      return false;
    const RowRun token = token_of(e.row);
    if (token.dp != claim.dp || token.first != claim.first || token.step != claim.step)
      return false;
    if (tap_.columns_of(e.columns) != tap_.columns_of(view.columns)) return false;
    return view.sum.is_partial() ||
           std::abs(e.factor - double(view.sum.times()) / view.sum.divisor()) < 1e-9;
  }
  /// A trusted row's token, as the program names it.
  RowRun token_of(const RowRun& row) const {
    for (const TapDump::Trusted& trusted : tap_.trusted)
      if (trusted.dp == row.dp && trusted.step == row.step) {
        RowRun token = trusted.rows.at(row.first);
        token.dp = row.dp;
        return token;
      }
    return row;
  }

  /// Whether an explanation is true of the numbers.
  bool holds(std::size_t rank, std::int64_t i, const RowExplanation& e) const {
    Row value = row(rank, i);
    if (!e.partners.empty()) {
      value.setZero();
      for (const std::int32_t partner : e.partners) value += row(std::size_t(partner), i);
    }
    const auto of = [&](const RowRun& token, const ColumnBlock& columns) {
      return block(trusted(token_of(token)), columns);
    };
    switch (e.reading) {
      case RowReading::token:
      case RowReading::partial:
        return near(value, e.factor * of(e.row, e.columns), 2);
      case RowReading::pad:
        return e.row.content != PadContent::zero || value.cwiseAbs().maxCoeff() == 0;
      case RowReading::mix: {
        const double scale = value.cwiseAbs().maxCoeff();
        for (const RowPiece& piece : e.pieces) {
          const Eigen::Index width = value.size() / piece.place.of;
          const Row part = value.segment(piece.place.begin * width, width);
          if (piece.row.kind == RowKind::pad) {
            if (part.cwiseAbs().maxCoeff() > 0) return false;
            continue;
          }
          const Row whole = trusted(token_of(piece.row));
          const Eigen::Index from = piece.columns.begin * (whole.size() / piece.columns.of);
          if (!((part - whole.segment(from, width)).array().abs() <= 2 * tolerance_ * scale).all())
            return false;
        }
        return true;
      }
      case RowReading::sum: {
        Row sum = Row::Zero(value.size());
        for (const RowPiece& piece : e.pieces) sum += piece.factor * of(piece.row, {});
        return near(value, sum, 2);
      }
      case RowReading::unknown:
        return true;
    }
    return false;
  }

  const TapDump& tap_;
  double tolerance_;
};

/// The taps of one run.
std::vector<TapDump> dumps_of(const ParallelRun& run, const WeightSource& weights,
                              const ViewRunResult& views, const NumberRunResult& numbers) {
  struct Alone {
    std::int16_t dp;
    std::int32_t step;
    ViewRunResult views;
    NumberRunResult numbers;
  };
  std::vector<Alone> alone;
  const auto last = std::int32_t(run.later_steps.size());
  for (std::size_t dp = 0; dp < run.inputs.size(); ++dp)
    for (std::int32_t step = last; step >= 0; --step) {
      ParallelRun until = unsharded(run, dp);
      until.later_steps.resize(std::size_t(step));
      alone.push_back(
          {std::int16_t(dp), step, run_views(until, true), run_numbers<double>(until, weights)});
    }
  std::vector<TapDump> taps;
  for (const NamedView& view : views.views) {
    TapDump tap{.name = view.name, .step = last};
    const std::string leaf = view.name.substr(view.name.find('/') + 1);
    std::int64_t width = 0;
    for (const Alone& each : alone) {
      const auto found = each.numbers.taps.front().values.find(view.name);
      if (found == each.numbers.taps.front().values.end()) continue;
      for (const NamedView& its : each.views.views)
        if (its.name == view.name) {
          // Tokens only: a golden has no pads of the runner.
          const Rows& rows = its.by_rank.front().rows;
          TapDump::Trusted& trusted = tap.trusted.emplace_back(
              TapDump::Trusted{each.dp, each.step, Values(0, found->second.cols()), {}});
          for (std::int64_t i = 0; i < rows.size(); ++i) {
            if (rows.at(i).kind != RowKind::token) continue;
            trusted.rows.append(rows.at(i));
            trusted.values.conservativeResize(trusted.rows.size(), Eigen::NoChange);
            trusted.values.bottomRows(1) = found->second.row(i).cast<float>();
          }
        }
      width = std::max<std::int64_t>(width, found->second.cols());
    }
    std::erase_if(tap.trusted, [&](const auto& t) { return t.values.cols() != width; });
    if (tap.trusted.empty()) continue;
    tap.columns_of = [leaf, width, &run](const ColumnBlock& block) {
      return columns_of(leaf, block, width, run.config);
    };
    std::size_t in_stage = 0;
    for (std::int64_t world = 0; world < run.plan.parallel.world_size(); ++world) {
      const RankCoordinates at = coordinates_of(world, run.plan.parallel);
      if (at.pp != view.stage || in_stage >= view.by_rank.size()) continue;
      const ViewOps::Tensor& held = view.by_rank[in_stage++];
      const auto& values = numbers.taps[std::size_t(world)].values;
      const auto found = values.find(view.name);
      if (found == values.end() || found->second.rows() != held.rows.size()) continue;
      tap.at.push_back(at);
      tap.values.push_back(found->second.cast<float>());
      tap.views.push_back(&held);
    }
    if (!tap.at.empty()) taps.push_back(std::move(tap));
  }
  return taps;
}

struct Score {
  std::map<std::string, std::map<Verdict, std::int64_t>> by_kind;
  std::int64_t sure_and_wrong = 0;
  std::int64_t views = 0, contradicted = 0;  // of ranks whose rows are what the program says
  std::vector<std::string> examples;

  std::int64_t count(Verdict verdict) const {
    std::int64_t total = 0;
    for (const auto& [kind, verdicts] : by_kind)
      if (const auto found = verdicts.find(verdict); found != verdicts.end())
        total += found->second;
    return total;
  }
};

/// What is done to a dump before it is looked at.
struct Blindfold {
  bool named = false;   // the ranks' coordinates are known
  double noise = 0;     // relative, on the dump's values
  bool rounds = false;  // the dump's values to bfloat16
  double tolerance = 1e-4;
};
constexpr Blindfold blindfolds[] = {
    {}, {.noise = 1e-6}, {.named = true}, {.named = true, .rounds = true, .tolerance = 2e-2}};

/// Ids of the rows so that no two tokens are alike.
void spread(ParallelRun& run) {
  for (std::size_t dp = 0; dp < run.inputs.size(); ++dp) {
    const auto rank = std::int64_t(dp);
    spread_ids(run.inputs[dp].context, rank, 0, run.config.vocab_size);
    spread_ids(run.inputs[dp].step, rank, 0, run.config.vocab_size);
    for (std::size_t step = 0; step < run.later_steps.size(); ++step)
      spread_ids(run.later_steps[step][dp].step, rank, std::int64_t(step) + 1,
                 run.config.vocab_size);
  }
}

/// Infers every tap of a run, its ranks in another order: body(tap, what was found).
template <class Body>
void for_each_tap(const ParallelRun& run, const Blindfold& blindfold, const Body& body) {
  const SeededWeights weights(run.config, 1);
  const ViewRunResult views = run_views(run, true);
  const NumberRunResult numbers = run_numbers<double>(run, weights);
  std::mt19937_64 random(1);
  for (const TapDump& tap : dumps_of(run, weights, views, numbers)) {
    std::vector<std::size_t> order(tap.at.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (!blindfold.named) std::shuffle(order.begin(), order.end(), random);
    TapDump shuffled = tap;
    for (std::size_t r = 0; r < order.size(); ++r) {
      shuffled.at[r] = tap.at[order[r]];
      shuffled.values[r] = tap.values[order[r]];
      shuffled.views[r] = tap.views[order[r]];
    }
    for (Values& values : shuffled.values)
      for (float& value : values.reshaped()) {
        value *= float(1 + blindfold.noise * (double(random() >> 11) * 0x1p-52 - 1));
        if (blindfold.rounds) value = round_to_bf16(value);
      }
    std::vector<RankRows> ranks;
    for (std::size_t r = 0; r < order.size(); ++r)
      ranks.push_back({blindfold.named ? std::optional(shuffled.at[r]) : std::nullopt,
                       span_of(shuffled.values[r]), shuffled.values[r].rows(),
                       shuffled.values[r].cols()});
    std::vector<TrustedRows> trusted;
    for (const TapDump::Trusted& t : shuffled.trusted)
      trusted.push_back({t.dp, t.step, span_of(t.values), t.values.rows(), t.values.cols()});
    const InferOptions options{
        .tolerance = blindfold.tolerance, .step = shuffled.step, .columns_of = shuffled.columns_of};
    body(shuffled, infer_placement(ranks, trusted, options));
  }
}

/// Infers every tap of a run and judges it.
void judge(const std::string& title, const ParallelRun& run, const Blindfold& blindfold,
           Score& score) {
  for_each_tap(run, blindfold, [&](const TapDump& tap, const InferredTap& found) {
    const Judge judge(tap, blindfold.tolerance);
    for (std::size_t r = 0; r < tap.at.size(); ++r) {
      bool is_true = tap.name.starts_with("target/");  // where the golden's rows are the tokens
      for (std::int64_t i = 0; i < tap.values[r].rows(); ++i) {
        const InferredRow& row = found.ranks[r].rows[std::size_t(i)];
        const Verdict verdict = judge.verdict(r, i, row);
        const std::string kind = judge.kind(r, i);
        ++score.by_kind[kind][verdict];
        is_true = is_true && kind != "untrue" && kind != "mix";
        const bool is_sure_and_wrong = verdict == Verdict::wrong && row.is_sure();
        score.sure_and_wrong += is_sure_and_wrong;
        if (verdict == Verdict::wrong || verdict == Verdict::missed)
          score.examples.push_back(text(
              is_sure_and_wrong ? "SURE " : "", verdict == Verdict::wrong ? "wrong " : "missed ",
              title, ' ', tap.name, " rank tp=", tap.at[r].tp, " dp=", tap.at[r].dp, " row ", i,
              " is ", judge.in_words(r, i), ", found ", in_words(found, r, std::size_t(i)), " (",
              row.confidence, ")"));
      }
      if (!is_true) continue;
      ++score.views;
      const auto untrue = contradiction(found, r, *tap.views[r]);
      score.contradicted += untrue.has_value();
      if (untrue)
        score.examples.push_back(text("contradicted ", title, ' ', tap.name, " row ", untrue->row,
                                      ": ", untrue->claimed, ", ", untrue->found));
    }
  });
}

void print(const Score& score) {
  for (const auto& [kind, verdicts] : score.by_kind) {
    std::int64_t total = 0;
    for (const auto& [verdict, count] : verdicts) total += count;
    const auto of = [&](Verdict verdict) {
      const auto found = verdicts.find(verdict);
      return found == verdicts.end() ? 0 : found->second;
    };
    BOOST_TEST_MESSAGE(kind << ": " << total << " rows, right " << of(Verdict::right)
                            << ", ambiguous " << of(Verdict::ambiguous) << ", missed "
                            << of(Verdict::missed) << ", wrong " << of(Verdict::wrong));
  }
  std::map<std::string, int> shown;
  for (const std::string& example : score.examples)
    if (const std::string key = example.substr(0, example.find("step")); ++shown[key] <= 3)
      BOOST_TEST_MESSAGE("  " << example);
}

/// At least 99 of 100 rows right, those that are said to be ambiguous and have the right reading
/// among them included; and never wrong where it is sure.
void require_bar(const std::string& title, const Score& score) {
  BOOST_TEST_MESSAGE(title);
  print(score);
  const std::int64_t right = score.count(Verdict::right),
                     known = right + score.count(Verdict::ambiguous);
  const std::int64_t total = known + score.count(Verdict::missed) + score.count(Verdict::wrong);
  BOOST_TEST_MESSAGE(total << " rows: right " << 100.0 * double(right) / double(total)
                           << " %, with ambiguous ones " << 100.0 * double(known) / double(total)
                           << " %, sure and wrong " << score.sure_and_wrong);
  BOOST_TEST(double(known) >= 0.99 * double(total));
  BOOST_TEST(score.sure_and_wrong == 0);
  BOOST_TEST_MESSAGE(score.views << " views that are true, contradicted " << score.contradicted);
  BOOST_TEST(score.views > 0);
  BOOST_TEST(score.contradicted == 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_protocol_is_read_from_its_values) {
  Score one_token, more_tokens;
  std::size_t count = 0;
  const auto read = [&](const char* family, ProtocolId protocol, const ParallelConfig& parallel,
                        const char* requests) {
    const ModelConfig config = *preset(family);
    ParallelRun run{.config = config, .plan = plan_for(config, parallel, protocol)};
    run.draft_steps = 2;
    run.inputs = inputs_of(parse_requests(requests, parallel.dp));
    spread(run);
    judge(text(family, ' ', to_string(protocol), " tp=", parallel.tp, " dp=", parallel.dp, ' ',
               requests),
          run, blindfolds[count++ % std::size(blindfolds)],
          requests == std::string("1") ? one_token : more_tokens);
  };
  for (const ProtocolId protocol : all_protocols())
    for (const std::int64_t tp : {1, 2, 4, 8})
      for (const std::int64_t dp : {1, 2}) {
        const ParallelConfig parallel{
            .tp = tp, .dp = dp, .pp = 1, .enable_expert_parallel = tp * dp > 1};
        for (const char* requests : {"1", "5+3", "2c4v1r0+9"})
          read("qwen3-next", protocol, parallel, requests);
        read("qwen3.5-moe", protocol, parallel, tp == 8 ? "9" : "7");
      }
  require_bar("one token a dp rank, where a shard and zeros are summands as well:", one_token);
  require_bar("more tokens:", more_tokens);
  // Nothing of them is ambiguous but what one token of a draft pass leaves.
  const std::int64_t right = more_tokens.count(Verdict::right);
  BOOST_TEST(double(more_tokens.count(Verdict::ambiguous)) <= 0.01 * double(right));
}

BOOST_AUTO_TEST_CASE(every_mutant_is_read_from_its_values) {
  Score total;
  for (const Scenario& scenario : read_scenarios(TOKENVIEW_SOURCE_DIR "/data/scenarios")) {
    const ModelConfig config = config_of(scenario);
    if (!config.has_arithmetic()) continue;
    ParallelRun run = run_of(scenario, scenario.broken, config);
    run.target_runs = true;
    spread(run);
    for (const Blindfold& blindfold : blindfolds)
      judge(text(scenario.name, blindfold.named ? ", named" : "",
                 blindfold.noise > 0 ? ", noise" : "", blindfold.rounds ? ", bfloat16" : ""),
            run, blindfold, total);
  }
  require_bar("all mutants and scenarios:", total);
}

namespace {

/// What a fault makes of a tap, told by its values.
struct Told {
  const char* scenario;
  const char* tap;
  std::vector<std::string> ranks;  // a line each
  std::size_t row = 0;             // of the last rank
  const char* in_words = "";       // contained in its words
  std::optional<ParallelConfig> parallel = {};
  const char* requests = "";
};
std::ostream& operator<<(std::ostream& out, const Told& t) { return out << t.scenario; }

const std::vector<Told> told = {
    // A shard where full rows are due, and pads.
    {"vllm-48429",
     "step0/mtp.norm",
     {"tp=0 dp=0 [0,1,2]", "tp=1 dp=0 [3,4,5]", "tp=2 dp=0 [6,7,8]", "tp=3 dp=0 [9,PAD,PAD]"},
     2,
     "PAD of zeros",
     ParallelConfig{.tp = 4, .dp = 1, .pp = 1, .enable_expert_parallel = true},
     "10"},
    // A shared expert cut over ranks that hold different tokens.
    {"vllm-37856",
     "target/model.layers.0.mlp.shared_expert",
     {"tp=0 dp=0 [MIX,MIX], unknown 2", "tp=1 dp=0 [MIX,MIX], unknown 2"},
     0,
     "unknown, most like a part of token 2"},
    // Reduced twice.
    {"mutant-m04c", "step0/logits", {"tp=0 dp=0 [0,1] x2", "tp=1 dp=0 [0,1] x2"}, 1, "2 x token 1"},
    // Pads of NaN.
    {"mutant-m08a",
     "target/model.layers.0.mlp",
     {"tp=0 dp=0 [0,1]", "tp=1 dp=0 [2,PAD]"},
     1,
     "PAD with other content, for no token is left, not finite"},
    // A row that the step before left in a pad.
    {"mutant-m08c",
     "target/model.layers.0.input_layernorm",
     {"tp=0 dp=0 [0]", "tp=1 dp=0 [step0:1]"},
     0,
     "token 1 of step 0 (stale)"},
    // Gathered in reversed rank order.
    {"mutant-m10a",
     "target/model.norm",
     {"tp=0 dp=0 [2,3,0,1]", "tp=1 dp=0 [2,3,0,1]"},
     0,
     "token 2"},
};

}  // namespace

BOOST_DATA_TEST_CASE(faults_are_named_for_what_they_make_of_the_rows, data::make(told), sample) {
  static const auto scenarios = read_scenarios(TOKENVIEW_SOURCE_DIR "/data/scenarios");
  Scenario scenario = find_scenario(scenarios, sample.scenario);
  if (sample.parallel) scenario.parallel = *sample.parallel;
  if (*sample.requests != 0) scenario.requests = {sample.requests};
  const ModelConfig config = config_of(scenario);
  ParallelRun run = run_of(scenario, scenario.broken, config);
  run.target_runs = true;
  spread(run);
  bool is_there = false;
  for_each_tap(run, {.named = true}, [&](const TapDump& tap, const InferredTap& found) {
    if (tap.name != sample.tap) return;
    is_there = true;
    std::vector<std::string> lines;
    for (std::size_t r = 0; r < found.ranks.size(); ++r) lines.push_back(in_words(found, r));
    BOOST_TEST(lines == sample.ranks, boost::test_tools::per_element());
    const std::string words = in_words(found, found.ranks.size() - 1, sample.row);
    BOOST_TEST(words.find(sample.in_words) != std::string::npos, words);
  });
  BOOST_TEST(is_there);
}

}  // namespace tokenview
