// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>

#include "reference/program/error.hpp"
#include "verify/affected.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/model_argument.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

struct AffectedArguments {
  std::string engine;
  std::string model = "qwen3.5-moe";
  std::string backend = default_backend;
  ParallelConfig parallel;
  std::int64_t draft_steps = 0;
  bool derived = false;
  bool matrix = false;
  OutputFormat format = OutputFormat::text;
};

std::string tokens_in_words(const MetFault& met) {
  std::vector<std::string> counts;
  for (const std::int64_t tokens : met.tokens) counts.push_back(std::to_string(tokens));
  return joined(counts);
}

void print_fault(const MetFault& met, std::int64_t batches) {
  std::cout << met.fault->id << "  " << (met.fault->is_loud ? "loud" : "silent")
            << ", at T = " << tokens_in_words(met) << ": " << met.fault->title;
  if (*met.fault->source != '\0') std::cout << " (" << met.fault->source << ')';
  std::cout << "\n    in " << met.batches << " of " << batches << " batches, first --requests "
            << met.first_batch;
  std::cout << ": " << met.detail;
  std::cout << "\n    "
            << (met.gone_from.empty() ? "in the newest release too"
                                      : "gone from " + met.gone_from + " on")
            << '\n';
}

ReportRecord record_of(const MetFault& met) {
  ReportRecord record{.kind = "fault"};
  record.tap = met.first.module;
  record.rank = met.first.at.world;
  record.verdict = "finding";
  record.more = {{"fault", std::string(met.fault->id)},
                 {"title", std::string(met.fault->title)},
                 {"source", std::string(met.fault->source)},
                 {"loud", met.fault->is_loud},
                 {"derived", met.fault->is_derived},
                 {"tokens", std::vector<std::int64_t>(met.tokens.begin(), met.tokens.end())},
                 {"batches", met.batches},
                 {"first_batch", met.first_batch},
                 {"detail", met.detail},
                 {"gone_from", met.gone_from}};
  return record;
}

Exit run_affected(const AffectedArguments& arguments) {
  if (arguments.matrix) {
    std::cout << release_matrix();
    return Exit::match;
  }
  if (arguments.engine.empty())
    throw UsageError("affected: expected --engine with a release, or --matrix");
  const EngineRelease release = engine_release(arguments.engine);
  const ServedModel served{model_argument(arguments.model).reading.config, arguments.parallel,
                           arguments.backend, arguments.draft_steps};
  const Affected result = affected(served, release);
  if (!release.interpolated.empty()) print_note(release.interpolated);
  if (!result.gate.warning.empty()) print_note(result.gate.warning);
  const auto counts = [&](const MetFault& met) {
    return arguments.derived || !met.fault->is_derived;
  };
  const std::int64_t counted = std::ranges::count_if(result.faults, counts);

  if (arguments.format == OutputFormat::jsonl) {
    for (const MetFault& met : result.faults) std::cout << json_line(record_of(met)) << '\n';
    ReportRecord summary{.kind = "summary"};
    summary.verdict = counted == 0 ? "match" : "finding";
    summary.case_name =
        text(release.name, ' ', model_name(arguments.model), ' ', in_words(arguments.parallel),
             ", ", plural(arguments.draft_steps, "draft step"));
    summary.more = {{"verb", "affected"},
                    {"engine", release.name},
                    {"interpolated", release.interpolated},
                    {"gate", std::string(to_string(release.gate))},
                    {"gate_open", result.gate.open},
                    {"backend", result.gate.backend},
                    {"protocol", std::string(to_string(result.plan.protocol))},
                    {"batches", result.batches},
                    {"faults", counted}};
    std::cout << json_line(summary) << '\n';
    return counted == 0 ? Exit::match : Exit::difference;
  }

  std::cout << in_words(release, served) << '\n';
  for (const bool derived : {false, true}) {
    const auto of_kind = [&](const MetFault& met) { return met.fault->is_derived == derived; };
    if (derived && std::ranges::any_of(result.faults, of_kind))
      std::cout << "derived from the text of the release, not seen to happen"
                << (arguments.derived ? "" : "; counted with --derived only") << '\n';
    for (const MetFault& met : result.faults)
      if (of_kind(met)) print_fault(met, result.batches);
  }
  std::cout << (counted == 0 ? "not affected" : "affected: " + plural(counted, "known fault"))
            << "; " << result.batches << " batches tried, eager mode\n";
  return counted == 0 ? Exit::match : Exit::difference;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<AffectedArguments>();
  app.add_option("--engine", arguments->engine, "vllm-0.26.0 or another release")
      ->type_name("RELEASE");
  app.add_option("--model", arguments->model,
                 "Preset, config.json, golden file or checkpoint folder; default: qwen3.5-moe")
      ->type_name("MODEL");
  add_number(app, "--tp", arguments->parallel.tp, std::int64_t{1}, std::int64_t{32},
             "Tensor parallel ranks");
  add_number(app, "--dp", arguments->parallel.dp, std::int64_t{1}, std::int64_t{32},
             "Data parallel ranks");
  add_number(app, "--pp", arguments->parallel.pp, std::int64_t{1}, std::int64_t{32},
             "Pipeline stages");
  app.add_flag("--ep,--enable-expert-parallel", arguments->parallel.enable_expert_parallel,
               "Whole experts a rank");
  app.add_option("--all2all-backend", arguments->backend,
                 text("Of the experts; default: ", default_backend))
      ->type_name("BACKEND");
  add_number(app, "--draft-steps", arguments->draft_steps, std::int64_t{0}, std::int64_t{16},
             "MTP steps; default: 0");
  app.add_flag("--derived", arguments->derived,
               "Count faults that follow from the release's text and were not seen to happen");
  CLI::Option* const matrix =
      app.add_flag("--matrix", arguments->matrix,
                   "Print every release against the supported configurations, as docs/releases.md");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  exclude_others(app, matrix);
  return [arguments] { return run_affected(*arguments); };
}

}  // namespace

constinit const Verb affected_verb = {
    "affected", "Say which known faults a release can meet in a configuration",
    "tokenview affected --engine vllm-0.27.1 --model qwen3.5-35b --tp 2 --dp 2 --ep --draft-steps "
    "2\n"
    "    the faults, at which row counts, loud or silent, and the release that is clean\n"
    "tokenview affected --matrix\n"
    "    every release and configuration as one table",
    add_options};

}  // namespace tokenview
