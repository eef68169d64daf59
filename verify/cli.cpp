// SPDX-License-Identifier: Apache-2.0
#include "verify/cli.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <new>
#include <system_error>
#include <thread>

#include "comm_sim/transport/process_rank.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "tokenview_version.hpp"
#include "verify/cli_page.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/not_here.hpp"
#include "verify/protocol_page.hpp"
#include "verify/report.hpp"
#include "verify/scenario_schema.hpp"

namespace tokenview {
namespace {

constexpr ExitMeaning meanings[] = {
    {Exit::match, "everything matches"},
    {Exit::difference, "a difference or a finding"},
    {Exit::usage, "a wrong command line, or input that cannot be read"},
    {Exit::nothing_compared, "nothing was compared"},
    {Exit::collective_mismatch, "ranks disagree about a collective"},
    {Exit::device_assert, "an assertion failed on a device"},
    {Exit::scenario, "a scenario behaves otherwise than it says"},
    {Exit::skipped, "skipped: what it needs is not on this machine"},
    {Exit::interrupted, "interrupted"},
};

std::string version_text() {
  std::string lines = text("tokenview ", build::version, "\ncommit: ", build::commit);
  for (const build::Part& part : build::parts) lines += text('\n', part.name, ": ", part.value);
  return lines;
}

/// On one line, whatever names and messages of others hold.
void print_line(const std::string& kind, const std::string& message) {
  std::string line = message;
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  while (!line.empty() && line.back() == ' ') line.pop_back();
  std::fputs(text("tokenview: ", kind, ": ", escaped(line), '\n').c_str(), stderr);
}

std::vector<std::string> verb_names(std::span<const Verb* const> verbs) {
  std::vector<std::string> names;
  for (const Verb* verb : verbs) names.push_back(verb->name);
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) names.push_back("--" + name);
  return names;
}

/// The first word that neither the program nor its verb knows.
[[noreturn]] void refuse_extras(const CLI::App& program, std::span<const Verb* const> verbs) {
  const auto parsed = program.get_subcommands();
  const CLI::App& app = parsed.empty() || program.remaining_size() > 0 ? program : *parsed.front();
  const std::string scope = &app == &program ? "" : app.get_name() + ": ";
  const std::vector<std::string> extras = app.remaining();
  std::string word = extras.empty() ? "" : extras.front();
  if (word.starts_with('-')) {
    word = word.substr(0, word.find('='));
    throw UsageError(
        text(scope, "there is no option '", word, "'", suggestion(word, option_names(app))));
  }
  if (&app != &program || !parsed.empty())
    throw UsageError(text(scope, "'", word, "' is one argument too many"));
  const std::vector<std::string> names = verb_names(verbs);
  const std::string near = suggestion(word, names);
  throw UsageError(text("there is no verb '", word, "'",
                        near.empty() ? ", expected one of " + joined(names) : near));
}

struct Program {
  std::string generate;                        // what --generate asks for
  std::vector<std::function<Exit()>> actions;  // one a verb
};

void add_options(CLI::App& app, Program& program, std::span<const Verb* const> verbs) {
  app.set_help_flag("-h,--help", "Print this page and exit");
  app.set_version_flag("--version", version_text,
                       "Print the version and what it was built with, and exit");
  app.add_option("--generate", program.generate)->group("");
  app.footer(
      "tokenview check\n"
      "    compare the reference model with all shipped golden files\n"
      "tokenview check --help\n"
      "    the options and examples of one verb");
  app.require_subcommand(0, 1);
  for (const Verb* verb : verbs) {
    CLI::App& sub = *app.add_subcommand(verb->name, verb->summary);
    sub.footer(verb->examples);
    program.actions.push_back(verb->add_options(sub));
  }
}

Exit generate(const CLI::App& app, const std::string& what) {
  if (what == "man")
    std::cout << man_page(app, build::version);
  else if (what == "bash-completion")
    std::cout << bash_completion(app);
  else if (what == "protocols")
    std::cout << protocol_page();
  else if (what == "scenario-schema")
    std::cout << scenario_schema();
  else
    throw UsageError(text("--generate: '", what,
                          "' is none of man, bash-completion, protocols, scenario-schema"));
  return Exit::match;
}

bool is_first_process() {
  try {
    const auto process = process_rank();
    return !process || process->rank == 0;
  } catch (const UsageError&) {  // the verb says so where it matters
    return true;
  }
}

/// The first record of a run, printed before anything can go wrong: a reader knows by it a run that
/// was cut off, or refused, though another one follows in the same file.
void print_start(const CLI::App& verb) {
  const CLI::Option* const format = verb.get_option_no_throw("--format");
  if (format == nullptr || format->empty() || format->results().back() != "jsonl" ||
      !is_first_process())
    return;
  ReportRecord start{.kind = "start"};
  start.more = {{"command", verb.get_name()}, {"program", text("tokenview ", build::version)}};
  std::cout << json_line(start) << std::endl;
}

Exit run(std::span<const Verb* const> verbs, int argc, char** argv) {
  CLI::App app(
      "Checks which rank of a tensor-parallel MoE model holds which token, and its numbers",
      "tokenview");
  Program program;
  add_options(app, program, verbs);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto parsed = app.get_subcommands();
    std::cout << help_page(parsed.empty() ? app : *parsed.front());
    return Exit::match;
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << '\n';
    return Exit::match;
  } catch (const CLI::ExtrasError&) {
    refuse_extras(app, verbs);
  } catch (const CLI::ParseError& error) {
    const auto parsed = app.get_subcommands();
    throw UsageError(parsed.empty() ? error.what()
                                    : text(parsed.front()->get_name(), ": ", error.what()));
  }
  if (!program.generate.empty()) return generate(app, program.generate);

