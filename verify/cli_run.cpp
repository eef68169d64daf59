// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_run.hpp"

#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tokenview_version.hpp"
#include "verify/affected.hpp"
#include "verify/cli.hpp"
#include "verify/cli_checkpoint.hpp"
#include "verify/cli_executor.hpp"
#include "verify/device_repro.hpp"
#include "verify/dump_run.hpp"
#include "verify/fault_effect.hpp"
#include "verify/fault_text.hpp"
#include "verify/golden_case.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/loaded_golden.hpp"
#include "verify/model_argument.hpp"
#include "verify/record.hpp"
#include "verify/repair_report.hpp"
#include "verify/requests.hpp"
#include "verify/scenario.hpp"
#include "verify/unsharded.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_degree = 32;
constexpr Word<RunnerVersion> runners[] = {{"V1", RunnerVersion::V1}, {"V2", RunnerVersion::V2}};

constexpr std::int64_t most_numeric_rows = 512;  // of all dp ranks: half a minute on the tiny model

struct RunArguments {
  std::optional<std::string> named_model;
  std::string checkpoint;  // empty: none
  std::optional<std::string> protocol, engine, backend;
  std::string requests = "10";
  ParallelConfig parallel{.tp = 4};
  std::int64_t draft_steps = 0;
  bool correct_target = false;
  ExecutorArguments executor;
  bool numeric = false, eager = false, unpadded = false;
  std::vector<std::int64_t> aux_layers, graph_sizes;
  std::optional<RunnerVersion> runner;
  Dispatch dispatch = Dispatch::allgather_reducescatter;
  std::vector<std::string> faults;
  std::vector<std::string> cases;  // one an engine step
  std::string dump;                // a folder
  bool strip = false;
  OutputFormat format = OutputFormat::text;

  std::string model() const {
    return named_model.value_or(checkpoint.empty() ? "qwen3.5-moe" : checkpoint);
  }
};

