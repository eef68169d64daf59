// SPDX-License-Identifier: Apache-2.0
#include "verify/dump_diff.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "reference/program/error.hpp"
#include "verify/dump_diff_parts.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

using Verdict = TapDiff::Verdict;

constexpr std::int64_t most_named = 8;  // faults of a step: what follows the first has its cause

class DumpDiff {
 public:
  DumpDiff(TrustedSide& side, const DumpFile& dump, const DumpDiffOptions& options)
      : side_(side), dump_(dump), options_(options) {}

  DumpDiffResult run() {
    for (const std::int64_t rank : dump_.missing_ranks())
      result_.taps.push_back(told(-1, 0, text("rank ", rank), Verdict::missing, "missing",
                                  text("no file has this rank of ", dump_.world_size())));
    for (const std::int64_t number : dump_.steps()) find_stages(number);
    for (const auto& [number, stages] : stages_) compare_step(number, stages);
    if (reordered_choices_ > 0)
      result_.notes.push_back(text("experts of ", plural(reordered_choices_, "row"),
                                   " in another order than the trusted ones: compared by expert"));
    result_.not_compared.assign(names_not_compared_.begin(), names_not_compared_.end());
    for (const std::int64_t pass : passes_not_captured_)
      result_.not_captured.push_back(pass < 0 ? "all of the target"
                                              : text("all of draft step ", pass));
    result_.not_captured.insert(result_.not_captured.end(), names_not_captured_.begin(),
                                names_not_captured_.end());
    for (const TapDiff& tap : result_.taps) {
      result_.failed += tap.failed();
      result_.compared += tap.was_compared();
      result_.values += tap.values;
    }
    return std::move(result_);
  }

 private:
  /// What is not right of a step beside the values of its taps.
  struct Lacks {
    std::vector<TapDiff> causes;  // a rank without the step, or with other inputs: all follows
    std::vector<TapDiff> taps;    // that are missing
    std::vector<TapDiff> ends;    // where the run stopped
  };

  static TapDiff told(std::int64_t number, std::int64_t dp, const std::string& tap, Verdict verdict,
                      const std::string& called, std::string detail) {
    TapDiff diff;
    diff.step = number;
    diff.dp = dp;
    diff.tap = tap;
    diff.verdict = verdict;
    diff.called = called;
    diff.detail = std::move(detail);
    return diff;
  }

  void cause(std::int64_t number, std::int64_t dp, const std::string& what, Verdict verdict,
             const std::string& called, std::string detail) {
    lacks_[number].causes.push_back(told(number, dp, what, verdict, called, std::move(detail)));
  }
  void missing(const StageStep& stage, const std::string& tap, std::string detail) {
    lacks_[stage.number].taps.push_back(
        told(stage.number, stage.dp, tap, Verdict::missing, "missing", std::move(detail)));
  }

  void find_stages(std::int64_t number) {
    std::vector<StageStep>& stages = stages_[number];
    for (const DumpRank& rank : dump_.ranks()) {
      const auto found = rank.steps.find(number);
      if (found == rank.steps.end()) {
        cause(number, rank.at.dp, text("rank ", rank.at.world), Verdict::missing, "missing",
              text("rank ", rank.at.world, " does not have this step, other ranks do"));
        continue;
      }
      if (found->second.dummy) continue;
      auto stage = std::ranges::find_if(stages, [&](const StageStep& other) {
        return other.dp == rank.at.dp && other.pp == rank.at.pp;
      });
      if (stage == stages.end())
        stage = stages.insert(stages.end(), StageStep{number, rank.at.dp, rank.at.pp});
      stage->ranks.push_back(&rank);
    }
    for (StageStep& stage : stages) {
      std::ranges::sort(stage.ranks, {}, [](const DumpRank* rank) { return rank->at.tp; });
      stage.trusted = side_.step_of(number, stage.dp, stage.of(*stage.ranks.front()));
      find_missing(stage, stages);
    }
  }

