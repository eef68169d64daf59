// SPDX-License-Identifier: Apache-2.0
#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/cli.hpp"
#include "verify/cli_checkpoint.hpp"
#include "verify/cli_options.hpp"
#include "verify/data_folder.hpp"
#include "verify/dump_diff.hpp"
#include "verify/dump_diff_report.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/narrow_notes.hpp"
#include "verify/path_names.hpp"
#include "verify/plain_diff.hpp"
#include "verify/report.hpp"
#include "verify/trusted_dump.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

struct DiffArguments {
  std::vector<std::string> files;
  std::optional<std::string> case_name;
  std::string checkpoint;  // empty: none
  std::vector<std::string> maps, rules;
  std::optional<double> rtol, atol;
  bool like_torch = false, bitwise = false, equal_nan = false;
  OutputFormat format = OutputFormat::text;
  int verbosity = 0;

  bool as_records() const { return format == OutputFormat::jsonl; }
};

enum class FileKind { golden, dump, plain };

FileKind kind_of_file(const std::string& path) {
  constexpr std::array<char, 4> signature = {'\x89', 'H', 'D', 'F'};
  std::array<char, 4> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  if (begin != signature) return FileKind::plain;
  const Hdf5File file = Hdf5File::open_read(path);
  if (!file.has_attribute("/", "schema")) return FileKind::plain;
  const std::string schema = file.string_attribute("/", "schema");
  return schema == "tokenview.golden" ? FileKind::golden
         : schema == "tokenview.dump" ? FileKind::dump
                                      : FileKind::plain;
}

