// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <chrono>
#include <iostream>
#include <new>
#include <regex>
#include <sstream>

#include "reference/program/error.hpp"
#include "reference/program/parallel_plan.hpp"
#include "tokenview_version.hpp"
#include "verify/check_report.hpp"
#include "verify/cli.hpp"
#include "verify/cli_checkpoint.hpp"
#include "verify/cli_matrix.hpp"
#include "verify/cli_options.hpp"
#include "verify/cli_share.hpp"
#include "verify/data_folder.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/progress.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

constexpr Word<DType> dtypes[] = {
    {"float32", DType::float32}, {"float64", DType::float64}, {"bfloat16", DType::bfloat16}};

struct CheckArguments {
  bool matrix = false;
  CommKind comm = CommKind::sim;
  std::vector<std::string> goldens;
  std::string only, checkpoint;
  CheckOptions options;
  std::optional<Rounding> rounding;
  OutputFormat format = OutputFormat::text;
  int verbosity = 0;
};

/// Passes the results of one file on, and counts them.
class FileListener final : public CheckListener {
 public:
  FileListener(const CheckedFile& file, bool ties_allowed, const std::string& place,
               CheckReport& report, Progress& progress)
      : file_(file),
        ties_allowed_(ties_allowed || file.bfloat16),
        place_(place),
        report_(report),
        progress_(progress) {}

  CheckTally tally;
  std::vector<std::string> foreign;  // taps that the file or the program lacks

  void ignored_keys(const std::vector<std::string>& keys) override {
    progress_.clear();
    print_note(text(printable(file_.path), ": ignored configuration keys: ", joined(keys)));
    report_.ignored_keys(file_, keys);
  }

  void tap(const TapResult& result) override {
    throw_if_interrupted();
    progress_.update(text(place_, ", ", printable(result.place())));
    case_.add(result, ties_allowed_);
    const bool failed =
        result.verdict != Verdict::match && !(result.verdict == Verdict::tie && ties_allowed_);
    if (failed) progress_.clear();
    if (result.verdict == Verdict::missing || result.verdict == Verdict::unexpected)
      foreign.push_back(text(printable(result.place()), " (", result.detail, ")"));
    report_.tap(file_, result, failed);
  }

  void case_done(const std::string& name, const CheckTotals& totals) override {
    progress_.clear();
    case_.cases = 1;
    case_.totals = totals;
    report_.case_done(file_, name, case_);
    tally.add(case_);
    case_ = {};
  }

 private:
  const CheckedFile& file_;
  bool ties_allowed_;
  const std::string& place_;
  CheckReport& report_;
  Progress& progress_;
  CheckTally case_;
};

std::function<bool(const std::string&)> matcher(const std::string& pattern) {
  if (pattern.empty()) return {};
  try {
    const std::regex regex(pattern);
    // The matcher of libstdc++ recurses once a character: names of hostile files are cut.
    return [regex](const std::string& place) {
      return std::regex_search(place.substr(0, 2000), regex);
    };
  } catch (const std::regex_error& error) {
    throw UsageError(
        text("check: --only: '", pattern, "' is no regular expression: ", error.what()));
  }
}

/// A run of the verb: files one after the other.
class CheckRun {
 public:
  explicit CheckRun(const CheckArguments& arguments)
      : arguments_(arguments),
        options_(arguments.options),
        checkpoint_(opened_checkpoint(arguments.checkpoint)),
        report_(arguments.format == OutputFormat::jsonl
                    ? jsonl_check_report(std::cout)
                    : text_check_report(std::cout, arguments.verbosity, use_colour())) {
    options_.wanted = matcher(arguments.only);
    options_.device = usable(arguments.options.device);
    if (options_.device == Device::cuda && options_.dtype == DType::float64)
      throw UsageError("check: --dtype float64 is not for --device cuda: expected float32");
    options_.checkpoint = checkpoint_.get();
  }