/// What --engine, or else --protocol, asks for.
struct Layout {
  ParallelPlan plan;
  RunnerOptions runner = {};
};
Layout layout_of(const RunArguments& arguments, const ModelConfig& config) {
  const ParallelConfig& parallel = arguments.parallel;
  const ProtocolId asked = parse_protocol(arguments.protocol.value_or("S"));
  if (!arguments.engine) {
    if (arguments.backend)
      throw UsageError(
          "--all2all-backend without --engine: its release says what a backend does; "
          "--dispatch takes the form itself");
    if (asked != ProtocolId::S && asked != ProtocolId::deferred &&
        !(parallel.tp > 1 && parallel.enable_expert_parallel))
      throw UsageError(text("--protocol ", *arguments.protocol,
                            ": sequence-parallel MoE needs --tp over 1 and --ep, found --tp ",
                            parallel.tp, parallel.enable_expert_parallel ? " --ep" : ""));
    Layout layout{plan_for(config, parallel, asked)};
    layout.plan.dispatch = arguments.dispatch;
    return layout;
  }
  const EngineRelease release = engine_release(*arguments.engine);
  const ServedModel served{config, parallel, arguments.backend.value_or(default_backend),
                           arguments.draft_steps};
  require_accepted(config, parallel, release, arguments.draft_steps);
  const ParallelPlan plan = plan_for(config, parallel, release, served.backend);
  if (arguments.protocol && asked != plan.protocol)
    throw UsageError(text("--protocol ", *arguments.protocol, " contradicts --engine ",
                          release.name, ", which runs ", to_string(plan.protocol), " here"));
  if (!release.interpolated.empty()) print_note(release.interpolated);
  const Gate gate = gate_of(release, parallel, served.backend);
  if (!gate.warning.empty()) print_note(gate.warning);
  if (arguments.format == OutputFormat::text) std::cout << in_words(release, served) << '\n';
  return {plan, runner_options(release, plan)};
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

/// The inputs of each dp rank: a case of the golden for all of them, or one each.
std::vector<GoldenInputs> inputs_of_case(const GoldenFile& golden, const std::string& names,
                                         const ModelConfig& config, std::int64_t dp) {
  std::vector<std::string> words = words_of(names);
  if (words.size() == 1) words.resize(std::size_t(dp), words.front());
  if (std::int64_t(words.size()) != dp)
    throw UsageError(text("--case ", printable(names), ": found ", words.size(),
                          " cases, expected one, or ", dp, ", one a dp rank"));
  const std::vector<std::string> known = golden.case_names();
  std::vector<GoldenInputs> inputs;
  for (const std::string& name : words) {
    if (std::ranges::find(known, name) == known.end())
      throw UsageError(text("--case ", printable(name), ": ", printable(golden.path()), " has ",
                            joined(known), suggestion(name, known)));
    inputs.push_back(golden.inputs(name, config.vocab_size));
  }
  return inputs;
}

/// Engine steps with the inputs of cases of a golden file: the first with its context, each later
/// one in the context that the ones before it have made.
void take_cases(const RunArguments& arguments, const ModelConfig& config, ParallelRun& run) {
  if (!arguments.model().ends_with(".h5"))
    throw UsageError("--case: expected --model with the golden file that has it");
  const GoldenFile golden = GoldenFile::open(arguments.model());
  for (const std::string& names : arguments.cases) {
    const std::vector<GoldenInputs> inputs =
        inputs_of_case(golden, names, config, arguments.parallel.dp);
    std::vector<StepInputs> step;
    for (const GoldenInputs& of_dp : inputs) {
      CaseBatches batches = case_batches(of_dp);
      step.push_back({std::move(batches.context), std::move(batches.step)});
    }
    if (run.inputs.empty()) {
      run.inputs = std::move(step);
      continue;
    }
    for (StepInputs& of_dp : step) of_dp.context = {};
    run.later_steps.push_back(std::move(step));
    const std::vector<GoldenInputs> made = inputs_of_step(run, run.later_steps.size());
    for (std::size_t dp = 0; dp < inputs.size(); ++dp)
      if (made[dp].context_ids != inputs[dp].context_ids ||
          made[dp].context_start_loc != inputs[dp].context_start_loc)
        throw UsageError(text("--case ", printable(names),
                              ": its context is not what the steps before it ", "have processed"));
  }
}

/// The weights of a run: a checkpoint's, a golden file's, or random ones.
class RunWeights {
 public:
  RunWeights(const RunArguments& arguments, const ModelConfig& config) {
    const std::string model = arguments.model();
    const bool is_folder =  // a preset's name means the preset, as in model_argument()
        arguments.checkpoint.empty() && !preset(model) && Checkpoint::has_weights(model);
    checkpoint_ = opened_checkpoint(is_folder ? model : arguments.checkpoint);
    if (model.ends_with(".h5"))
      own_ = std::make_unique<LoadedGolden>(model, checkpoint_.get());
    else if (checkpoint_ == nullptr)
      own_ = std::make_unique<SeededWeights>(config, 1);
    else if (checkpoint_->reading().config != config)
      throw UsageError(text("--checkpoint ", printable(arguments.checkpoint), " and --model ",
                            printable(model), " have different configurations"));
  }

  const WeightSource& source() const {
    if (own_) return *own_;
    return *checkpoint_;
  }

 private:
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<WeightSource> own_;
};

std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string words;
  for (const std::int64_t number : numbers) words += text(words.empty() ? "" : ",", number);
  return words;
}

