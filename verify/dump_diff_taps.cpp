// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "reference/program/error.hpp"
#include "verify/dump_diff_parts.hpp"
#include "verify/held_words.hpp"
#include "verify/host_matrix.hpp"
#include "verify/packed_columns.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

using Verdict = TapDiff::Verdict;

constexpr double logit_error = 2e-5;  // of a gate's logit, see float32_bound()

/// What a tap of a dump is held to; the one place where that is decided. A tap of one column, a
/// gate's logit, is one sum that may cancel to any small number: where nobody has said otherwise,
/// its error is allowed to be what float32_bound() allows there.
ToleranceRule tap_limit(const ToleranceRules& rules, const std::string& tap,
                        const std::string& value_type, const HostTensor& trusted) {
  const StorageType mine = storage_type(value_type).value_or(StorageType::float32);
  const StorageType theirs = storage_type(trusted.dtype);
  ToleranceRule rule = rules.rule_for(tap, mine, theirs);
  const bool is_default = rule.of_max && rule.l2 && !rule.atol &&
                          *rule.of_max == *default_limits(StorageType::float32).of_max;
  if (trusted.cols() == 1 && is_default && narrower(mine, theirs) == StorageType::float32) {
    rule = {};
    rule.atol = logit_error;
  }
  return rule;
}

std::string shapes_in_words(const TapTensors& tensors) {
  std::string shapes;
  for (const RankTensor& rank : tensors.ranks)
    shapes += (shapes.empty() ? "" : " ") + to_string(rank.values.shape);
  return text("shapes ", shapes, " fit no way of holding ", to_string(tensors.trusted->shape),
              " on ", plural(tensors.tp_size, "rank"));
}

/// Rows that a sampler may ask for: ascending, at least one of each request, and of a request
/// that verifies no drafts the last one alone. Which of a verifying one is drafted from depends
/// on what is accepted; the target gives the logits of all of its rows.
bool may_sample(const Rows& rows, const GoldenInputs& inputs, const std::string& tap) {
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
std::vector<std::int64_t> nearest_rows(const TapTensors& tensors, const ColumnLayout& columns) {
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

/// Tokens that a rank holds as zeros where the trusted values are none: pads, or rows that were
/// never written.
struct ZeroTokens {
  bool any = false;
  /// The first that no rounding makes: of several columns, and as long as the row's expected error
  /// or longer. Empty: none.
  std::string impossible;
};

ZeroTokens zero_tokens(const PlacedTap<float>& tap, const std::optional<TapBound>& bound) {
  constexpr std::int64_t several = 4;  // fewer may cancel to zero
  ZeroTokens zeros;
  for (const PlacedValues<float>& values : tap.values) {
    if (values.is_sum || values.columns() == 0) continue;  // a summand of nothing is right
    const auto rows = std::int64_t(values.trusted_rows.size());
    const Eigen::Map<const Matrix<float>> found(values.found.data(), rows, values.columns()),
        trusted(values.trusted.data(), rows, values.columns());
    for (std::int64_t r = 0; r < rows; ++r) {
      if (!found.row(r).isZero(0) || trusted.row(r).isZero(0)) continue;
      zeros.any = true;
      const std::int64_t token = values.trusted_rows[std::size_t(r)];
      if (zeros.impossible.empty() && bound && values.columns() >= several &&
          trusted.row(r).cast<double>().norm() > bound->expected[std::size_t(token)])
        zeros.impossible =
            text("token ", token, " is ", values.columns(), " zeros on tp=", values.at.tp);
    }
  }
  return zeros;
}

/// The pad rows that are not zero, in words; empty: none.
std::string nonzero_pads(const TapTensors& tensors, const RowLayout& layout) {
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
          return text("tp=", tensors.ranks[i].at.tp, " row ", row, " is a pad and holds ", *found);
      }
  }
  return {};
}

/// The ranks have the same tensor but for rounding, as summands never are.
bool are_copies(const TapTensors& tensors) {
  constexpr float tolerance = 1e-4F;
  const HostTensor& first = tensors.ranks.front().values;
  float largest = 0, error = 0;
  for (const RankTensor& rank : tensors.ranks) {
    if (rank.values.shape != first.shape) return false;
    for (std::size_t i = 0; i < first.values.size(); ++i) {
      largest = std::max(largest, std::abs(first.values[i]));
      error = std::max(error, std::abs(rank.values.values[i] - first.values[i]));
    }
  }
  return error <= tolerance * largest;
}

