// SPDX-License-Identifier: Apache-2.0
#include "verify/dump_diff.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/clean_layouts.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/held_words.hpp"
#include "verify/report.hpp"
#include "verify/trusted_step.hpp"

namespace tokenview {
namespace {

using Verdict = TapDiff::Verdict;

/// What a tap of a dump is held to; the one place where that is decided.
ToleranceRule tap_limit(const ToleranceRules& rules, const std::string& tap,
                        const std::string& value_type, const HostTensor& trusted) {
  return rules.rule_for(tap, storage_type(value_type).value_or(StorageType::float32),
                        storage_type(trusted.dtype));
}

/// Router weights of pads are those of a row of equal logits, and say nothing.
bool has_free_pads(const std::string& tap) {
  return tap.ends_with(".gate.weights") || tap.ends_with(".gate.ids");
}

/// True for taps of which an engine may keep the sampled rows only.
bool may_be_sampled(const std::string& tap) {
  return tap.ends_with("/lm_head") || tap.ends_with("/logits");
}

/// True where each rank holds what it is to hold; of a sampled tap the same rows as the others.
bool same_layout(const std::string& tap, const std::vector<TokenView>& a,
                 const std::vector<TokenView>& b) {
  if (may_be_sampled(tap) && !a.empty() && kind_of(a) == "full" && kind_of(b) == "full")
    return true;
  return std::ranges::equal(a, b, [](const TokenView& x, const TokenView& y) {
    return same_rows(x.rows, y.rows) && x.sum.is_partial() == y.sum.is_partial() &&
           x.columns.all() == y.columns.all();
  });
}

/// A tap with every way of holding it that its values allow.
struct ExplainedTap {
  TapDiff diff;
  std::string layout_tap;  // of the program, whose rows it has
  std::vector<const DumpRank*> ranks;
  std::vector<std::vector<TokenView>> views;  // alternatives, of each rank
  std::vector<bool> poisoned;                 // of each alternative: a pad is not zero
  std::vector<std::string> pads;              // of each alternative: which
};

/// One step of one data-parallel rank and pipeline stage.
struct StageStep {
  std::int64_t number = 0, dp = 0, pp = 0;
  std::vector<const DumpRank*> ranks;  // by tp; without dummies
  const DumpStep& of(const DumpRank& rank) const { return rank.steps.at(number); }
};

class DumpDiff {
 public:
  DumpDiff(const GoldenFile& golden, const DumpFile& dump, const DumpDiffOptions& options)
      : golden_(golden),
        dump_(dump),
        options_(options),
        config_(read_config_json(golden.config_json(), golden.path() + ":/config").config) {}

  DumpDiffResult run() {
    for (const std::int64_t rank : dump_.missing_ranks())
      missing(-1, 0, text("rank ", rank), text("no file has this rank of ", dump_.world_size()));
    for (const std::int64_t number : dump_.steps()) step(number);
    for (const std::string& name : names_not_compared_) result_.not_compared.push_back(name);
    for (const std::string& name : names_not_captured_) result_.not_captured.push_back(name);
    for (const TapDiff& tap : result_.taps) {
      result_.failed += tap.failed();
      result_.compared += tap.verdict != Verdict::missing;
      result_.values += tap.values;
    }
    return std::move(result_);
  }

 private:
  void missing(std::int64_t number, std::int64_t dp, const std::string& tap, std::string detail) {
    TapDiff& diff = result_.taps.emplace_back();
    diff.step = number;
    diff.dp = dp;
    diff.tap = tap;
    diff.verdict = Verdict::missing;
    diff.called = "missing";
    diff.detail = std::move(detail);
  }