/// "qwen3.5-moe B tp=4 dp=1 ep requests 10, 1 draft step": what tells two runs apart, every option
/// that may change what comes out, from whichever folder it is typed.
std::string configuration_in_words(const RunArguments& arguments, const ParallelPlan& plan,
                                   const Executor& executor) {
  std::string words = text(model_name(arguments.model()), ' ', to_string(plan.protocol), ' ',
                           in_words(arguments.parallel));
  if (arguments.cases.empty()) words += " requests " + arguments.requests;
  for (std::size_t step = 0; step < arguments.cases.size(); ++step)
    words += (step == 0 ? " case " : " then ") + arguments.cases[step];
  if (arguments.draft_steps > 0) words += ", " + plural(arguments.draft_steps, "draft step");
  if (arguments.correct_target) words += ", a correct target";
  if (arguments.unpadded) words += ", no padded drafter batch";
  if (arguments.engine) words += ", " + *arguments.engine;
  if (arguments.backend) words += ", " + *arguments.backend;
  if (arguments.dispatch != Dispatch::allgather_reducescatter)
    words += text(", dispatch ", to_string(arguments.dispatch));
  if (arguments.runner) words += text(", runner ", word_of(runners, *arguments.runner));
  if (!arguments.graph_sizes.empty())
    words += text(", graph sizes ", listed(arguments.graph_sizes));
  if (!arguments.aux_layers.empty()) words += text(", aux layers ", listed(arguments.aux_layers));
  for (const std::string& fault : arguments.faults) words += ", fault " + fault;
  if (arguments.numeric) words += ", numeric";
  if (executor.device != Device::cpu) words += text(" on ", word_of(device_words, executor.device));
  if (executor.comm != CommKind::sim) words += text(" over ", to_string(executor.comm));
  if (!arguments.checkpoint.empty() && arguments.named_model)
    words += ", weights of " + model_name(arguments.checkpoint);
  return words;
}

ReportRecord record_of(const UnshardedTap& tap) {
  ReportRecord record = tap_record(tap.name, tap.dp, tap.failed, tap.row_ratios);
  record.observed = tap.worst;
  record.allowed = tap.allowed;
  record.more.insert(record.more.end(), {{"metric", "max_abs"}, {"values", tap.values}});
  if (!tap.detail.empty()) record.more.emplace_back("detail", tap.detail);
  return record;
}

