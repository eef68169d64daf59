// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "reference/program/error.hpp"
#include "verify/column_factors.hpp"
#include "verify/dump_diff_parts.hpp"
#include "verify/expert_faults.hpp"
#include "verify/held_words.hpp"
#include "verify/infer.hpp"
#include "verify/row_faults.hpp"
#include "verify/summand_faults.hpp"
#include "verify/term_faults.hpp"
#include "verify/token_rows.hpp"
#include "verify/tokens_of_experts.hpp"

namespace tokenview {
namespace {

/// What may differ between equal rows: far above rounding, far below another row.
constexpr double exact = 1e-4, of_narrow_types = 2e-2;

double tolerance_of(const std::string& type_name, DType trusted) {
  return type_name == "float32" && trusted == DType::float32 ? exact : of_narrow_types;
}

/// The draft passes of a step besides that of `tap`; none where it is one of the target.
std::vector<std::int64_t> other_draft_passes(const std::string& tap, const TrustedStep& trusted) {
  const std::int64_t mine = tap_place(tap).pass;
  std::set<std::int64_t> passes;
  if (mine >= 0)
    for (const std::string& name : trusted.taps())
      if (const std::int64_t pass = tap_place(name).pass;
          pass >= 0 && pass != mine && !pass_of(name).empty())
        passes.insert(pass);
  return {passes.begin(), passes.end()};
}

/// Everything that the rows of a tap are looked for in. Tensors stay where they are.
struct Search {
  std::deque<HostTensor> tensors;
  std::vector<RankRows> ranks;
  std::vector<TrustedRows> trusted;
  std::vector<std::size_t> mine;  // of `ranks`: those of the tap's own dp rank
};

/// The trusted rows of a tap, as those of step `step`.
void add_trusted(const StageStep& stage, const std::string& tap, std::int32_t step,
                 const ModelConfig* config, std::int64_t width, Search& search) {
  std::optional<Counterpart> found = counterpart_of(tap, stage.names(), *stage.trusted, config);
  if (!found || found->values.cols() != width) return;
  const HostTensor& kept = search.tensors.emplace_back(std::move(found->values));
  search.trusted.push_back({std::int16_t(stage.dp), step, kept.values, kept.rows(), kept.cols()});
}

/// The columns that a rank's block is made of, where segments are cut each by itself.
std::function<std::vector<std::int64_t>(const ColumnBlock&)> columns_in(
    const std::vector<std::int64_t>& segments) {
  if (segments.size() < 2) return {};
  return [segments](const ColumnBlock& block) {
    std::vector<std::int64_t> columns;
    std::int64_t begin = 0;
    for (const std::int64_t segment : segments) {
      if (segment % block.of != 0) return std::vector<std::int64_t>();
      const std::int64_t share = segment / block.of;
      for (std::int64_t c = block.begin * share; c < block.end * share; ++c)
        columns.push_back(begin + c);
      begin += segment;
    }
    return columns;
  };
}

/// The same for columns that were found by values.
std::function<std::vector<std::int64_t>(const ColumnBlock&)> columns_of_ranks(
    const ColumnLayout& packed, const std::vector<const DumpRank*>& ranks) {
  return [&packed, &ranks](const ColumnBlock& block) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (packed.block_of(ranks[i]->at.tp, packed.blocks.front()) == block)
        return packed.columns[i];
    return std::vector<std::int64_t>();
  };
}

/// Views of a symbolic run, which has one step, as those of engine step `step`.
std::vector<TokenView> at_step(const std::vector<TokenView>& views, std::int32_t step) {
  std::vector<TokenView> result = views;
  for (TokenView& view : result) {
    Rows rows;
    for (RowRun run : view.rows.runs()) {
      if (run.kind == RowKind::token) run.step = step;
      rows.append(run);
    }
    view.rows = rows;
  }
  return result;
}

/// "first at tp=1 row 1 column 7: inf" of values that are no numbers; empty: all are.
std::string first_not_finite(const Search& search) {
  for (const std::size_t i : search.mine) {
    const RankRows& rank = search.ranks[i];
    const auto found =
        std::ranges::find_if_not(rank.values, [](float x) { return std::isfinite(x); });
    if (found == rank.values.end()) continue;
    const auto place = std::int64_t(found - rank.values.begin());
    return text("first at tp=", rank.at->tp, " row ", place / rank.columns, " column ",
                place % rank.columns, ": ", *found);
  }
  return {};
}

void add_line(std::string& lines, const std::string& line) {
  if (!line.empty()) lines += (lines.empty() ? "" : "\n") + line;
}

void say_held(const std::vector<InferredRank>& ranks, const StageStep& stage, ExplainedTap& tap) {
  for (std::size_t i = 0; i < std::min(ranks.size(), tap.diff.ranks.size()); ++i)
    tap.diff.ranks[i].held =
        rows_in_words(ranks[i], std::int16_t(stage.dp), std::int32_t(stage.number));
}

/// What the rows of this dp rank's ranks are, in words into `tap` too. `judged`: as name_fault()
/// has it, or the stage itself.
std::vector<InferredRank> infer_rows(const DumpFile& dump, const TrustedSide& side,
                                     const StageStep& stage, const StageStep& judged,
                                     const OtherRows& others, const Counterpart& counterpart,
                                     ExplainedTap& tap) {
  Search search;
  const std::int64_t width = counterpart.values.cols();
  for (const StageStep* other : others.ranks) {
    add_trusted(other == &stage ? judged : *other, tap.diff.tap, std::int32_t(stage.number),
                side.config(), width, search);
    TapTensors tensors = TapExplainer::tensors_of(dump, *other, counterpart);
    if (const auto choice = TapExplainer::choice_of(dump, *other, tap.diff.tap);
        choice && other == &stage && tap.nearest.size() == tensors.ranks.size())
      tensors = choice->in_trusted_order(std::move(tensors), tap.nearest);
    for (RankTensor& rank : tensors.ranks) {
      const HostTensor& kept = search.tensors.emplace_back(std::move(rank.values));
      if (other == &stage) search.mine.push_back(search.ranks.size());
      search.ranks.push_back({rank.at, kept.values, kept.rows(), kept.cols()});
    }
  }
  for (const StageStep* other : others.other_steps)
    add_trusted(*other, tap.diff.tap, std::int32_t(other->number), side.config(), width, search);
  for (const std::int64_t pass : other_draft_passes(tap.diff.tap, *stage.trusted))
    add_trusted(stage, text("step", pass, '/', name_of(tap.diff.tap)), step_of_pass(pass),
                side.config(), width, search);

  InferOptions options;
  options.tolerance =
      tolerance_of(stage.tap(*tap.ranks.front(), tap.diff.tap).type_name, side.dtype());
  if (options.tolerance > exact) options.nearest = clearly;
  options.step = std::int32_t(stage.number);
  options.columns_of = columns_in(counterpart.segments);
  if (tap.packed) options.columns_of = columns_of_ranks(*tap.packed, tap.ranks);
  const InferredTap found = infer_placement(search.ranks, search.trusted, options);
  std::vector<InferredRank> mine;
  for (const std::size_t i : search.mine) mine.push_back(found.ranks[i]);
  say_held(mine, stage, tap);
  if (&judged == &stage) add_line(tap.diff.detail, first_not_finite(search));
  return mine;
}

/// What each rank of a stage has of another tap.
std::vector<HostTensor> own_tensors(const DumpFile& dump, const StageStep& stage,
                                    const std::string& name) {
  std::vector<HostTensor> found;
  for (RankTensor& rank : TapExplainer::tensors_of(dump, stage, {name, "", "", {name}}).ranks)
    found.push_back(std::move(rank.values));
  return found;
}

/// What each rank of the stage would have of the tap's summands summed over its dp group, by token:
/// all rows, or scattered over that group. `rows` are those that the ranks hold. Empty: they do not
/// fit.
std::vector<HostTensor> sums_over_dp(const DumpFile& dump, const OtherRows& others,
                                     const StageStep& stage, const std::string& name,
                                     const std::vector<Rows>& rows, bool is_scattered) {
  if (dump.parallel().dp < 2 || std::ssize(others.ranks) != dump.parallel().dp) return {};
  std::vector<std::vector<HostTensor>> by_dp;
  for (const StageStep* other : others.ranks) by_dp.push_back(own_tensors(dump, *other, name));
  std::vector<HostTensor> sums = own_tensors(dump, stage, name);
  if (sums.size() != rows.size()) return {};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (std::ranges::any_of(by_dp, [&](const auto& ranks) { return ranks.size() <= r; })) return {};
    HostTensor& sum = sums[r];
    std::ranges::fill(sum.values, 0.0F);
    const std::int64_t columns = sum.cols();
    std::int64_t row = is_scattered ? stage.dp * rows[r].size() : 0;  // of the sum
    for (const RowRun& run : rows[r].runs())
      for (std::int64_t token = run.first; token < run.first + run.count; ++token, ++row) {
        const std::int64_t from = is_scattered ? row : token;
        if (run.kind != RowKind::token || token >= sum.rows()) continue;
        for (const std::vector<HostTensor>& ranks : by_dp) {
          if (ranks[r].cols() != columns) return {};
          for (std::int64_t c = 0; from < ranks[r].rows() && c < columns; ++c)
            sum.values[std::size_t(token * columns + c)] +=
                ranks[r].values[std::size_t(from * columns + c)];
        }
      }
  }
  return sums;
}

