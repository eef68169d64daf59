// SPDX-License-Identifier: Apache-2.0
// What holds of the whole program for random models, layouts, batches and faults; a counterexample
// is shrunk.
#include <rapidcheck.h>

#include <random>

#include "comm_sim/run_ranks.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "tests/held_view.hpp"
#include "verify/expected_verdict.hpp"
#include "verify/fault_text.hpp"
#include "verify/number_run.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

using Requests = std::vector<std::vector<Request>>;  // [dp][request]

/// A configuration with what its run refers to.
struct Configuration {
  ModelConfig config;
  ParallelPlan plan;
  std::vector<Requests> steps;
  std::size_t draft_steps = 0;
  RunnerOptions runner;
  std::uint64_t seed = 0;  // of weights and ids

  std::vector<std::vector<StepInputs>> inputs() const {
    std::vector<std::vector<StepInputs>> all;
    std::mt19937_64 random(seed);
    const auto fill = [&](Batch& batch) {
      for (std::int64_t& id : batch.input_ids)
        id = std::int64_t(random() % std::uint64_t(config.vocab_size));
    };
    for (const Requests& step : steps) {
      all.push_back(inputs_of(step));
      for (StepInputs& of_rank : all.back()) {
        fill(of_rank.context);
        fill(of_rank.step);
      }
    }
    return all;
  }
  ParallelRun run() const { return run_of(inputs()); }
  ParallelRun run_of(std::vector<std::vector<StepInputs>> inputs_of_steps) const {
    ParallelRun run{.config = config, .plan = plan, .draft_steps = draft_steps, .runner = runner};
    run.inputs = inputs_of_steps.front();
    run.later_steps.assign(inputs_of_steps.begin() + 1, inputs_of_steps.end());
    return run;
  }
};

std::ostream& operator<<(std::ostream& out, const Configuration& c) {
  const ParallelConfig& parallel = c.plan.parallel;
  out << to_string(c.config.model_type) << " protocol " << to_string(c.plan.protocol)
      << " tp=" << parallel.tp << " dp=" << parallel.dp << " pp=" << parallel.pp
      << (parallel.enable_expert_parallel ? " ep" : "") << ' ' << to_string(c.plan.dispatch)
      << " K=" << c.draft_steps << (c.runner.version == RunnerVersion::V1 ? " V1" : " V2")
      << (c.runner.padded_drafter ? "" : " unpadded") << " graphs " << c.runner.graph_sizes.size()
      << " layers " << c.config.num_hidden_layers << " dense {";
  for (const std::int64_t layer : c.config.mlp_only_layers) out << layer << ' ';
  out << "} aux {";
  for (const std::int64_t layer : c.plan.aux_layers) out << layer << ' ';
  out << "} seed " << c.seed << " requests";
  for (const Requests& step : c.steps) {
    out << ' ';
    for (std::size_t dp = 0; dp < step.size(); ++dp) {
      out << (dp == 0 ? "" : "/");
      for (std::size_t r = 0; r < step[dp].size(); ++r) {
        const Request& request = step[dp][r];
        out << (r == 0 ? "" : "+") << request.tokens << 'c' << request.context << 'v'
            << request.verified << 'r' << request.rejected;
      }
    }
  }
  return out;
}

template <class T>
T any(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}
std::int64_t up_to(std::int64_t most) { return *rc::gen::inRange<std::int64_t>(0, most + 1); }

/// What a configuration may be: views are fast, numbers are small.
struct Limits {
  std::int64_t ranks = 16;
  std::int64_t tokens = 9;  // of a request
  std::int64_t stages = 2;
  std::size_t steps = 2;
  std::vector<ProtocolId> protocols{all_protocols().begin(), all_protocols().end()};
};

