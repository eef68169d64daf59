// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_page.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "reference/program/presets.hpp"
#include "verify/cli.hpp"

namespace tokenview {
namespace {

constexpr std::size_t page_width = 100;
constexpr std::size_t name_width = 30;

/// What the program reads besides its command line.
struct EnvironmentVariable {
  const char* name;
  const char* meaning;
};
constexpr EnvironmentVariable environment[] = {
    {"TOKENVIEW_DATA", "Folder of golden files, used where no other is found"},
    {"NO_COLOR", "When set and not empty, no colours"},
};

std::vector<const CLI::Option*> options(const CLI::App& app, bool positional) {
  return app.get_options([positional](const CLI::Option* option) {
    return option->get_positional() == positional && !option->get_group().empty();
  });
}

std::vector<const CLI::App*> verbs(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App*) { return true; });
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// "-v, --verbose", "--only REGEX", "GOLDEN..."
std::string heading(const CLI::Option& option) {
  std::string names;
  if (option.get_positional()) {
    names = option.get_name();
    return option.get_items_expected_max() > 1 ? names + "..." : names;
  }
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames())
    names += (names.empty() ? "--" : ", --") + name;
  return takes_value(option) ? names + ' ' + option.get_type_name() : names;
}

std::string usage(const CLI::App& app) {
  std::string line = "tokenview";
  if (app.get_parent() == nullptr) return line + " VERB [options]";
  line += ' ' + app.get_name();
  for (const CLI::Option* option : options(app, false))
    if (option->get_required()) line += ' ' + heading(*option);
  line += " [options]";
  for (const CLI::Option* option : options(app, true))
    line += option->get_required() ? ' ' + heading(*option) : " [" + heading(*option) + ']';
  return line;
}

std::vector<std::string> lines_of(const std::string& paragraph) {
  std::vector<std::string> lines;
  std::istringstream in(paragraph);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// A name and, from a fixed column on, what it means.
void print_entry(std::ostream& out, const std::string& name, const std::string& meaning) {
  std::string line = "  " + name;
  std::size_t words = 0;
  if (line.size() + 2 > name_width) {
    out << line << '\n';
    line.clear();
  }
  line.resize(std::max(line.size(), name_width), ' ');
  std::istringstream in(meaning);
  for (std::string word; in >> word; ++words) {
    if (words > 0 && line.size() + 1 + word.size() > page_width) {
      out << line << '\n';
      line.assign(name_width, ' ');
      words = 0;
    }
    line += (words > 0 ? " " : "") + word;
  }
  out << line << '\n';
}

void print_options(std::ostream& out, const CLI::App& app) {
  if (const auto positional = options(app, true); !positional.empty()) {
    out << "\nArguments:\n";
    for (const CLI::Option* option : positional)
      print_entry(out, heading(*option), option->get_description());
  }
  out << "\nOptions:\n";
  for (const CLI::Option* option : options(app, false))
    print_entry(out, heading(*option), option->get_description());
}

// ---- man

/// Text in a man page: no hyphenation of options, no request at the start of a line.
std::string roff(const std::string& plain) {
  std::string escaped = plain.starts_with('.') || plain.starts_with('\'') ? "\\&" : "";
  for (const char c : plain) {
    if (c == '\\')
      escaped += "\\e";
    else if (c == '-')
      escaped += "\\-";
    else
      escaped += c;
  }
  return escaped;
}

void print_man_entry(std::ostream& out, const std::string& name, const std::string& meaning) {
  out << ".TP\n.B " << roff(name) << '\n' << roff(meaning) << '\n';
}

void print_man_options(std::ostream& out, const CLI::App& app) {
  for (const bool positional : {true, false})
    for (const CLI::Option* option : options(app, positional))
      print_man_entry(out, heading(*option), option->get_description());
}

void print_man_examples(std::ostream& out, const CLI::App& app) {
  for (const std::string& line : lines_of(app.get_footer())) {
    if (line.starts_with(' '))
      out << roff(line.substr(line.find_first_not_of(' '))) << '\n';
    else
      out << ".TP\n.B " << roff(line) << '\n';
  }
}

// ---- completion

/// The words that may follow an option, or nothing where that is a file.
std::string completion_words(const CLI::Option& option) {
  std::string words;
  std::istringstream in(option.get_type_name());
  for (std::string word; std::getline(in, word, '|');) {
    if (word == "PRESET")
      for (const std::string& name : preset_names()) words += name + ' ';
    const bool literal =
        !word.empty() && std::none_of(word.begin(), word.end(),
                                      [](unsigned char c) { return std::isupper(c) != 0; });
    if (literal) words += word + ' ';
  }
  if (!words.empty()) words.pop_back();
  return words;
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back('-' + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string joined_with(const std::vector<std::string>& words, const char* separator) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : separator) + word;
  return list;
}

std::string option_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : options(app, false))
    for (const std::string& name : spellings(*option)) words.push_back(name);
  return joined_with(words, " ");
}

}  // namespace