  /// What the manifests name and is not there, and what other ranks of the stage have.
  void find_missing(const StageStep& stage, const std::vector<StageStep>& all) {
    std::set<std::string, InProgramOrder> names;
    for (const StageStep& other : all)
      if (other.pp == stage.pp)
        for (const DumpRank* rank : other.ranks)
          for (const auto& [name, tap] : other.of(*rank).taps) names.insert(name);
    for (const DumpRank* rank : stage.ranks) {
      const DumpStep& step = stage.of(*rank);
      std::set<std::string> lost;
      for (const std::string& name : step.lost) {
        missing(stage, name_in_manifest(name),
                text("lost: the manifest of rank ", rank->at.world, " names ", printable(name),
                     ", and there is no data set"));
        lost.insert(name_in_manifest(name));
      }
      for (const std::string& name : names)
        if (!step.taps.contains(name) && !lost.contains(name))
          missing(stage, name, text("rank ", rank->at.world, " does not have it, other ranks do"));
      if (!step.has_manifest && !(step.inputs && step.inputs->input_ids))
        cause(stage.number, stage.dp, "inputs", Verdict::missing, "missing",
              text("rank ", rank->at.world, " has neither inputs nor a manifest"));
      const DumpRank& front = *stage.ranks.front();
      if (step.inputs != stage.of(front).inputs)
        cause(stage.number, stage.dp, "inputs", Verdict::inputs,
              text("other inputs than those of rank ", front.at.world),
              text("rank ", rank->at.world, " has ", tokens_in_words(step), ", rank ",
                   front.at.world, " has ", tokens_in_words(stage.of(front))));
    }
    find_stop(stage);
  }

  static std::string tokens_in_words(const DumpStep& step) {
    if (!step.inputs || !step.inputs->input_ids) return "no input_ids";
    return plural(std::ssize(*step.inputs->input_ids), "token");
  }

  /// Where the run ended: behind the last tap that every rank of the stage has.
  void find_stop(const StageStep& stage) {
    const std::string& why = stage.of(*stage.ranks.front()).stopped;
    if (why.empty()) return;
    std::optional<std::string> last;
    for (const DumpRank* rank : stage.ranks) {
      std::string of_rank;
      for (const auto& [name, tap] : stage.of(*rank).taps)
        if (of_rank.empty() || InProgramOrder()(of_rank, name)) of_rank = name;
      if (!last || of_rank.empty() || InProgramOrder()(of_rank, *last)) last = of_rank;
    }
    std::string called = "missing: the run stopped";
    called += last->empty() ? " before the first tap" : " after " + printable(*last);
    if (stage.trusted != nullptr && !last->empty()) {
      const auto next = stage.trusted->taps().upper_bound(*last);
      if (next != stage.trusted->taps().end()) called += ", before " + printable(*next);
    }
    lacks_[stage.number].ends.push_back(told(stage.number, stage.dp, "the rest of the step",
                                             Verdict::missing, called, "the run stopped: " + why));
  }

  /// "taps/model.norm" -> "target/model.norm", "mtp/step0/mtp.fc" -> "step0/mtp.fc".
  static std::string name_in_manifest(const std::string& name) {
    if (name.starts_with("taps/")) return "target/" + name.substr(5);
    return name.starts_with("mtp/") ? name.substr(4) : name;
  }

