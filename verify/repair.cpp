// SPDX-License-Identifier: Apache-2.0
#include "verify/repair.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "reference/program/error.hpp"
#include "verify/fault_text.hpp"
#include "verify/repair_words.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

/// Where the first finding is, in program order: engine step, pipeline stage, operation of a rank.
using Position = std::tuple<std::int32_t, std::int64_t, std::int64_t>;

/// How a run came out.
struct Outcome {
  std::string first;  // the first finding, or what stopped the run before one; empty: it is clean
  std::optional<Position> at;  // of a finding
  bool stopped = false;        // before its end
  double elements = 0;

  bool clean() const { return first.empty(); }
};

/// Places of one kind and name in one or several modules.
struct PlaceClass {
  PlaceKind kind;
  std::string op, group;
  std::int64_t nth;        // 0: all
  std::string at;          // glob
  std::size_t places = 1;  // of a pass
  std::size_t first = 0;   // the earliest visit
  std::int64_t number = 0;
};

/// A change and how it is preferred.
struct Candidate {
  RepairEdit edit;
  RepairKind kind = RepairKind::move;
  std::size_t places = 1, first = 0;
};

/// In preference: what the protocol has at a place is a change of a collective like any other.
int rank_of(RepairKind kind) { return std::max(int(kind), int(RepairKind::as_written)); }

/// A run with some edits.
struct State {
  std::vector<RepairEdit> edits;
  RepairKind kind = RepairKind::move;
  std::size_t disturbed = 0;  // named tensors before the first finding that have other views now
  std::size_t places = 0, first = 0;
  Outcome outcome;

  auto preference() const {
    return std::tuple(edits.size(), disturbed, rank_of(kind), places, first, outcome.elements);
  }
};

/// The globs that stand for a module and its likes: itself, all layers, target and drafter, all of
/// its model, everywhere.
std::vector<std::string> likes_of(const std::string& module) {
  std::vector<std::string> globs{module};
  const std::size_t list = module.find("layers.");
  if (list != std::string::npos) {
    const std::size_t number = list + 7, end = std::min(module.find('.', number), module.size());
    std::string rest = module.substr(end);
    globs.push_back(module.substr(0, number) + '*' + rest);
    // Either mixer.
    for (const char* mixer : {".self_attn", ".linear_attn"})
      if (rest.ends_with(mixer)) globs.push_back(module.substr(0, number) + "*_attn");
    if (!rest.empty()) globs.push_back('*' + rest);
  }
  if (const std::size_t dot = module.find('.'); !module.empty())
    globs.push_back(module.substr(0, dot) + '*');
  globs.emplace_back("*");
  return globs;
}

std::vector<PlaceClass> classes_of(const std::vector<PlaceVisit>& visits, const Outcome& outcome,
                                   const ParallelConfig& parallel) {
  // By name: the modules in which there is such a place, and how often in one pass.
  struct Named {
    std::set<std::string> modules;
    std::map<std::string, std::int64_t> times;
  };
  std::map<std::tuple<PlaceKind, std::string, std::string>, Named> named;
  for (const PlaceVisit& visit : visits) {
    Named& all = named[{visit.kind, visit.op, visit.group}];
    all.modules.insert(visit.module);
    all.times[visit.module] = std::max(all.times[visit.module], visit.nth);
  }
  std::vector<PlaceClass> classes;
  std::set<std::tuple<PlaceKind, std::string, std::string, std::int64_t, std::set<std::string>>>
      known;
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const PlaceVisit& visit = visits[i];
    const std::int64_t stage = coordinates_of(visit.rank, parallel).pp;
    if (outcome.at && Position(visit.step, stage, visit.order) > *outcome.at) continue;
    const Named& all = named[{visit.kind, visit.op, visit.group}];
    for (const std::string& glob : likes_of(visit.module)) {
      std::set<std::string> covered;
      std::int64_t times = 1;
      for (const std::string& module : all.modules)
        if (fits(glob, module)) {
          covered.insert(module);
          times = std::max(times, all.times.at(module));
        }
      for (const std::int64_t nth : {std::int64_t{0}, times > 1 ? visit.nth : 0})
        // A run that was stopped has not come by all places.
        if (known
                .emplace(visit.kind, visit.op, visit.group, nth,
                         outcome.stopped ? std::set{glob} : covered)
                .second)
          classes.push_back({visit.kind, visit.op, visit.group, nth, glob,
                             covered.size() * std::size_t(nth == 0 ? times : 1), i, visit.number});
    }
  }
  return classes;
}