  void step(std::int64_t number) {
    const bool is_of_all = std::ranges::all_of(
        dump_.ranks(), [&](const DumpRank& rank) { return rank.steps.contains(number); });
    std::vector<StageStep> stages;
    for (const DumpRank& rank : dump_.ranks()) {
      const auto found = rank.steps.find(number);
      if (found == rank.steps.end()) {
        if (!is_of_all)
          missing(number, rank.at.dp, text("step ", number),
                  text("rank ", rank.at.world, " does not have it, other ranks do"));
        continue;
      }
      if (found->second.dummy) continue;
      auto stage = std::ranges::find_if(stages, [&](const StageStep& other) {
        return other.dp == rank.at.dp && other.pp == rank.at.pp;
      });
      if (stage == stages.end())
        stage = stages.insert(stages.end(), StageStep{number, rank.at.dp, rank.at.pp, {}});
      stage->ranks.push_back(&rank);
    }
    for (StageStep& stage : stages) {
      std::ranges::sort(stage.ranks, {}, [](const DumpRank* rank) { return rank->at.tp; });
      find_missing(stage, stages);
    }
    compare_step(number, stages);
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
        missing(stage.number, stage.dp, name_in_manifest(name),
                text("lost: the manifest of rank ", rank->at.world, " names ", printable(name),
                     ", and there is no data set"));
        lost.insert(name_in_manifest(name));
      }
      for (const std::string& name : names)
        if (!step.taps.contains(name) && !lost.contains(name))
          missing(stage.number, stage.dp, name,
                  text("rank ", rank->at.world, " does not have it, other ranks do"));
      if (!step.has_manifest && !(step.inputs && step.inputs->input_ids))
        missing(stage.number, stage.dp, "inputs",
                text("rank ", rank->at.world, " has neither inputs nor a manifest"));
      if (step.inputs != stage.of(*stage.ranks.front()).inputs)
        missing(stage.number, stage.dp, "inputs",
                text("rank ", rank->at.world, " has other inputs than rank ",
                     stage.ranks.front()->at.world));
    }
  }

  /// "taps/model.norm" -> "target/model.norm", "mtp/step0/mtp.fc" -> "step0/mtp.fc".
  static std::string name_in_manifest(const std::string& name) {
    if (name.starts_with("taps/")) return "target/" + name.substr(5);
    return name.starts_with("mtp/") ? name.substr(4) : name;
  }

  // The case of a step.

  std::optional<std::string> case_of(const StageStep& stage) {
    const DumpStep& step = stage.of(*stage.ranks.front());
    const std::vector<std::string> names = golden_.case_names();
    if (options_.case_name) {
      if (std::ranges::find(names, *options_.case_name) == names.end())
        throw UsageError(text("--case ", *options_.case_name, ": ", printable(golden_.path()),
                              " has ", joined(names), suggestion(*options_.case_name, names)));
      return options_.case_name;
    }
    const std::string end = text(".step", stage.number);
    std::optional<std::string> found;
    for (const std::string& name : names) {
      if (step.inputs && step.inputs->difference(inputs_of(name)) != nullptr) continue;
      if (step.num_tokens >= 0 && step.num_tokens != golden_.num_tokens(name)) continue;
      const bool is_suggested = name.ends_with(end);
      const bool is_known = step.inputs && step.inputs->input_ids;
      if (is_suggested || (is_known && !found)) found = name;
      if (is_suggested) break;
    }
    return found;
  }

  const GoldenInputs& inputs_of(const std::string& case_name) {
    const auto found = inputs_.find(case_name);
    if (found != inputs_.end()) return found->second;
    return inputs_.emplace(case_name, golden_.inputs(case_name, config_.vocab_size)).first->second;
  }

