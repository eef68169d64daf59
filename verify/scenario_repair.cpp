// SPDX-License-Identifier: Apache-2.0
#include "verify/scenario_repair.hpp"

#include <algorithm>
#include <chrono>

#include "reference/program/error.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

/// All that a run does, to be held beside another's.
struct Deeds {
  ViewRunResult views;
  std::vector<CollectiveRecord> calls;  // of rank 0
  std::vector<Traffic> traffic;         // of each rank
  double elements = 0;
};

Deeds deeds_of(ParallelRun run) {
  Deeds deeds;
  run.fault_hits = nullptr;
  run.collectives = &deeds.calls;
  run.finished = [&](const SimMesh& mesh) {
    for (std::int64_t rank = 0; rank < run.plan.parallel.world_size(); ++rank) {
      deeds.traffic.push_back(mesh.traffic(rank));
      deeds.elements += mesh.traffic(rank).elements;
    }
  };
  deeds.views = run_views(run, true);
  return deeds;
}

/// Whatever module calls: where hidden and residual are joined is up to the writer.
bool same_calls(const Deeds& a, const Deeds& b) {
  return a.traffic == b.traffic &&
         std::ranges::equal(a.calls, b.calls, [](const auto& x, const auto& y) {
           return x.op == y.op && x.group == y.group && x.elements == y.elements;
         });
}

bool same_views(const Deeds& a, const Deeds& b) {
  return std::ranges::equal(a.views.views, b.views.views, [](const auto& x, const auto& y) {
    return x.name == y.name && std::ranges::equal(x.by_rank, y.by_rank, same_view);
  });
}

}  // namespace

const char* to_string(RepairVerdict verdict) {
  switch (verdict) {
    case RepairVerdict::agree:
      return "agree";
    case RepairVerdict::equivalent:
      return "equivalent";
    case RepairVerdict::differs:
      return "differs";
    case RepairVerdict::none:
      return "none";
  }
  return "";
}

RepairComparison compare_with_merged(const Scenario& s, const Repair* repair) {
  if (repair == nullptr)
    return {RepairVerdict::none, s.expect.check == "cost" ? "nothing is wrong, it only costs more"
                                                          : "no change of up to 4 places is clean"};
  const ModelConfig config = config_of(s);
  const ParallelRun broken = run_of(s, s.broken, config), merged = run_of(s, s.repaired, config);
  std::vector<InjectedFault> faults;
  const ParallelRun ours = repaired(broken, repair->edits, faults);
  const Deeds theirs_done = deeds_of(merged), ours_done = deeds_of(ours);
  if (same_calls(ours_done, theirs_done) && same_views(ours_done, theirs_done))
    return {RepairVerdict::agree, ""};
  if (ours_done.elements > theirs_done.elements)
    return {RepairVerdict::differs,
            text("sends ", ours_done.elements, " elements, the merged one ", theirs_done.elements)};
  for (const std::vector<StepInputs>& inputs : neighbouring_inputs(broken)) {
    ParallelRun ours_there = ours, merged_there = merged;
    ours_there.inputs = merged_there.inputs = inputs;
    if (run_views(merged_there, false).clean() && !run_views(ours_there, false).clean())
      return {RepairVerdict::differs,
              text("not clean at ", plural(inputs.front().step.num_tokens(), "token"))};
  }
  return {RepairVerdict::equivalent, ""};
}

ScenarioRepair repair_of(const Scenario& s) {
  ScenarioRepair result{
      .scenario = s.name, .search = {}, .comparison = {}, .merged = s.repair_note};
  const ModelConfig config = config_of(s);
  require_simulable(config, s.parallel, s.draft_steps);
  const auto begin = std::chrono::steady_clock::now();
  result.search = find_repairs(run_of(s, s.broken, config));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::vector<Repair>& repairs = result.search.repairs;
  result.comparison = compare_with_merged(s, repairs.empty() ? nullptr : &repairs.front());
  return result;
}

RepairScore score_of(std::span<const ScenarioRepair> repairs) {
  RepairScore score;
  for (const ScenarioRepair& repair : repairs) {
    ++score.verdicts[std::size_t(repair.comparison.verdict)];
    const bool is_right = repair.comparison.verdict == RepairVerdict::agree ||
                          repair.comparison.verdict == RepairVerdict::equivalent;
    if (is_right) ++score.right_by_kind[std::size_t(repair.search.repairs.front().kind)];
  }
  return score;
}

std::string repairs_page(std::span<const ScenarioRepair> repairs) {
  const RepairScore score = score_of(repairs);
  const auto of = [&](RepairVerdict verdict) { return score.verdicts[std::size_t(verdict)]; };
  std::string page = text(
      "# Suggested and merged repairs\n\n"
      "Written by `tokenview repro --repairs`; [blame.md](blame.md) says how a repair is found and "
      "what the "
      "verdicts mean.\n\n| agree | equivalent | differs | none | scenarios |\n"
      "| --- | --- | --- | --- | --- |\n| ",
      of(RepairVerdict::agree), " | ", of(RepairVerdict::equivalent), " | ",
      of(RepairVerdict::differs), " | ", of(RepairVerdict::none), " | ", repairs.size(),
      " |\n\nOf those that agree or are equivalent:");
  for (const RepairKind kind : repair_kinds)
    page += text(kind == repair_kinds[0] ? " " : ", ", score.right_by_kind[std::size_t(kind)], " ",
                 to_string(kind));
  page +=
      ".\n\n| scenario | verdict | how | suggestion | merged |\n| --- | --- | --- | --- | --- |\n";
  for (const ScenarioRepair& r : repairs) {
    const Repair* first = r.search.repairs.empty() ? nullptr : &r.search.repairs.front();
    page += text("| ", r.scenario, " | ", to_string(r.comparison.verdict),
                 r.comparison.why.empty() ? "" : ": " + r.comparison.why, " | ",
                 first == nullptr ? "" : to_string(first->kind), " | ",
                 first == nullptr ? "" : first->words, " | ", r.merged, " |\n");
  }
  return page;
}

}  // namespace tokenview