/// What may be tried at a place.
void add_edits(const PlaceClass& place, const ParallelConfig& parallel,
               std::vector<Candidate>& candidates) {
  InjectedFault edit;
  edit.at = place.at;
  edit.op = place.op;
  edit.group = place.group;
  edit.nth = place.nth;
  const auto add = [&](FaultAct act, RepairKind kind, const std::string& with = "") {
    edit.act = act;
    edit.with = with;
    candidates.push_back({edit, kind, place.places, place.first});
  };
  const auto move = [&](FaultAct act, const std::string& with = "") {
    add(act, RepairKind::move, with);
  };
  const bool is_sharded = parallel.tp > 1;
  switch (place.kind) {
    case PlaceKind::collective:
      if (place.at == "runner") break;  // what it moves has no view: nothing would miss it
      move(FaultAct::drop);
      for (const char* other : {"all_reduce", "all_gather", "reduce_scatter"}) {
        move(FaultAct::replace, other);
        move(FaultAct::after, other);
        move(FaultAct::before, other);
      }
      for (const char* other : {"gather", "scatter", "chunk", "trim"}) {
        move(FaultAct::after, other);
        move(FaultAct::before, other);
      }
      for (const auto& [group, size] :
           {std::pair{"tp", parallel.tp}, {"dp", parallel.dp}, {"ep", parallel.tp * parallel.dp}})
        if (size > 1) move(FaultAct::group, group);
      if (place.op == "all_gather" || place.op == "reduce_scatter") move(FaultAct::axis);
      break;
    case PlaceKind::local:
      move(FaultAct::drop);
      [[fallthrough]];
    case PlaceKind::value:
    case PlaceKind::stream:
      if (is_sharded)
        for (const char* other : {"all_reduce", "gather", "scatter", "chunk"})
          move(FaultAct::after, other);
      move(FaultAct::after, "trim");
      break;
    case PlaceKind::gate:
      edit.number = place.number == 0 ? 1 : 0;
      add(FaultAct::set, RepairKind::decision);
      edit.number = 0;
      break;
    case PlaceKind::number:
    case PlaceKind::side:
      break;
  }
  if (place.kind != PlaceKind::stream) add(FaultAct::due, RepairKind::as_written);
}

/// Weights by the block that they belong to: `*.shared_expert.*` for a projection in it.
void add_placements(const std::vector<PlaceVisit>& visits, const ParallelPlan& plan,
                    std::vector<Candidate>& candidates) {
  std::map<std::string, std::size_t> blocks;  // glob, first visit
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const std::string& module = visits[i].module;
    if (!module.ends_with("_proj")) continue;
    const std::string block = module.substr(0, module.rfind('.'));
    blocks.emplace("*." + block.substr(block.rfind('.') + 1) + ".*", i);
  }
  for (const auto& [glob, first] : blocks)
    for (const bool whole : {false, true})
      candidates.push_back({PlacedWeights{glob, whole}, RepairKind::placement, 1, first});
  ParallelPlan now = plan;
  for (const std::string& flag : plan_flag_names())
    candidates.push_back(
        {PlanFlag{flag, !plan_flag(now, flag)}, RepairKind::placement, 1, visits.size()});
}

