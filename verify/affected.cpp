// SPDX-License-Identifier: Apache-2.0
#include "verify/affected.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <ranges>
#include <span>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "verify/report.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

enum FaultIndex { F1, F2, F3, F5, F13, F17, unexplained };

constexpr KnownFault catalogue[] = {
    {"F1", "the MTP returns its shard, and a sample row lies beyond it", "vllm 48429, 48036", true,
     false},
    {"F2", "the MTP returns its shard, and the sample rows lie in it: logits of mixed tokens",
     "vllm 48429, 48036", false, false},
    {"F3", "the layout is inferred from the row count, which is the same at T = 1",
     "vllm 50681, 50154", false, false},
    {"F5", "the shared expert is split over tp while every rank has other tokens", "vllm 37856",
     false, false},
    {"F13", "a sum that was left to the next norm is lost at a pipeline boundary", "sglang 28619",
     false, true},
    {"F17", "a complete MoE output is summed again by the next norm", "vllm, read", false, true},
    {"F?", "a finding that the catalogue does not explain", "", false, false},
};

/// Row counts that tell the known faults apart for tp 2 and 4.
constexpr std::int64_t token_counts[] = {1, 2, 3, 4, 5, 8, 10, 12, 13};

/// The same kinds of layers in as few as show them: views do not depend on depth or widths.
ModelConfig short_model(ModelConfig config, const ParallelConfig& parallel) {
  const std::int64_t enough = std::max<std::int64_t>(4, 2 * parallel.pp);
  std::int64_t layers = config.num_hidden_layers;
  if (!config.has_arithmetic()) {
    // The last layer keeps its place in the period: the MTP layer comes after it.
    const std::int64_t period = config.moe_layer_freq;
    const std::int64_t least = config.first_k_dense_replace + std::max(enough - 1, 2 * period);
    if (layers > least) layers = least + (layers - least) % period;
    config.hidden_size = (config.hidden_size + parallel.tp - 1) / parallel.tp * parallel.tp;
  } else if (config.mlp_only_layers.empty() && config.decoder_sparse_step == 1) {
    layers = std::min(layers, enough);
  }
  config.num_hidden_layers = layers;
  config.layer_types.resize(std::size_t(layers));
  return config;
}

/// The batches that are tried, as arguments of --requests.
std::vector<std::string> batches_of(std::int64_t dp, std::int64_t draft_steps) {
  std::vector<std::string> batches;
  for (const std::int64_t tokens : token_counts) batches.push_back(std::to_string(tokens));
  for (std::size_t i = 0; dp > 1 && i + 1 < std::size(token_counts); ++i)
    for (const auto& [even, odd] : {std::pair{i, i + 1}, std::pair{i + 1, i}}) {
      std::string unequal = std::to_string(token_counts[even]);
      for (std::int64_t rank = 1; rank < dp; ++rank)
        unequal += text(',', token_counts[rank % 2 == 0 ? even : odd]);
      batches.push_back(unequal);
    }
  for (std::int64_t rejected = 0; draft_steps > 0 && rejected <= draft_steps; ++rejected) {
    const std::string verify = text(draft_steps + 1, "c8v", draft_steps, 'r', rejected);
    batches.push_back(verify);
    batches.push_back(verify + '+' + verify);
  }
  return batches;
}

/// The fault that explains the findings of one dp rank: the first is the cause.
FaultIndex fault_of(const ParallelPlan& plan, std::span<const Finding> findings) {
  const Finding& first = findings.front();
  if (first.kind == FindingKind::completeness) {
    const bool deferred = plan.protocol == ProtocolId::deferred;
    if (deferred && first.tensor.starts_with("stage")) return F13;
    if (deferred && first.operation == "sum" && first.expected == "complete") return F17;
    const bool joins_shared_expert =
        first.operation == "add" && first.module.find(".mlp") != std::string::npos;
    if (joins_shared_expert && plan.sequence_parallel_moe && !plan.shared_expert_whole) return F5;
    return unexplained;
  }
  if (first.module == "mtp" && first.tensor == "MTP hidden") {
    const bool asserts = std::ranges::any_of(findings, [](const Finding& finding) {
      return finding.kind == FindingKind::bounds && finding.operation == "index_rows";
    });
    return asserts ? F1 : F2;
  }
  // Rows of the target that are not the ones meant, but as many: so a count does not tell.
  const bool are_rows = first.kind == FindingKind::rows && first.expected.starts_with('[');
  if (are_rows && first.module.starts_with("model") &&
      parse_rows(first.expected).size() == parse_rows(first.actual).size())
    return F3;
  return unexplained;
}

using MetFaults = std::map<FaultIndex, MetFault>;

