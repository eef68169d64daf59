// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include "device/device_info.hpp"
#include "reference/program/error.hpp"
#include "tokenview_version.hpp"
#include "verify/cli.hpp"
#include "verify/cli_executor.hpp"
#include "verify/coverage.hpp"
#include "verify/data_folder.hpp"
#include "verify/device_repro.hpp"
#include "verify/fault_text.hpp"
#include "verify/not_here.hpp"
#include "verify/repair_report.hpp"
#include "verify/requests.hpp"
#include "verify/scenario.hpp"
#include "verify/scenario_repair.hpp"
#include "verify/view_report.hpp"

namespace tokenview {
namespace {

constexpr Word<CommKind> repro_comm_words[] = {{"sim", CommKind::sim}, {"nccl", CommKind::nccl}};

struct ReproArguments {
  std::string name;
  bool list = false;
  bool coverage = false;
  bool repairs = false;
  bool repaired = false;
  bool with_target = false;
  bool show_views = false;
  std::optional<std::int64_t> tp;
  std::optional<std::string> requests;
  ExecutorArguments executor;
  bool in_child = false;  // this is the process that runs on the GPU
  OutputFormat format = OutputFormat::text;
};

/// The last named tensor of the module that a finding is in which the rank held as the finding
/// says, in the first pass that has one: what every rank held there.
const NamedView* view_at(const ViewRunResult& result, const Finding& finding) {
  const NamedView* found = nullptr;
  const auto pass_of = [](const NamedView& view) {
    return view.name.substr(0, view.name.find('/'));
  };
  for (const NamedView& view : result.views) {
    if (found != nullptr && pass_of(view) != pass_of(*found)) break;
    const auto rank = std::size_t(finding.at.world);
    if (!finding.module.empty() && view.name.find(finding.module) != std::string::npos &&
        rank < view.by_rank.size() && to_map(view.by_rank[rank].rows) == finding.actual)
      found = &view;
  }
  return found;
}

/// Why a variant is wrong on views, and what would make it right.
struct Diagnosis {
  Blame blame;
  RepairSearch search;
};

/// Nothing for a variant that is clean on views.
std::optional<Diagnosis> diagnosis_of(const Scenario& s, const ScenarioVariant& variant) {
  const ModelConfig config = config_of(s);
  const ParallelRun run = run_of(s, variant, config);
  const std::optional<Blame> blame = blame_of(run);
  if (!blame) return std::nullopt;
  return Diagnosis{*blame, find_repairs(run)};
}

void explain(const Scenario& s, const ScenarioVariant& variant, const ScenarioResult& run,
             const std::optional<Diagnosis>& diagnosis) {
  const ViewRunResult& result = run.views;
  std::cout << s.name << ": " << s.title << '\n'
            << "source  " << s.source << '\n'
            << "run     " << in_words(s, variant) << '\n';
  for (const InjectedFault& fault : variant.faults)
    std::cout << "fault   " << to_string(fault) << '\n';
  if (result.findings.empty() && run.numeric.empty()) {
    std::cout << (result.error.empty() ? "clean: no finding\n" : "stopped: " + result.error + '\n');
    if (diagnosis) print_repairs(std::cout, diagnosis->blame, diagnosis->search);
    return;
  }
  const bool is_numeric = s.expect.check == "numeric" && !run.numeric.empty();
  const Finding& first =
      is_numeric || result.findings.empty() ? run.numeric.front() : result.findings.front();
  std::cout << "first   " << to_string(first) << '\n';
  if (const NamedView* view = view_at(result, first))
    std::cout << "held    " << view->name << "  " << row_map(*view) << '\n';
  std::map<std::string, std::vector<std::string>> asserting;  // by operation, a rank once
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (const Finding& finding : result.findings)
    if (finding.kind == FindingKind::bounds &&
        seen.emplace(finding.operation, finding.at.world).second)
      asserting[finding.operation].push_back(text("tp=", finding.at.tp, " dp=", finding.at.dp,
                                                  " expected ", finding.expected, ", held ",
                                                  finding.actual));
  for (const auto& [operation, lines] : asserting) {
    std::cout << "assert  predicted in " << operation << " (index out of bounds) on "
              << plural(std::int64_t(lines.size()), "rank") << ":\n";
    for (const std::string& line : lines) std::cout << "          " << line << '\n';
  }
  if (asserting.empty())
    std::cout << "assert  none"
              << (result.error.empty() ? ": the run is silent, and wrong\n" : "\n");
  for (const NamedView& view : result.views)
    if ((view.name.ends_with("logits") || view.name.ends_with("lm_head")) &&
        std::ranges::any_of(view.by_rank, [](const ViewOps::Tensor& x) {
          return x.rows.count(RowKind::mix) > 0;
        })) {
      std::cout << "mixed   " << view.name << "  " << row_map(view)
                << ": vocabulary blocks of several tokens in one row\n";
      break;
    }
  if (!result.error.empty()) std::cout << "stopped " << result.error << '\n';
  std::cout << "all     "
            << plural(std::int64_t(result.findings.size() + run.numeric.size()), "finding") << '\n';
  if (diagnosis) print_repairs(std::cout, diagnosis->blame, diagnosis->search);
  std::cout << "repair  " << s.repair_note << " (--repaired runs it)\n";
}

/// How a variant ended on the GPU, in one process or in one a rank, beside what the views say.
struct DeviceRun {
  std::vector<DeviceEnd> ends;
  std::vector<DeviceVerdict> verdicts;  // one an end
  std::vector<PredictedAssert> predicted;