Exit run(const RunArguments& arguments) {
  const ModelConfig config = model_argument(arguments.model()).reading.config;
  require_simulable(config, arguments.parallel, arguments.draft_steps);
  if (arguments.correct_target && arguments.draft_steps == 0)
    throw UsageError("--correct-target without --draft-steps runs nothing");
  if (arguments.correct_target && arguments.numeric)
    throw UsageError("--correct-target with --numeric: numbers need the target");
  if (arguments.eager && !arguments.graph_sizes.empty())
    throw UsageError("--enforce-eager contradicts --graph-sizes");
  if (arguments.unpadded && arguments.draft_steps == 0)
    throw UsageError("--disable-padded-drafter-batch without --draft-steps has no effect");
  for (const std::int64_t layer : arguments.aux_layers)
    if (layer > config.num_hidden_layers)
      throw UsageError(text("--aux-layers ", layer, ": expected 0 to ", config.num_hidden_layers));
  if (!std::ranges::is_sorted(arguments.graph_sizes) ||
      std::ranges::find(arguments.graph_sizes, 0) != arguments.graph_sizes.end())
    throw UsageError("--graph-sizes: expected sizes of at least 1 in ascending order");
  if (arguments.executor.any() && !arguments.numeric)
    throw UsageError("--device and --comm say where numbers are computed: expected --numeric");
  Executor executor;
  if (arguments.numeric) {
    executor = executor_of(arguments.executor, true);
    require_ranks(executor, arguments.parallel.world_size());
    silence_other_ranks(executor);
    require_arithmetic(config);
    require_memory(config, 2 * sizeof(double));  // sharded, and whole beside it
  }
  if (!arguments.dump.empty() && !arguments.numeric)
    throw UsageError("--dump writes what ranks have: expected --numeric");
  if (!arguments.checkpoint.empty() && !arguments.numeric)
    throw UsageError("--checkpoint gives weights: expected --numeric");
  if (arguments.strip && arguments.dump.empty())
    throw UsageError("--strip leaves annotations out of dumps: expected --dump");
  std::vector<InjectedFault> faults;
  for (const std::string& fault : arguments.faults) faults.push_back(parse_fault(fault));
  if (executor.device == Device::cuda) require_faults_on_gpu("--fault", faults);

  Layout layout = layout_of(arguments, config);
  layout.plan.aux_layers = arguments.aux_layers;
  layout.runner.graph_sizes = arguments.graph_sizes;
  layout.runner.padded_drafter = !arguments.unpadded;
  if (arguments.runner) layout.runner.version = *arguments.runner;
  const ParallelPlan& plan = layout.plan;
  const std::string name = configuration_in_words(arguments, plan, executor);
  std::vector<std::int64_t> hits(faults.size(), 0);
  ParallelRun configuration{.config = config,
                            .plan = plan,
                            .draft_steps = std::size_t(arguments.draft_steps),
                            .target_runs = !arguments.correct_target,
                            .runner = layout.runner,
                            .faults = faults.empty() ? nullptr : &faults,
                            .fault_hits = &hits};
  if (arguments.cases.empty()) {
    configuration.inputs = inputs_of(parse_requests(arguments.requests, arguments.parallel.dp));
    for (std::size_t dp = 0; dp < configuration.inputs.size(); ++dp)
      for (Batch* batch : {&configuration.inputs[dp].context, &configuration.inputs[dp].step})
        spread_ids(*batch, std::int64_t(dp), 0, config.vocab_size);
  } else {
    take_cases(arguments, config, configuration);
  }
  std::int64_t rows = 0;
  for (const StepInputs& of_rank : configuration.inputs)
    rows += of_rank.context.num_tokens() + of_rank.step.num_tokens();
  for (const auto& step : configuration.later_steps)
    for (const StepInputs& of_rank : step) rows += of_rank.step.num_tokens();
  if (arguments.numeric && rows > most_numeric_rows)
    throw UsageError(
        text("--numeric: ", rows, " rows and context rows: expected at most ", most_numeric_rows));
  std::vector<PlaceVisit> visits;
  if (!faults.empty()) configuration.visits = &visits;
  const ViewRunResult result = run_views(configuration, true);
  configuration.visits = nullptr;
  try {
    require_met(faults, hits, result, "--fault");
  } catch (const ConfigError& error) {
    throw UsageError(error.what());
  }
  for (const InjectedFault& fault : faults)
    if (const std::string why = why_without_effect(fault, visits, plan.parallel);
        !why.empty() && result.error.empty())
      throw UsageError(text("--fault ", to_string(fault), " changes nothing: ", why));
  configuration.fault_hits = nullptr;
  std::optional<UnshardedComparison> numbers;
  if (arguments.numeric) {
    const RunWeights weights(arguments, config);
    numbers = compare_with_unsharded(executor, configuration, weights.source());
    if (!arguments.dump.empty())
      dump_run(executor, configuration, weights.source(),
               {arguments.dump,
                text("tokenview ", build::version, " run, protocol ", to_string(plan.protocol)),
                !arguments.strip, name});
  }
  const std::optional<Blame> blame = blame_of(configuration);
  const RepairSearch search = blame ? find_repairs(configuration) : RepairSearch{};
  const bool matches = !numbers || (numbers->findings.empty() && numbers->error.empty());
  const bool nothing_compared =
      result.clean() && matches && (numbers ? numbers->values == 0 : rows == 0);

  if (arguments.format == OutputFormat::jsonl) {
    for (const ReportRecord& record : view_records(result)) std::cout << json_line(record) << '\n';
    for (const Finding& finding : result.findings)
      std::cout << json_line(finding_record(finding, result)) << '\n';
    if (blame)
      for (const ReportRecord& record : repair_records(*blame, search))
        std::cout << json_line(record) << '\n';
    for (const UnshardedTap& tap : numbers ? numbers->compared : std::vector<UnshardedTap>())
      std::cout << json_line(record_of(tap)) << '\n';
    if (numbers)
      for (const Finding& finding : numbers->findings)
        std::cout << json_line(finding_record(finding)) << '\n';
    ReportRecord summary{.kind = "summary"};
    summary.verdict = !result.clean()    ? "finding"
                      : nothing_compared ? "nothing compared"
                      : matches          ? "match"
                                         : "difference";
    if (!arguments.cases.empty()) summary.file = arguments.model();
    summary.case_name = name;
    summary.more = {{"verb", "run"},
                    {"model", arguments.model()},
                    {"protocol", std::string(to_string(plan.protocol))},
                    {"tp", arguments.parallel.tp},
                    {"dp", arguments.parallel.dp},
                    {"pp", arguments.parallel.pp},
                    {"expert_parallel", arguments.parallel.enable_expert_parallel},
                    {"requests", arguments.cases.empty() ? arguments.requests : ""},
                    {"draft_steps", arguments.draft_steps},
                    {"findings", std::int64_t(result.findings.size())},
                    {"detail", result.error}};
    if (!arguments.cases.empty()) summary.more.emplace_back("golden_cases", arguments.cases);
    if (numbers) {
      summary.more.emplace_back("taps", numbers->taps);
      summary.more.emplace_back("values", numbers->values);
      summary.more.emplace_back("worst", numbers->worst);
      summary.observed = numbers->worst;
      summary.allowed = unsharded_bound(executor).relative;
    }
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << "protocol " << to_string(plan.protocol) << ", " << in_words(arguments.parallel)
              << (arguments.cases.empty() ? ", requests " + arguments.requests
                                          : ", cases " + printable(joined(arguments.cases)))
              << "; rows of every rank\n";
    print_views(std::cout, result, use_colour());
    print_findings(std::cout, result);
    std::cout << plural(std::int64_t(result.findings.size()), "finding")
              << (result.error.empty() ? "\n" : " before the run stopped\n");
    if (blame) print_repairs(std::cout, *blame, search);
    if (numbers) {
      for (std::size_t i = 0; i < std::min<std::size_t>(numbers->findings.size(), 20); ++i)
        std::cout << "differs  " << to_string(numbers->findings[i]) << '\n';
      if (!numbers->error.empty()) std::cout << "numbers stopped: " << numbers->error << '\n';
      std::cout << "numbers: " << plural(numbers->taps, "tap") << " of "
                << plural(numbers->values, "value") << " beside the unsharded model, "
                << plural(std::int64_t(numbers->findings.size()), "tap")
                << (numbers->findings.size() == 1 ? " differs" : " differ") << "; worst "
                << numbers->worst << " of "
                << (executor.wide ? "the largest value" : "max(1, the largest value)")
                << ", allowed " << unsharded_bound(executor).relative
                << (numbers->worst_tap.empty() ? "" : " at " + numbers->worst_tap) << '\n';
    }
  }
  if (numbers && is_device_assert(numbers->error)) return Exit::device_assert;
  if (nothing_compared) {
    print_error(numbers ? "run: --numeric: nothing compared: no token row has a value"
                        : "run: nothing compared: no rank is given a token row");
    return Exit::nothing_compared;
  }
  return result.collective_mismatch  ? Exit::collective_mismatch
         : result.clean() && matches ? Exit::match
                                     : Exit::difference;
}