std::string help_page(const CLI::App& app) {
  const bool is_program = app.get_parent() == nullptr;
  std::ostringstream out;
  out << (is_program ? "" : "tokenview ") << app.get_name() << ": " << app.get_description()
      << "\n\nUsage: " << usage(app) << '\n';
  if (is_program) {
    out << "\nVerbs:\n";
    for (const CLI::App* verb : verbs(app))
      print_entry(out, verb->get_name(), verb->get_description());
  }
  print_options(out, app);
  if (is_program) {
    out << "\nExit codes:\n";
    for (const ExitMeaning& exit : exit_meanings())
      print_entry(out, std::to_string(int(exit.code)), exit.meaning);
    out << "\nEnvironment:\n";
    for (const EnvironmentVariable& variable : environment)
      print_entry(out, variable.name, variable.meaning);
  }
  out << "\nExamples:\n";
  for (const std::string& line : lines_of(app.get_footer())) out << "  " << line << '\n';
  return out.str();
}

std::string man_page(const CLI::App& program, const std::string& version) {
  std::ostringstream out;
  out << ".\\\" Generated by tokenview --generate man\n"
      << ".TH TOKENVIEW 1 \"\" \"tokenview " << roff(version) << "\" \"User Commands\"\n"
      << ".SH NAME\ntokenview \\- " << roff(program.get_description()) << '\n'
      << ".SH SYNOPSIS\n";
  for (const CLI::App* verb : verbs(program)) out << ".B " << roff(usage(*verb)) << "\n.br\n";
  out << ".B tokenview \\-\\-help\n.br\n.B tokenview \\-\\-version\n"
      << ".SH OPTIONS\n";
  print_man_options(out, program);
  out << ".SH VERBS\n";
  for (const CLI::App* verb : verbs(program)) {
    out << ".SS " << roff(usage(*verb)) << '\n' << roff(verb->get_description()) << '\n';
    print_man_options(out, *verb);
  }
  out << ".SH EXIT STATUS\n";
  for (const ExitMeaning& exit : exit_meanings())
    print_man_entry(out, std::to_string(int(exit.code)), exit.meaning);
  out << "Where several apply, the first of 2, 5, 4, 1, 3.\n.SH ENVIRONMENT\n";
  for (const EnvironmentVariable& variable : environment)
    print_man_entry(out, variable.name, variable.meaning);
  out << ".SH EXAMPLES\n";
  for (const CLI::App* verb : verbs(program)) print_man_examples(out, *verb);
  return out.str();
}

std::string bash_completion(const CLI::App& program) {
  std::ostringstream out;
  std::vector<std::string> verb_words;
  for (const CLI::App* verb : verbs(program)) verb_words.push_back(verb->get_name());

  out << "# bash completion of tokenview, generated by tokenview --generate bash-completion\n"
      << "_tokenview() {\n"
      << "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= i words=\n"
      << "  COMPREPLY=()\n"
      << "  if [[ $cur == = ]]; then\n"  // --option=value comes as three words
      << "    cur=\n"
      << "  elif [[ $prev == = ]]; then\n"
      << "    prev=${COMP_WORDS[COMP_CWORD-2]}\n"
      << "  fi\n"
      << "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      << "    case ${COMP_WORDS[i]} in\n"
      << "      " << joined_with(verb_words, "|") << ") verb=${COMP_WORDS[i]}; break ;;\n"
      << "    esac\n"
      << "  done\n"
      << "  case $verb in\n";
  for (const CLI::App* verb : verbs(program)) {
    out << "    " << verb->get_name() << ")\n"
        << "      case $prev in\n";
    for (const CLI::Option* option : options(*verb, false))
      if (takes_value(*option))
        out << "        " << joined_with(spellings(*option), "|") << ") words='"
            << completion_words(*option) << "' ;;\n";
    // Without words the shell offers files.
    out << "        *) [[ $cur == -* ]] && words='" << option_words(*verb) << "' ;;\n"
        << "      esac ;;\n";
  }
  out << "    *) words='" << joined_with(verb_words, " ") << ' ' << option_words(program)
      << "' ;;\n"
      << "  esac\n"
      << "  [[ -n $words ]] && COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      << "  return 0\n"
      << "}\n"
      << "complete -o bashdefault -o default -F _tokenview tokenview\n";
  return out.str();
}

}  // namespace tokenview
