// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "reference/program/error.hpp"
#include "tokenview_version.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/cli_run.hpp"
#include "verify/data_folder.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/repair_report.hpp"
#include "verify/scenario_text.hpp"
#include "verify/shrink.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

struct ShrinkArguments {
  std::string name;
  std::string out, boost_test;
  RunOptions run;
};

void write_text(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << content) || !file.flush()) throw FileError(printable(path) + ": cannot be written");
}

ReportRecord record_of(const Scenario& before, const Shrunk& shrunk) {
  const ConfigurationSize from = size_of(before), to = size_of(shrunk.scenario);
  ReportRecord record{.kind = "case", .case_name = shrunk.scenario.name};
  record.verdict = "finding";
  const auto add = [&](const std::string& when, const ConfigurationSize& size) {
    record.more.insert(record.more.end(), {{"ranks" + when, size.ranks},
                                           {"tokens" + when, size.tokens},
                                           {"context" + when, size.context},
                                           {"layers" + when, size.layers},
                                           {"experts" + when, size.experts},
                                           {"draft_steps" + when, size.draft_steps}});
  };
  add("", to);
  add("_before", from);
  record.more.insert(record.more.end(), {{"steps", shrunk.steps}, {"tried", shrunk.tried}});
  return record;
}

void require_files_of_their_own(const ShrinkArguments& arguments) {
  for (const std::string* output : {&arguments.out, &arguments.boost_test})
    if (!output->empty() && !arguments.name.empty() && is_same_file(*output, arguments.name))
      throw UsageError(text("shrink: ", printable(*output), " is read: expected another file"));
  if (!arguments.out.empty() && !arguments.boost_test.empty() &&
      is_same_file(arguments.out, arguments.boost_test))
    throw UsageError(text("shrink: --out and --boost-test: both are ", printable(arguments.out),
                          ", expected two files"));
}

Exit shrink(const ShrinkArguments& arguments) {
  require_files_of_their_own(arguments);
  const Scenario before =
      arguments.name.empty() ? arguments.run.scenario() : scenario_named(arguments.name, [] {
        return default_data_folder("scenarios", ".json", build::data_dir);
      });
  const Shrunk shrunk = shrink(before);
  const Scenario& small = shrunk.scenario;
  if (!arguments.out.empty()) write_text(arguments.out, scenario_json(small));
  if (!arguments.boost_test.empty()) write_text(arguments.boost_test, boost_test_of(small));

  const ModelConfig config = config_of(small);
  const ParallelRun run = run_of(small, small.broken, config);
  const ViewRunResult result = run_views(run, true);
  const std::optional<Blame> blame = blame_of(run);
  const RepairSearch search = find_repairs(run);
  if (arguments.run.format() == OutputFormat::jsonl) {
    std::vector<ReportRecord> records;
    if (!result.findings.empty()) records.push_back(finding_record(result.findings.front()));
    if (blame) std::ranges::move(repair_records(*blame, search), std::back_inserter(records));
    for (ReportRecord& record : records) record.case_name = small.name;
    records.push_back(record_of(before, shrunk));
    for (const ReportRecord& record : records) std::cout << json_line(record) << '\n';
    ReportRecord summary{.kind = "summary", .file = small.name};
    summary.verdict = "finding";
    summary.more = {{"verb", "shrink"},
                    {"findings", std::int64_t(result.findings.size())},
                    {"detail", result.error}};
    std::cout << json_line(summary) << '\n';
  } else {
    std::cout << "from    " << to_string(size_of(before)) << '\n';
    for (const std::string& step : shrunk.steps) std::cout << "        " << step << '\n';
    std::cout << "to      " << to_string(size_of(small)) << " (" << plural(shrunk.tried, "run")
              << ")\nrun     " << in_words(small, small.broken) << '\n';
    for (const InjectedFault& fault : small.broken.faults)
      std::cout << "fault   " << to_string(RepairEdit(fault)) << '\n';
    if (!result.findings.empty())
      std::cout << "first   " << to_string(result.findings.front()) << '\n';
    if (!result.error.empty()) std::cout << "stopped " << result.error << '\n';
    if (blame) print_repairs(std::cout, *blame, search);
  }
  return result.collective_mismatch ? Exit::collective_mismatch : Exit::difference;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<ShrinkArguments>();
  CLI::Option* const name =
      app.add_option(
             "NAME", arguments->name,
             "Scenario, by name, alias or file; without one the options of run say what fails")
          ->type_name("NAME");
  arguments->run = add_run_options(app);
  for (CLI::Option* option : app.get_options())
    if (option != name && option != app.get_help_ptr() && !option->check_name("--format"))
      name->excludes(option);
  app.add_option("--out", arguments->out, "Writes the small configuration as a scenario, for repro")
      ->type_name("FILE.json")
      ->check(not_empty());
  app.add_option("--boost-test", arguments->boost_test,
                 "Writes a Boost.Test program that fails as long as it does")
      ->type_name("FILE.cpp")
      ->check(not_empty());
  return [arguments] { return shrink(*arguments); };
}

}  // namespace

constinit const Verb shrink_verb = {
    "shrink", "Make a failing configuration as small as it can be",
    "tokenview shrink --protocol B --tp 8 --dp 2 --ep --tokens 300 --draft-steps 3\n"
    "    fewer ranks, tokens, layers, experts and draft steps, as long as the first finding stays\n"
    "tokenview shrink vllm-50154 --out small.json --boost-test small.cpp\n"
    "    a scenario file for `tokenview repro small.json`, and a test to put beside the repair",
    add_options};

}  // namespace tokenview