  Exit run() {
    std::vector<std::string> files;
    const std::vector<std::string>& named = arguments_.goldens;
    for (const std::string& argument :
         named.empty() ? std::vector{default_data_folder("golden", ".h5", build::data_dir)} : named)
      guarded(argument, [&] {
        for (std::string& file : golden_files(argument)) files.push_back(std::move(file));
      });
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string place =
          text("check: file ", i + 1, " of ", files.size(), ", ", printable(files[i]));
      guarded(files[i], [&] { check(files[i], place); });
    }
    finish();
    return exit_;
  }

 private:
  /// A file that cannot be read is said, and the run goes on with the others.
  template <class Body>
  void guarded(const std::string& path, const Body& body) {
    try {
      body();
    } catch (const std::bad_alloc&) {
      say_error({path}, printable(path) + ": out of memory");
    } catch (const Error& error) {
      say_error({path}, error.what());
    } catch (const std::exception& error) {
      say_error({path}, text(printable(path), ": ", error.what()));
    }
  }

  void say_error(const CheckedFile& file, const std::string& problem) {
    progress_.clear();
    std::cout.flush();
    print_error(problem);
    report_->error(file, problem);
    summary_.errors += 1;
    exit_ = more_important(exit_, Exit::usage);
  }

  void check(const std::string& path, const std::string& place) {
    throw_if_interrupted();
    progress_.update(place);
    const auto start = std::chrono::steady_clock::now();
    const CheckedFile file = opened(path);
    if (options_.dtype == DType::bfloat16 && !file.bfloat16)
      throw UsageError(text(printable(path),
                            ": is a float32 file, and --dtype bfloat16 asks for the "
                            "rounding of a bfloat16 model: expected float32 or float64"));
    // A second run, so only where somebody looks at it.
    options_.compare_float64 = arguments_.verbosity > 0 && !file.bfloat16 &&
                               options_.dtype.value_or(DType::float32) == DType::float32;
    options_.keep_rows = arguments_.verbosity > 0 && arguments_.format == OutputFormat::jsonl;
    FileListener listener(file, options_.allow_ties, place, *report_, progress_);
    check_golden(path, options_, listener);
    CheckTally& tally = listener.tally;
    tally.totals.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    progress_.clear();

    if (tally.totals.failed > 0) exit_ = more_important(exit_, Exit::difference);
    if (!listener.foreign.empty())
      say_error(file, text(printable(path), ": the taps are not those of this model: ",
                           plural(std::int64_t(listener.foreign.size()), "tap"),
                           " missing or too many, the first ", listener.foreign.front()));
    if (tally.totals.taps == 0 && !options_.wanted) {
      print_error(text(printable(path), ": nothing to compare: the file holds no tap"));
      exit_ = more_important(exit_, Exit::nothing_compared);
    }
    if (tally.totals.taps > 0 || !options_.wanted) report_->file_done(file, tally);
    if (tally.totals.taps > 0) summary_.files += 1;
    const bool had_worst = summary_.tally.worst.has_value();
    if (tally.worst && (!had_worst || tally.worst->ratio() > summary_.tally.worst->ratio()))
      summary_.worst_file = path;
    summary_.tally.add(tally);
  }

  /// Also takes from the file what the command line leaves open.
  CheckedFile opened(const std::string& path) {
    const GoldenFile golden = GoldenFile::open(path);
    options_.rounding = arguments_.rounding.value_or(Rounding::hf);
    if (!arguments_.rounding && golden.file().has_attribute("/", "rounding") &&
        golden.file().string_attribute("/", "rounding") == word_of(roundings, Rounding::vllm))
      options_.rounding = Rounding::vllm;
    return {path, golden.dtype() == DType::bfloat16};
  }

  void finish() {
    if (summary_.tally.totals.taps == 0 && summary_.errors == 0) {
      if (options_.wanted)
        print_error(text("nothing compared: no tap matches --only '", arguments_.only, "'"));
      exit_ = more_important(exit_, Exit::nothing_compared);
    }
    summary_.verdict = exit_ == Exit::match              ? "match"
                       : exit_ == Exit::difference       ? "difference"
                       : exit_ == Exit::nothing_compared ? "nothing compared"
                                                         : "error";
    report_->summary(summary_);
  }

  const CheckArguments& arguments_;
  CheckOptions options_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<CheckReport> report_;
  Progress progress_;
  CheckSummary summary_;
  Exit exit_ = Exit::match;
};

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<CheckArguments>();
  arguments->options.num_threads = available_threads();
  app.add_option("GOLDEN", arguments->goldens,
                 "Golden files, or folders of them; without any: data/golden here or above, the "
                 "installed files, or $TOKENVIEW_DATA")
      ->type_name("GOLDEN");
  app.add_flag("-v,--verbose", arguments->verbosity,
               "Print a line a case, with float32 against float64; twice: a line a tap as well");
  app.add_option(
         "--only", arguments->only,
         "Compare the taps alone whose file/case/step/tap holds a match, file being the name "
         "without folder and .h5, step being target, step0, step1, ...")
      ->type_name("REGEX");
  app.add_option("--checkpoint", arguments->checkpoint,
                 "Hugging Face folder with the weights of golden files that were recorded from it "
                 "and hold none")
      ->type_name("FOLDER")
      ->check(not_empty());
  add_choice(
      app, "--device", arguments->options.device, device_words,
      "Where the model runs: the reference on the CPU (default), the kernels of the first GPU, "
      "or a GPU where there is one");
  const CLI::Option* const threads =
      add_number(app, "--threads", arguments->options.num_threads, 1, max_threads,
                 "Threads of the reference; default: all cores");
  add_choice(app, "--dtype", arguments->options.dtype, dtypes,
             "Arithmetic of the reference; default: that of the file");
  add_choice(
      app, "--rounding", arguments->rounding, roundings,
      "Whose rounding points a bfloat16 model has, Hugging Face's or vLLM's; default: what the "
      "file says it was recorded with, else hf");
  add_choice(app, "--gdn", arguments->options.gdn_form, gdn_forms,
             "Form of the gated delta rule: token by token (default) or in chunks of 64");
  app.add_flag(
      "--allow-ties", arguments->options.allow_ties,
      "Ids that differ within the margin of their scores are no failure in a float32 file");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines with every tap");
  const auto matrix = std::make_shared<MatrixArguments>();
  CLI::Option* const matrix_option =
      app.add_option_function<std::string>(
             "--matrix",
             [arguments, matrix](const std::string& word) {
               if (word != "quick" && word != "full")
                 throw CLI::ValidationError("--matrix",
                                            text("'", printable(word),
                                                 "' is neither quick nor full; before a "
                                                 "file write --matrix=quick"));
               arguments->matrix = true;
               matrix->quick = word == "quick";
             },
             "Every parallel configuration of the files on simulated ranks, numbers and views")
          ->type_name("quick|full")
          ->expected(0, 1)
          ->default_str("quick");
  add_choice(app, "--comm", arguments->comm, comm_words,
             "Matrix: what joins the ranks: simulated in this process (sim, the default; on a GPU "
             "virtual ranks), NCCL with a GPU a rank, or MPI with a process a rank")
      ->needs(matrix_option);
  for (const char* other : {"--only", "--dtype", "--gdn", "--allow-ties"})
    matrix_option->excludes(app.get_option(other));
  const auto add_list = [&](const char* name, const char* type, const std::string& description,
                            auto take) {
    app.add_option_function<std::string>(
           name,
           [name, take](const std::string& list) {
             std::stringstream words(list + ',');
             for (std::string word; std::getline(words, word, ',');) take(name, word);
           },
           "Matrix: " + description + ", with commas between them")
        ->type_name(type)
        ->needs(matrix_option);
  };
  const auto degree = [](const char* name, const std::string& word) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < 1 || value > 32)
      throw CLI::ValidationError(name,
                                 text("'", printable(word), "' is no whole number from 1 to 32"));
    return value;
  };
  add_list("--tp", "N,...", "these tensor parallel degrees alone",
           [matrix, degree](const char* name, const std::string& word) {
             matrix->tp.push_back(degree(name, word));
           });
  add_list("--dp", "N,...", "these data parallel degrees alone",
           [matrix, degree](const char* name, const std::string& word) {
             matrix->dp.push_back(degree(name, word));
           });
  add_list("--protocol", "PROTOCOL,...", "these protocols alone",
           [matrix](const char*, const std::string& word) {
             matrix->protocols.push_back(to_string(parse_protocol(word)));
           });
  add_list("--tokens", "N,...", "the first N tokens of each file's longest prefill alone",
           [matrix](const char* name, const std::string& word) {
             std::int64_t value = 0;
             const auto [end, error] =
                 std::from_chars(word.data(), word.data() + word.size(), value);
             if (error != std::errc() || end != word.data() + word.size() || value < 1)
               throw CLI::ValidationError(name, text("'", printable(word), "' is no token count"));
             matrix->tokens.push_back(value);
           });
  add_list("--case", "CASE,...", "these cases alone",
           [matrix](const char*, const std::string& word) { matrix->cases.push_back(word); });
  app.add_option("--shard", matrix->shard,
                 "Matrix: part i of n of the configurations: 2/8; default: that of this process of "
                 "mpirun or task of a Slurm array, else all")
      ->type_name("I/N")
      ->needs(matrix_option);
  app.add_option("--merge", matrix->merge,
                 "Matrix, instead: put together what the parts printed as JSON Lines, each in a "
                 "file")
      ->type_name("FILE ...")
      ->expected(1, 100000)
      ->needs(matrix_option)
      ->excludes("--shard");
  return [arguments, matrix, threads] {
    catch_interrupts();
    if (!arguments->matrix) return CheckRun(*arguments).run();
    for (const std::string& argument :
         !matrix->merge.empty() ? std::vector<std::string>()
         : arguments->goldens.empty()
             ? std::vector{default_data_folder("golden", ".h5", build::data_dir)}
             : arguments->goldens)
      for (std::string& file : golden_files(argument)) matrix->goldens.push_back(std::move(file));
    matrix->checkpoint = arguments->checkpoint;
    matrix->executor = {arguments->options.device, arguments->comm};
    matrix->rounding = arguments->rounding.value_or(Rounding::hf);
    matrix->num_threads = arguments->options.num_threads;
    if (threads->empty() && share_of(matrix->shard).is_mpirun) matrix->num_threads = 1;
    matrix->verbosity = arguments->verbosity;
    matrix->format = arguments->format;
    return run_matrix_check(*matrix);
  };
}

}  // namespace

constinit const Verb check_verb = {
    "check", "Compare the serial reference with golden files, tap by tap",
    "tokenview check\n"
    "    all shipped golden files: a line a file and a summary\n"
    "tokenview check -v model.h5 more/\n"
    "    one file and a folder of them, a line a case\n"
    "tokenview check --only 'decode/step[12]/' model.h5\n"
    "    two draft steps of one case\n"
    "tokenview check --dtype float64 --gdn chunked model.h5\n"
    "    the chunked form of the delta rule in double precision\n"
    "tokenview check --format jsonl model.h5 | jq 'select(.verdict != \"match\")'\n"
    "    records of what differs\n"
    "tokenview check --checkpoint Qwen3-Next-80B-A3B-Instruct golden.h5\n"
    "    a file that record --checkpoint wrote, with the weights of the folder",
    add_options};

}  // namespace tokenview
