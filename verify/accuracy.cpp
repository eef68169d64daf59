// SPDX-License-Identifier: Apache-2.0
#include "verify/accuracy.hpp"

#include <algorithm>
#include <random>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/case_judgement.hpp"
#include "verify/expected_verdict.hpp"
#include "verify/fault_text.hpp"
#include "verify/found_taps.hpp"
#include "verify/golden_case.hpp"
#include "verify/record.hpp"
#include "verify/weights_of_type.hpp"

namespace tokenview {
namespace {

constexpr double small_change = 16;  // roundings

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t n) { return std::int64_t(random_() % std::uint64_t(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[std::size_t(below(std::int64_t(values.size())))];
  }

 private:
  std::mt19937_64 random_;
};

/// A source whose routers have experts in pairs: of each two, the second row is the first plus
/// `apart` times itself.
class PairedExperts final : public WeightSource {
 public:
  PairedExperts(const WeightSource& source, float apart) : source_(source), apart_(apart) {}
  bool contains(const std::string& name) const override { return source_.contains(name); }
  HostTensor weight(const std::string& name,
                    const std::vector<std::int64_t>& shape) const override {
    HostTensor tensor = source_.weight(name, shape);
    if (!name.ends_with("mlp.gate.weight")) return tensor;
    const auto width = std::size_t(tensor.cols());
    for (std::size_t i = 0; i + 2 * width <= tensor.values.size(); i += 2 * width)
      for (std::size_t c = 0; c < width; ++c) {
        float& second = tensor.values[i + width + c];
        second = tensor.values[i + c] + apart_ * second;
      }
    return tensor;
  }

 private:
  const WeightSource& source_;
  float apart_;
};

ModelConfig model_of(Draw& draw) {
  ModelConfig config = *preset(draw.one_in(2) ? "qwen3-next" : "qwen3.5-moe");
  if (draw.one_in(6)) {  // for tp = 3
    config.hidden_size = 96;
    config.num_attention_heads = 6;
    config.num_key_value_heads = 3;
    config.linear_num_key_heads = 3;
    config.linear_num_value_heads = 6;
    config.num_experts = 12;
    config.moe_intermediate_size = config.shared_expert_intermediate_size = 48;
    config.vocab_size = 192;
  }
  if (draw.one_in(2)) {
    config.num_hidden_layers = 2;
    config.layer_types = {LayerType::linear_attention, LayerType::full_attention};
  }
  if (config.model_type == ModelType::qwen3_next && draw.one_in(4)) config.mlp_only_layers = {0};
  return config;
}

std::vector<SequenceLength> lengths_of(Draw& draw) {
  std::vector<SequenceLength> lengths;
  const std::int64_t sequences = draw.one_in(2) ? 1 : 1 + draw.below(3);
  for (std::int64_t s = 0; s < sequences; ++s)
    lengths.push_back({draw.one_in(3) ? draw.below(10) : 0, 1 + draw.below(12)});
  return lengths;
}

/// One seed's model, golden and error model.
class Experiment {
 public:
  Experiment(std::uint64_t seed, const AccuracyOptions& options)
      : options_(options), draw_(seed), config_(model_of(draw_)) {
    const bool narrow = draw_.below(3) > 0;
    const bool narrow_golden = narrow && draw_.one_in(2);
    type_ = narrow ? DType::bfloat16 : DType::float32;
    rounding_ = !narrow ? Rounding::none : draw_.one_in(2) ? Rounding::hf : Rounding::vllm;
    const DType golden_type = narrow_golden ? DType::bfloat16 : DType::float32;
    do {
      tp_ = draw_.of<std::int64_t>({1, 2, 3, 4, 8});
    } while (!is_legal(tp_));
    const RecordedCase asked = [&] {
      RecordedCase made = seeded_case("accuracy", lengths_of(draw_), config_.vocab_size, seed);
      made.draft_steps = draw_.below(3);
      return made;
    }();
    const std::vector<float> apart = {0, 1e-7f, 1e-5f, 0x1p-10f, 0x1p-8f};
    const bool paired = draw_.one_in(3);
    const SeededWeights seeded(config_, seed);
    const PairedExperts with_pairs(seeded, draw_.of(apart));
    // A checkpoint in the narrowest type: every run has the same weights.
    weights_.emplace(paired ? static_cast<const WeightSource&>(with_pairs) : seeded, config_,
                     type_);
    alone_.emplace(ParallelRun{.config = config_,
                               .plan = plan_for(config_, {}, ProtocolId::S),
                               .inputs = inputs_of(asked),
                               .draft_steps = std::size_t(asked.draft_steps)});
    trusted_ = recorded_case(asked.inputs, *alone_, *weights_,
                             narrow_golden ? Rounding::hf : Rounding::none);
    golden_.emplace(config_, *weights_, trusted_, golden_type);
    model_.emplace(*golden_, Implementation{type_, tp_},
                   ErrorModelOptions{.samples = options.samples, .seed = seed});
    result_.setting =
        text("seed ", seed, ": ", to_string(config_.model_type), ", ", config_.num_hidden_layers,
             " layers, ", to_string(type_), " on ", to_string(golden_type), ", ",
             rounding_ == Rounding::hf     ? "rounded as hf, "
             : rounding_ == Rounding::vllm ? "rounded as vllm, "
                                           : "",
             "tp=", tp_, ", T=", asked.inputs.num_tokens(), " of ", asked.inputs.num_sequences(),
             " sequences after ", asked.inputs.context_ids.size(), ", ", asked.draft_steps,
             " draft steps", paired ? ", paired experts" : "");
  }

  AccuracyResult run() {
    for (std::int64_t i = 0; i < options_.clean; ++i) clean_run();
    for (std::int64_t i = 0; i < options_.mutants && tp_ > 1; ++i) mutant();
    return std::move(result_);
  }

 private:
  /// The weights of a seed in memory: what they are made from does not outlive the constructor.
  class Kept final : public WeightSource {
   public:
    Kept(const WeightSource& source, const ModelConfig& config, DType type) {
      const WeightsOfType typed(source, type);
      for (const WeightShape& weight : weight_shapes(config))
        tensors_.emplace(weight.name, typed.weight(weight.name, weight.shape));
    }
    bool contains(const std::string& name) const override { return tensors_.contains(name); }
    HostTensor weight(const std::string& name, const std::vector<std::int64_t>&) const override {
      return tensors_.at(name);
    }

   private:
    std::map<std::string, HostTensor> tensors_;
  };

  bool is_legal(std::int64_t tp) const {
    try {
      validate(config_, {.tp = tp});
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  static std::vector<StepInputs> inputs_of(const RecordedCase& asked) {
    CaseBatches batches = case_batches(asked.inputs);
    return {{std::move(batches.context), std::move(batches.step)}};
  }

  /// A layout that is right for these rows.
  ParallelRun drawn_run() {
    for (;;) {
      const auto protocols = all_protocols();
      const ProtocolId protocol =
          protocols[std::size_t(draw_.below(std::int64_t(protocols.size())))];
      const ParallelConfig parallel{.tp = tp_,
                                    .enable_expert_parallel = tp_ > 1 && draw_.one_in(2)};
      ParallelRun run = *alone_;
      run.plan = plan_for(config_, parallel, protocol);
      if (tp_ > 1 && draw_.one_in(3))
        run.plan.dispatch = draw_.of<Dispatch>(
            {Dispatch::allgather_reducescatter, Dispatch::naive, Dispatch::all_to_all});
      if (known_fault(run).empty()) return run;
    }
  }

  std::string in_words(const ParallelRun& run) const {
    return text(result_.setting, "; protocol ", to_string(run.plan.protocol),
                run.plan.parallel.enable_expert_parallel ? " ep " : " ",
                to_string(run.plan.dispatch));
  }

  CaseJudgement judged(const RunTaps& taps) const {
    return judge_case(*golden_, *model_, taps.found);
  }

  void clean_run() {
    const ParallelRun run = drawn_run();
    const ViewRunResult views = run_views(run, true);
    if (!views.clean()) return;  // a layout that is wrong in a way of its own
    const NumberRunResult numbers =
        run_numbers<float>(run, *weights_, ReductionOrder::rank, rounding_);
    const RunTaps taps = taps_of_run(*golden_, views, numbers, run.plan.parallel);
    const CaseJudgement judgement = judged(taps);
    ++result_.clean;
    result_.taps += std::int64_t(judgement.taps.size());
    result_.ties += judgement.ties();
    for (const TapJudgement& tap : judgement.taps)
      for (const Bound& bound : {tap.total, tap.own.value_or(Bound())})
        if (tap.verdict == Verdict::match && bound.ratio() > result_.nearest) {
          result_.nearest = bound.ratio();
          result_.nearest_place = text(in_words(run), ": ", tap.place, ' ', bound.metric, ' ',
                                       bound.observed, " of ", bound.allowed);
        }
    if (!taps.problems.empty())
      result_.alarms.push_back(in_words(run) + '\n' + taps.problems.front() + '\n');
    else if (!judgement.holds())
      result_.alarms.push_back(in_words(run) + '\n' + judgement_table(judgement));
  }

  /// A fault at a collective that the run calls.
  InjectedFault drawn_fault(const std::vector<CollectiveRecord>& calls) {
    const CollectiveRecord& call = draw_.of(calls);
    InjectedFault fault;
    fault.at = call.module;
    fault.op = call.op;
    fault.group = call.group;
    if (draw_.one_in(3)) fault.tp = draw_.below(tp_);
    switch (draw_.below(6)) {
      case 0:
        fault.act = FaultAct::drop;
        fault.tp = -1;
        break;
      case 1:
        fault.act = FaultAct::repeat;
        fault.tp = -1;
        break;
      case 2:
        fault.act = FaultAct::order;
        fault.with = draw_.one_in(2) ? "reverse" : "rotate";
        break;
      case 3:
        fault.act = FaultAct::rows;
        fault.with = draw_.one_in(2) ? "repeat_last" : "mix";
        break;
      case 4:
        fault.act = FaultAct::scale;
        fault.factor = draw_.one_in(2) ? 2.0 : 1.0 / double(tp_);
        break;
      default:
        fault.act = FaultAct::stale;
        break;
    }
    return fault;
  }

  void mutant() {
    ParallelRun run = drawn_run();
    std::vector<CollectiveRecord> calls;
    run.collectives = &calls;
    const ViewRunResult views = run_views(run, true);
    run.collectives = nullptr;
    if (!views.clean()) return;
    const NumberRunResult right = run_numbers<double>(run, *weights_);
    ParallelRun wrong = run;
    std::vector<InjectedFault> faults;
    std::string name;
    if (run.plan.sequence_parallel_moe && run.plan.shared_expert_whole && draw_.one_in(6)) {
      wrong.plan.shared_expert_whole = false;
      name = "shared expert split over tokens";
    } else {
      if (calls.empty()) return;
      faults = {drawn_fault(calls)};
      wrong.faults = &faults;
      name = to_string(faults.front());
    }
    const NumberRunResult broken = run_numbers<double>(wrong, *weights_);
    const double rounding = unit_roundoff_of(type_);
    const auto changes = [&](double roundings) {
      return number_findings(views, run.plan.parallel, right, broken, roundings * rounding);
    };
    if (broken.error.empty() && changes(1).empty()) {
      ++result_.equivalent;
      return;
    }
    const bool is_small = broken.error.empty() && changes(small_change).empty();
    const bool is_in_context = broken.error.empty() && !trusted_.inputs.context_ids.empty() &&
                               reads_caches(changes(1).front().module);
    MutantCount& count = is_small        ? result_.small
                         : is_in_context ? result_.in_context
                                         : result_.plain;
    ++count.mutants;
    const NumberRunResult numbers =
        run_numbers<float>(wrong, *weights_, ReductionOrder::rank, rounding_);
    const RunTaps taps = taps_of_run(*golden_, views, numbers, run.plan.parallel);
    if (!taps.problems.empty()) return;  // seen
    const CaseJudgement judgement = judged(taps);
    if (judgement.holds())
      count.missed.push_back(text(in_words(run), "; ", name, "; in float64 ",
                                  to_string(changes(is_small ? 1 : small_change).front())));
  }

  AccuracyOptions options_;
  Draw draw_;
  ModelConfig config_;
  DType type_ = DType::float32;
  Rounding rounding_ = Rounding::none;
  std::int64_t tp_ = 1;
  std::optional<Kept> weights_;
  std::optional<ParallelRun> alone_;
  LoadedGolden::Case trusted_;
  std::optional<GoldenCase> golden_;
  std::optional<TapErrorModel> model_;
  AccuracyResult result_;
};

}  // namespace

MutantCount& MutantCount::operator+=(const MutantCount& more) {
  mutants += more.mutants;
  missed.insert(missed.end(), more.missed.begin(), more.missed.end());
  return *this;
}

AccuracyResult& AccuracyResult::operator+=(const AccuracyResult& more) {
  clean += more.clean;
  taps += more.taps;
  ties += more.ties;
  alarms.insert(alarms.end(), more.alarms.begin(), more.alarms.end());
  if (more.nearest > nearest) {
    nearest = more.nearest;
    nearest_place = more.nearest_place;
  }
  plain += more.plain;
  in_context += more.in_context;
  small += more.small;
  equivalent += more.equivalent;
  return *this;
}

AccuracyResult measure_accuracy(std::uint64_t seed, const AccuracyOptions& options) {
  return Experiment(seed, options).run();
}

}  // namespace tokenview