  bool agrees() const { return std::ranges::all_of(verdicts, &DeviceVerdict::agrees); }
  bool asserted() const {
    return std::ranges::any_of(ends, [](const DeviceEnd& end) { return end.record.has_value(); });
  }
};

/// Runs the variant in processes of its own: an assert ends CUDA for the process in which it
/// happens. Nothing: there is no GPU, and none was demanded.
std::optional<DeviceRun> run_on_device(const ReproArguments& arguments, const Scenario& s,
                                       const ScenarioVariant& variant) {
  const bool is_demanded = arguments.executor.device == Device::cuda;
  try {
    require_on_gpu(s, variant);
  } catch (const ConfigError& error) {
    if (is_demanded) throw;
    print_note(text(error.what(), ": on token views alone"));
    return std::nullopt;
  }
  const CommKind comm = arguments.executor.comm;
  Launch processes{.command = {this_program(), "repro", arguments.name, "--in-child", "--comm",
                               to_string(comm)}};
  auto& command = processes.command;
  if (arguments.repaired) command.push_back("--repaired");
  if (arguments.tp) command.insert(command.end(), {"--tp", std::to_string(*arguments.tp)});
  if (arguments.requests) command.insert(command.end(), {"--requests", *arguments.requests});
  if (comm == CommKind::nccl)
    processes.environments = torchrun_environments(int(s.parallel.world_size()));

  DeviceRun run;
  run.ends = device_ends(processes);
  for (const DeviceEnd& end : run.ends) {
    if (end.unusable.empty()) continue;
    if (is_demanded) throw NotHere(end.unusable);
    print_note(end.unusable + ": on token views alone");
    return std::nullopt;
  }
  const ModelConfig config = config_of(s);
  ParallelRun with_target = run_of(s, variant, config);
  with_target.target_runs = true;  // as with numbers
  run.predicted = predicted_asserts(run_views(with_target, false).findings);
  for (const DeviceEnd& end : run.ends)
    run.verdicts.push_back(judged(end, run.predicted, run.asserted()));
  return run;
}

std::string coordinates(std::int64_t world, const ParallelConfig& parallel) {
  const RankCoordinates at = coordinates_of(world, parallel);
  return text("tp=", at.tp, " dp=", at.dp, parallel.pp > 1 ? text(" pp=", at.pp) : "");
}

std::string triple(const std::uint32_t (&of)[3]) {
  return text('[', of[0], ',', of[1], ',', of[2], ']');
}

void explain(const DeviceEnd& end, const DeviceVerdict& verdict,
             const std::vector<PredictedAssert>& predicted, const Scenario& s) {
  std::cout << "device  " << end.device << ", "
            << (end.rank ? text("rank ", *end.rank, " over NCCL")
                         : plural(s.parallel.world_size(), "virtual rank"))
            << ", float32" << (s.target_runs ? "" : ", with the target") << ": ";
  if (end.record) {
    const AssertRecord& r = *end.record;
    std::cout << "device-side assert in " << to_string(AssertingKernel(r.kernel)) << '\n'
              << "found   index " << r.index << " out of bounds for " << plural(r.bound, "row")
              << ", block " << triple(r.block) << ", thread " << triple(r.thread) << ", on rank "
              << r.rank << " (" << coordinates(r.rank, s.parallel) << ")\n"
              << "noticed " << end.error
              << (end.reached.empty() ? "" : "; the tensor named last: " + end.reached) << '\n';
    if (!end.printed.empty()) std::cout << "printed " << end.printed << '\n';
  } else if (!end.error.empty()) {
    std::cout << "stopped, " << end.error << '\n';
    if (!end.cpu_error.empty()) std::cout << "on CPU  " << end.cpu_error << '\n';
  } else {
    std::cout << "ran to its end\n"
              << "numbers " << plural(end.taps, "tap") << " of " << plural(end.values, "value")
              << " beside the CPU's: max|difference| " << end.worst << " of max(1, max|x|) at "
              << end.worst_tap << ", allowed " << DeviceEnd::allowed << '\n';
  }
  for (const PredictedAssert& assert : predicted)
    if (!verdict.agrees || (end.record && is_predicted(*end.record, {assert})))
      std::cout << "views   index " << assert.index << " out of bounds for "
                << plural(assert.bound, "row") << ", on rank " << assert.at.world << " ("
                << coordinates(assert.at.world, s.parallel) << ")\n";
  std::cout << "verdict " << verdict.word << ": "
            << (!verdict.agrees         ? "not what the views say\n"
                : end.record            ? "the predicted one\n"
                : end.error.empty()     ? "the numbers of the CPU\n"
                : end.cpu_error.empty() ? "by another rank\n"
                                        : "as on the CPU\n");
}

ReportRecord record_of(const DeviceEnd& end, const DeviceVerdict& verdict,
                       std::size_t num_predicted) {
  ReportRecord record{.kind = "device_run"};
  record.rank = end.rank;
  record.verdict = verdict.word;
  record.more = {{"agrees", verdict.agrees},
                 {"device", end.device},
                 {"predicted", std::int64_t(num_predicted)},
                 {"cuda_error", end.cuda_error},
                 {"noticed", end.error},
                 {"reached", end.reached},
                 {"printed", end.printed}};
  if (end.record) {
    const AssertRecord& r = *end.record;
    const auto numbers = [](const std::uint32_t(&of)[3]) {
      return std::vector<std::int64_t>(std::begin(of), std::end(of));
    };
    record.rank = r.rank;
    record.more.insert(record.more.end(),
                       {{"kernel", std::string(to_string(AssertingKernel(r.kernel)))},
                        {"index", r.index},
                        {"bound", r.bound},
                        {"row", r.row},
                        {"block", numbers(r.block)},
                        {"thread", numbers(r.thread)}});
  } else if (end.error.empty()) {
    record.tap = end.worst_tap;
    record.observed = end.worst;
    record.allowed = DeviceEnd::allowed;
    record.more.insert(record.more.end(), {{"taps", end.taps}, {"values", end.values}});
  }
  return record;
}

void list(const std::vector<Scenario>& scenarios) {
  std::size_t width = 0;
  for (const Scenario& s : scenarios) width = std::max(width, s.name.size());
  for (const Scenario& s : scenarios)
    std::cout << s.name << std::string(width + 2 - s.name.size(), ' ') << s.title << " ("
              << joined(s.aliases) << ")\n";
}

/// Every scenario's first suggestion beside its merged repair.
Exit list_repairs(const std::vector<Scenario>& scenarios, OutputFormat format) {
  std::vector<ScenarioRepair> all;
  for (const Scenario& s : scenarios) all.push_back(repair_of(s));
  if (format == OutputFormat::text) {
    std::cout << repairs_page(all);
    return Exit::match;
  }
  double seconds = 0;
  for (const ScenarioRepair& repair : all) {
    ReportRecord record{.kind = "case", .case_name = repair.scenario};
    record.verdict = to_string(repair.comparison.verdict);
    const Repair* first = repair.search.repairs.empty() ? nullptr : &repair.search.repairs.front();
    record.more = {{"how", std::string(first == nullptr ? "" : to_string(first->kind))},
                   {"words", first == nullptr ? "" : first->words},
                   {"merged", repair.merged},
                   {"detail", repair.comparison.why},
                   {"tried", repair.search.tried},
                   {"seconds", repair.seconds}};
    seconds += repair.seconds;
    std::cout << json_line(record) << '\n';
  }
  ReportRecord summary{.kind = "summary"};
  summary.verdict = "match";
  summary.more = {{"verb", "repro --repairs"}};
  const RepairScore score = score_of(all);
  for (const RepairVerdict verdict : {RepairVerdict::agree, RepairVerdict::equivalent,
                                      RepairVerdict::differs, RepairVerdict::none})
    summary.more.emplace_back(to_string(verdict), score.verdicts[std::size_t(verdict)]);
  summary.more.emplace_back("seconds", seconds);
  std::cout << json_line(summary) << '\n';
  return Exit::match;
}

Exit repro(const ReproArguments& arguments) {
  const auto folder = [] { return default_data_folder("scenarios", ".json", build::data_dir); };
  if (arguments.coverage) {
    const auto catalogue = std::filesystem::path(folder()).parent_path() / "coverage.json";
    std::cout << coverage_of(read_scenarios(folder()), catalogue.string()).page;
    return Exit::match;
  }
  if (arguments.repairs) return list_repairs(read_scenarios(folder()), arguments.format);
  std::vector<RefusedScenario> refused;
  if (arguments.list) {
    list(read_scenarios(folder(), &refused));
    for (const RefusedScenario& file : refused) print_error(file.problem);
    return refused.empty() ? Exit::match : Exit::usage;
  }
  if (arguments.executor.comm == CommKind::nccl && arguments.executor.device == Device::cpu &&
      !arguments.in_child)
    throw UsageError("--comm nccl: NCCL is between GPUs, expected --device cuda");
  if (arguments.name.empty()) throw UsageError("repro: expected the name of a scenario, or --list");
  Scenario s = scenario_named(arguments.name, folder, &refused);
  for (const RefusedScenario& file : refused) print_note(file.problem);
  if (arguments.with_target && s.target_runs)
    throw UsageError(text("repro: --with-target: ", s.name, " runs its target as it is"));
  const bool as_told = !arguments.tp && !arguments.requests && !arguments.with_target;
  if (arguments.tp) s.parallel.tp = *arguments.tp;
  if (arguments.requests) s.requests = {*arguments.requests};
  if (arguments.with_target) s.target_runs = true;
  for (const std::string& step : s.requests) parse_requests(step, s.parallel.dp);
  const ScenarioVariant& variant = arguments.repaired ? s.repaired : s.broken;
  if (arguments.in_child) {
    tell_device_end(s, variant, arguments.executor.comm, std::cout);
    return Exit::match;
  }

  const ScenarioResult run = run_scenario(s, variant);
  const ViewRunResult& result = run.views;
  const bool clean = run.clean();
  std::string problem = "the repaired variant is not clean";
  if (!arguments.repaired && !as_told) problem = "the fault does not show here, at other sizes";
  const bool as_expected = arguments.repaired ? clean
                           : as_told          ? behaves_as_told(s, run, problem)
                                              : !clean;
  std::optional<DeviceRun> on_device;
  if (arguments.executor.device != Device::cpu) on_device = run_on_device(arguments, s, variant);
  const std::optional<Diagnosis> diagnosis = diagnosis_of(s, variant);
  if (arguments.format == OutputFormat::jsonl) {
    for (const ReportRecord& record : view_records(result)) std::cout << json_line(record) << '\n';
    for (const Finding& finding : result.findings)
      std::cout << json_line(finding_record(finding, result)) << '\n';
    for (const Finding& finding : run.numeric)
      std::cout << json_line(finding_record(finding)) << '\n';
    if (diagnosis)
      for (const ReportRecord& record : repair_records(diagnosis->blame, diagnosis->search))
        std::cout << json_line(record) << '\n';
    for (std::size_t i = 0; on_device && i < on_device->ends.size(); ++i)
      std::cout << json_line(record_of(on_device->ends[i], on_device->verdicts[i],
                                       on_device->predicted.size()))
                << '\n';
    ReportRecord summary{.kind = "summary", .file = s.name};
    summary.verdict = !as_expected                         ? "scenario differs"
                      : on_device && !on_device->agrees()  ? "device differs"
                      : on_device && on_device->asserted() ? "device assert"
                      : clean                              ? "match"
                                                           : "finding";
    summary.case_name = text(s.name, ", ", in_words(s, variant));
    summary.more = {{"verb", arguments.repaired ? "repro --repaired" : "repro"},
                    {"findings", std::int64_t(result.findings.size())},
                    {"title", s.title},
                    {"source", s.source},
                    {"repair", s.repair_note},
                    {"detail", as_expected ? result.error : problem}};
    std::cout << json_line(summary) << '\n';
  } else {
    explain(s, variant, run, diagnosis);
    if (arguments.show_views) print_views(std::cout, result);
    for (std::size_t i = 0; on_device && i < on_device->ends.size(); ++i)
      explain(on_device->ends[i], on_device->verdicts[i], on_device->predicted, s);
    if (!as_expected)
      std::cout << (arguments.repaired || as_told ? "the scenario says otherwise: " : "") << problem
                << '\n';
    if (arguments.executor.device == Device::cpu && may_have_a_gpu())
      std::cout << "device  --device cuda runs this on the GPU as well\n";
  }
  if (!as_expected || (on_device && !on_device->agrees())) return Exit::scenario;
  if (on_device && on_device->asserted()) return Exit::device_assert;
  return clean && (arguments.repaired || s.expect.check != "cost") ? Exit::match
         : result.collective_mismatch                              ? Exit::collective_mismatch
                                                                   : Exit::difference;
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<ReproArguments>();
  app.add_option("NAME", arguments->name,
                 "Scenario, by name, alias or file: vllm-48429, B006, F1, small.json")
      ->type_name("NAME");
  CLI::Option* const list = app.add_flag("--list", arguments->list, "List all scenarios");
  CLI::Option* const coverage =
      app.add_flag("--coverage", arguments->coverage,
                   "Print which published bugs the scenarios tell, as Markdown");
  CLI::Option* const repairs = app.add_flag(
      "--repairs", arguments->repairs,
      "Print the suggested repair of every scenario beside the merged one, as Markdown");
  app.add_flag("--repaired", arguments->repaired, "Run the repaired variant: it must be clean");
  app.add_flag("--with-target", arguments->with_target,
               "Run the target under the same protocol instead of feeding correct rows");
  app.add_flag("--views", arguments->show_views, "Print the rows of every rank at every point");
  add_number(app, "--tp", arguments->tp, std::int64_t{1}, std::int64_t{32},
             "Tensor parallel ranks");
  app.add_option("--tokens,--requests", arguments->requests, "Rows, as for run")
      ->type_name("REQUESTS");
  add_choice(app, "--device", arguments->executor.device, device_words,
             "Where it runs beside the token views: nowhere (cpu, the default), with numbers on "
             "the GPU, where a predicted assert must come true, or there where there is one");
  add_choice(app, "--comm", arguments->executor.comm, repro_comm_words,
             "What joins the ranks on a GPU: simulated, as virtual ranks of one (sim, the "
             "default), or NCCL, a GPU and a process a rank");
  app.add_flag("--in-child", arguments->in_child)->group("");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  exclude_others(app, list);
  exclude_others(app, coverage);
  exclude_others(app, repairs, "--format");
  return [arguments] { return repro(*arguments); };
}

}  // namespace

constinit const Verb repro_verb = {
    "repro", "Reproduce a named bug of a serving engine, without a GPU and on one",
    "tokenview repro vllm-48429 --tp 4 --tokens 10\n"
    "    which operation lost the tokens, what each rank held, which index will be out of range,\n"
    "    and the smallest repair\n"
    "tokenview repro vllm-48429 --repaired\n"
    "    the same configuration with the repair: clean\n"
    "tokenview repro vllm-48429 --tp 4 --tokens 10 --device cuda\n"
    "    the real assert on a GPU, beside the predicted one\n"
    "tokenview repro --list\n"
    "    all scenarios",
    add_options};

}  // namespace tokenview