/// What is wrong with a sum of other taps, or with one of its terms.
std::string fault_of_terms(const DumpFile& dump, const TrustedSide& side, const StageStep& stage,
                           const OtherRows& others, const Counterpart& counterpart,
                           TapTensors tensors, ExplainedTap& tap) {
  const std::string& trusted_tap = counterpart.tap;  // what an engine's name stands for
  std::optional<HostTensor> sum;
  if (tolerance_of(stage.tap(*tap.ranks.front(), tap.diff.tap).type_name, side.dtype()) > exact) {
    tensors.looseness = 1 / clearly;
    // Of what the dump itself has: with no errors but its own.
    sum = sum_of_terms(trusted_tap, *stage.trusted);
    if (sum && sum->shape == tensors.trusted->shape) tensors.trusted = &*sum;
  }
  const bool is_norm = trusted_tap.ends_with("norm"), is_known = side.config() != nullptr;
  const double eps = is_norm && is_known ? side.config()->rms_norm_eps : 0;
  const std::optional<HostTensor> scale = !is_norm ? std::nullopt
                                          : is_known
                                              ? side.weight(name_of(trusted_tap) + ".weight")
                                              : norm_weight(trusted_tap, *stage.trusted, eps);
  std::optional<MiscountedTerm> term =
      miscounted_term(trusted_tap, tensors, tap.nearest, *stage.trusted);
  if (!term && scale)
    term = miscounted_term_of_norm(trusted_tap, tensors, tap.nearest, *stage.trusted, *scale, eps);
  if (term) {
    tap.diff.detail = text("so much is the value with ", term->times, " times ", term->term);
    return term->times == 0 ? term->term + " left out"
                            : text(term->term, ' ', factor_in_words(term->times, tensors.tp_size));
  }
  const auto own = [&](const std::string& name) { return own_tensors(dump, stage, name); };
  const auto replaced = [&](const OwnTensors& added) {
    return replaced_term(trusted_tap, tensors, tap.nearest, *stage.trusted,
                         scale ? &*scale : nullptr, eps, own, added);
  };
  if (const auto unreduced = replaced(own)) {
    tap.diff.detail = text("each rank has added its own summand of ", *unreduced);
    return text("partial sum where the complete value is required: ", *unreduced,
                " was never reduced");
  }
  for (const bool is_scattered : {true, false})
    if (const auto summed = replaced([&](const std::string& name) {
          return sums_over_dp(dump, others, stage, name, tap.nearest, is_scattered);
        })) {
      tap.diff.detail =
          text("each rank has added what the ranks of its dp group have of ", *summed);
      return text("wrong group: ", *summed, " summed over dp where tp is due");
    }
  if (const auto moved = moved_term(trusted_tap, tensors, tap.nearest, *stage.trusted,
                                    scale ? &*scale : nullptr, eps)) {
    tap.diff.detail = "of " + moved->term;
    for (std::size_t i = 0; i < moved->held.size(); ++i)
      tap.diff.detail += text(i == 0 ? " tp=" : ", tp=", tensors.ranks[i].at.tp, " has added ",
                              to_map(as_numbered_by(tensors.dp, moved->held[i].rows)));
    return text(moved->term, ": ", layout_in_words(moved->held, moved->due));
  }
  if (const auto factors = factors_by_column(tensors, tap.nearest))
    return scale ? norm_weight_in_words(*factors, *scale)
                 : "every row times the same factors by column";
  const std::string weight = shared_expert_weight(tap.diff.tap);
  const std::optional<HostTensor> down = weight.empty() ? std::nullopt : side.weight(weight);
  const auto differ = [](const Rows& a, const Rows& b) { return !same_rows(a, b); };
  const bool are_of_other_rows =
      std::ranges::adjacent_find(tap.nearest, differ) != tap.nearest.end();
  if (down && are_of_other_rows &&
      is_summand_of_shared_expert(tap.diff.tap, tensors, tap.nearest, *stage.trusted, *down)) {
    tap.diff.detail = text(
        "each rank has what its block of the intermediate columns gives for its "
        "own rows: the partners of the sum hold other rows");
    return text("1/", tensors.tp_size, " of the value: one summand of ", tensors.tp_size,
                ", never added");
  }
  return {};
}