/// Faults of one plan. `config` is short.
MetFaults faults_under(const ModelConfig& config, const ParallelPlan& plan,
                       const RunnerOptions& runner, std::int64_t draft_steps) {
  MetFaults met;
  ViewWeights weights(config);
  for (const std::string& batch : batches_of(plan.parallel.dp, draft_steps)) {
    const auto requests = parse_requests(batch, plan.parallel.dp);
    std::set<FaultIndex> in_batch;
    const auto note = [&](FaultIndex index, const Finding& first, const std::string& detail) {
      MetFault& fault = met[index];
      if (fault.fault == nullptr) {
        fault.fault = &catalogue[index];
        fault.first_batch = batch;
        fault.first = first;
        fault.detail = detail;
      }
      std::int64_t rows = 0;
      for (const Request& request : requests[std::size_t(first.at.dp)]) rows += request.tokens;
      fault.tokens.insert(rows);
      if (in_batch.insert(index).second) ++fault.batches;
    };
    for (const bool drafts : {false, true}) {
      if (drafts && draft_steps == 0) continue;
      const ViewRunResult result = run_views({.config = config,
                                              .plan = plan,
                                              .inputs = inputs_of(requests),
                                              .draft_steps = std::size_t(drafts ? draft_steps : 0),
                                              .target_runs = !drafts,
                                              .runner = runner},
                                             false, &weights);
      std::vector<std::vector<Finding>> by_dp(std::size_t(plan.parallel.dp));
      for (const Finding& finding : result.findings)
        by_dp[std::size_t(finding.at.dp)].push_back(finding);
      for (auto& findings : by_dp) {
        if (findings.empty()) continue;
        std::ranges::stable_sort(findings, {}, [](const Finding& f) { return f.at.pp; });
        note(fault_of(plan, findings), findings.front(), to_string(findings.front()));
      }
      if (result.findings.empty() && !result.error.empty())
        note(unexplained, {}, "stopped: " + result.error);
    }
  }
  return met;
}

/// Runs each plan once: many releases make the same.
class PlanRuns {
 public:
  explicit PlanRuns(const ServedModel& served)
      : served_(served), config_(short_model(served.config, served.parallel)) {}

  ParallelPlan plan(const EngineRelease& release) const {
    return plan_for(config_, served_.parallel, release, served_.backend);
  }
  const MetFaults& faults(const EngineRelease& release) {
    const ParallelPlan asked = plan(release);
    const RunnerOptions runner = runner_options(release, asked);
    for (const Run& run : runs_)
      if (run.plan == asked && run.loop_of_most == runner.loop_of_most) return run.met;
    return runs_
        .emplace_back(Run{asked, runner.loop_of_most,
                          faults_under(config_, asked, runner, served_.draft_steps)})
        .met;
  }
  /// Whether the release runs the configuration, and without this fault.
  bool is_free_of(FaultIndex fault, const EngineRelease& release) {
    try {
      require_accepted(served_.config, served_.parallel, release, served_.draft_steps);
    } catch (const ConfigError&) {
      return false;
    }
    return !faults(release).contains(fault);
  }

 private:
  const ServedModel& served_;
  ModelConfig config_;
  struct Run {
    ParallelPlan plan;
    bool loop_of_most;
    MetFaults met;
  };
  std::deque<Run> runs_;
};

/// The first later release from which on the fault is gone; empty: the newest has it.
std::string gone_from(FaultIndex fault, const EngineRelease& release, PlanRuns& runs) {
  std::string name;
  for (const EngineRelease& later : engine_releases() | std::views::reverse) {
    if (!later.is_release) continue;
    if (later.version <= release.version || !runs.is_free_of(fault, later)) break;
    name = later.name;
  }
  return name;
}

// The table of all releases.

/// A row of the table: its configurations, and a cell a release.
struct MatrixRow {
  std::array<std::string, 5> labels;  // family, tp, dp, expert parallelism, draft steps
  std::vector<std::string> cells;
};

std::string cell_of(const ParallelPlan& plan, const MetFaults& met) {
  std::string cell = to_string(plan.protocol);
  const char* before = ": ";
  for (const auto& [index, fault] : met) {
    cell += text(before, fault.fault->id);
    if (fault.tokens.size() == 1) cell += text(" (T = ", *fault.tokens.begin(), ')');
    before = ", ";
  }
  return cell;
}

/// Rows that differ in one label only become one, with both labels.
void merge_along(std::size_t label, std::vector<MatrixRow>& rows) {
  std::vector<MatrixRow> merged;
  for (MatrixRow& row : rows) {
    const auto same = std::ranges::find_if(merged, [&](const MatrixRow& other) {
      auto labels = other.labels;
      labels[label] = row.labels[label];
      return labels == row.labels && other.cells == row.cells;
    });
    if (same == merged.end())
      merged.push_back(std::move(row));
    else
      same->labels[label] += ", " + row.labels[label];
  }
  rows = std::move(merged);
}

