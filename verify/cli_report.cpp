// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iostream>

#include "reference/program/error.hpp"
#include "tokenview_version.hpp"
#include "verify/baseline.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/data_folder.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/report_formats.hpp"
#include "verify/result_reader.hpp"

namespace tokenview {
namespace {

struct ReportArguments {
  std::vector<std::string> results;
  std::string html, junit, sarif, step_summary, trace, dot, svg;
  std::string configuration, module;  // of trace, dot and svg
  bool github = false;
  std::string baseline, write_baseline, reason, expires;
};

void write_file(const std::string& path, const std::string& content, bool appends = false) {
  std::ofstream out(path, std::ios::binary | (appends ? std::ios::app : std::ios::trunc));
  out << content << std::flush;
  if (!out) throw FileError(text(printable(path), ": cannot be written"));
}

/// No output may be an input or another output: one of the two would be gone.
void require_files_of_their_own(const ReportArguments& arguments) {
  const std::pair<const char*, const std::string*> outputs[] = {
      {"--html", &arguments.html},   {"--junit", &arguments.junit},
      {"--sarif", &arguments.sarif}, {"--step-summary", &arguments.step_summary},
      {"--trace", &arguments.trace}, {"--dot", &arguments.dot},
      {"--svg", &arguments.svg},     {"--write-baseline", &arguments.write_baseline}};
  for (auto output = std::begin(outputs); output != std::end(outputs); ++output) {
    const auto& [option, path] = *output;
    if (path->empty()) continue;
    std::vector<std::string> inputs = arguments.results;
    // A baseline may be written anew: it is read first.
    if (path != &arguments.write_baseline && !arguments.baseline.empty())
      inputs.push_back(arguments.baseline);
    for (const std::string& input : inputs)
      if (is_same_file(*path, input))
        throw UsageError(
            text("report: ", option, ": ", printable(*path), " is read: expected another output"));
    for (auto other = std::begin(outputs); other != output; ++other)
      if (!other->second->empty() && is_same_file(*path, *other->second))
        throw UsageError(text("report: ", other->first, " and ", option, " both write ",
                              printable(*path), ": expected two files"));
  }
}

/// What everything together came to: an unreadable input first, then what is new.
Exit exit_of(const Results& results) {
  Exit exit = Exit::match;
  for (const ResultCase& result : results.cases) {
    if (!result.is_news()) continue;
    const bool is_nothing =
        !result.problems.empty() && result.problems.front().rule == "nothing compared";
    exit = more_important(exit, result.outcome == Outcome::error ? Exit::usage
                                : is_nothing                     ? Exit::nothing_compared
                                                                 : Exit::difference);
  }
  return exit;
}

/// The configuration to draw: the first that the pattern matches, else the first with a problem,
/// else the first, of those with views.
const ResultCase& configuration_to_draw(const Results& results, const std::string& pattern) {
  const NamePattern wanted(pattern.empty() ? "*" : pattern);
  const ResultCase* found = nullptr;
  for (const ResultCase& result : results.cases) {
    if (!result.has_views() || !wanted.matches(result.name)) continue;
    if (!result.problems.empty()) return result;
    if (found == nullptr) found = &result;
  }
  if (found == nullptr)
    throw UsageError(text("report: --trace, --dot and --svg: no configuration",
                          pattern.empty() ? "" : " '" + printable(pattern) + "'",
                          " has views: expected results of run, repro or check --matrix -v"));
  return *found;
}

void draw(const ReportArguments& arguments, const Results& results) {
  if (arguments.trace.empty() && arguments.dot.empty() && arguments.svg.empty()) return;
  const ResultCase& result = configuration_to_draw(results, arguments.configuration);
  const std::string module =
      arguments.module.empty() ? layer_of_first_problem(result) : arguments.module;
  if (!arguments.trace.empty()) write_file(arguments.trace, perfetto_trace(result));
  if (!arguments.dot.empty()) write_file(arguments.dot, layer_dot(result, module));
  if (!arguments.svg.empty()) write_file(arguments.svg, layer_svg(result, module));
}

Exit report(const ReportArguments& arguments) {
  catch_interrupts();
  require_files_of_their_own(arguments);
  if (!arguments.write_baseline.empty()) {
    if (arguments.reason.empty() || arguments.expires.empty())
      throw UsageError("report: --write-baseline: expected --reason and --expires");
    require_date("--expires", arguments.expires);
    if (arguments.expires < today())
      throw UsageError(text("report: --expires: ", arguments.expires, " is over, expected ",
                            today(), " or a later day"));
  }

  Results results = read_results(arguments.results);
  for (const std::string& problem : results.unreadable) print_error(problem);
  Baseline baseline;
  if (!arguments.baseline.empty()) baseline = read_baseline(arguments.baseline);
  mark_known(baseline, results, today());

  if (!arguments.html.empty())
    write_file(arguments.html, html_report(results, baseline, build::version));
  if (!arguments.junit.empty()) write_file(arguments.junit, junit_report(results));
  if (!arguments.sarif.empty()) write_file(arguments.sarif, sarif_report(results, build::version));
  if (!arguments.step_summary.empty())
    write_file(arguments.step_summary, step_summary(results, baseline), true);
  if (!arguments.write_baseline.empty())
    write_file(arguments.write_baseline,
               baseline_of(results, baseline, arguments.reason, arguments.expires));
  std::cout << text_report(results, baseline, use_colour());
  if (arguments.github) std::cout << github_annotations(results, baseline);
  draw(arguments, results);  // last: where nothing can be drawn, the rest is there
  return exit_of(results);
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<ReportArguments>();
  app.add_option("RESULT", arguments->results,
                 "What the other verbs printed with --format jsonl; - for standard input")
      ->type_name("RESULT.jsonl")
      ->required();
  const auto add_file = [&](const char* name, std::string& target, const char* description) {
    return app.add_option(name, target, description)->type_name("FILE");
  };
  add_file("--html", arguments->html, "Writes one page, which needs no network");
  add_file("--junit", arguments->junit, "Writes JUnit XML");
  add_file("--sarif", arguments->sarif, "Writes SARIF 2.1.0");
  app.add_flag("--github", arguments->github, "Prints annotations for GitHub Actions, 10 at most");
  add_file("--step-summary", arguments->step_summary,
           "Appends a summary in Markdown: \"$GITHUB_STEP_SUMMARY\"");
  add_file("--trace", arguments->trace,
           "Writes a trace for Perfetto: a process a rank, in program order");
  add_file("--dot", arguments->dot, "Writes a layer with the rows of every rank for Graphviz");
  add_file("--svg", arguments->svg, "Writes the same as a picture");
  app.add_option("--configuration", arguments->configuration,
                 "The configuration of --trace, --dot and --svg, * for any text; default: the "
                 "first with a problem")
      ->type_name("PATTERN");
  app.add_option("--module", arguments->module,
                 "What --dot and --svg show; default: the layer of the first problem")
      ->type_name("MODULE");
  add_file("--baseline", arguments->baseline,
           "Known problems, each with a reason and an end: they fail nothing");
  CLI::Option* const write = add_file("--write-baseline", arguments->write_baseline,
                                      "Writes a baseline of everything that fails here");
  app.add_option("--reason", arguments->reason, "Why these are known, for --write-baseline")
      ->type_name("TEXT")
      ->needs(write);
  app.add_option("--expires", arguments->expires,
                 "Their last day, for --write-baseline: 2027-03-31")
      ->type_name("DATE")
      ->needs(write);
  return [arguments] { return report(*arguments); };
}

}  // namespace

constinit const Verb report_verb = {
    "report", "Write reports for people and CI systems from results",
    "tokenview check --matrix --format jsonl > matrix.jsonl\n"
    "tokenview report matrix.jsonl --html matrix.html --junit matrix.xml\n"
    "    a page to read and a file for the CI system, from one run\n"
    "tokenview report *.jsonl --github --step-summary \"$GITHUB_STEP_SUMMARY\" --sarif r.sarif\n"
    "    in a job of GitHub Actions\n"
    "tokenview report run.jsonl --write-baseline known.json --reason 'vllm 48429' --expires "
    "2027-03-31\n"
    "tokenview report run.jsonl --baseline known.json\n"
    "    what fails today is known; from here on only what is new fails",
    add_options};

}  // namespace tokenview