/// The configuration as a scenario. Its plan must be one that a protocol and flags give.
Scenario scenario_of(const RunArguments& arguments) {
  if (arguments.numeric || arguments.executor.any())
    throw UsageError("--numeric, --device and --comm: this verb works on token views");
  if (!arguments.cases.empty() || !arguments.dump.empty() || arguments.strip ||
      !arguments.checkpoint.empty())
    throw UsageError(
        "--case, --checkpoint, --dump and --strip: this verb has no numbers, expected --requests");
  const ModelConfig config = model_argument(arguments.model()).reading.config;
  require_simulable(config, arguments.parallel, arguments.draft_steps);
  if (arguments.correct_target && arguments.draft_steps == 0)
    throw UsageError("--correct-target without --draft-steps runs nothing");
  const Layout layout = layout_of(arguments, config);
  Scenario s;
  s.name = "run";
  s.title = "a configuration of the command line";
  s.source = "tokenview run";
  s.model = arguments.model();
  s.parallel = arguments.parallel;
  s.dispatch = layout.plan.dispatch;
  s.requests = {arguments.requests};
  parse_requests(arguments.requests, s.parallel.dp);
  s.draft_steps = arguments.draft_steps;
  s.target_runs = !arguments.correct_target;
  s.aux_layers = arguments.aux_layers;
  s.runner = layout.runner;
  s.runner.graph_sizes = arguments.graph_sizes;
  s.runner.padded_drafter = !arguments.unpadded;
  if (arguments.runner) s.runner.version = *arguments.runner;
  s.broken.protocol = layout.plan.protocol;
  for (const std::string& fault : arguments.faults) s.broken.faults.push_back(parse_fault(fault));
  ParallelPlan wanted = layout.plan, given = run_of(s, s.broken, config).plan;
  for (const std::string& flag : plan_flag_names())
    if (plan_flag(wanted, flag) != plan_flag(given, flag))
      s.broken.plan[flag] = plan_flag(wanted, flag);
  given = run_of(s, s.broken, config).plan;
  wanted.aux_layers = given.aux_layers;
  wanted.runner = given.runner;
  if (!(wanted == given))
    throw UsageError(
        "the plan of this release is none that a scenario can say: expected --protocol");
  s.repaired = s.broken;
  return s;
}