/// A model whose heads and widths divide by `tp`, and its experts by both.
ModelConfig any_model(std::int64_t tp, std::int64_t dp, std::int64_t stages) {
  const bool next = any({true, false});
  ModelConfig config = *preset(next ? "qwen3-next" : "qwen3.5-moe");
  config.vocab_size = 64 * tp - up_to(20);
  config.hidden_size = tp * (2 + up_to(2)) * 2;
  config.num_hidden_layers = stages + up_to(3);
  config.num_attention_heads = tp * (1 + up_to(1));
  config.num_key_value_heads = any({tp, std::int64_t{1}});
  config.head_dim = config.rotary_dim = 8;
  config.linear_num_key_heads = tp;
  config.linear_num_value_heads = tp * (1 + up_to(1));
  config.linear_key_head_dim = 4;
  config.linear_value_head_dim = 4 + up_to(1);
  config.num_experts = std::max<std::int64_t>(tp, 2) + up_to(5);
  config.num_experts_per_tok = 1 + up_to(1);
  config.moe_intermediate_size = tp * dp;
  config.intermediate_size = 2 * tp;
  config.shared_expert_intermediate_size = tp * up_to(1) * 2;
  config.norm_topk_prob = !next || any({true, false});
  config.layer_types.clear();
  config.mlp_only_layers.clear();
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    config.layer_types.push_back(any({LayerType::linear_attention, LayerType::full_attention}));
    if (next && up_to(4) == 4) config.mlp_only_layers.push_back(i);
  }
  return config;
}

/// Requests of each dp rank in the first step, and in the next one, of the same requests.
std::vector<Requests> any_requests(std::int64_t dp, std::int64_t draft_steps, std::size_t num_steps,
                                   std::int64_t most_tokens) {
  std::vector<Requests> steps(num_steps, Requests(std::size_t(dp)));
  const auto draw = [&](Request& request) {
    request.verified = any({std::int64_t{0}, up_to(draft_steps)});
    request.rejected = up_to(request.verified);
    request.tokens = request.verified > 0 ? request.verified + 1 : 1 + up_to(most_tokens - 1);
  };
  for (std::int64_t rank = 0; rank < dp; ++rank) {
    const std::int64_t count = up_to(3);
    for (std::int64_t r = 0; r < std::max<std::int64_t>(count, 1); ++r) {
      Request request;
      if (count == 0) {  // an idle rank
        for (Requests& step : steps) step[std::size_t(rank)].push_back({0, 0, 0, 0});
        continue;
      }
      request.context = any({std::int64_t{0}, up_to(4)});
      draw(request);
      if (request.context == 0 && request.verified > 0) request.context = 1 + up_to(2);
      steps[0][std::size_t(rank)].push_back(request);
      for (std::size_t step = 1; step < num_steps; ++step) {
        const Request before = request;
        draw(request);
        request.context = before.context + before.tokens - before.rejected;
        steps[step][std::size_t(rank)].push_back(request);
      }
    }
  }
  return steps;
}

Configuration any_configuration(const Limits& limits) {
  Configuration c;
  ParallelConfig parallel;
  parallel.tp = any<std::int64_t>({1, 2, 3, 4, 5, 8});
  parallel.dp = any<std::int64_t>({1, 2, 3, 4});
  while (parallel.tp * parallel.dp > limits.ranks && parallel.dp > 1) --parallel.dp;
  while (parallel.tp * parallel.dp > limits.ranks) --parallel.tp;
  if (parallel.tp == 7 || parallel.tp == 6) parallel.tp = 4;
  parallel.pp = 1 + up_to(limits.stages - 1);
  if (parallel.tp * parallel.dp * parallel.pp > limits.ranks) parallel.pp = 1;
  parallel.enable_expert_parallel = up_to(3) > 0;
  c.config = any_model(parallel.tp, parallel.dp, parallel.pp);
  c.draft_steps = std::size_t(up_to(4));
  c.plan = plan_for(c.config, parallel, *rc::gen::elementOf(limits.protocols));
  c.plan.dispatch = any({Dispatch::allgather_reducescatter, Dispatch::naive, Dispatch::all_to_all});
  if (up_to(2) == 0)
    for (std::int64_t layer = 0; layer <= c.config.num_hidden_layers; ++layer)
      if (up_to(2) == 0) c.plan.aux_layers.push_back(layer);
  c.runner.version = any({RunnerVersion::V1, RunnerVersion::V2});
  if (up_to(2) == 0) c.runner.graph_sizes = {1, 2, 4, 8, 16, 32};
  c.runner.padded_drafter = up_to(3) > 0;
  c.runner.loop_of_most = up_to(1) == 1;
  c.steps = any_requests(parallel.dp, std::int64_t(c.draft_steps),
                         1 + std::size_t(up_to(std::int64_t(limits.steps) - 1)), limits.tokens);
  c.seed = std::uint64_t(up_to(1000));
  validate(c.config);
  validate(c.config, parallel);
  require_simulable(c.config, parallel, std::int64_t(c.draft_steps));
  return c;
}