  for (std::size_t i = 0; i < verbs.size(); ++i)
    if (app.got_subcommand(verbs[i]->name)) {
      print_start(*app.get_subcommand(verbs[i]->name));
      return program.actions[i]();
    }
  throw UsageError(text("no verb is given, expected one of ", joined(verb_names(verbs)),
                        "; see tokenview --help"));
}

Exit exit_of(Fault fault) { return fault == Fault::comm ? Exit::collective_mismatch : Exit::usage; }

}  // namespace

std::span<const ExitMeaning> exit_meanings() { return meanings; }

Exit more_important(Exit a, Exit b) {
  for (const Exit first : {Exit::interrupted, Exit::usage, Exit::device_assert,
                           Exit::collective_mismatch, Exit::difference, Exit::nothing_compared})
    if (a == first || b == first) return first;
  return a == Exit::match ? b : a;
}

void print_error(const std::string& problem) { print_line("error", problem); }

void print_note(const std::string& remark) { print_line("note", remark); }

void finish_output() {
  errno = 0;
  if (std::cout.flush() && std::fflush(stdout) == 0) return;
  const int error = errno;  // 0 where an earlier write failed
  throw FileError(text("standard output: cannot be written",
                       error == 0 ? "" : ": " + std::generic_category().message(error)));
}

int available_threads() {
  return std::clamp(int(std::thread::hardware_concurrency()), 1, max_threads);
}

bool use_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0') &&
         kind != nullptr && std::string(kind) != "dumb";
}

int run_command_line(std::span<const Verb* const> verbs, int argc, char** argv) {
  // A file over the size limit of the shell is a failed write like any other.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const Exit exit = run(verbs, argc, argv);
    finish_output();
    return int(exit);
  } catch (const Interrupted& interrupted) {
    print_error("interrupted");
    return 128 + interrupted.signal;
  } catch (const NotHere& absent) {
    print_error(absent.what());
    return int(Exit::skipped);
  } catch (const Error& error) {
    print_error(error.what());
    return int(exit_of(error.fault()));
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return int(Exit::usage);
}

}  // namespace tokenview