/// Rows of the trusted side are then numbered as they stand there, not by token.
bool has_sampled_rows_alone(const TrustedStep& trusted, const std::string& tap) {
  return may_be_sampled(tap) && tap_place(tap).pass <= 0 && trusted.has(tap) &&
         trusted.inputs() != nullptr && trusted.values(tap).rows() < trusted.inputs()->num_tokens();
}

}  // namespace

bool StageStep::has(const ExplainedTap& tap) const {
  return tap.diff.dp == dp && tap.ranks.front()->at.pp == pp;
}

std::set<std::string> StageStep::names() const {
  std::set<std::string> names;
  for (const DumpRank* rank : ranks)
    for (const auto& [name, tap] : of(*rank).taps) names.insert(name);
  return names;
}

TapExplainer::TapExplainer(const DumpFile& dump, const DumpDiffOptions& options,
                           const StageStep& stage, const std::vector<CleanLayout>& layouts,
                           const ModelConfig* config, const TapErrorModel* errors,
                           bool keeps_values)
    : dump_(dump),
      options_(options),
      stage_(stage),
      layouts_(layouts),
      config_(config),
      errors_(errors),
      keeps_values_(keeps_values),
      names_(stage.names()) {}

std::optional<ExplainedTap> TapExplainer::explain(const std::string& name,
                                                  std::set<std::string>& used) const {
  const TrustedStep& trusted = *stage_.trusted;
  ExplainedTap tap;
  tap.diff.step = stage_.number;
  tap.diff.dp = stage_.dp;
  tap.diff.case_name = trusted.name();
  tap.diff.tap = name;
  for (const DumpRank* rank : stage_.ranks)
    if (stage_.of(*rank).taps.contains(name)) tap.ranks.push_back(rank);
  if (GoldenFile::holds_ids(name_of(name)) || name == "draft_ids") {
    if (!trusted.has(name)) return std::nullopt;
    used.insert(name);
    tap.layout_tap = name;
    explain_ids(trusted.ids(name), tap);
    return tap;
  }
  std::optional<Counterpart> counterpart = counterpart_of(name, names_, trusted, config_);
  if (!counterpart) return std::nullopt;
  used.insert(counterpart->tap);
  tap.layout_tap = counterpart->layout_tap;
  if (counterpart->in_words != name_of(name)) tap.diff.against = counterpart->in_words;
  ExplainedTap found = tap;
  explain_values(*counterpart, found);
  const auto try_way = [&](const HostTensor& way) {
    counterpart->values = way;
    counterpart->segments = {way.cols()};
    ExplainedTap again = tap;
    explain_values(*counterpart, again);
    if (!again.ways.empty()) found = std::move(again);
  };
  const std::int64_t of_rank = counterpart->values.cols();
  for (const HostTensor& way : counterpart->other_ways) {
    if (found.ways.empty()) try_way(way);
    if (!found.ways.empty() || of_rank == 0 || way.cols() == of_rank) continue;
    TapTensors tensors = tensors_of(dump_, stage_, *counterpart);
    tensors.trusted = &way;
    if (const std::optional<HostTensor> whole = unpacked(tensors, way.cols() / of_rank))
      try_way(*whole);
  }
  return found;
}

TapTensors TapExplainer::tensors_of(const DumpFile& dump, const StageStep& stage,
                                    const Counterpart& counterpart) {
  TapTensors tensors{.tp_size = dump.parallel().tp,
                     .dp = std::int16_t(stage.dp),
                     .trusted = nullptr,
                     .segments = counterpart.segments};
  const std::vector<std::string>& summands = counterpart.summands;
  for (const DumpRank* rank : stage.ranks) {
    const std::map<std::string, DumpTap>& taps = stage.of(*rank).taps;
    const auto first = taps.find(summands.front());
    if (first == taps.end()) continue;
    HostTensor values = dump.values(first->second);
    for (std::size_t i = 1; i < summands.size(); ++i) {
      const auto other = taps.find(summands[i]);
      if (other == taps.end()) continue;  // missing: said already
      const HostTensor more = dump.values(other->second);
      if (more.shape != values.shape)
        dump.file(other->second.file)
            .fail(other->second.inside,
                  text("shape is ", to_string(more.shape), ", expected ", to_string(values.shape),
                       " as ", first->second.inside));
      for (std::size_t k = 0; k < values.values.size(); ++k) values.values[k] += more.values[k];
    }
    tensors.ranks.push_back({rank->at, std::move(values)});
  }
  return tensors;
}

