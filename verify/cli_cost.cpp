// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iomanip>
#include <iostream>

#include "reference/program/error.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/cost.hpp"
#include "verify/model_argument.hpp"
#include "verify/requests.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

struct CostArguments {
  std::string model = "qwen3.5-122b";
  std::string requests = "8192";
  ParallelConfig parallel{.tp = 4, .enable_expert_parallel = true};
  std::int64_t draft_steps = 1;
  std::int64_t element_bytes = 2;
  OutputFormat format = OutputFormat::text;
};

Exit cost(const CostArguments& arguments) {
  const ModelConfig config = model_argument(arguments.model).reading.config;
  require_simulable(config, arguments.parallel, arguments.draft_steps);
  const auto inputs = inputs_of(parse_requests(arguments.requests, arguments.parallel.dp));
  const bool records = arguments.format == OutputFormat::jsonl;
  if (!records)
    std::cout << arguments.model << ", tp=" << arguments.parallel.tp
              << " dp=" << arguments.parallel.dp << " ep, requests " << arguments.requests << ", "
              << arguments.element_bytes << " bytes an element; sent by rank 0 on rings\n"
              << "protocol  purpose          calls  bytes\n";
  double without = 0, least = 0;  // what the target's layers, exit and dispatch send
  const char* best = "";
  for (const ProtocolId protocol : {ProtocolId::S, ProtocolId::A, ProtocolId::B, ProtocolId::C,
                                    ProtocolId::D, ProtocolId::E, ProtocolId::sglang}) {
    const Cost counted = cost_of({.config = config,
                                  .plan = plan_for(config, arguments.parallel, protocol),
                                  .inputs = inputs,
                                  .draft_steps = std::size_t(arguments.draft_steps)},
                                 double(arguments.element_bytes));
    const double sent = counted.line("target layers").bytes + counted.line("target exit").bytes +
                        counted.line("expert dispatch").bytes;
    const bool is_right = protocol != ProtocolId::B;  // its MTP is not
    if (protocol == ProtocolId::S) {
      without = sent;
    } else if (is_right && (least == 0 || sent < least)) {
      least = sent;
      best = to_string(protocol);
    }
    const auto print_line = [&](const CostLine& line) {
      const auto padded = [](std::string cell, std::size_t width) {
        return cell + std::string(width > cell.size() ? width - cell.size() : 1, ' ');
      };
      std::cout << padded(to_string(protocol), 10) << padded(line.purpose, 17)
                << padded(std::to_string(line.calls), 7) << std::int64_t(line.bytes) << '\n';
    };
    CostLine total{.purpose = "all"};
    for (const CostLine& line : counted.lines) {
      total.calls += line.calls;
      total.bytes += line.bytes;
      if (records) {
        ReportRecord record{.kind = "cost"};
        record.tap = line.purpose;
        record.more = {{"protocol", std::string(to_string(protocol))},
                       {"calls", line.calls},
                       {"bytes", std::int64_t(line.bytes)}};
        std::cout << json_line(record) << '\n';
      } else {
        print_line(line);
      }
    }
    if (!records) print_line(total);
  }
  const std::int64_t p = arguments.parallel.tp;
  if (p == 1 && !records) return Exit::match;
  // Rows that norms, router and shared expert work on under sequence parallelism, of those without.
  std::int64_t tokens = 0, shards = 0;
  for (const StepInputs& of_rank : inputs) {
    tokens += of_rank.step.num_tokens();
    shards += (of_rank.step.num_tokens() + p - 1) / p;
  }
  const double ratio = without > 0 ? least / without : 1;
  if (records) {
    ReportRecord summary{.kind = "summary"};
    summary.case_name = text(model_name(arguments.model), ' ', in_words(arguments.parallel),
                             " requests ", arguments.requests);
    summary.verdict = p == 1 ? "one rank" : ratio < 1 ? "pays" : "does not pay";
    summary.more = {{"verb", "cost"},
                    {"best", std::string(best)},
                    {"bytes", std::int64_t(least)},
                    {"bytes_without", std::int64_t(without)},
                    {"rows_of_a_rank", shards},
                    {"rows_without", tokens}};
    std::cout << json_line(summary) << '\n';
  } else if (tokens == 0) {
    std::cout << "is sequence parallelism needed here? no: there is no token row\n";
  } else {
    std::cout << "is sequence parallelism needed here? "
              << (ratio < 1    ? "it sends less: "
                  : ratio == 1 ? "it sends as much: "
                               : "it sends more: ")
              << best << ", " << (ratio > 1 ? "the least of them, " : "") << std::fixed
              << std::setprecision(1) << ratio * 100 << " % of S (layers, exit, dispatch)"
              << "; norms, router and shared expert work on " << shards
              << " rows a rank instead of " << tokens
              << (ratio < 1 ? "" : ", which alone can pay for it") << '\n';
  }
  return Exit::match;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<CostArguments>();
  app.add_option("--model", arguments->model,
                 "Preset, config.json, golden file or checkpoint folder")
      ->type_name("MODEL");
  add_number(app, "--tp", arguments->parallel.tp, std::int64_t{1}, std::int64_t{32},
             "Tensor parallel ranks");
  add_number(app, "--dp", arguments->parallel.dp, std::int64_t{1}, std::int64_t{32},
             "Data parallel ranks");
  app.add_flag("--ep,--enable-expert-parallel", arguments->parallel.enable_expert_parallel,
               "Whole experts a rank: always so here, as a line of run says it");
  app.add_option("--tokens,--requests", arguments->requests, "Rows, as for run")
      ->type_name("REQUESTS");
  add_number(app, "--draft-steps", arguments->draft_steps, std::int64_t{0}, std::int64_t{16},
             "MTP steps");
  add_number(app, "--element-bytes", arguments->element_bytes, std::int64_t{1}, std::int64_t{8},
             "Bytes an element; 2 for bfloat16");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  return [arguments] { return cost(*arguments); };
}

}  // namespace

constinit const Verb cost_verb = {
    "cost", "Count the collectives and bytes of every protocol",
    "tokenview cost --model qwen3.5-122b --tp 4 --tokens 8192\n"
    "    calls and bytes for the layers, the exits, the embedding and the expert dispatch\n"
    "tokenview cost --tp 8 --tokens 1\n"
    "    where padding dominates",
    add_options};

}  // namespace tokenview