/// The files that an argument names: those of a folder, or of a pattern that the shell left.
std::vector<std::string> files_named(const std::string& argument) {
  std::error_code error;
  if (std::filesystem::is_directory(argument, error)) return golden_files(argument);
  if (std::filesystem::exists(argument, error) ||
      argument.find_first_of("*?[") == std::string::npos)
    return {argument};
  glob_t found{};
  const int status = ::glob(argument.c_str(), 0, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv,
                                 found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
  globfree(&found);
  if (files.empty())
    throw FileError(text(printable(argument), ": no file has such a name, expected a dump's"));
  return files;
}

/// Why a file is no rank's of a dump; empty: it is.
std::string why_no_dump(const std::string& path) {
  try {
    DumpFile::open({path});
  } catch (const FileError& error) {
    return error.what();
  }
  return {};
}

ToleranceRules rules_of(const DiffArguments& arguments) {
  const int ways = (arguments.rtol || arguments.atol) + arguments.like_torch + arguments.bitwise;
  if (ways > 1)
    throw UsageError("diff: --rtol and --atol, --like torch, --bitwise: expected one of the three");
  ToleranceRules rules({.atol = arguments.atol,
                        .rtol = arguments.rtol,
                        .bitwise = arguments.bitwise,
                        .like_torch = arguments.like_torch,
                        .equal_nan = arguments.equal_nan});
  for (const std::string& rule : arguments.rules) rules.add(rule);
  return rules;
}

Exit exit_of(const std::string& verdict) {
  return verdict == "match"        ? Exit::match
         : verdict == "difference" ? Exit::difference
                                   : Exit::nothing_compared;
}

/// What tells a dump from others: its own label, or what it has of one.
std::string label_of(const DumpFile& dump) {
  if (!dump.label().empty()) return dump.label();
  return text(in_words(dump.parallel()), " in ", folder_name(dump.file(0).path()));
}

Exit report(const DiffArguments& arguments, TrustedSide& side, const std::string& trusted,
            const std::string& trusted_label, const DumpFile& dump) {
  DumpDiffOptions options;
  options.rules = rules_of(arguments);
  const bool has_limits = arguments.atol || arguments.rtol || arguments.like_torch ||
                          arguments.bitwise || !arguments.rules.empty();
  options.by_error_model = !has_limits;
  options.threads = available_threads();
  DumpDiffResult result = diff_dump(side, dump, options);
  for (std::string& note : notes_on_narrow_types(side, dump, has_limits, result))
    result.notes.push_back(std::move(note));
  std::vector<std::string> names;
  for (const TapDiff& tap : result.taps) names.push_back(tap.tap);
  for (const std::string& unused : options.rules.without_match(names))
    print_note(text("diff: '", printable(unused), "' fits no tap"));
  const DiffSides sides{trusted, dump.name(), in_words(dump.parallel()),
                        text(label_of(dump), " against ", trusted_label)};
  if (arguments.as_records())
    write_dump_diff(std::cout, sides, result);
  else
    print_dump_diff(std::cout, sides, result, arguments.verbosity, use_colour());
  return exit_of(verdict_of(result));
}

void refuse_maps(const DiffArguments& arguments) {
  if (!arguments.maps.empty())
    throw UsageError("diff: --map renames tensors of plain files: those of a dump have names");
}

Exit golden_against_dump(const DiffArguments& arguments, const std::string& golden_path,
                         const std::vector<std::string>& dump_paths) {
  refuse_maps(arguments);
  const GoldenFile golden = GoldenFile::open(golden_path);
  const DumpFile dump = DumpFile::open(dump_paths);
  const std::unique_ptr<const Checkpoint> checkpoint = opened_checkpoint(arguments.checkpoint);
  GoldenSide side(golden, arguments.case_name, checkpoint.get());
  return report(arguments, side, golden_path, file_name(golden_path), dump);
}

/// The files of two dumps: of one argument that names several, or of one name up to ".rank".
std::vector<std::vector<std::string>> dumps_in(const std::vector<std::string>& arguments) {
  std::vector<std::pair<std::string, std::vector<std::string>>> dumps;
  for (const std::string& argument : arguments)
    for (const std::string& file : files_named(argument)) {
      const std::string name = file.substr(0, file.rfind(".rank"));
      auto dump = std::ranges::find(dumps, name, [](const auto& entry) { return entry.first; });
      if (dump == dumps.end()) dump = dumps.insert(dumps.end(), {name, {}});
      dump->second.push_back(file);
    }
  std::vector<std::vector<std::string>> files;
  for (auto& [name, of_dump] : dumps) files.push_back(std::move(of_dump));
  return files;
}

Exit dump_against_dump(const DiffArguments& arguments) {
  refuse_maps(arguments);
  if (arguments.case_name)
    throw UsageError("diff: --case chooses a case of a golden: there is none");
  const std::vector<std::vector<std::string>> files = dumps_in(arguments.files);
  if (files.size() != 2)
    throw UsageError(text("diff: found ", plural(std::int64_t(files.size()), "dump"),
                          ", expected a golden and a dump, or two dumps (files of one dump have "
                          "one name up to .rank<R>.h5)"));
  DumpFile first = DumpFile::open(files.front()), second = DumpFile::open(files.back());
  if (second.parallel().tp < first.parallel().tp) std::swap(first, second);
  DumpSide side(first);
  return report(arguments, side, first.name() + " (" + in_words(first.parallel()) + ')',
                label_of(first), second);
}

class PlainReport final : public PlainDiffListener {
 public:
  PlainReport(const DiffArguments& arguments, const std::string& second)
      : arguments_(arguments), second_(second) {}

  void tensor(const PlainDiffResult& result) override {
    if (arguments_.as_records()) {
      ReportRecord record{.kind = "tap",
                          .file = second_,
                          .tap = result.name,
                          .observed = result.bound.observed,
                          .allowed = result.bound.allowed,
                          .verdict = result.matches ? "match" : "difference"};
      record.more = {{"metric", result.bound.metric},
                     {"values", result.comparison.count},
                     {"max_abs", result.comparison.max_abs_error},
                     {"relative_l2", result.comparison.relative_l2()},
                     {"failed", !result.matches}};
      if (!result.detail.empty()) record.more.emplace_back("detail", result.detail);
      std::cout << json_line(record) << '\n';
      return;
    }
    if (result.matches && arguments_.verbosity < 2) return;
    if (!result.matches && ++failed_ > max_failed && arguments_.verbosity < 1) return;
    std::cout << (result.matches ? "ok        " : "differs   ") << printable(result.name) << ": "
              << result.bound.metric << ' ' << result.bound.observed << " of "
              << result.bound.allowed;
    if (!result.detail.empty()) std::cout << "; " << printable(result.detail);
    std::cout << '\n';
  }

  void summary(const std::string& first, const PlainDiffTotals& totals) const {
    const std::string verdict =
        totals.nothing_compared() && totals.only_first.empty() && totals.only_second.empty()
            ? "nothing compared"
        : totals.matches() ? "match"
                           : "difference";
    if (arguments_.as_records()) {
      ReportRecord record{.kind = "summary", .file = second_, .verdict = verdict};
      record.more = {{"verb", "diff"},
                     {"trusted", first},
                     {"label", text(folder_name(second_), '/', file_name(second_), " against ",
                                    file_name(first))},
                     {"taps", totals.compared},
                     {"values", totals.values},
                     {"failed", totals.differing},
                     {"only_first", totals.only_first},
                     {"only_second", totals.only_second}};
      std::cout << json_line(record) << '\n';
      return;
    }
    if (failed_ > max_failed && arguments_.verbosity < 1)
      std::cout << "          and " << failed_ - max_failed << " more (-v)\n";
    for (const auto& [names, file] :
         {std::pair(&totals.only_first, &first), std::pair(&totals.only_second, &second_)})
      if (!names->empty()) {
        std::vector<std::string> shown(
            names->begin(), names->begin() + std::min<std::ptrdiff_t>(6, std::ssize(*names)));
        std::cout << "only in   " << printable(*file) << ": "
                  << plural(std::int64_t(names->size()), "tensor") << ": "
                  << printable(joined(shown)) << (shown.size() < names->size() ? ", ..." : "")
                  << '\n';
      }
    std::cout << verdict << ": " << printable(second_) << " against " << printable(first) << ": "
              << plural(totals.compared, "tensor") << ", " << plural(totals.values, "value") << ", "
              << totals.differing << " differ\n";
  }

 private:
  static constexpr std::int64_t max_failed = 20;

  const DiffArguments& arguments_;
  const std::string& second_;
  std::int64_t failed_ = 0;
};

Exit plain_against_plain(const DiffArguments& arguments, const std::string& first,
                         const std::string& second, bool are_goldens) {
  PlainDiffOptions options;
  if (are_goldens) {  // whose configuration is text, and where a prefill has no context
    options.wanted = [](const std::string& name) { return name != "config"; };
    options.may_be_empty = [](const std::string& name) {
      return name.ends_with("/inputs/context_ids");
    };
    if (GoldenFile::open(first).config_json() != GoldenFile::open(second).config_json())
      print_note("diff: the configurations differ");
  }
  options.rules = rules_of(arguments);
  for (const std::string& map : arguments.maps) options.maps.emplace_back(map);
  options.threads = available_threads();
  PlainReport report(arguments, second);
  const PlainDiffTotals totals = diff_files(first, second, options, report);
  for (const std::string& unused : totals.unused)
    print_note(text("diff: '", printable(unused), "' fits no tensor"));
  report.summary(first, totals);
  if (totals.nothing_compared() && totals.only_first.empty() && totals.only_second.empty())
    return Exit::nothing_compared;
  return totals.matches() ? Exit::match : Exit::difference;
}

Exit run(const DiffArguments& arguments) {
  std::vector<std::string> goldens, dumps, plain;
  for (const std::string& argument : arguments.files)
    for (const std::string& file : files_named(argument)) {
      switch (kind_of_file(file)) {
        case FileKind::golden:
          goldens.push_back(file);
          break;
        case FileKind::dump:
          dumps.push_back(file);
          break;
        case FileKind::plain:
          plain.push_back(file);
          break;
      }
    }
  if (goldens.size() == 1 && !dumps.empty() && plain.empty())
    return golden_against_dump(arguments, goldens.front(), dumps);
  if (!arguments.checkpoint.empty())
    throw UsageError(
        "diff: --checkpoint has the weights of a golden: expected a golden and a dump");
  if (goldens.empty() && plain.empty()) return dump_against_dump(arguments);
  if (goldens.size() + dumps.size() + plain.size() == 2 && (dumps.empty() || !plain.empty())) {
    if (arguments.case_name)
      throw UsageError("diff: --case chooses a case of a golden for a dump: there is no dump");
    const std::vector<std::string> both = {files_named(arguments.files.front()).front(),
                                           files_named(arguments.files.back()).back()};
    return plain_against_plain(arguments, both.front(), both.back(), goldens.size() == 2);
  }
  std::string found = text("diff: found ", plural(std::int64_t(goldens.size()), "golden file"),
                           ", ", plural(std::int64_t(dumps.size()), "dump file"), " and ",
                           plural(std::int64_t(plain.size()), "plain file"),
                           ", expected a golden and a dump's files, two dumps, or two files");
  for (const std::string& file : plain) found += "; " + why_no_dump(file);
  throw UsageError(found);
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<DiffArguments>();
  app.add_option("FILE", arguments->files,
                 "The trusted file, then the other's: a golden, the files of a dump, HDF5 or "
                 "safetensors; folders and quoted patterns too")
      ->type_name("FILE")
      ->required();
  app.add_option("--case", arguments->case_name,
                 "Case of the golden; default: the one with the inputs of the step")
      ->type_name("CASE");
  app.add_option("--checkpoint", arguments->checkpoint,
                 "Hugging Face folder with the weights of a golden that was recorded from it")
      ->type_name("FOLDER")
      ->check(not_empty());
  app.add_option("--rule", arguments->rules,
                 "'PATTERN: LIMIT, ...' for some tensors: atol=X, rtol=X, ulp=X, of_max=X, l2=X, "
                 "row_l2=X, bitwise, like-torch, equal-nan; repeatable")
      ->type_name("RULE")
      ->allow_extra_args(false);
  add_limit(app, "--rtol", arguments->rtol, "|error| <= atol + rtol |trusted|, every element");
  add_limit(app, "--atol", arguments->atol, "See --rtol; one of the two alone: the other is 0");
  static constexpr Word<bool> likes[] = {{"torch", true}};
  add_choice(app, "--like", arguments->like_torch, likes,
             "The limits of torch.testing.assert_close for the types");
  app.add_flag("--bitwise", arguments->bitwise, "The same type and the same bits");
  app.add_flag("--equal-nan", arguments->equal_nan, "NaN on both sides is equal");
  app.add_option("--map", arguments->maps,
                 "'PATTERN=NAME': what the first file calls tensors of the second; repeatable")
      ->type_name("MAP")
      ->allow_extra_args(false);
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  app.add_flag("-v,--verbose", arguments->verbosity, "Every tap that differs; twice: every tap");
  return [arguments] { return run(*arguments); };
}

}  // namespace

constinit const Verb diff_verb = {
    "diff", "Hold dumps of a run against trusted values",
    "tokenview diff golden.h5 dump.rank*.h5\n"
    "    puts the ranks' rows together by their values; what differs first, and what each rank "
    "held\n"
    "tokenview diff tp1.rank0.h5 tp4.rank*.h5\n"
    "    a dump against one of fewer ranks, of any model\n"
    "tokenview diff model.h5 other.safetensors --map 'transformer.*=model.*' --like torch\n"
    "    tensors by name",
    add_options};

}  // namespace tokenview