std::optional<WeighedChoice> TapExplainer::choice_of(const DumpFile& dump, const StageStep& stage,
                                                     const std::string& tap) {
  const std::string name = ids_of_weights(tap);
  if (name.empty() || !stage.trusted->has(name)) return std::nullopt;
  WeighedChoice choice{.found = {}, .trusted = as_matrix(stage.trusted->ids(name))};
  for (const DumpRank* rank : stage.ranks) {
    const std::map<std::string, DumpTap>& taps = stage.of(*rank).taps;
    if (!taps.contains(tap)) continue;
    if (!taps.contains(name)) return std::nullopt;
    choice.found.push_back(as_matrix(dump.ids(taps.at(name))));
  }
  return choice;
}

/// The ways of holding rows that the row counts allow, and those of the protocols.
std::vector<RowLayout> TapExplainer::candidates(const TapTensors& tensors,
                                                const ExplainedTap& tap) const {
  std::vector<RowLayout> rows = row_layouts(tensors);
  for (const CleanLayout& layout : layouts_) {
    RowLayout of_protocol;
    for (const TokenView& view : required_views(layout, tap)) {
      of_protocol.rows.push_back(view.rows);
      of_protocol.is_partial |= view.sum.is_partial();
    }
    if (of_protocol.rows.empty()) continue;
    if (std::ranges::none_of(rows, [&](const RowLayout& other) {
          return other.is_partial == of_protocol.is_partial &&
                 std::ranges::equal(other.rows, of_protocol.rows, same_rows);
        }))
      rows.push_back(std::move(of_protocol));
  }
  return rows;
}

std::optional<TapBound> TapExplainer::bound_of(const Counterpart& counterpart) const {
  const TapBound* const first = errors_ == nullptr ? nullptr : errors_->bound_for(counterpart.tap);
  if (first == nullptr) return std::nullopt;
  TapBound all = *first;
  for (const std::string& tap : counterpart.beside) {
    const TapBound* const next = errors_->bound_for(tap);
    if (next == nullptr || next->rows() != all.rows()) return std::nullopt;
    for (std::size_t r = 0; r < all.row_l2.size(); ++r) {
      all.row_l2[r] = std::hypot(all.row_l2[r], next->row_l2[r]);
      all.row_max[r] = std::max(all.row_max[r], next->row_max[r]);
    }
  }
  return all;
}