/// Options of `run`, and of verbs that take the same.
std::shared_ptr<RunArguments> add_arguments(CLI::App& app) {
  const auto arguments = std::make_shared<RunArguments>();
  app.add_option("--model", arguments->named_model,
                 "Preset, config.json, golden file or checkpoint folder; default: that of "
                 "--checkpoint, or qwen3.5-moe")
      ->type_name("MODEL");
  app.add_option(
         "--checkpoint", arguments->checkpoint,
         "Hugging Face folder whose weights --numeric takes; default: those of --model where "
         "it has some, or random ones")
      ->type_name("FOLDER")
      ->check(not_empty());
  app.add_option("--engine", arguments->engine,
                 "Release whose gate, layout, MTP and runner are taken: vllm-0.26.0")
      ->type_name("RELEASE");
  app.add_option("--all2all-backend", arguments->backend,
                 text("Of the experts, with --engine; default: ", default_backend))
      ->type_name("BACKEND");
  app.add_option(
         "--protocol", arguments->protocol,
         "Token layout: S (sequence parallelism off, the default), A, B, C, D, E, deferred, "
         "sglang, or a variant by its pull request: vllm-48763, ...")
      ->type_name("PROTOCOL");
  app.add_option_function<std::string>(
         "--dispatch",
         [arguments](const std::string& name) { arguments->dispatch = parse_dispatch(name); },
         "How rows reach their experts: allgather_reducescatter (default), naive, all_to_all")
      ->type_name("FORM");
  add_number(app, "--tp", arguments->parallel.tp, std::int64_t{1}, max_degree,
             "Tensor parallel ranks; default: 4");
  add_number(app, "--dp", arguments->parallel.dp, std::int64_t{1}, max_degree,
             "Data parallel ranks");
  add_number(app, "--pp", arguments->parallel.pp, std::int64_t{1}, max_degree, "Pipeline stages");
  app.add_flag("--ep,--enable-expert-parallel", arguments->parallel.enable_expert_parallel,
               "Whole experts a rank");
  CLI::Option* const requests =
      app.add_option(
             "--tokens,--requests", arguments->requests,
             "Rows: 10 on every dp rank (the default), 3,5 a dp rank, or requests in full: "
             "4+6/2+3c8v2r1 (+ "
             "between requests, / between dp ranks, c context, v drafts verified, r rejected)")
          ->type_name("REQUESTS");
  app.add_option("--case", arguments->cases,
                 "Rows of a case of the golden file that --model names, or of one a dp rank "
                 "(a,b); again for the next engine step")
      ->type_name("CASE")
      ->excludes(requests);
  add_number(app, "--draft-steps", arguments->draft_steps, std::int64_t{0}, std::int64_t{16},
             "MTP steps; default: 0");
  app.add_flag("--correct-target", arguments->correct_target,
               "Feed the drafter the rows of a correct target instead of running it");
  app.add_flag("--numeric", arguments->numeric,
               "Also with numbers, beside the unsharded model: in float64 on the CPU, in float32 "
               "on a GPU");
  add_executor_options(app, arguments->executor);
  app.add_option("--dump", arguments->dump,
                 "Writes what every rank has into FOLDER/dump.rank<R>.h5, with --numeric")
      ->type_name("FOLDER")
      ->check(not_empty());
  app.add_flag("--strip", arguments->strip,
               "Dumps without annotations: rows and columns are left to the reader");
  add_numbers(app, "--aux-layers", arguments->aux_layers,
              "Auxiliary hidden states, captured before these layers: 0,2,4");
  add_choice(app, "--runner", arguments->runner, runners,
             "Generation of the model runner; default: V1, or the engine's");
  add_numbers(app, "--graph-sizes", arguments->graph_sizes,
              "CUDA graph capture sizes that rows are padded to: 1,2,4,8; default: none");
  app.add_flag("--enforce-eager", arguments->eager, "No CUDA graphs (the default)");
  app.add_flag("--disable-padded-drafter-batch", arguments->unpadded,
               "Rejected rows are left out of the first draft pass");
  app.add_option("--fault", arguments->faults,
                 "Injects ACT:OPERATION[@MODULE][,key=value...] (docs/scenarios.md); repeatable")
      ->type_name("FAULT");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  return arguments;
}