std::vector<MatrixRow> matrix_rows() {
  ModelConfig deepseek_v3 = *preset("deepseek-v3.2");
  deepseek_v3.model_type = ModelType::deepseek_v3;
  std::vector<MatrixRow> rows;
  for (const ModelConfig& config :
       {*preset("qwen3-next"), *preset("qwen3.5-moe"), deepseek_v3, *preset("deepseek-v3.2")})
    for (const std::int64_t dp : {2, 1})
      for (const bool ep : {true, false})
        for (const std::int64_t tp : {2, 4})
          for (const std::int64_t draft_steps : {0, 2}) {
            const ServedModel served{config,
                                     {.tp = tp, .dp = dp, .enable_expert_parallel = ep},
                                     default_backend,
                                     draft_steps};
            MatrixRow row{{to_string(family_of(config)), std::to_string(tp), std::to_string(dp),
                           ep ? "on" : "off", std::to_string(draft_steps)},
                          {}};
            PlanRuns runs(served);
            for (const EngineRelease& release : engine_releases()) {
              const bool exists = release.protocols[std::size_t(family_of(config))].has_value();
              row.cells.push_back(exists ? cell_of(runs.plan(release), runs.faults(release)) : "-");
            }
            rows.push_back(std::move(row));
          }
  for (const std::size_t label : {1, 4, 3, 2}) merge_along(label, rows);
  return rows;
}

/// Neighbouring releases that are alike in every row: the first and one past the last.
std::vector<std::pair<std::size_t, std::size_t>> alike(const std::vector<MatrixRow>& rows) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  const auto releases = engine_releases();
  for (std::size_t i = 0; i < releases.size(); ++i) {
    const bool same = i > 0 && releases[i].is_release && releases[i - 1].is_release &&
                      std::ranges::all_of(rows, [&](const MatrixRow& row) {
                        return row.cells[i] == row.cells[i - 1];
                      });
    if (same)
      ranges.back().second = i + 1;
    else
      ranges.emplace_back(i, i + 1);
  }
  return ranges;
}

}  // namespace

std::string in_words(const EngineRelease& release, const ServedModel& served) {
  const Gate gate = gate_of(release, served.parallel, served.backend);
  const ParallelPlan plan = plan_for(served.config, served.parallel, release, served.backend);
  const ReleaseFamily family = family_of(served.config);
  std::string words = release.name;
  if (*release.built != '\0') words += text(" (", release.built, ')');
  words += text(": gate ", to_string(release.gate), gate.open ? " open" : " shut (" + gate.reason,
                gate.open ? ", " : "), ", gate.backend, "; protocol ", to_string(plan.protocol));
  if (served.draft_steps > 0) words += text(", MTP ", mtp_form(plan.protocol));
  if (const auto runner = default_runner(release, family))
    words += *runner == RunnerVersion::V1 ? ", runner V1" : ", runner V2";
  const auto idle = idle_rank_rows(release, served.draft_steps);
  if (served.parallel.dp > 1 && idle)
    words += "; an idle dp rank runs " + plural(*idle, "dummy row");
  return words;
}

Affected affected(const ServedModel& served, const EngineRelease& release) {
  require_simulable(served.config, served.parallel, served.draft_steps);
  require_accepted(served.config, served.parallel, release, served.draft_steps);
  PlanRuns runs(served);
  Affected result{
      .gate = gate_of(release, served.parallel, served.backend),
      .plan = runs.plan(release),
      .batches = std::int64_t(batches_of(served.parallel.dp, served.draft_steps).size()),
      .faults = {}};
  for (const auto& [index, fault] : runs.faults(release)) {
    result.faults.push_back(fault);
    result.faults.back().gone_from = gone_from(index, release, runs);
  }
  return result;
}

std::string release_matrix() {
  const std::vector<MatrixRow> rows = matrix_rows();
  const auto ranges = alike(rows);
  std::string out =
      "# Releases and their faults\n\n"
      "Written by `tokenview affected --matrix`. What each vLLM release does with token rows: the "
      "protocol, and the faults that\nits runs on token views show. Backend "
      "allgather_reducescatter, eager mode, pp = 1. Columns are releases that were read, \"-\": the"
      "\nfamily does not exist yet. `tokenview affected --engine RELEASE` says more about one "
      "configuration.\n\n| model | tp | dp | expert parallel | draft steps |";
  std::string rule = "| --- | --- | --- | --- | --- |";
  const auto short_name = [](const EngineRelease& release) {
    return release.name.substr(std::string("vllm-").size());
  };
  for (const auto& [begin, end] : ranges) {
    const auto releases = engine_releases();
    out += ' ' + short_name(releases[begin]);
    if (end - begin > 1) out += " to " + short_name(releases[end - 1]);
    out += " |";
    rule += " --- |";
  }
  out += '\n' + rule + '\n';
  for (const MatrixRow& row : rows) {
    out += '|';
    for (const std::string& label : row.labels) out += ' ' + label + " |";
    for (const auto& [begin, end] : ranges) out += ' ' + row.cells[begin] + " |";
    out += '\n';
  }
  out += "\n| fault | | source |\n| --- | --- | --- |\n";
  for (const KnownFault& fault : catalogue)
    if (&fault != &catalogue[unexplained])
      out += text("| ", fault.id, fault.is_derived ? " (derived)" : "", " | ",
                  fault.is_loud ? "loud: " : "silent: ", fault.title, " | ", fault.source, " |\n");
  return out;
}

}  // namespace tokenview
