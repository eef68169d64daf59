// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "reference/program/error.hpp"
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
  std::string protocol = "S";
  std::string requests = "10";
  ParallelConfig parallel{.tp = 4};
  std::int64_t draft_steps = 0;
  bool correct_target = false;
  OutputFormat format = OutputFormat::text;
};

Exit run(const RunArguments& arguments) {
  const ModelConfig config = model_argument(arguments.model).reading.config;
  const ProtocolId asked = parse_protocol(arguments.protocol);
  require_simulable(config, arguments.parallel, arguments.draft_steps);
  if (arguments.correct_target && arguments.draft_steps == 0)
    throw UsageError("--correct-target without --draft-steps runs nothing");
  if (asked != ProtocolId::S &&
      !(arguments.parallel.tp > 1 && arguments.parallel.enable_expert_parallel))
    throw UsageError(text("--protocol ", arguments.protocol,
                          ": sequence-parallel MoE needs --tp over 1 and --ep, found --tp ",
                          arguments.parallel.tp,
                          arguments.parallel.enable_expert_parallel ? " --ep" : ""));
  const auto requests = parse_requests(arguments.requests, arguments.parallel.dp);

  const ParallelPlan plan = plan_for(config, arguments.parallel, asked);
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
    "    the findings of a layout that guesses it from the row count",
    add_options};

}  // namespace tokenview