class Search {
 public:
  Search(const ParallelRun& run, const RepairLimits& limits)
      : run_(run),
        limits_(limits),
        weights_(run.config),
        end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(limits.seconds))) {}

  RepairSearch find() {
    RepairSearch result;
    std::vector<State> open(1);
    open.front().outcome = now_ = outcome_of(run_, {}, &visits_);
    result.tried = tried_;
    if (now_.clean()) return result;
    views_ = views_before_finding();
    std::vector<State> clean;
    for (std::size_t edits = 1; edits <= limits_.edits && clean.empty(); ++edits) {
      std::vector<State> next;
      for (const State& state : open) expand(state, clean, next);
      open = followed(std::move(next));
      keep_those_that_hold(clean);
    }
    if (clean.empty()) clean = std::move(only_here_);
    std::ranges::stable_sort(clean, {}, &State::preference);
    for (const State& state : clean) {
      if (result.repairs.size() == limits_.repairs) break;
      Repair& repair = result.repairs.emplace_back();
      repair.edits = state.edits;
      repair.kind = state.kind;
      repair.words = in_words(state.edits, visits_);
      repair.elements = state.outcome.elements;
      repair.holds = only_here_.empty() || holds_.contains(key_of(state));
    }
    result.tried = tried_;
    result.complete = !late_;
    return result;
  }

 private:
  static std::string key_of(const State& state) {
    std::string key;
    for (const RepairEdit& edit : state.edits) key += to_string(edit) + ' ';
    return key;
  }

  bool is_late() {
    late_ = late_ || std::chrono::steady_clock::now() > end_;
    return late_;
  }

  Outcome outcome_of(const ParallelRun& run, const std::vector<RepairEdit>& edits,
                     std::vector<PlaceVisit>* visits = nullptr) {
    ++tried_;
    std::vector<InjectedFault> faults;
    ParallelRun changed = repaired(run, edits, faults);
    changed.visits = visits;
    changed.fault_hits = nullptr;
    changed.collectives = nullptr;
    changed.most_findings = 1;
    Outcome outcome;
    changed.finished = [&](const SimMesh& mesh) {
      for (std::int64_t rank = 0; rank < changed.plan.parallel.world_size(); ++rank)
        outcome.elements += mesh.traffic(rank).elements;
    };
    const ViewRunResult result = run_views(changed, false, &weights_);
    if (!result.findings.empty()) {
      const Finding& first = result.findings.front();
      outcome.first = to_string(first);
      outcome.at = Position(first.step, first.at.pp, first.order);
    } else {
      outcome.first = result.error;
    }
    outcome.stopped = !result.error.empty();
    return outcome;
  }

  std::vector<NamedView> views_before_finding() {
    ParallelRun run = run_;
    run.fault_hits = nullptr;
    run.collectives = nullptr;
    run.finished = {};
    std::vector<NamedView> views = run_views(run, true, &weights_).views;
    std::erase_if(views, [&](const NamedView& view) {
      return now_.at && std::pair(view.stage, view.order) >
                            std::pair(std::get<1>(*now_.at), std::get<2>(*now_.at));
    });
    return views;
  }

  void expand(const State& state, std::vector<State>& clean, std::vector<State>& next) {
    std::vector<PlaceVisit> visits;
    outcome_of(run_, state.edits, &visits);
    std::vector<Candidate> candidates;
    const ParallelConfig& parallel = run_.plan.parallel;
    for (const PlaceClass& place : classes_of(visits, state.outcome, parallel))
      add_edits(place, parallel, candidates);
    add_placements(visits, run_.plan, candidates);
    for (const Candidate& candidate : candidates) {
      if (candidate.kind == RepairKind::as_written && !limits_.as_written) continue;
      if (is_late()) return;
      State more = state;
      more.edits.push_back(candidate.edit);
      more.kind = std::max(more.kind, candidate.kind);
      more.places += candidate.places;
      more.first += candidate.first;
      more.outcome = outcome_of(run_, more.edits);
      if (more.outcome.clean()) {
        more.disturbed = disturbed_by(more.edits);
        clean.push_back(std::move(more));
      } else if (is_further(more.outcome, state.outcome)) {
        next.push_back(std::move(more));
      }
    }
  }

  /// What came first is gone, and what comes first now is not earlier in the program.
  static bool is_further(const Outcome& after, const Outcome& before) {
    if (after.first == before.first) return false;
    if (after.at && before.at) return *after.at >= *before.at;
    return !before.at;  // a stop is left behind, or turned into another
  }

  static bool is_further_or_same(const Outcome& after, const Outcome& before) {
    return after.first == before.first || is_further(after, before);
  }

  /// Named tensors that were right, and have other views with the edits.
  std::size_t disturbed_by(const std::vector<RepairEdit>& edits) {
    std::vector<InjectedFault> faults;
    ParallelRun changed = repaired(run_, edits, faults);
    changed.fault_hits = nullptr;
    changed.collectives = nullptr;
    changed.finished = {};
    const std::vector<NamedView> now = run_views(changed, true, &weights_).views;
    std::size_t count = 0, at = 0;
    for (const NamedView& before : views_) {
      while (at < now.size() && (now[at].name != before.name || now[at].stage != before.stage))
        ++at;
      if (at == now.size()) break;
      const auto& by_rank = now[at].by_rank;
      for (std::size_t rank = 0; rank < before.by_rank.size(); ++rank)
        if (rank >= by_rank.size() || !same_view(by_rank[rank], before.by_rank[rank])) {
          ++count;
          break;
        }
    }
    return count;
  }

  /// The partial repairs to go on with: of those that lead to the same finding the preferred one.
  std::vector<State> followed(std::vector<State> states) const {
    std::ranges::stable_sort(states, {}, &State::preference);
    std::set<std::string> led_to;
    std::erase_if(states,
                  [&](const State& state) { return !led_to.insert(state.outcome.first).second; });
    std::ranges::stable_sort(states, [](const State& a, const State& b) {
      return a.outcome.at.value_or(Position{}) > b.outcome.at.value_or(Position{});
    });
    if (states.size() > limits_.branches) states.resize(limits_.branches);
    return states;
  }

  /// Drops, until enough are left, those that make other row counts wrong.
  void keep_those_that_hold(std::vector<State>& clean) {
    std::ranges::stable_sort(clean, {}, &State::preference);
    std::vector<State> kept;
    for (State& state : clean) {
      if (kept.size() == limits_.repairs) break;
      if (holds(state.edits)) {
        holds_.insert(key_of(state));
        kept.push_back(std::move(state));
      } else {
        only_here_.push_back(std::move(state));
      }
    }
    clean = std::move(kept);
  }

  bool holds(const std::vector<RepairEdit>& edits) {
    if (elsewhere_.empty())
      for (std::vector<StepInputs>& inputs : neighbouring_inputs(run_)) {
        ParallelRun there = run_;
        there.inputs = std::move(inputs);
        const Outcome before = outcome_of(there, {});
        elsewhere_.emplace_back(std::move(there), before);
      }
    return std::ranges::all_of(elsewhere_, [&](const auto& place) {
      const auto& [there, before] = place;
      const Outcome after = outcome_of(there, edits);
      // What is wrong there already may stay so: it need not be this fault.
      return after.clean() || (!before.clean() && is_further_or_same(after, before));
    });
  }

  const ParallelRun& run_;
  RepairLimits limits_;
  ViewWeights weights_;
  Outcome now_;                     // of the run as it is
  std::vector<PlaceVisit> visits_;  // and its places
  std::vector<NamedView> views_;    // and its named tensors up to the first finding
  std::vector<std::pair<ParallelRun, Outcome>> elsewhere_;
  std::vector<State> only_here_;
  std::set<std::string> holds_;
  std::int64_t tried_ = 0;
  std::chrono::steady_clock::time_point end_;
  bool late_ = false;
};

}  // namespace

