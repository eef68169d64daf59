// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reference/program/error.hpp"
#include "verify/blame.hpp"
#include "verify/dump_diff_parts.hpp"
#include "verify/held_words.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

using Verdict = TapDiff::Verdict;

/// Router weights of pads are those of a row of equal logits, and say nothing.
bool has_free_pads(const std::string& tap) {
  return tap.ends_with(".gate.weights") || tap.ends_with(".gate.ids");
}

bool has_zero_pads(const std::vector<TokenView>& views) {
  bool has_pads = false;
  for (const TokenView& view : views)
    for (const RowRun& run : view.rows.runs()) {
      if (run.kind != RowKind::pad) continue;
      if (run.content != PadContent::zero) return false;
      has_pads = true;
    }
  return has_pads;
}

std::vector<RankHolding> holdings(const ExplainedTap& tap, const std::vector<TokenView>& held,
                                  const std::vector<TokenView>& required) {
  const auto in_words = [&](const std::vector<TokenView>& views, std::size_t i) {
    if (i >= views.size()) return std::string();
    TokenView view = views[i];  // the report names the dp rank once
    view.rows = as_numbered_by(std::int16_t(tap.diff.dp), view.rows);
    return view_in_words(view);
  };
  std::vector<RankHolding> ranks;
  for (std::size_t i = 0; i < tap.ranks.size(); ++i)
    ranks.push_back({tap.ranks[i]->at, in_words(held, i), in_words(required, i)});
  return ranks;
}

bool ends_pass(const std::vector<ExplainedTap>& taps, std::size_t i) {
  return i + 1 == taps.size() ||
         tap_place(taps[i + 1].diff.tap).pass != tap_place(taps[i].diff.tap).pass;
}

bool same_row_counts(const std::vector<Rows>& held, const std::vector<TokenView>& required) {
  return std::ranges::equal(held, required, [](const Rows& rows, const TokenView& view) {
    return rows.size() == view.rows.size();
  });
}

/// How a tap's layout stands to the protocol's.
enum class Stand { unknown, agrees, deviates };

/// Of layouts that differ from the protocol's the first of those that lead up to `end`, a tap that
/// fails or the end of what there is; `end`: none does.
std::size_t first_leading_to(std::size_t end, const std::vector<Stand>& stands) {
  std::size_t first = end;
  for (std::size_t i = end; i-- > 0 && stands[i] != Stand::agrees;)
    if (stands[i] == Stand::deviates) first = i;
  return first;
}

/// The layout at fault; taps.size(): none. Without wrong values it is one on which a pass ends, or
/// on which the run stopped.
std::size_t blamed_layout(const std::vector<ExplainedTap>& taps, const std::vector<Stand>& stands,
                          bool stopped) {
  const auto failure = std::size_t(
      std::ranges::find_if(taps, [](const ExplainedTap& tap) { return tap.diff.failed(); }) -
      taps.begin());
  if (failure < taps.size()) {
    const std::size_t first = first_leading_to(failure, stands);
    return first < failure ? first : taps.size();
  }
  for (std::size_t i = 0; i < taps.size(); ++i)
    if (stands[i] == Stand::deviates && ends_pass(taps, i) && is_exit(taps[i].diff.tap))
      return first_leading_to(i, stands);
  return stopped ? first_leading_to(taps.size(), stands) : taps.size();
}

}  // namespace

std::vector<TokenView> required_views(const CleanLayout& layout, const ExplainedTap& tap) {
  std::vector<TokenView> views;
  for (const DumpRank* rank : tap.ranks) {
    const TokenView* const view = layout.find(tap.layout_tap, rank->at.world);
    if (view == nullptr) return {};
    views.push_back(*view);
  }
  return views;
}

bool same_layout(const std::string& tap, const std::vector<TokenView>& a,
                 const std::vector<TokenView>& b) {
  if (may_be_sampled(tap) && !a.empty() && kind_of(a) == "full" && kind_of(b) == "full")
    return true;
  return std::ranges::equal(a, b, [](const TokenView& x, const TokenView& y) {
    return same_rows(x.rows, y.rows) && x.sum.is_partial() == y.sum.is_partial() &&
           x.columns.all() == y.columns.all();
  });
}

bool is_summed_already(const std::vector<TokenView>& held, const std::vector<TokenView>& required) {
  return std::ranges::equal(held, required, [](const TokenView& a, const TokenView& b) {
    return same_rows(a.rows, b.rows) && a.sum.is_complete() && b.sum.is_partial() &&
           a.columns.all() && b.columns.all();
  });
}