  void compare_step(std::int64_t number, const std::vector<StageStep>& stages) {
    for (const StageStep& stage : stages) {
      if (stage.trusted == nullptr) {
        if (stage.pp == 0)
          result_.skipped.push_back(text("step ", number,
                                         dump_.parallel().dp > 1 ? text(" dp=", stage.dp) : "",
                                         ": ", side_.no_step()));
        continue;
      }
      const GoldenInputs* const inputs = stage.trusted->inputs();
      const DumpStep& step = stage.of(*stage.ranks.front());
      const char* const other =
          step.inputs && inputs != nullptr ? step.inputs->difference(*inputs) : nullptr;
      if (other != nullptr)
        cause(number, stage.dp, text("inputs/", other), Verdict::inputs,
              "other inputs than those of " + printable(stage.trusted->name()), "");
    }
    const bool stopped = std::ranges::any_of(stages, [](const StageStep& stage) {
      return !stage.of(*stage.ranks.front()).stopped.empty();
    });
    const std::vector<CleanLayout> layouts = layouts_of(stages);
    std::vector<ExplainedTap> taps;
    for (const StageStep& stage : stages)
      if (stage.trusted != nullptr) explain(stage, layouts, taps);
    result_.steps += !taps.empty();
    std::string in_words;
    const CleanLayout* const nearest = nearest_layout(layouts, taps, in_words);
    if (!in_words.empty()) result_.protocols.push_back(text("step ", number, ": ", in_words));
    std::ranges::stable_sort(taps, InProgramOrder(),
                             [](const ExplainedTap& tap) { return tap.diff.tap; });
    std::vector<StageStep> judged = stages;  // with what is trusted behind the dump's choices
    for (StageStep& stage : judged)
      if (stage.trusted != nullptr) stage.trusted = judge(stage, layouts, nearest, taps);
    for (const StageStep& stage : stages)
      for (ExplainedTap& tap : taps)
        if (stage.has(tap)) contradict_annotation(stage, tap);
    const std::string note = judge_layouts(taps, nearest, stopped);
    if (!note.empty()) result_.notes.push_back(text("step ", number, ": ", note));
    if (nearest == nullptr) say_layout_at_stop(number, taps);
    name_faults(stages, judged, nearest, taps);
    for (const ExplainedTap& tap : taps) reordered_choices_ += tap.reordered;
    collect(number, taps);
  }

  /// How the protocols that are right here lay a step out. A dp rank whose inputs are not known, an
  /// idle one, stands there with those of another: it has rows of its own.
  std::vector<CleanLayout> layouts_of(const std::vector<StageStep>& stages) const {
    const ParallelConfig parallel = dump_.parallel();
    std::map<std::int64_t, const GoldenInputs*> by_dp;
    std::int64_t draft_steps = 0;
    for (const StageStep& stage : stages) {
      if (stage.trusted == nullptr || stage.trusted->inputs() == nullptr) continue;
      by_dp[stage.dp] = stage.trusted->inputs();
      for (const std::string& name : stage.names())
        if (name != "draft_ids") draft_steps = std::max(draft_steps, tap_place(name).pass + 1);
    }
    if (side_.config() == nullptr || by_dp.empty()) return {};
    std::vector<GoldenInputs> inputs(std::size_t(parallel.dp), *by_dp.begin()->second);
    for (const auto& [dp, of_dp] : by_dp) inputs[std::size_t(dp)] = *of_dp;
    return clean_layouts(*side_.config(), parallel, inputs, draft_steps);
  }

  /// Of values of a type; null where the type or the model is not known.
  const TapErrorModel* errors_of(const StageStep& stage, std::optional<DType> type) {
    const GoldenCase* const golden =
        options_.by_error_model && type ? side_.golden_case(*stage.trusted) : nullptr;
    if (golden == nullptr) return nullptr;
    std::unique_ptr<TapErrorModel>& errors = errors_[{golden, *type}];
    if (!errors)
      errors = std::make_unique<TapErrorModel>(*golden, Implementation{*type, dump_.parallel().tp},
                                               ErrorModelOptions{.threads = options_.threads});
    return errors.get();
  }

  const TapErrorModel* narrow_errors_of(const StageStep& stage) {
    return errors_of(stage, narrow_type(stage, side_.dtype()));
  }

  /// Whether it is worth asking the error model, which runs the model many times: what comes after
  /// a value that is far off, or that is not there, is wrong whatever rounding there is.
  static bool may_be_rounding(const ExplainedTap& tap) {
    constexpr double far_off = 1000;  // of the limits: about 1 % of the largest value
    return GoldenFile::holds_ids(tap.diff.tap) || tap.diff.bound.ratio() < far_off;
  }