  void compare_step(std::int64_t number, const std::vector<StageStep>& stages) {
    std::map<std::int64_t, std::string> cases;  // by dp
    for (const StageStep& stage : stages) {
      if (cases.contains(stage.dp)) continue;
      if (const std::optional<std::string> name = case_of(stage)) {
        cases.emplace(stage.dp, *name);
        const DumpStep& step = stage.of(*stage.ranks.front());
        const char* const other = step.inputs ? step.inputs->difference(inputs_of(*name)) : nullptr;
        if (other != nullptr)
          missing(number, stage.dp, text("inputs/", other),
                  text("is not that of case ", printable(*name)));
      } else {
        result_.skipped.push_back(text("step ", number,
                                       dump_.parallel().dp > 1 ? text(" dp=", stage.dp) : "",
                                       ": no case of the golden has its inputs"));
      }
    }
    if (cases.empty()) return;
    ++result_.steps;
    const std::vector<CleanLayout> layouts = layouts_of(cases, stages);
    std::map<std::int64_t, std::vector<ExplainedTap>> by_dp;
    for (const StageStep& stage : stages) {
      const auto name = cases.find(stage.dp);
      if (name == cases.end()) continue;
      for (ExplainedTap& tap : explain(stage, name->second, layouts))
        by_dp[stage.dp].push_back(std::move(tap));
    }
    const CleanLayout* const nearest = nearest_layout(layouts, by_dp, number);
    for (auto& [dp, taps] : by_dp) {
      std::ranges::stable_sort(taps, InProgramOrder(),
                               [](const ExplainedTap& tap) { return tap.diff.tap; });
      judge_layouts(taps, nearest);
      for (ExplainedTap& tap : taps) result_.taps.push_back(std::move(tap.diff));
    }
  }

  /// How the protocols that are right here lay a step out. Without a case for every dp rank, what
  /// the others run is not known.
  std::vector<CleanLayout> layouts_of(const std::map<std::int64_t, std::string>& cases,
                                      const std::vector<StageStep>& stages) {
    const ParallelConfig parallel = dump_.parallel();
    if (std::int64_t(cases.size()) != parallel.dp) return {};
    std::vector<GoldenInputs> inputs;
    for (const auto& [dp, name] : cases) inputs.push_back(inputs_of(name));
    std::int64_t draft_steps = 0;
    for (const StageStep& stage : stages)
      for (const DumpRank* rank : stage.ranks)
        for (const auto& [name, tap] : stage.of(*rank).taps)
          if (name != "draft_ids") draft_steps = std::max(draft_steps, tap_place(name).pass + 1);
    return clean_layouts(config_, parallel, inputs, draft_steps);
  }

  // One tap.

  std::vector<ExplainedTap> explain(const StageStep& stage, const std::string& case_name,
                                    const std::vector<CleanLayout>& layouts) {
    const GoldenStep trusted(golden_, case_name);
    std::set<std::string> names;
    for (const DumpRank* rank : stage.ranks)
      for (const auto& [name, tap] : stage.of(*rank).taps) names.insert(name);
    std::set<std::string> used;
    std::vector<ExplainedTap> taps;
    for (const std::string& name : names) {
      if (options_.wanted && !options_.wanted(name)) continue;
      ExplainedTap tap;
      tap.diff.step = stage.number;
      tap.diff.dp = stage.dp;
      tap.diff.case_name = case_name;
      tap.diff.tap = name;
      for (const DumpRank* rank : stage.ranks)
        if (stage.of(*rank).taps.contains(name)) tap.ranks.push_back(rank);
      if (GoldenFile::holds_ids(name_of(name)) || name == "draft_ids") {
        if (!trusted.has(name)) {
          without_counterpart(name);
          continue;
        }
        used.insert(name);
        tap.layout_tap = name;
        explain_ids(stage, trusted.ids(name), layouts, tap);
      } else {
        const std::optional<Counterpart> counterpart =
            counterpart_of(name, names, trusted, &config_);
        if (!counterpart) {
          // A residual that was added to its hidden part is compared.
          const bool is_added = name.ends_with(".residual") &&
                                names.contains(name.substr(0, name.size() - 9) + ".hidden") &&
                                trusted.has(name.substr(0, name.size() - 9)) &&
                                !name.ends_with("norm.residual");
          if (!is_added) without_counterpart(name);
          continue;
        }
        used.insert(counterpart->tap);
        tap.layout_tap = counterpart->layout_tap;
        if (counterpart->in_words != name_of(name)) tap.diff.against = counterpart->in_words;
        explain_values(stage, *counterpart, layouts, tap);
      }
      taps.push_back(std::move(tap));
    }
    if (stage.pp == 0 || stage.pp + 1 == dump_.parallel().pp)
      for (const std::string& name : trusted.taps())
        if (!used.contains(name) && dump_.parallel().pp == 1) {
          names_not_captured_.insert(name_of(name));
          ++result_.not_captured_taps;
        }
    return taps;
  }