void TapExplainer::explain_values(const Counterpart& counterpart, ExplainedTap& tap) const {
  TapTensors tensors = tensors_of(dump_, stage_, counterpart);
  tensors.trusted = &counterpart.values;
  if (tensors.tokens() == 0) return;  // an idle rank: nothing to compare
  const std::optional<TapBound> bound = bound_of(counterpart);
  // Engines keep a router's weights in float32, whatever they were computed from.
  const std::optional<DType> narrow =
      config_ == nullptr ? narrow_type(stage_, DType::float32) : std::nullopt;
  const std::string type =
      narrow ? to_string(*narrow) : stage_.tap(*tap.ranks.front(), tap.diff.tap).type_name;
  const ToleranceRule rule =
      bound && bound->rows() == tensors.tokens()
          ? as_rule(*bound, counterpart.values)
          : tap_limit(options_.rules, tap.diff.tap, type, counterpart.values);
  const std::optional<WeighedChoice> choice = choice_of(dump_, stage_, tap.diff.tap);
  std::optional<TapFit> nearest;
  std::vector<PutTogether> with_zero_tokens;
  double least_error = std::numeric_limits<double>::infinity();  // of the others
  const auto error_of = [&](const PutTogether& together) {
    return (together.values - as_matrix(*tensors.trusted).cast<double>()).norm();
  };
  const bool holds_copies = are_copies(tensors);
  const auto try_fit = [&](const RowLayout& rows, const ColumnLayout& columns, bool sampled) {
    if (rows.is_partial && (!columns.is_whole() || holds_copies)) return;
    TapFit fit = fit_of(choice ? choice->in_trusted_order(tensors, rows.rows) : tensors, rows,
                        columns, rule, sampled, options_.threads);
    if (fit.fits()) tap.ways.push_back({fit.views, nonzero_pads(tensors, rows)});
    if (keeps_values_ && fit.complete && counterpart.tap == tap.diff.tap) {
      ZeroTokens zeros = zero_tokens(fit.placed, bound);
      PutTogether together{
          .views = fit.views,
          .distance = fit.comparison.rms(),
          .values = whole<float>(fit.placed, as_matrix(*tensors.trusted)).cast<double>(),
          .absent_rows = fit.placed.absent_rows,
          .garbage = nonzero_pads(tensors, rows),
          .zeros = std::move(zeros.impossible),
          .are_copies = holds_copies};
      if (!zeros.any) least_error = std::min(least_error, error_of(together));
      (zeros.any ? with_zero_tokens : tap.put_together).push_back(std::move(together));
    }
    // Where no protocol leaves a token out, a way that does is no nearer for what it leaves out.
    const auto rank = [&](const TapFit& one) {
      return std::pair(one.fits(), config_ == nullptr && one.complete);
    };
    const bool is_nearer = !nearest || rank(fit) > rank(*nearest) ||
                           (rank(fit) == rank(*nearest) && fit.comparison.count > 0 &&
                            !(fit.judgement.bound.ratio() >= nearest->judgement.bound.ratio()));
    if (!is_nearer) return;
    fit.placed = {};  // as large as the tensors
    nearest = std::move(fit);
    tap.nearest = rows.rows;
    tap.nearest_views = nearest->views;
  };
  const std::vector<RowLayout> row_ways = candidates(tensors, tap);
  for (const ColumnLayout& columns : column_layouts(tensors)) {
    for (const RowLayout& rows : row_ways) try_fit(rows, columns, false);
    if (tap.ways.empty() && may_be_sampled(tap.diff.tap))
      for (const RowLayout& rows : sampled_ways(tensors, columns, tap))
        try_fit(rows, columns, true);
  }
  if (tap.ways.empty() && config_ == nullptr)
    if ((tap.packed = packed_columns(tensors)))
      for (const RowLayout& rows : row_ways) try_fit(rows, *tap.packed, false);
  // Zeros in a token's place are a pad where another way has it so; else the token is wrong.
  for (PutTogether& way : with_zero_tokens)
    if (error_of(way) < least_error) tap.put_together.push_back(std::move(way));
  // A pad that is not zero is no pad where the rows can be something else.
  if (std::ranges::any_of(tap.ways, [](const TapWay& way) { return way.garbage.empty(); }))
    std::erase_if(tap.ways, [](const TapWay& way) { return !way.garbage.empty(); });
  if (nearest) {
    tap.diff.bound = nearest->judgement.bound;
    tap.diff.values = nearest->comparison.count;
    tap.diff.max_abs = nearest->comparison.max_abs_error;
    tap.diff.relative_l2 = nearest->comparison.relative_l2();
  }
  if (!tap.ways.empty()) return;
  tap.diff.verdict = Verdict::difference;
  if (nearest) return;
  tap.diff.bound = {1, 0, "shape"};
  tap.diff.detail = shapes_in_words(tensors);
}

/// Rows that a sampler asks for: as annotated, or the trusted rows that are nearest.
std::vector<RowLayout> TapExplainer::sampled_ways(const TapTensors& tensors,
                                                  const ColumnLayout& columns,
                                                  const ExplainedTap& tap) const {
  std::vector<RowLayout> ways;
  const GoldenInputs* const inputs = stage_.trusted->inputs();
  const std::int64_t count = tensors.ranks.front().values.rows();
  if (inputs == nullptr || count == 0 || count >= tensors.tokens()) return ways;
  for (const RankTensor& rank : tensors.ranks)
    if (rank.values.rows() != count) return ways;
  const auto& annotated = stage_.tap(*tap.ranks.front(), tap.diff.tap).view;
  if (annotated && annotated->rows.size() == count) {
    std::vector<std::int64_t> rows;
    for (const RowRun& run : annotated->rows.runs())
      for (std::int32_t i = 0; i < run.count; ++i)
        if (run.kind == RowKind::token) rows.push_back(run.first + i);
    if (std::int64_t(rows.size()) == count) ways.push_back(sampled_layout(tensors, rows));
  }
  ways.push_back(sampled_layout(tensors, nearest_rows(tensors, columns)));
  std::erase_if(ways, [&](const RowLayout& way) {
    return !may_sample(way.rows.front(), *inputs, tap.diff.tap);
  });
  return ways;
}

void contradict_annotation(const StageStep& stage, ExplainedTap& tap) {
  if (GoldenFile::holds_ids(tap.diff.tap)) return;
  for (std::size_t i = 0; i < tap.ranks.size() && !tap.ways.empty(); ++i) {
    const auto& claimed = stage.tap(*tap.ranks[i], tap.diff.tap).view;
    if (!claimed) continue;
    const auto fits_claim = [&](const TapWay& way) {
      return (same_rows(way.views[i].rows, claimed->rows) ||
              same_rows(as_numbered_by(std::int16_t(stage.dp), way.views[i].rows),
                        claimed->rows)) &&
             way.views[i].sum.is_partial() == claimed->sum.is_partial();
    };
    if (std::ranges::any_of(tap.ways, fits_claim)) continue;
    if (has_sampled_rows_alone(*stage.trusted, tap.diff.tap)) return;
    tap.diff.verdict = Verdict::layout;
    tap.diff.called = "annotated otherwise than held";
    tap.diff.detail = text("rank ", tap.ranks[i]->at.world, " is annotated ", to_string(*claimed),
                           " and holds ", to_string(tap.ways.front().views[i]));
    return;
  }
}