  /// Values narrower than float32 are right as the error model has it. In float32 the fixed limits
  /// are quick and enough but for small values behind large ones: what is over them gets the error
  /// model, and so do choices that differ. Returns what names of faults are to go by: of narrow
  /// types what is trusted given the dump's choices.
  std::shared_ptr<const TrustedStep> judge(const StageStep& stage,
                                           const std::vector<CleanLayout>& layouts,
                                           const CleanLayout* nearest,
                                           std::vector<ExplainedTap>& taps) {
    const TapErrorModel* errors = narrow_errors_of(stage);
    JudgedTaps which = JudgedTaps::all;
    const auto first = std::ranges::find_if(
        taps, [&](const ExplainedTap& tap) { return stage.has(tap) && tap.diff.failed(); });
    if (errors == nullptr && first != taps.end() && may_be_rounding(*first)) {
      errors = errors_of(stage, DType::float32);
      which = JudgedTaps::failing;
    }
    if (errors == nullptr) return stage.trusted;
    if (which == JudgedTaps::failing) {
      const TapExplainer explainer(dump_, options_, stage, layouts, side_.config(), nullptr, true);
      std::set<std::string> used;
      for (ExplainedTap& tap : taps)
        if (stage.has(tap) && stage.trusted->has(tap.diff.tap))
          tap.put_together = std::move(explainer.explain(tap.diff.tap, used)->put_together);
    }
    const auto num_failing = [&] {
      return std::ranges::count_if(
          taps, [&](const ExplainedTap& tap) { return stage.has(tap) && tap.diff.failed(); });
    };
    const std::int64_t before = num_failing();
    JudgedStep judged = judge_by_errors(*side_.golden_case(*stage.trusted), *errors, stage.dp,
                                        nearest, which, taps);
    if (!judged.ties.empty())
      result_.notes.push_back(text("step ", stage.number, ": ", judged.ties));
    StageStep again = stage;
    again.trusted = std::make_shared<JudgedTrustedStep>(stage.trusted, std::move(judged.values));
    const TapExplainer by_judged(dump_, options_, again, layouts, side_.config(), errors, false);
    std::set<std::string> known;
    for (ExplainedTap& tap : taps) {  // an engine's own names
      if (!stage.has(tap) || !tap.diff.failed() || stage.trusted->has(tap.diff.tap)) continue;
      if (std::optional<ExplainedTap> right = by_judged.explain(tap.diff.tap, known);
          right && !right->diff.failed())
        tap = std::move(*right);
    }
    if (const std::int64_t excused = before - num_failing();
        which == JudgedTaps::failing && excused > 0)
      result_.notes.push_back(text("step ", stage.number, ": ", plural(excused, "tap"),
                                   " over the fixed limit, and within what float32 can do there "
                                   "(error model)"));
    return which == JudgedTaps::all ? again.trusted : stage.trusted;
  }

  void explain(const StageStep& stage, const std::vector<CleanLayout>& layouts,
               std::vector<ExplainedTap>& taps) {
    const TapErrorModel* const errors = narrow_errors_of(stage);
    const TapExplainer explainer(dump_, options_, stage, layouts, side_.config(), errors,
                                 errors != nullptr);
    const std::set<std::string> names = stage.names();
    std::set<std::string> used;
    for (const std::string& name : names) {
      if (options_.wanted && !options_.wanted(name)) continue;
      if (std::optional<ExplainedTap> tap = explainer.explain(name, used)) {
        taps.push_back(std::move(*tap));
      } else if (!is_summand(name, names, *stage.trusted)) {
        names_not_compared_.insert(name_of(name));
        ++result_.not_compared_taps;
      }
    }
    if (dump_.parallel().pp > 1) return;  // a stage has its own layers only
    std::set<std::int64_t> passes;
    for (const std::string& name : names) passes.insert(tap_place(name).pass);
    for (const std::string& name : stage.trusted->taps())
      if (!used.contains(name)) {
        const std::int64_t pass = tap_place(name).pass;
        if (passes.contains(pass) || pass_of(name).empty())
          names_not_captured_.insert(name_of(name));
        else
          passes_not_captured_.insert(pass);
        ++result_.not_captured_taps;
      }
  }

  /// A residual that is compared in the sum with its hidden part.
  static bool is_summand(const std::string& name, const std::set<std::string>& names,
                         const TrustedStep& trusted) {
    if (!name.ends_with("residual")) return false;
    const std::string module = name.substr(0, name.size() - std::string_view("residual").size());
    for (const char* const hidden : {"hidden", "hidden_states"}) {
      if (!names.contains(module + hidden)) continue;
      const std::optional<Counterpart> sum =
          counterpart_of(module + hidden, names, trusted, nullptr);
      if (sum && std::ranges::find(sum->summands, name) != sum->summands.end()) return true;
    }
    return false;
  }