  void without_counterpart(const std::string& name) {
    names_not_compared_.insert(name_of(name));
    ++result_.not_compared_taps;
  }

  /// The ways of holding rows that the row counts allow, and those of the protocols.
  static std::vector<RowLayout> candidates(const TapTensors& tensors, const ExplainedTap& tap,
                                           const std::vector<CleanLayout>& layouts) {
    std::vector<RowLayout> rows = row_layouts(tensors);
    for (const CleanLayout& layout : layouts) {
      RowLayout of_protocol;
      for (const DumpRank* rank : tap.ranks) {
        const TokenView* const view = layout.find(tap.layout_tap, rank->at.world);
        if (view == nullptr) break;
        of_protocol.rows.push_back(view->rows);
        of_protocol.is_partial |= view->sum.is_partial();
      }
      if (of_protocol.rows.size() != tap.ranks.size()) continue;
      if (std::ranges::none_of(rows, [&](const RowLayout& other) {
            return other.is_partial == of_protocol.is_partial &&
                   std::ranges::equal(other.rows, of_protocol.rows, same_rows);
          }))
        rows.push_back(std::move(of_protocol));
    }
    return rows;
  }

  void explain_values(const StageStep& stage, const Counterpart& counterpart,
                      const std::vector<CleanLayout>& layouts, ExplainedTap& tap) {
    TapTensors tensors{.tp_size = dump_.parallel().tp,
                       .dp = std::int16_t(stage.dp),
                       .trusted = &counterpart.values,
                       .segments = counterpart.segments};
    std::string type_name;
    for (const DumpRank* rank : tap.ranks) {
      const DumpStep& step = stage.of(*rank);
      const DumpTap& first = step.taps.at(tap.diff.tap);
      type_name = first.type_name;
      HostTensor values = dump_.values(first);
      for (std::size_t i = 1; i < counterpart.summands.size(); ++i) {
        const auto other = step.taps.find(counterpart.summands[i]);
        if (other == step.taps.end()) continue;  // missing: said already
        const HostTensor more = dump_.values(other->second);
        if (more.shape != values.shape)
          dump_.file(other->second.file)
              .fail(other->second.inside, text("shape is ", to_string(more.shape), ", expected ",
                                               to_string(values.shape), " as ", first.inside));
        for (std::size_t k = 0; k < values.values.size(); ++k) values.values[k] += more.values[k];
      }
      tensors.ranks.push_back({rank->at, std::move(values)});
    }
    const ToleranceRule rule =
        tap_limit(options_.rules, tap.diff.tap, type_name, counterpart.values);
    if (tensors.tokens() == 0) return;  // an idle rank: nothing to compare
    const std::vector<ColumnLayout> column_ways = column_layouts(tensors);
    const std::vector<RowLayout> row_ways = candidates(tensors, tap, layouts);
    std::optional<TapFit> nearest;
    const auto try_fit = [&](const RowLayout& rows, const ColumnLayout& columns, bool sampled) {
      if (rows.is_partial && !columns.is_whole()) return;
      TapFit fit = fit_of(tensors, rows, columns, rule, sampled, options_.threads);
      if (fit.fits()) {
        tap.views.push_back(fit.views);
        tap.pads.push_back(nonzero_pads(tensors, rows));
      }
      if (!nearest || (fit.fits() && !nearest->fits()) ||
          (fit.fits() == nearest->fits() && fit.comparison.count > 0 &&
           !(fit.judgement.bound.ratio() >= nearest->judgement.bound.ratio())))
        nearest = std::move(fit);
    };
    for (const ColumnLayout& columns : column_ways) {
      for (const RowLayout& rows : row_ways) try_fit(rows, columns, false);
      if (tap.views.empty() && may_be_sampled(tap.diff.tap))
        for (const RowLayout& rows : sampled_ways(stage, tensors, columns, tap))
          try_fit(rows, columns, true);
    }
    if (nearest) {
      tap.diff.bound = nearest->judgement.bound;
      tap.diff.values = nearest->comparison.count;
      tap.diff.max_abs = nearest->comparison.max_abs_error;
      tap.diff.relative_l2 = nearest->comparison.relative_l2();
    }
    contradict_annotation(stage, tap);
    if (!tap.views.empty()) return;
    tap.diff.verdict = Verdict::difference;
    if (!nearest) {
      tap.diff.bound = {1, 0, "shape"};
      tap.diff.detail = shapes_in_words(tensors);
    }
  }