/// Runs a property; RapidCheck prints the shrunk counterexample.
template <class Property>
void for_all(Property property) {
  BOOST_TEST(rc::check(property));
}

std::string in_words(const Configuration& c) {
  std::ostringstream out;
  out << c;
  return out.str();
}

std::string first_of(const ViewRunResult& result) {
  return result.findings.empty() ? result.error : to_string(result.findings.front());
}

}  // namespace

BOOST_AUTO_TEST_CASE(findings_are_there_where_a_protocol_is_known_to_be_wrong_and_nowhere_else) {
  std::int64_t count = 0, wrong = 0;
  for_all([&] {
    for (int i = 0; i < 40; ++i) {
      const Configuration c = any_configuration({.ranks = 32});
      const std::string known = known_fault(c.run());
      const ViewRunResult result = run_views(c.run(), true);
      RC_LOG() << in_words(c) << "\n  known: " << known << "\n  found: " << first_of(result)
               << '\n';
      ++count;
      wrong += known.empty() ? 0 : 1;
      RC_ASSERT(result.clean() == known.empty());
    }
  });
  BOOST_TEST_MESSAGE(count << " configurations, " << wrong << " known to be wrong");
  BOOST_TEST(count >= 4000);
  BOOST_TEST(wrong >= 50);
}