/// What is wrong with one rank's summands while the others' are right; says so in `found`.
std::string fault_of_summands(const TapTensors& tensors, const StageStep& stage,
                              const std::vector<TokenView>& required,
                              std::vector<InferredRank>& found, ExplainedTap& tap) {
  const auto is_partial = [](const auto& held) { return held.sum.is_partial(); };
  if (!std::ranges::any_of(required, is_partial) &&
      !std::ranges::any_of(found, is_partial, &InferredRank::view))
    return {};
  const std::optional<SummandFault> fault = summand_fault(tensors, tap.nearest);
  if (!fault) return {};
  for (std::size_t r = 0; r < found.size(); ++r)
    for (std::size_t i = 0; i < found[r].rows.size(); ++i) {
      const std::int64_t token =
          r == fault->rank ? fault->tokens[i] : tap.nearest[r].at(std::int64_t(i)).first;
      RowExplanation& row = found[r].rows[i].best;
      const bool is_unknown =
          row.reading == RowReading::unknown ||
          (row.reading == RowReading::pad && row.row.content == PadContent::other);
      if (is_unknown && token >= 0)
        row = {.reading = RowReading::partial,
               .row = {.first = std::int32_t(token),
                       .count = 1,
                       .dp = std::int16_t(stage.dp),
                       .step = std::int32_t(stage.number)},
               .factor = r == fault->rank ? fault->times : 1};
    }
  say_held(found, stage, tap);
  const std::string who = text("tp=", tensors.ranks[fault->rank].at.tp);
  return fault->times == 1
             ? text("summands of other rows on ", who, " alone")
             : text("the summand of ", who, " alone ", factor_in_words(fault->times, 1));
}