  static std::string shapes_in_words(const TapTensors& tensors) {
    std::string shapes;
    for (const RankTensor& rank : tensors.ranks)
      shapes += (shapes.empty() ? "" : " ") + to_string(rank.values.shape);
    return text("shapes ", shapes, " fit no way of holding ", to_string(tensors.trusted->shape),
                " on ", plural(tensors.tp_size, "rank"));
  }

  /// Rows that a sampler asks for: as annotated, or the trusted rows that are nearest.
  std::vector<RowLayout> sampled_ways(const StageStep& stage, const TapTensors& tensors,
                                      const ColumnLayout& columns, const ExplainedTap& tap) {
    std::vector<RowLayout> ways;
    const std::int64_t count = tensors.ranks.front().values.rows();
    if (count == 0 || count >= tensors.tokens()) return ways;
    for (const RankTensor& rank : tensors.ranks)
      if (rank.values.rows() != count) return ways;
    const auto& annotated = stage.of(*tap.ranks.front()).taps.at(tap.diff.tap).view;
    if (annotated && annotated->rows.size() == count) {
      std::vector<std::int64_t> rows;
      for (const RowRun& run : annotated->rows.runs())
        for (std::int32_t i = 0; i < run.count; ++i)
          if (run.kind == RowKind::token) rows.push_back(run.first + i);
      if (std::int64_t(rows.size()) == count) ways.push_back(sampled_layout(tensors, rows));
    }
    ways.push_back(sampled_layout(tensors, nearest_rows(tensors, columns)));
    std::erase_if(ways, [&](const RowLayout& way) {
      return !may_sample(way.rows.front(), inputs_of(tap.diff.case_name), tap.diff.tap);
    });
    return ways;
  }

  /// Rows that a sampler may ask for: ascending, at least one of each request, and of a request
  /// that verifies no drafts the last one alone. Which of a verifying one is drafted from depends
  /// on what is accepted; the target gives the logits of all of its rows.
  static bool may_sample(const Rows& rows, const GoldenInputs& inputs, const std::string& tap) {
    std::set<std::int64_t> requests;
    std::int64_t last = -1;
    for (const RowRun& run : rows.runs())
      for (std::int32_t row = run.first; row < run.first + run.count; ++row) {
        if (run.kind != RowKind::token || row <= last) return false;
        last = row;
        const auto& starts = inputs.query_start_loc;
        const auto end = std::ranges::upper_bound(starts, row);
        if (end == starts.begin() || end == starts.end()) return false;
        const auto request = std::size_t(end - starts.begin()) - 1;
        const bool verifies =
            inputs.context_start_loc[request + 1] > inputs.context_start_loc[request];
        if (!verifies && row + 1 != *end) return false;
        const bool is_first = requests.insert(std::int64_t(request)).second;
        if (!is_first && pass_of(tap) != "target") return false;
      }
    return std::int64_t(requests.size()) == inputs.num_sequences();
  }

  /// For each row of the first rank the trusted row that is nearest.
  static std::vector<std::int64_t> nearest_rows(const TapTensors& tensors,
                                                const ColumnLayout& columns) {
    constexpr std::size_t most_columns = 256;
    const HostTensor& mine = tensors.ranks.front().values;
    const std::vector<std::int64_t>& held = columns.columns.front();
    std::vector<std::int64_t> rows;
    for (std::int64_t r = 0; r < mine.rows(); ++r) {
      double least = 0;
      std::int64_t nearest = -1;
      for (std::int64_t t = 0; t < tensors.tokens(); ++t) {
        double squares = 0;
        for (std::size_t c = 0; c < std::min(held.size(), most_columns); ++c) {
          const double error =
              double(mine.values[std::size_t(r * mine.cols()) + c]) -
              double(tensors.trusted->values[std::size_t(t * tensors.trusted->cols() + held[c])]);
          squares += error * error;
        }
        if (nearest >= 0 && !(squares < least)) continue;
        least = squares;
        nearest = t;
      }
      rows.push_back(nearest);
    }
    return rows;
  }