  /// Where no protocol says what is due: how the last tap before a stop is held, if not whole.
  void say_layout_at_stop(std::int64_t number, const std::vector<ExplainedTap>& taps) {
    for (TapDiff& end : lacks_[number].ends) {
      const auto last = std::find_if(taps.rbegin(), taps.rend(), [&](const ExplainedTap& tap) {
        return tap.diff.dp == end.dp && !tap.ways.empty();
      });
      if (last == taps.rend() || last->diff.kind == "full") continue;
      end.detail += text("\n", last->diff.tap, ", the last one, is held as ", last->diff.kind, ':');
      for (const RankHolding& rank : last->diff.ranks) end.detail += ' ' + rank.held;
    }
  }

  void name_faults(const std::vector<StageStep>& stages, const std::vector<StageStep>& judged,
                   const CleanLayout* nearest, std::vector<ExplainedTap>& taps) {
    std::int64_t named = 0;
    for (ExplainedTap& tap : taps) {
      const bool is_open = tap.diff.verdict == Verdict::difference && tap.ways.empty() &&
                           tap.diff.bound.metric != std::string("rows");
      if (!is_open || ++named > most_named) continue;
      const auto pp = tap.ranks.front()->at.pp;
      const StageStep* mine = nullptr;
      OtherRows others;
      for (const StageStep& stage : stages) {
        if (stage.pp != pp || stage.trusted == nullptr) continue;
        others.ranks.push_back(&stage);
        if (stage.dp == tap.diff.dp) mine = &stage;
      }
      for (const auto& [number, of_step] : stages_)
        for (const StageStep& stage : of_step)
          if (number != tap.diff.step && stage.pp == pp && stage.dp == tap.diff.dp &&
              stage.trusted != nullptr)
            others.other_steps.push_back(&stage);
      name_fault(dump_, side_, *mine, judged[std::size_t(mine - stages.data())], others,
                 nearest == nullptr ? tap.nearest_views : required_views(*nearest, tap), tap);
    }
  }

  /// What all of a step follows from; its taps in program order, with what is missing where it
  /// would be; where the run stopped.
  void collect(std::int64_t number, std::vector<ExplainedTap>& taps) {
    Lacks& lacks = lacks_[number];
    std::vector<TapDiff>& all = lacks.taps;
    for (ExplainedTap& tap : taps) all.push_back(std::move(tap.diff));
    std::ranges::stable_sort(all, InProgramOrder(), &TapDiff::tap);
    for (std::vector<TapDiff>* part : {&lacks.causes, &all, &lacks.ends})
      result_.taps.insert(result_.taps.end(), std::make_move_iterator(part->begin()),
                          std::make_move_iterator(part->end()));
  }

  TrustedSide& side_;
  const DumpFile& dump_;
  const DumpDiffOptions& options_;
  std::map<std::int64_t, std::vector<StageStep>> stages_;  // by step
  std::map<std::int64_t, Lacks> lacks_;                    // by step
  std::map<std::pair<const GoldenCase*, DType>, std::unique_ptr<TapErrorModel>> errors_;
  std::set<std::string, InProgramOrder> names_not_compared_, names_not_captured_;
  std::int64_t reordered_choices_ = 0;          // rows
  std::set<std::int64_t> passes_not_captured_;  // -1: the target
  DumpDiffResult result_;
};

}  // namespace

const char* to_string(TapDiff::Verdict verdict) {
  switch (verdict) {
    case Verdict::match:
      return "match";
    case Verdict::difference:
    case Verdict::layout:
    case Verdict::inputs:
      return "difference";
    case Verdict::missing:
      return "missing";
  }
  return "";
}

const TapDiff* DumpDiffResult::first_difference() const {
  const auto found = std::ranges::find_if(taps, &TapDiff::failed);
  return found == taps.end() ? nullptr : &*found;
}

DumpDiffResult diff_dump(TrustedSide& side, const DumpFile& dump, const DumpDiffOptions& options) {
  return DumpDiff(side, dump, options).run();
}

}  // namespace tokenview