const CleanLayout* nearest_layout(const std::vector<CleanLayout>& layouts,
                                  const std::vector<ExplainedTap>& taps, std::string& in_words) {
  const CleanLayout* nearest = nullptr;
  std::int64_t most = -1, most_allowed = -1, of = 0;
  for (const CleanLayout& layout : layouts) {
    std::int64_t agree = 0, named = 0, allowed = 0;  // allowed: or of wrong values, in these rows
    for (const ExplainedTap& tap : taps) {
      const std::vector<TokenView> required = required_views(layout, tap);
      if (required.empty()) continue;
      ++named;
      const bool agrees = std::ranges::any_of(tap.ways, [&](const TapWay& way) {
        return same_layout(tap.diff.tap, way.views, required) ||
               is_summed_already(way.views, required);
      });
      agree += agrees;
      allowed += agrees || (tap.ways.empty() && same_row_counts(tap.nearest, required));
    }
    if (allowed < most_allowed || (allowed == most_allowed && agree <= most)) continue;
    most_allowed = allowed;
    most = agree;
    of = named;
    nearest = &layout;
  }
  in_words =
      nearest == nullptr ? "" : text(nearest->protocol, " (", most, " of ", plural(of, "tap"), ")");
  return nearest;
}

/// "gather over tp and trim to T between step0/mtp.layers.0 and step0/mtp.norm"
std::string missing_move(const std::vector<ExplainedTap>& taps, const std::vector<Stand>& stands,
                         std::size_t blamed, const std::vector<TokenView>& required) {
  const std::string move = move_between(placement_in_words(taps[blamed].ways.front().views),
                                        placement_in_words(required));
  if (move.empty()) return {};
  const std::string& name = taps[blamed].diff.tap;
  for (std::size_t i = blamed; i-- > 0;)
    if (stands[i] == Stand::agrees && pass_of(taps[i].diff.tap) == pass_of(name))
      return text(move, " between ", taps[i].diff.tap, " and ", name);
  return text(move, " before ", name);
}

std::string judge_layouts(std::vector<ExplainedTap>& taps, const CleanLayout* nearest,
                          bool stopped) {
  std::vector<Stand> stands(taps.size(), Stand::unknown);
  const ExplainedTap* before = nullptr;  // the last tap of the pass that fits in some way
  for (std::size_t i = 0; i < taps.size(); ++i) {
    ExplainedTap& tap = taps[i];
    const std::vector<TokenView> required =
        nearest == nullptr ? std::vector<TokenView>() : required_views(*nearest, tap);
    const auto agrees = [&](const TapWay& way) {
      return same_layout(tap.diff.tap, way.views, required);
    };
    if (tap.ways.empty()) {
      tap.diff.ranks = holdings(tap, {}, required);
      continue;
    }
    if (!std::ranges::any_of(tap.ways, agrees) && before != nullptr &&
        pass_of(before->diff.tap) == pass_of(tap.diff.tap))
      // A row and zeros are a shard and a sum: what goes on as it was held has no cause.
      std::ranges::stable_partition(tap.ways, [&](const TapWay& way) {
        return same_layout(tap.diff.tap, way.views, before->ways.front().views);
      });
    std::ranges::stable_partition(tap.ways, agrees);
    before = &tap;
    const TapWay& held = tap.ways.front();
    tap.diff.kind = kind_of(held.views);
    tap.diff.ranks = holdings(tap, held.views, required);
    if (required.empty()) continue;
    stands[i] =
        agrees(held) || is_summed_already(held.views, required) ? Stand::agrees : Stand::deviates;
    if (agrees(held) && !held.garbage.empty() && has_zero_pads(required) &&
        !has_free_pads(tap.diff.tap) && !tap.diff.failed()) {
      tap.diff.verdict = Verdict::difference;
      tap.diff.called = "pads poisoned";
      tap.diff.detail = held.garbage + ", expected zeros";
    }
  }

  const std::size_t blamed = blamed_layout(taps, stands, stopped);
  if (blamed < taps.size()) {
    ExplainedTap& tap = taps[blamed];
    const bool is_last =
        std::ranges::none_of(taps, [](const ExplainedTap& other) { return other.diff.failed(); });
    tap.diff.verdict = Verdict::layout;
    tap.diff.called = layout_in_words(tap.ways.front().views, required_views(*nearest, tap));
    tap.diff.detail = text("protocol ", nearest->protocol, " has another layout here, and ",
                           !is_last  ? "wrong values follow"
                           : stopped ? "the run stopped"
                                     : "the pass ends on this one");
    tap.diff.repair = missing_move(taps, stands, blamed, required_views(*nearest, tap));
    return {};
  }
  const auto count = std::ranges::count(stands, Stand::deviates);
  if (count == 0) return {};
  const auto first = std::size_t(std::ranges::find(stands, Stand::deviates) - stands.begin());
  const ExplainedTap& tap = taps[first];
  return text(plural(count, "tap"), " held otherwise than in protocol ", nearest->protocol,
              ", with right values and no consequence; first ", tap.diff.tap, ", ",
              layout_in_words(tap.ways.front().views, required_views(*nearest, tap)));
}

}  // namespace tokenview