  /// The pad rows that are not zero, in words; empty: none.
  static std::string nonzero_pads(const TapTensors& tensors, const RowLayout& layout) {
    for (std::size_t i = 0; i < tensors.ranks.size(); ++i) {
      const HostTensor& mine = tensors.ranks[i].values;
      std::int64_t row = 0;
      for (const RowRun& run : layout.rows[i].runs())
        for (std::int32_t k = 0; k < run.count; ++k, ++row) {
          if (run.kind != RowKind::pad) continue;
          const auto begin = mine.values.begin() + row * mine.cols();
          const auto found =
              std::find_if(begin, begin + mine.cols(), [](float value) { return !(value == 0); });
          if (found != begin + mine.cols())
            return text("tp=", tensors.ranks[i].at.tp, " row ", row, " is a pad and holds ",
                        *found);
        }
    }
    return {};
  }

  /// A producer that believes something else than the values say.
  void contradict_annotation(const StageStep& stage, ExplainedTap& tap) const {
    for (std::size_t i = 0; i < tap.ranks.size() && !tap.views.empty(); ++i) {
      const auto& claimed = stage.of(*tap.ranks[i]).taps.at(tap.diff.tap).view;
      if (!claimed) continue;
      const auto fits_claim = [&](const std::vector<TokenView>& views) {
        return same_rows(views[i].rows, claimed->rows) &&
               views[i].sum.is_partial() == claimed->sum.is_partial();
      };
      if (std::ranges::any_of(tap.views, fits_claim)) continue;
      tap.diff.verdict = Verdict::layout;
      tap.diff.called = "annotated otherwise than held";
      tap.diff.detail = text("rank ", tap.ranks[i]->at.world, " is annotated ", to_string(*claimed),
                             " and holds ", to_string(tap.views.front()[i]));
      return;
    }
  }

  void explain_ids(const StageStep& stage, const IntegerTensor& trusted,
                   const std::vector<CleanLayout>& layouts, ExplainedTap& tap) {
    const auto flat = [](const std::vector<std::int64_t>& shape) {
      return std::vector<std::int64_t>{shape[0], shape.size() > 1 ? shape[1] : 1};
    };
    HostTensor trusted_shape{flat(trusted.shape), {}};
    TapTensors tensors{
        .tp_size = dump_.parallel().tp, .dp = std::int16_t(stage.dp), .trusted = &trusted_shape};
    std::vector<IntegerTensor> ids;
    for (const DumpRank* rank : tap.ranks) {
      ids.push_back(dump_.ids(stage.of(*rank).taps.at(tap.diff.tap)));
      tensors.ranks.push_back({rank->at, HostTensor{flat(ids.back().shape), {}}});
    }
    const std::int64_t k = trusted_shape.cols();
    if (tensors.tokens() == 0) return;
    tap.diff.bound = {1, 0, "shape"};
    tap.diff.detail = shapes_in_words(tensors);
    std::int64_t fewest = -1;
    for (const RowLayout& rows : candidates(tensors, tap, layouts)) {
      std::int64_t differing = 0, compared = 0;
      std::string first;
      bool has_shape = !rows.is_partial;
      std::set<std::int64_t> held;
      for (std::size_t i = 0; i < ids.size() && has_shape; ++i) {
        has_shape = rows.rows[i].size() == ids[i].shape[0] && tensors.ranks[i].values.cols() == k;
        std::int64_t row = 0;
        for (const RowRun& run : rows.rows[i].runs())
          for (std::int32_t r = 0; has_shape && r < run.count; ++r, ++row) {
            if (run.kind != RowKind::token || run.first + r >= tensors.tokens()) continue;
            const auto mine = ids[i].values.begin() + row * k;
            const auto theirs = trusted.values.begin() + (run.first + r) * k;
            compared += k;
            held.insert(run.first + r);
            if (std::equal(mine, mine + k, theirs)) continue;
            ++differing;
            if (first.empty())
              first = text("first at token ", run.first + r, " of tp=", tap.ranks[i]->at.tp,
                           ": ids ", to_string(std::vector<std::int64_t>(mine, mine + k)),
                           ", expected ", to_string(std::vector<std::int64_t>(theirs, theirs + k)));
          }
      }
      if (!has_shape || std::int64_t(held.size()) != tensors.tokens()) continue;
      if (differing == 0) {
        std::vector<TokenView> views;
        for (const Rows& of_rank : rows.rows) views.push_back({of_rank, {}, {}});
        tap.views.push_back(std::move(views));
        tap.pads.emplace_back();
      }
      if (fewest >= 0 && differing >= fewest) continue;
      fewest = differing;
      tap.diff.bound = {double(differing), 0, "rows"};
      tap.diff.values = compared;
      tap.diff.detail = first;
    }
    if (tap.views.empty()) {
      tap.diff.verdict = Verdict::difference;
      tap.diff.called = fewest < 0 ? "" : "other ids";
    } else {
      tap.diff.detail.clear();
    }
  }