namespace {

Limits small(std::vector<ProtocolId> protocols = {
                 ProtocolId::S, ProtocolId::A, ProtocolId::C, ProtocolId::D, ProtocolId::E,
                 ProtocolId::deferred, ProtocolId::vllm_48763, ProtocolId::vllm_51927,
                 ProtocolId::vllm_53191, ProtocolId::sglang}) {
  return {.ranks = 8, .tokens = 5, .protocols = std::move(protocols)};
}

/// One that is right.
Configuration any_right_configuration(const Limits& limits) {
  Configuration c = any_configuration(limits);
  RC_PRE(known_fault(c.run()).empty());
  return c;
}

NumberRunResult numbers_of(const Configuration& c, const ParallelRun& run,
                           ReductionOrder order = ReductionOrder::rank) {
  return run_numbers<double>(run, SeededWeights(c.config, c.seed), order);
}

/// Tensors that `a` and `b` have on the ranks of dp rank `dp` (-1: all), and that differ in a row
/// of a token by more than `tolerance` of the largest value; the first of them.
std::string first_difference(const ViewRunResult& views, const ParallelConfig& parallel,
                             const NumberRunResult& a, const NumberRunResult& b, std::int64_t dp,
                             double tolerance = 0) {
  for (const NamedView& view : views.views) {
    std::size_t in_stage = 0;
    for (std::int64_t world = 0; world < parallel.world_size(); ++world) {
      const RankCoordinates at = coordinates_of(world, parallel);
      if (at.pp != view.stage) continue;
      const Rows& rows = view.by_rank.at(in_stage++).rows;
      if (dp >= 0 && at.dp != dp) continue;
      const auto& in_a = a.taps[std::size_t(world)].values;
      const auto x = in_a.find(view.name);
      if (x == in_a.end()) continue;  // ids
      const Matrix<double>& y = b.taps[std::size_t(world)].values.at(view.name);
      if (x->second.rows() != y.rows()) return view.name + ": row counts differ";
      const double most = x->second.size() == 0 ? 0 : x->second.cwiseAbs().maxCoeff();
      for (std::int64_t r = 0; r < y.rows(); ++r)
        if (rows.at(r).kind == RowKind::token &&
            !((x->second.row(r) - y.row(r)).array().abs() <= tolerance * most).all())
          return text(view.name, " row ", r, " of ", to_string(rows), " on rank ", world);
    }
  }
  return {};
}

/// The serial model's run of one dp rank: the program on a world of one.
struct SerialRun {
  ViewRunResult views;
  NumberRunResult numbers;
};
SerialRun serial_run(const Configuration& c, std::size_t dp) {
  Configuration alone = c;
  alone.plan = plan_for(c.config, {}, ProtocolId::S);
  alone.plan.aux_layers = c.plan.aux_layers;
  alone.runner.graph_sizes = {};
  auto inputs = c.inputs();
  for (auto& of_ranks : inputs) of_ranks = {of_ranks[dp]};
  const ParallelRun run = alone.run_of(inputs);
  return {run_views(run, true), numbers_of(alone, run)};
}

/// What of a sharded run is not the serial model's: each tensor of each rank by its view.
std::string unlike_serial(const Configuration& c, const ViewRunResult& views,
                          const NumberRunResult& numbers, std::int64_t& confirmed) {
  const ParallelConfig& parallel = c.plan.parallel;
  std::vector<SerialRun> serial;
  for (std::size_t dp = 0; dp < std::size_t(parallel.dp); ++dp) serial.push_back(serial_run(c, dp));
  for (const SerialRun& run : serial)
    if (!run.numbers.error.empty()) return run.numbers.error;
  for (const NamedView& view : views.views) {
    // The unsharded rows, by token.
    Truth truth{{}, 1};
    struct Found {
      const Matrix<double>* values;
      const Rows* rows;
    };
    std::vector<Found> found(serial.size(), Found{});
    for (std::size_t dp = 0; dp < serial.size(); ++dp) {
      const auto& taps = serial[dp].numbers.taps[0].values;
      const auto tap = taps.find(view.name);
      if (tap == taps.end()) continue;
      for (const NamedView& alone : serial[dp].views.views)
        if (alone.name == view.name) found[dp] = {&tap->second, &alone.by_rank[0].rows};
      for (const RowRun& run : found[dp].rows->runs())
        if (run.kind == RowKind::token)
          truth.tokens = std::max<std::int64_t>(truth.tokens, run.first + run.count);
      truth.rows.resize(0, tap->second.cols());
    }
    const Eigen::Index cols = truth.rows.cols();
    if (cols == 0) continue;  // ids, or nobody has tokens
    truth.rows = Matrix<double>::Constant(Eigen::Index(serial.size()) * truth.tokens, cols,
                                          std::numeric_limits<double>::quiet_NaN());
    for (std::size_t dp = 0; dp < serial.size(); ++dp)
      for (std::int64_t r = 0; found[dp].rows != nullptr && r < found[dp].rows->size(); ++r)
        if (const RowRun row = found[dp].rows->at(r); row.kind == RowKind::token)
          truth.rows.row(Eigen::Index(dp) * truth.tokens + row.first) = found[dp].values->row(r);
    if (view.name.ends_with("in_proj_qkv"))
      truth.segments = {c.config.key_dim(), c.config.key_dim(), c.config.value_dim()};

    std::vector<Held> held;
    std::size_t in_stage = 0;
    for (std::int64_t world = 0; world < parallel.world_size(); ++world) {
      if (coordinates_of(world, parallel).pp != view.stage) continue;
      const ViewOps::Tensor& of_rank = view.by_rank.at(in_stage++);
      const auto& taps = numbers.taps[std::size_t(world)].values;
      const auto tap = taps.find(view.name);
      if (tap == taps.end()) return view.name + ": no numbers";
      held.push_back({tap->second, of_rank});
      // An engine's router gives a pad some expert: its weights are no zeros.
      if (view.name.ends_with("gate.weights")) {
        Rows known;
        for (RowRun run : of_rank.rows.runs()) {
          if (run.kind == RowKind::pad) run.content = PadContent::stale;
          known.append(run);
        }
        held.back().view.rows = known;
      }
    }
    const std::string problem = confirm(held, truth);
    if (!problem.empty()) return view.name + ": " + problem;
    ++confirmed;
  }
  return {};
}

}  // namespace

BOOST_AUTO_TEST_CASE(sharded_numbers_are_the_serial_models) {
  std::int64_t confirmed = 0;
  for_all([&] {
    const Configuration c = any_right_configuration(small());
    RC_LOG() << in_words(c) << '\n';
    const ViewRunResult views = run_views(c.run(), true);
    RC_ASSERT(first_of(views) == "");
    const NumberRunResult numbers = numbers_of(c, c.run());
    RC_ASSERT(numbers.error == "");
    RC_ASSERT(unlike_serial(c, views, numbers, confirmed) == "");
  });
  BOOST_TEST_MESSAGE(confirmed << " tensors of all ranks confirmed");
}