void TapExplainer::explain_ids(const IntegerTensor& trusted_ids, ExplainedTap& tap) const {
  const Matrix<std::int64_t> trusted = as_matrix(trusted_ids);
  const std::int64_t k = trusted.cols();
  const auto shape_of = [](const Matrix<std::int64_t>& ids) {
    return HostTensor{{ids.rows(), ids.cols()}, {}};
  };
  const HostTensor trusted_shape = shape_of(trusted);
  TapTensors tensors{
      .tp_size = dump_.parallel().tp, .dp = std::int16_t(stage_.dp), .trusted = &trusted_shape};
  std::vector<Matrix<std::int64_t>> ids;
  std::vector<std::int64_t> all_columns(std::size_t(k), 0);
  std::iota(all_columns.begin(), all_columns.end(), 0);
  for (const DumpRank* rank : tap.ranks) {
    ids.push_back(as_matrix(dump_.ids(stage_.tap(*rank, tap.diff.tap))));
    tensors.ranks.push_back({rank->at, shape_of(ids.back())});
  }
  if (tensors.tokens() == 0) return;
  tap.diff.bound = {1, 0, "shape"};
  tap.diff.detail = shapes_in_words(tensors);
  std::int64_t fewest = -1;
  for (const RowLayout& rows : candidates(tensors, tap)) {
    if (rows.is_partial) continue;
    std::vector<HeldTensor<std::int64_t>> held;
    std::vector<TokenView> views;
    std::vector<Matrix<std::int64_t>> in_order = ids;
    std::int64_t reordered = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (tap.diff.tap.ends_with(".gate.ids"))
        reordered += put_in_trusted_order<std::int64_t>(in_order[i], ids[i], trusted, rows.rows[i]);
      held.push_back({tap.ranks[i]->at, in_order[i], rows.rows[i], false, all_columns});
      views.push_back({rows.rows[i], {}, {}});
    }
    const auto placed_ids =
        placed<std::int64_t>(held, stage_.dp, tensors.tp_size, trusted,
                             [](const RowRun& row) { return std::int64_t(row.first); });
    if (!placed_ids.problems().empty()) continue;
    std::int64_t differing = 0, compared = 0;
    std::set<std::int64_t> shifts;  // of the ids, how far each is from its own
    std::string first;
    for (const PlacedValues<std::int64_t>& values : placed_ids.values)
      for (std::size_t r = 0; r < values.rows.size(); ++r) {
        const std::int64_t token = values.trusted_rows[r];
        const auto mine = values.found.begin() + std::int64_t(r) * k;
        const auto theirs = values.trusted.begin() + std::int64_t(r) * k;
        compared += k;
        for (std::int64_t c = 0; c < k; ++c) shifts.insert(mine[c] - theirs[c]);
        if (std::equal(mine, mine + k, theirs)) continue;
        ++differing;
        if (first.empty())
          first = text("first at token ", token, " of tp=", values.at.tp, ": ids ",
                       to_string(std::vector<std::int64_t>(mine, mine + k)), ", expected ",
                       to_string(std::vector<std::int64_t>(theirs, theirs + k)));
      }
    if (differing == 0) tap.ways.push_back({views, ""});
    // Ranks that chose otherwise than each other have no choice that the trusted one could follow.
    if (keeps_values_ && are_equal_copies(placed_ids))
      tap.put_together.push_back({.views = views,
                                  .distance = double(differing),
                                  .ids = whole<std::int64_t>(placed_ids, trusted)});
    if (fewest >= 0 && differing >= fewest) continue;
    fewest = differing;
    tap.reordered = reordered;
    tap.diff.called = name_of(tap.diff.tap) == "positions" && shifts.size() == 1
                          ? text("all shifted by ", *shifts.begin())
                          : "other ids";
    tap.diff.bound = {double(differing), 0, "rows"};
    tap.diff.values = compared;
    tap.diff.detail = first;
  }
  if (tap.ways.empty()) {
    tap.diff.verdict = Verdict::difference;
  } else {
    tap.diff.called.clear();
    tap.diff.detail.clear();
  }
}

}  // namespace tokenview