  // All taps of a step.

  /// The protocol's views of a tap on these ranks; empty where the program does not name it.
  static std::vector<TokenView> required_views(const CleanLayout& layout, const ExplainedTap& tap) {
    std::vector<TokenView> views;
    for (const DumpRank* rank : tap.ranks) {
      const TokenView* const view = layout.find(tap.layout_tap, rank->at.world);
      if (view == nullptr) return {};
      views.push_back(*view);
    }
    return views;
  }

  const CleanLayout* nearest_layout(const std::vector<CleanLayout>& layouts,
                                    const std::map<std::int64_t, std::vector<ExplainedTap>>& taps,
                                    std::int64_t number) {
    const CleanLayout* nearest = nullptr;
    std::int64_t most = -1, of = 0;
    for (const CleanLayout& layout : layouts) {
      std::int64_t agree = 0, named = 0;
      for (const auto& [dp, of_dp] : taps)
        for (const ExplainedTap& tap : of_dp) {
          const std::vector<TokenView> required = required_views(layout, tap);
          if (required.empty()) continue;
          ++named;
          agree += std::ranges::any_of(tap.views, [&](const std::vector<TokenView>& views) {
            return same_layout(tap.diff.tap, views, required);
          });
        }
      if (agree <= most) continue;
      most = agree;
      of = named;
      nearest = &layout;
    }
    if (nearest != nullptr)
      result_.protocols.push_back(text("step ", number, ": ", nearest->protocol, " (", most, " of ",
                                       plural(of, "tap"), ")"));
    return nearest;
  }

  /// Chooses among the ways of holding each tap, and finds where the layout leaves the protocol's.
  void judge_layouts(std::vector<ExplainedTap>& taps, const CleanLayout* nearest) {
    std::vector<bool> deviates(taps.size(), false);
    for (std::size_t i = 0; i < taps.size(); ++i) {
      ExplainedTap& tap = taps[i];
      const std::vector<TokenView> required =
          nearest == nullptr ? std::vector<TokenView>() : required_views(*nearest, tap);
      std::size_t chosen = 0;
      for (std::size_t way = 0; way < tap.views.size(); ++way)
        if (same_layout(tap.diff.tap, tap.views[way], required)) {
          chosen = way;
          break;
        }
      if (tap.views.empty()) {
        tap.diff.ranks = holdings(tap, {}, required);
        continue;
      }
      const std::vector<TokenView>& held = tap.views[chosen];
      tap.diff.kind = kind_of(held);
      tap.diff.ranks = holdings(tap, held, required);
      if (required.empty()) continue;
      deviates[i] = !same_layout(tap.diff.tap, held, required);
      if (!deviates[i] && !tap.pads[chosen].empty() && has_zero_pads(required) &&
          !has_free_pads(tap.diff.tap) && !tap.diff.failed()) {
        tap.diff.verdict = Verdict::difference;
        tap.diff.called = "pads poisoned";
        tap.diff.detail = tap.pads[chosen] + ", expected zeros";
      }
    }
    blame_layout(taps, deviates, nearest);
  }