BOOST_AUTO_TEST_CASE(pads_of_shards_never_change_a_token) {
  for_all([] {
    const Configuration c = any_right_configuration(small());
    const ViewRunResult views = run_views(c.run(), true);
    const NumberRunResult clean = numbers_of(c, c.run());
    const std::string content = any<std::string>({"nan", "large", "stale"});
    std::vector<InjectedFault> faults(2);
    faults[0].act = faults[1].act = FaultAct::poison;
    faults[0].with = faults[1].with = content;
    faults[0].op = "pad_rows";
    faults[1].op = "chunk";
    ParallelRun run = c.run();
    run.faults = &faults;
    const NumberRunResult poisoned = numbers_of(c, run);
    RC_LOG() << in_words(c) << ' ' << content << '\n';
    RC_ASSERT(poisoned.error == "");
    RC_ASSERT(first_difference(views, c.plan.parallel, clean, poisoned, -1) == "");
  });
}

BOOST_AUTO_TEST_CASE(pads_of_the_runner_never_change_a_token) {
  for_all([] {
    const Configuration c = any_right_configuration(small());
    bool any_tokens = false;  // without a request anywhere there is no step
    const auto steps = c.inputs();
    for (const StepInputs& of_rank : steps.back())
      any_tokens = any_tokens || of_rank.step.num_tokens() > 0;
    if (!any_tokens) return;
    const std::int64_t pads = 1 + up_to(4);
    const auto padded = [&](bool filled) {
      auto inputs = c.inputs();
      for (auto& step : inputs)
        for (StepInputs& of_rank : step) {
          Batch& batch = of_rank.step;
          const auto tokens = std::size_t(batch.num_tokens());
          append_runner_pads(batch, batch.num_tokens() + pads);
          for (std::size_t i = tokens; i < batch.input_ids.size() && filled; ++i) {
            batch.input_ids[i] = std::int64_t(i * 7 + 3) % c.config.vocab_size;
            batch.positions[i] = std::int64_t(i * 5 + 1);
          }
        }
      return c.run_of(inputs);
    };
    const ViewRunResult views = run_views(padded(false), true);
    RC_LOG() << in_words(c) << " and " << pads << " pads\n";
    RC_ASSERT(first_of(views) == "");
    RC_ASSERT(first_difference(views, c.plan.parallel, numbers_of(c, padded(false)),
                               numbers_of(c, padded(true)), -1) == "");
  });
}

BOOST_AUTO_TEST_CASE(rows_of_another_data_parallel_rank_never_change_mine) {
  for_all([] {
    const Configuration c = any_right_configuration(small());
    RC_PRE(c.plan.parallel.dp > 1);
    const ViewRunResult views = run_views(c.run(), true);
    auto inputs = c.inputs();
    for (auto& step : inputs)
      for (std::size_t dp = 1; dp < step.size(); ++dp)
        for (Batch* batch : {&step[dp].context, &step[dp].step})
          for (std::int64_t& id : batch->input_ids) id = (id * 3 + 1) % c.config.vocab_size;
    const NumberRunResult mine = numbers_of(c, c.run()), changed = numbers_of(c, c.run_of(inputs));
    RC_LOG() << in_words(c) << '\n';
    RC_ASSERT(mine.error == "");
    RC_ASSERT(first_difference(views, c.plan.parallel, mine, changed, 0) == "");
  });
}

