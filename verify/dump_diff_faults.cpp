// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>

#include "reference/program/error.hpp"
#include "verify/dump_diff_parts.hpp"
#include "verify/expert_faults.hpp"
#include "verify/infer.hpp"
#include "verify/row_faults.hpp"
#include "verify/term_faults.hpp"
#include "verify/tokens_of_experts.hpp"

namespace tokenview {
namespace {

/// What may differ between equal rows: far above rounding, far below another row.
double tolerance_of(const std::string& type_name, DType trusted) {
  return type_name == "float32" && trusted == DType::float32 ? 1e-4 : 2e-2;
}

/// Everything that the rows of a tap are looked for in. Tensors stay where they are.
struct Search {
  std::deque<HostTensor> tensors;
  std::vector<RankRows> ranks;
  std::vector<TrustedRows> trusted;
  std::vector<std::size_t> mine;  // of `ranks`: those of the tap's own dp rank
};

void add_trusted(const StageStep& stage, const std::string& tap, const ModelConfig* config,
                 std::int64_t width, Search& search) {
  std::optional<Counterpart> found = counterpart_of(tap, stage.names(), *stage.trusted, config);
  if (!found || found->values.cols() != width) return;
  const HostTensor& kept = search.tensors.emplace_back(std::move(found->values));
  search.trusted.push_back(
      {std::int16_t(stage.dp), std::int32_t(stage.number), kept.values, kept.rows(), kept.cols()});
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

/// What the rows of this dp rank's ranks are, in words into `tap` too.
std::vector<InferredRank> infer_rows(const DumpFile& dump, const TrustedSide& side,
                                     const StageStep& stage, const OtherRows& others,
                                     const Counterpart& counterpart, ExplainedTap& tap) {
  Search search;
  for (const StageStep* other : others.ranks) {
    add_trusted(*other, tap.diff.tap, side.config(), counterpart.values.cols(), search);
    for (RankTensor& rank : TapExplainer::tensors_of(dump, *other, counterpart).ranks) {
      const HostTensor& kept = search.tensors.emplace_back(std::move(rank.values));
      if (other == &stage) search.mine.push_back(search.ranks.size());
      search.ranks.push_back({rank.at, kept.values, kept.rows(), kept.cols()});
    }
  }
  for (const StageStep* other : others.other_steps)
    add_trusted(*other, tap.diff.tap, side.config(), counterpart.values.cols(), search);

  InferOptions options;
  options.tolerance =
      tolerance_of(stage.tap(*tap.ranks.front(), tap.diff.tap).type_name, side.dtype());
  options.step = std::int32_t(stage.number);
  options.columns_of = columns_in(counterpart.segments);
  if (tap.packed) options.columns_of = columns_of_ranks(*tap.packed, tap.ranks);
  const InferredTap found = infer_placement(search.ranks, search.trusted, options);
  std::vector<InferredRank> mine;
  for (const std::size_t i : search.mine) mine.push_back(found.ranks[i]);
  for (std::size_t i = 0; i < std::min(mine.size(), tap.diff.ranks.size()); ++i)
    tap.diff.ranks[i].held = rows_in_words(mine[i], std::int16_t(stage.dp), options.step);
  return mine;
}

/// What is wrong with a sum of other taps, or with one of its terms.
std::string fault_of_terms(const DumpFile& dump, const TrustedSide& side, const StageStep& stage,
                           const Counterpart& counterpart, const TapTensors& tensors,
                           ExplainedTap& tap) {
  const std::string& trusted_tap = counterpart.tap;  // what an engine's name stands for
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
  const auto own = [&](const std::string& name) {
    std::vector<HostTensor> found;
    for (RankTensor& rank : TapExplainer::tensors_of(dump, stage, {name, "", "", {name}}).ranks)
      found.push_back(std::move(rank.values));
    return found;
  };
  if (const auto unreduced = unreduced_term(trusted_tap, tensors, tap.nearest, *stage.trusted,
                                            scale ? &*scale : nullptr, eps, own)) {
    tap.diff.detail = text("each rank has added its own summand of ", *unreduced);
    return text("partial sum where the complete value is required: ", *unreduced,
                " was never reduced");
  }
  const std::string weight = shared_expert_weight(tap.diff.tap);
  const std::optional<HostTensor> down = weight.empty() ? std::nullopt : side.weight(weight);
  if (down &&
      is_summand_of_shared_expert(tap.diff.tap, tensors, tap.nearest, *stage.trusted, *down)) {
    tap.diff.detail = text(
        "each rank has what its block of the intermediate columns gives for its "
        "own rows: the partners of the sum hold other rows");
    return text("1/", tensors.tp_size, " of the value: one summand of ", tensors.tp_size,
                ", never added");
  }
  return {};
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

}  // namespace

void name_fault(const DumpFile& dump, const TrustedSide& side, const StageStep& stage,
                const OtherRows& others, const std::vector<TokenView>& required,
                ExplainedTap& tap) {
  const std::optional<Counterpart> counterpart =
      counterpart_of(tap.diff.tap, stage.names(), *stage.trusted, side.config());
  if (!counterpart) return;
  const std::vector<InferredRank> found = infer_rows(dump, side, stage, others, *counterpart, tap);
  const auto step = std::int32_t(stage.number);
  tap.diff.called = fault_in_words(found, at_step(required, step), std::int16_t(stage.dp), step);
  const bool is_factor = tap.diff.called.ends_with(" of the value");  // of what is not zero
  if (!tap.zeros.empty() && (tap.diff.called.empty() || is_factor))
    tap.diff.called = "zeros where tokens are due";
  if (!tap.diff.called.empty() && tap.diff.called != part_of_the_value) return;
  std::string otherwise;
  if (tap.nearest.size() == tap.ranks.size()) {
    TapTensors tensors = TapExplainer::tensors_of(dump, stage, *counterpart);
    tensors.trusted = &counterpart->values;
    otherwise = fault_of_terms(dump, side, stage, *counterpart, tensors, tap);
    if (otherwise.empty())
      otherwise = fault_of_experts(dump.parallel(), side, stage, *counterpart, tensors, tap);
  }
  if (otherwise.empty() && tap.diff.called.empty()) otherwise = unknown_ranks_in_words(found);
  if (!otherwise.empty()) tap.diff.called = otherwise;
}

}  // namespace tokenview