  static bool has_zero_pads(const std::vector<TokenView>& views) {
    bool has_pads = false;
    for (const TokenView& view : views)
      for (const RowRun& run : view.rows.runs()) {
        if (run.kind != RowKind::pad) continue;
        if (run.content != PadContent::zero) return false;
        has_pads = true;
      }
    return has_pads;
  }

  /// A layout that is not the protocol's is a fault where wrong values follow, or where nothing
  /// follows: the pass ends on it.
  void blame_layout(std::vector<ExplainedTap>& taps, const std::vector<bool>& deviates,
                    const CleanLayout* nearest) {
    std::size_t first_deviation = taps.size(), first_failure = taps.size();
    for (std::size_t i = taps.size(); i-- > 0;) {
      if (taps[i].diff.failed()) first_failure = i;
      if (deviates[i]) first_deviation = i;
    }
    std::size_t blamed = taps.size();
    if (first_deviation < first_failure && first_failure < taps.size()) blamed = first_deviation;
    if (first_failure == taps.size())
      for (std::size_t i = taps.size(); i-- > 0 && blamed == taps.size();) {
        const bool ends_pass = i + 1 == taps.size() || tap_place(taps[i + 1].diff.tap).pass !=
                                                           tap_place(taps[i].diff.tap).pass;
        if (!ends_pass || !deviates[i] || !is_exit(taps[i].diff.tap)) continue;
        blamed = i;
        while (blamed > 0 && deviates[blamed - 1] &&
               tap_place(taps[blamed - 1].diff.tap).pass == tap_place(taps[i].diff.tap).pass)
          --blamed;
      }
    if (blamed < taps.size()) {
      ExplainedTap& tap = taps[blamed];
      tap.diff.verdict = Verdict::layout;
      const std::vector<TokenView> required = required_views(*nearest, tap);
      tap.diff.called = layout_in_words(tap.views.front(), required);
      tap.diff.detail = text(
          "protocol ", nearest->protocol, " has another layout here",
          first_failure < taps.size() ? ", and wrong values follow" : ", and the pass ends on it");
      return;
    }
    const auto count = std::ranges::count(deviates, true);
    if (count > 0)
      result_.notes.push_back(
          text(plural(count, "tap"), " held otherwise than in protocol ", nearest->protocol,
               ", with right values and no consequence; first ", taps[first_deviation].diff.tap));
  }

  static std::vector<RankHolding> holdings(const ExplainedTap& tap,
                                           const std::vector<TokenView>& held,
                                           const std::vector<TokenView>& required) {
    std::vector<RankHolding> ranks;
    for (std::size_t i = 0; i < tap.ranks.size(); ++i)
      ranks.push_back({tap.ranks[i]->at, i < held.size() ? view_in_words(held[i]) : "",
                       i < required.size() ? view_in_words(required[i]) : ""});
    return ranks;
  }

  const GoldenFile& golden_;
  const DumpFile& dump_;
  const DumpDiffOptions& options_;
  const ModelConfig config_;
  std::map<std::string, GoldenInputs> inputs_;
  std::set<std::string, InProgramOrder> names_not_compared_, names_not_captured_;
  DumpDiffResult result_;
};

}  // namespace

const char* to_string(TapDiff::Verdict verdict) {
  switch (verdict) {
    case Verdict::match:
      return "match";
    case Verdict::difference:
    case Verdict::layout:
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

DumpDiffResult diff_dump(const GoldenFile& golden, const DumpFile& dump,
                         const DumpDiffOptions& options) {
  return DumpDiff(golden, dump, options).run();
}

}  // namespace tokenview