/// What is wrong with the routed experts' part of a sparse block.
std::string fault_of_experts(const ParallelConfig& parallel, const TrustedSide& side,
                             const StageStep& stage, const Counterpart& counterpart,
                             const TapTensors& tensors, ExplainedTap& tap) {
  const std::int64_t ranks = parallel.enable_expert_parallel ? parallel.dp * parallel.tp : 1;
  if (side.config() == nullptr)
    return wrong_experts_in_words(counterpart.tap, tensors, tap.nearest, *stage.trusted, ranks);
  const std::optional<std::string> block = sparse_block_of(counterpart.tap);
  if (!block || !stage.trusted->has(*block + ".gate.ids")) return {};
  const auto weight = [&](const char* name) {
    return side.weight(text(name_of(*block), ".experts.", name));
  };
  const std::optional<HostTensor> gate_up = weight("gate_up_proj"), down = weight("down_proj");
  if (!gate_up || !down) return {};
  const std::optional<ExpertFault> fault =
      miscounted_experts(*block, tensors, tap.nearest, *stage.trusted, {*gate_up, *down, ranks});
  if (!fault) return {};
  tap.diff.detail = fault->example;
  return fault->called;
}

/// As choice_order.hpp has it; the rows that are held in words into `tap` too.
bool has_weights_of_other_experts(const DumpFile& dump, const StageStep& stage,
                                  const Counterpart& counterpart, ExplainedTap& tap) {
  const std::optional<WeighedChoice> choice = TapExplainer::choice_of(dump, stage, tap.diff.tap);
  if (!choice || tap.nearest.size() != choice->found.size()) return false;
  TapTensors weights = TapExplainer::tensors_of(dump, stage, counterpart);
  weights.trusted = &counterpart.values;
  if (!are_weights_of_other_experts(choice->in_trusted_order(std::move(weights), tap.nearest),
                                    tap.nearest))
    return false;
  for (std::size_t i = 0; i < tap.diff.ranks.size(); ++i)
    tap.diff.ranks[i].held = to_map(as_numbered_by(std::int16_t(stage.dp), tap.nearest[i]));
  return true;
}

}  // namespace