BOOST_AUTO_TEST_CASE(permuting_data_parallel_ranks_permutes_their_views) {
  for_all([] {
    const Configuration c = any_configuration({});
    const auto dp = std::size_t(c.plan.parallel.dp);
    RC_PRE(dp > 1);
    const auto shift = std::size_t(1 + up_to(std::int64_t(dp) - 2));
    Configuration turned = c;  // dp rank i has what rank i + shift had
    for (Requests& step : turned.steps)
      std::ranges::rotate(step, step.begin() + Eigen::Index(shift));
    const ViewRunResult before = run_views(c.run(), true), after = run_views(turned.run(), true);
    RC_LOG() << in_words(c) << " turned by " << shift << '\n';
    RC_ASSERT(before.clean() == after.clean());
    if (!before.clean()) return;
    RC_ASSERT(before.views.size() == after.views.size());
    for (std::size_t i = 0; i < before.views.size(); ++i) {
      const NamedView &a = before.views[i], &b = after.views[i];
      RC_ASSERT(a.name == b.name);
      const std::size_t tp = a.by_rank.size() / dp;
      for (std::size_t rank = 0; rank < a.by_rank.size(); ++rank) {
        ViewOps::Tensor expected = a.by_rank[(rank + shift * tp) % a.by_rank.size()];
        Rows renamed;
        for (RowRun run : expected.rows.runs()) {
          if (run.kind == RowKind::token)
            run.dp = std::int16_t((std::size_t(run.dp) + dp - shift) % dp);
          renamed.append(run);
        }
        expected.rows = renamed;
        RC_ASSERT(to_string(expected) == to_string(b.by_rank[rank]));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(gathering_what_was_cut_is_the_identity) {
  for_all([] {
    const std::int64_t p = 1 + up_to(8), rows = up_to(20);
    const Matrix<double> x = Matrix<double>::Random(rows, 3);
    const EigenOps<double> numbers;
    for (const Matrix<double>& back : run_ranks(numbers, p, [&](auto& comm) {
           Rank<EigenOps<double>, SimComm<EigenOps<double>>> rank(numbers, comm);
           return gather_and_trim(rank, chunk(rank, x), rows);
         }))
      RC_ASSERT(back == x);
    std::vector<Finding> findings;
    const ViewOps views({}, findings, nullptr);
    ViewOps::Tensor view;
    view.rows = Rows::tokens(rows);
    view.width = 3;
    for (const ViewOps::Tensor& back : run_ranks(views, p, [&](auto& comm) {
           Rank<ViewOps, SimComm<ViewOps>> rank(views, comm);
           return gather_and_trim(rank, chunk(rank, view), rows);
         }))
      RC_ASSERT(to_string(back) == to_string(view));
    RC_ASSERT(findings.empty());
  });
}

BOOST_AUTO_TEST_CASE(reductions_in_another_order_differ_by_rounding_only) {
  // Each sum of p terms rounds p - 1 times by u = 2^-53 at most; a run has a few dozen of them one
  // after the other, and what is between them stretches an error by less than the square of that.
  for_all([] {
    const Configuration c = any_right_configuration(small());
    RC_PRE(c.plan.parallel.world_size() > 2);
    const ViewRunResult views = run_views(c.run(), true);
    const NumberRunResult in_rank_order = numbers_of(c, c.run());
    RC_LOG() << in_words(c) << '\n';
    for (const ReductionOrder order : {ReductionOrder::ring, ReductionOrder::tree}) {
      const NumberRunResult other = numbers_of(c, c.run(), order);
      RC_ASSERT(other.error == "");
      const double bound = 1e4 * double(c.plan.parallel.world_size() - 1) * std::ldexp(1.0, -53);
      RC_ASSERT(first_difference(views, c.plan.parallel, in_rank_order, other, -1, bound) == "");
    }
  });
}

namespace {

/// A fault somewhere: a collective, a move of rows, a value, a decision, a count or side data.
InjectedFault any_fault() {
  InjectedFault fault;
  const auto collective = [] {
    return any<std::string>({"all_reduce", "all_gather", "reduce_scatter", "all_gather_v",
                             "reduce_scatter_v", "broadcast", "all_to_all_v"});
  };
  switch (up_to(5)) {
    case 0:
      fault.op = collective();
      fault.act = any({FaultAct::drop, FaultAct::repeat, FaultAct::order, FaultAct::replace,
                       FaultAct::stale, FaultAct::count, FaultAct::before, FaultAct::after,
                       FaultAct::axis});
      fault.group = any<std::string>({"", "tp", "dp", "ep"});
      break;
    case 1:
      fault.op = any<std::string>({"chunk", "pad_rows", "trim"});
      fault.act = any({FaultAct::drop, FaultAct::repeat, FaultAct::count, FaultAct::rows,
                       FaultAct::stale, FaultAct::order, FaultAct::after});
      break;
    case 2:
    case 3:
      fault.op = any<std::string>({"output", "q_norm", "k_norm", "norm", "experts", "embed_tokens",
                                   "fc", "logits", "attended", "stage_hidden", "stage_residual",
                                   "draft_buffer", "draft_ids", "routing"});
      fault.act =
          any({FaultAct::scale, FaultAct::rows, FaultAct::stale, FaultAct::order, FaultAct::count});
      break;
    case 4:
      fault.op =
          any<std::string>({"scatters", "on_shard", "is_sharded", "chunks_residual", "mtp_gathers",
                            "enough_tokens", "moe_completes", "residual_before_sum", "slices_mask",
                            "masks_vocabulary", "skips_rejected", "feeds_normed_hidden",
                            "commits_accepted", "accepted_rows", "tokens", "moe_chunk_rows"});
      fault.act = any({FaultAct::set, FaultAct::count});
      break;
    default:
      fault.op = "batch";
      fault.act = FaultAct::side;
  }
  const bool of_value = fault.act == FaultAct::rows;
  if (fault.act == FaultAct::replace || fault.act == FaultAct::before ||
      fault.act == FaultAct::after)
    fault.with =
        any<std::string>({"all_reduce", "all_gather", "reduce_scatter", "chunk", "prefix"});
  if (fault.act == FaultAct::replace && (fault.with == "chunk" || fault.with == "prefix"))
    fault.with = "all_reduce";
  if (fault.act == FaultAct::order)
    fault.with = any<std::string>({"reverse", "rotate", "round_robin"});
  if (of_value)
    fault.with = any<std::string>({"prefix", "floor", "round_robin", "reverse", "repeat_last"});
  if (fault.act == FaultAct::side)
    fault.with = any<std::string>({"positions shard", "boundaries merged", "boundaries padded",
                                   "slots first", "no row counts", "local row counts"});
  fault.number = any<std::int64_t>({1, -1, 0, 2});
  if (fault.act == FaultAct::count && fault.number == 0) fault.number = 1;
  fault.factor = any({2.0, 0.5, 0.0, -1.0, 3.0, 1.5, 1.0 / 3});
  fault.at =
      any<std::string>({"*", "*", "*", "*", "*", "model*", "model.layers.0.*", "mtp*", "*.mlp",
                        "*.mlp.*", "*.self_attn*", "*.linear_attn*", "*norm*", "*_proj*"});
  fault.tp = any<std::int64_t>({-1, -1, 0, 1});
  fault.occurrence = any<std::int64_t>({0, 0, 1, 2});
  fault.draft = any<std::int64_t>({-2, -2, -1, 0, 1});
  return fault;
}

}  // namespace

namespace {

/// Faults that views do not see, and why; empty: they must.
std::string blind_spot(const InjectedFault& fault, const Configuration& c) {
  if (fault.op == "residual_before_sum" && c.plan.parallel.tp == 1)
    return "which values are added is not followed: the residual twice is complete on one rank";
  if (fault.act == FaultAct::stale && c.draft_steps > 0)
    return "the target and all drafts of a step name their rows alike";
  if (fault.op == "all_to_all_v")
    return "routing is not known: every row goes to every rank, so all parts are of one size";
  return {};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_fault_is_found_or_the_numbers_are_what_their_views_say) {
  std::int64_t met = 0, found = 0, confirmed = 0;
  for_all([&] {
    for (int i = 0; i < 20; ++i) {
      const Configuration c = any_configuration(small());
      if (!known_fault(c.run()).empty()) continue;
      const std::vector<InjectedFault> faults{any_fault()};
      std::vector<std::int64_t> hits(1);
      ParallelRun run = c.run();
      run.faults = &faults;
      run.fault_hits = &hits;
      const ViewRunResult views = run_views(run, true);
      if (hits[0] == 0) continue;
      ++met;
      found += views.clean() ? 0 : 1;
      const NumberRunResult numbers = numbers_of(c, run);  // may end in an error, in no other way
      if (!views.clean() || !blind_spot(faults[0], c).empty()) continue;
      RC_LOG() << in_words(c) << '\n' << to_string(faults[0]) << '\n';
      RC_ASSERT(numbers.error == "");
      RC_ASSERT(unlike_serial(c, views, numbers, confirmed) == "");
    }
  });
  BOOST_TEST_MESSAGE(met << " faults met their place, " << found << " were found");
  BOOST_TEST(found > 100);
}

}  // namespace tokenview
