// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "reference/program/error.hpp"
#include "verify/affected.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/model_argument.hpp"
#include "verify/requests.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_degree = 32;

struct RunArguments {
  std::string model = "qwen3.5-moe";
  std::optional<std::string> protocol, engine, backend;
  std::string requests = "10";
  ParallelConfig parallel{.tp = 4};
  std::int64_t draft_steps = 0;
  bool correct_target = false;
  OutputFormat format = OutputFormat::text;
};

/// The plan that --engine, or else --protocol, asks for.
ParallelPlan plan_of(const RunArguments& arguments, const ModelConfig& config) {
  const ParallelConfig& parallel = arguments.parallel;
  const ProtocolId asked = parse_protocol(arguments.protocol.value_or("S"));
  if (!arguments.engine) {
    if (arguments.backend)
      throw UsageError("--all2all-backend without --engine: its release says what a backend does");
    if (asked != ProtocolId::S && !(parallel.tp > 1 && parallel.enable_expert_parallel))
      throw UsageError(text("--protocol ", *arguments.protocol,
                            ": sequence-parallel MoE needs --tp over 1 and --ep, found --tp ",
                            parallel.tp, parallel.enable_expert_parallel ? " --ep" : ""));
    return plan_for(config, parallel, asked);
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
  return plan;
}

Exit run(const RunArguments& arguments) {
  const ModelConfig config = model_argument(arguments.model).reading.config;
  require_simulable(config, arguments.parallel, arguments.draft_steps);
  if (arguments.correct_target && arguments.draft_steps == 0)
    throw UsageError("--correct-target without --draft-steps runs nothing");
  const auto requests = parse_requests(arguments.requests, arguments.parallel.dp);

  const ParallelPlan plan = plan_of(arguments, config);
  const ViewRunResult result = run_views({.config = config,
                                          .plan = plan,
                                          .inputs = inputs_of(requests),
                                          .draft_steps = std::size_t(arguments.draft_steps),
                                          .target_runs = !arguments.correct_target},
                                         true);

  if (arguments.format == OutputFormat::jsonl) {
    for (const Finding& finding : result.findings)
      std::cout << json_line(finding_record(finding)) << '\n';
    ReportRecord summary{.kind = "summary"};
    summary.verdict = result.clean() ? "match" : "finding";
    summary.more = {{"findings", std::int64_t(result.findings.size())}, {"detail", result.error}};
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << "protocol " << to_string(plan.protocol) << ", tp=" << arguments.parallel.tp
              << " dp=" << arguments.parallel.dp
              << (arguments.parallel.enable_expert_parallel ? " ep" : "") << ", requests "
              << arguments.requests << "; rows of every rank\n";
    print_views(std::cout, result);
    print_findings(std::cout, result);
    std::cout << plural(std::int64_t(result.findings.size()), "finding") << '\n';
  }
  return result.clean()               ? Exit::match
         : result.collective_mismatch ? Exit::collective_mismatch
                                      : Exit::difference;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<RunArguments>();
  app.add_option("--model", arguments->model,
                 "Preset, config.json, golden file or checkpoint folder; default: qwen3.5-moe")
      ->type_name("MODEL");
  app.add_option("--engine", arguments->engine,
                 "Release whose gate, layout, MTP and runner are taken: vllm-0.26.0")
      ->type_name("RELEASE");
  app.add_option("--all2all-backend", arguments->backend,
                 text("Of the experts, with --engine; default: ", default_backend))
      ->type_name("BACKEND");
  app.add_option("--protocol", arguments->protocol,
                 "Token layout: S (sequence parallelism off, the default), A, B, C or D")
      ->type_name("S|A|B|C|D");
  add_number(app, "--tp", arguments->parallel.tp, std::int64_t{1}, max_degree,
             "Tensor parallel ranks; default: 4");
  add_number(app, "--dp", arguments->parallel.dp, std::int64_t{1}, max_degree,
             "Data parallel ranks");
  app.add_flag("--ep,--enable-expert-parallel", arguments->parallel.enable_expert_parallel,
               "Whole experts a rank");
  app.add_option("--tokens,--requests", arguments->requests,
                 "Rows: 10 on every dp rank (the default), 3,5 a dp rank, or requests in full: "
                 "4+6/2+3c8v2r1 (+ "
                 "between requests, / between dp ranks, c context, v drafts verified, r rejected)")
      ->type_name("REQUESTS");
  add_number(app, "--draft-steps", arguments->draft_steps, std::int64_t{0}, std::int64_t{16},
             "MTP steps; default: 0");
  app.add_flag("--correct-target", arguments->correct_target,
               "Feed the drafter the rows of a correct target instead of running it");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  return [arguments] { return run(*arguments); };
}

}  // namespace

constinit const Verb run_verb = {
    "run", "Run one parallel configuration on token views",
    "tokenview run --protocol D --tp 4 --ep --tokens 10\n"
    "    which rank holds which rows at every point of the forward pass\n"
    "tokenview run --protocol B --tp 2 --dp 2 --ep --tokens 1,1 --draft-steps 2\n"
    "    the findings of a layout that guesses it from the row count\n"
    "tokenview run --engine vllm-0.26.0 --tp 2 --dp 2 --ep --tokens 1\n"
    "    the layout that a release runs",
    add_options};

}  // namespace tokenview
