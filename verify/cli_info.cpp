// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "reference/program/error.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/data_folder.hpp"
#include "verify/file_info.hpp"

namespace tokenview {
namespace {

struct InfoArguments {
  std::vector<std::string> files;
  OutputFormat format = OutputFormat::text;
  int verbosity = 0;
};

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<InfoArguments>();
  app.add_option("FILE", arguments->files, "Golden files and dumps, or folders of them")
      ->type_name("FILE")
      ->required();
  app.add_flag("-v,--verbose", arguments->verbosity,
               "List every tap with its type and shape; twice: the weights as well");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  return [arguments] {
    const bool as_records = arguments->format == OutputFormat::jsonl;
    const FileInfo info(std::cout, as_records, arguments->verbosity);
    std::int64_t files = 0, errors = 0;
    const auto keep_errors = [&](const std::string& name, const auto& work) {
      try {
        work();
      } catch (const Error& error) {  // the others are still shown
        if (as_records) std::cout << json_line(error_record(name, error.what())) << '\n';
        std::cout.flush();
        print_error(error.what());
        ++errors;
      }
    };
    for (const std::string& argument : arguments->files) {
      std::vector<std::string> named;
      keep_errors(argument, [&] { named = golden_files(argument); });
      for (const std::string& file : named) keep_errors(file, [&] { info.print(file); });
      files += std::max(std::int64_t(1), std::int64_t(named.size()));
    }
    if (as_records) {
      ReportRecord summary{.kind = "summary"};
      summary.verdict = errors == 0 ? "match" : "error";
      summary.more = {{"verb", "info"}, {"files", files}, {"errors", errors}};
      std::cout << json_line(summary) << '\n';
    }
    return errors == 0 ? Exit::match : Exit::usage;
  };
}

}  // namespace

constinit const Verb info_verb = {
    "info", "Say what a golden file or a dump is",
    "tokenview info model.h5\n"
    "    configuration, legal tensor parallelism, cases and where the file comes from\n"
    "tokenview info -v dump.rank*.h5\n"
    "    every tap of every rank with its shape",
    add_options};

}  // namespace tokenview