void name_fault(const DumpFile& dump, const TrustedSide& side, const StageStep& stage,
                const StageStep& judged, const OtherRows& others,
                const std::vector<TokenView>& required, ExplainedTap& tap) {
  const std::optional<Counterpart> counterpart =
      counterpart_of(tap.diff.tap, stage.names(), *stage.trusted, side.config());
  if (!counterpart) return;
  if (has_weights_of_other_experts(dump, stage, *counterpart, tap)) {
    tap.diff.called = "weights of other experts: the ids, or the weights, are in another order";
    return;
  }
  const auto step = std::int32_t(stage.number);
  const auto name_rows = [&](const StageStep& trusted) {
    std::vector<InferredRank> rows =
        infer_rows(dump, side, stage, trusted, others, *counterpart, tap);
    tap.diff.called = fault_in_words(rows, at_step(required, step), std::int16_t(stage.dp), step);
    return rows;
  };
  const auto is_named = [&] {
    return !tap.diff.called.empty() && tap.diff.called != part_of_the_value;
  };
  std::vector<InferredRank> found = name_rows(stage);
  if (!is_named() && judged.trusted != stage.trusted) {
    // Rows of tokens with other experts, or behind a hidden tie, are nearer to what is judged.
    const std::string called = tap.diff.called;
    name_rows(judged);
    if (!is_named()) {
      tap.diff.called = called;
      say_held(found, stage, tap);
    }
  }
  const bool is_factor = tap.diff.called.ends_with(" of the value");  // of what is not zero
  if (!tap.zeros.empty() && (tap.diff.called.empty() || is_factor))
    tap.diff.called = "zeros where tokens are due";
  if (is_named()) return;
  std::string otherwise;
  if (tap.nearest.size() == tap.ranks.size()) {
    TapTensors tensors = TapExplainer::tensors_of(dump, stage, *counterpart);
    tensors.trusted = &counterpart->values;
    otherwise = fault_of_summands(tensors, stage, required, found, tap);
    if (otherwise.empty())
      otherwise = fault_of_terms(dump, side, judged, others, *counterpart, tensors, tap);
    if (otherwise.empty())
      otherwise = fault_of_experts(dump.parallel(), side, stage, *counterpart, tensors, tap);
  }
  if (otherwise.empty() && tap.diff.called.empty()) otherwise = unknown_ranks_in_words(found);
  if (otherwise.empty() && tap.diff.called.empty())
    otherwise = row_counts_in_words(found, required);
  if (!otherwise.empty()) tap.diff.called = otherwise;
}

}  // namespace tokenview