const char* to_string(RepairKind kind) {
  switch (kind) {
    case RepairKind::move:
      return "move";
    case RepairKind::decision:
      return "decision";
    case RepairKind::placement:
      return "placement";
    case RepairKind::as_written:
      return "as written";
  }
  return "";
}

std::string to_string(const RepairEdit& edit) {
  if (const auto* weights = std::get_if<PlacedWeights>(&edit))
    return text("weights:", weights->at, '=', weights->whole ? "whole" : "split");
  if (const auto* flag = std::get_if<PlanFlag>(&edit))
    return text("plan:", flag->name, '=', int(flag->value));
  return to_string(std::get<InjectedFault>(edit));
}

std::vector<std::vector<StepInputs>> neighbouring_inputs(const ParallelRun& run) {
  std::vector<std::vector<StepInputs>> neighbours;
  if (!run.later_steps.empty()) return neighbours;
  for (const std::int64_t tokens : {1, 2, 3, 5, 8})
    neighbours.push_back(inputs_of(parse_requests(std::to_string(tokens), run.plan.parallel.dp)));
  return neighbours;
}

ParallelRun repaired(const ParallelRun& run, const std::vector<RepairEdit>& edits,
                     std::vector<InjectedFault>& faults) {
  ParallelRun changed = run;
  if (run.faults != nullptr) faults = *run.faults;
  for (const RepairEdit& edit : edits) {
    if (const auto* fault = std::get_if<InjectedFault>(&edit)) faults.push_back(*fault);
    if (const auto* weights = std::get_if<PlacedWeights>(&edit))
      changed.plan.placed.push_back(*weights);
    if (const auto* flag = std::get_if<PlanFlag>(&edit))
      plan_flag(changed.plan, flag->name) = flag->value;
  }
  changed.faults = faults.empty() ? nullptr : &faults;
  return changed;
}

RepairSearch find_repairs(const ParallelRun& run, const RepairLimits& limits) {
  return Search(run, limits).find();
}

}  // namespace tokenview