std::function<Exit()> add_options(CLI::App& app) {
  return [arguments = add_arguments(app)] { return run(*arguments); };
}

}  // namespace

RunOptions add_run_options(CLI::App& app) {
  const auto arguments = add_arguments(app);
  return {[arguments] { return scenario_of(*arguments); },
          [arguments] { return arguments->format; }};
}

constinit const Verb run_verb = {
    "run", "Run one parallel configuration on token views",
    "tokenview run --protocol D --tp 4 --ep --tokens 10\n"
    "    which rank holds which rows at every point of the forward pass\n"
    "tokenview run --protocol B --tp 2 --dp 2 --ep --tokens 1,1 --draft-steps 2\n"
    "    the findings of a layout that guesses it from the row count\n"
    "tokenview run --engine vllm-0.26.0 --tp 2 --dp 2 --ep --tokens 1\n"
    "    the layout that a release runs\n"
    "tokenview run --protocol D --tp 2 --ep --tokens 5 --numeric --fault drop:trim@mtp "
    "--draft-steps 1\n"
    "    an injected fault, on views and with numbers\n"
    "tokenview run --model golden.h5 --case prefill --protocol D --tp 2 --ep --numeric --dump out\n"
    "    a case of a golden file; what each rank had goes to out/dump.rank<R>.h5, for diff\n"
    "tokenview run --checkpoint Qwen3-Next-80B-A3B-Instruct --tp 2 --ep --tokens 4 --numeric\n"
    "    with the weights of a checkpoint",
    add_options};

}  // namespace tokenview
