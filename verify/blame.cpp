// SPDX-License-Identifier: Apache-2.0
#include "verify/blame.hpp"

#include <algorithm>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// Tokens 0, 1, ... in order, and behind them pads or nothing.
enum class Order { other, some, ascending, ascending_then_pads };

Order order_of(const Rows& rows) {
  if (rows.count(RowKind::mix) > 0) return Order::other;
  std::vector<RowRun> tokens;
  bool in_order = true, has_pads = false;
  for (const RowRun& run : rows.runs()) {
    if (run.kind == RowKind::pad) {
      has_pads = true;
      continue;
    }
    in_order = in_order && !has_pads && tokens.empty() && run.first == 0;
    tokens.push_back(run);
  }
  if (in_order) return has_pads ? Order::ascending_then_pads : Order::ascending;
  // The same tokens, each once, from 0 on: in another order.
  std::ranges::sort(tokens, {}, &RowRun::first);
  std::int32_t next = 0;
  for (const RowRun& run : tokens) {
    if (run.first != next || run.dp != tokens.front().dp || run.step != tokens.front().step)
      return Order::other;
    next += run.count;
  }
  return Order::some;
}

bool same_views(const GroupViews& a, const GroupViews& b) {
  return std::ranges::equal(a, b, same_view);
}

std::string rows_in_words(std::span<const TokenView> by_rank) {
  std::string map;
  for (const TokenView& view : by_rank) map += to_map(view.rows);
  return map;
}

void allow(AllowedViews& allowed, const ParallelRun& run, std::int64_t dp) {
  const ViewRunResult result = run_views(run, true);
  if (!result.clean()) return;
  const auto tp = std::size_t(run.plan.parallel.tp), first = std::size_t(dp) * tp;
  for (const NamedView& view : result.views) {
    if (view.by_rank.size() < first + tp) continue;
    const GroupViews held(view.by_rank.begin() + std::ptrdiff_t(first),
                          view.by_rank.begin() + std::ptrdiff_t(first + tp));
    std::vector<GroupViews>& alternatives = allowed[view.name];
    if (std::ranges::none_of(alternatives,
                             [&](const GroupViews& known) { return same_views(known, held); }))
      alternatives.push_back(held);
  }
}

/// The first rank whose view is known and another than `required` has; -1: none.
std::int64_t first_other(const HeldTap& tap, const GroupViews& required) {
  for (std::size_t rank = 0; rank < tap.by_rank.size(); ++rank)
    if (tap.by_rank[rank] &&
        (rank >= required.size() || !same_view(*tap.by_rank[rank], required[rank])))
      return std::int64_t(rank);
  return -1;
}

/// "the second all_reduce over tp in model.layers.1"
std::string in_words(const PlaceVisit& place) {
  const std::string where = text(" in ", place.module.empty() ? "the runner" : place.module);
  switch (place.kind) {
    case PlaceKind::collective:
      return text(place.op, " over ", place.group, where,
                  place.done.empty()       ? ", which is left out"
                  : place.done == place.op ? ""
                                           : ", which is done as " + place.done);
    case PlaceKind::side:
      return text("the positions, boundaries, slots and row counts that ",
                  place.module.empty() ? "the runner" : place.module, " is given");
    case PlaceKind::gate:
      return text("the decision ", place.op, " = ", place.number, where);
    case PlaceKind::number:
      return text("the count ", place.op, " = ", place.number, where);
    default:
      return place.op + where;
  }
}

/// All rows that are due, and pads behind them: "[0,1]" and "[0,1,PAD]".
bool is_untrimmed(const Finding& finding) {
  if (!finding.expected.starts_with('[') || !finding.actual.starts_with('[')) return false;
  const Rows due = parse_rows(finding.expected), held = parse_rows(finding.actual);
  const std::int64_t more = held.size() - due.size();
  return more > 0 && held.slice(0, due.size()) == due &&
         held.slice(due.size(), held.size()).count(RowKind::pad) == more;
}

/// What the first finding hangs on. `visits` are the places that its rank came by before it.
std::string cause_of(const Finding& first, std::span<const PlaceVisit> visits) {
  const auto last = [&](auto fits) -> const PlaceVisit* {
    for (auto visit = visits.rbegin(); visit != visits.rend(); ++visit)
      if (fits(*visit)) return &*visit;
    return nullptr;
  };
  const PlaceVisit* collective =
      last([](const PlaceVisit& visit) { return visit.kind == PlaceKind::collective; });
  const PlaceVisit* moved = last([](const PlaceVisit& visit) {
    return visit.kind == PlaceKind::collective || visit.kind == PlaceKind::local;
  });
  const PlaceVisit* output = last([](const PlaceVisit& visit) {
    return visit.kind == PlaceKind::value && visit.op == "output" &&
           !visit.module.ends_with("_proj");
  });
  switch (first.kind) {
    case FindingKind::rows:
    case FindingKind::bounds:
      if (is_untrimmed(first) && moved != nullptr) return in_words(*moved);
      if (!first.origin.empty())
        return text(first.origin, ", after which nothing brings the other rows back");
      if (moved != nullptr) return in_words(*moved);
      break;
    case FindingKind::completeness:
      if (first.actual.find("partial") != std::string::npos && output != nullptr &&
          (collective == nullptr || collective->order < output->order))
        return text("a sum over the ranks that is missing after ", output->module);
      if (collective != nullptr) return in_words(*collective);
      break;
    case FindingKind::columns:
      if (collective != nullptr) return in_words(*collective);
      break;
    default:
      break;
  }
  return visits.empty() ? "" : in_words(visits.back());
}

}  // namespace

std::optional<Blame> blame_of(const ParallelRun& run) {
  std::vector<PlaceVisit> visits;
  ParallelRun watched = run;
  watched.visits = &visits;
  watched.fault_hits = nullptr;
  watched.collectives = nullptr;
  watched.finished = {};
  const ViewRunResult result = run_views(watched, true);
  if (result.clean()) return std::nullopt;
  Blame blame;
  if (result.findings.empty()) {
    blame.stopped = result.error;
    for (auto visit = visits.rbegin(); visit != visits.rend() && blame.hangs_on.empty(); ++visit)
      if (visit->kind == PlaceKind::collective || !result.collective_mismatch)
        blame.hangs_on = in_words(*visit);
    return blame;
  }
  const Finding& first = result.findings.front();
  std::erase_if(visits, [&](const PlaceVisit& visit) {
    return visit.rank != first.at.world || visit.step > first.step || visit.order > first.order;
  });
  blame.first = first;
  blame.hangs_on = cause_of(first, visits);
  return blame;
}

std::string placement_in_words(std::span<const TokenView> by_rank) {
  if (by_rank.empty()) return "other rows";
  const TokenView& first = by_rank.front();
  const auto all = [&](auto holds) { return std::ranges::all_of(by_rank, holds); };
  if (std::ranges::any_of(by_rank,
                          [](const TokenView& view) { return view.rows.count(RowKind::mix) > 0; }))
    return "mixed rows";

  const bool replicated =
      all([&](const TokenView& view) { return same_rows(view.rows, first.rows); });
  if (all([](const TokenView& view) { return view.sum.is_partial(); }))
    return replicated ? "partial" : "other rows";
  if (!all([](const TokenView& view) { return view.sum.is_complete(); }))
    return all([&](const TokenView& view) { return view.sum == first.sum; }) ? to_string(first.sum)
                                                                             : "other rows";
  if (!all([](const TokenView& view) { return view.columns.all(); }))
    return replicated ? "columns" : "other rows";

  Rows joined;
  for (const TokenView& view : by_rank) joined.append(view.rows);
  switch (order_of(replicated ? first.rows : joined)) {
    case Order::ascending:
      return replicated ? "full" : "shard";
    case Order::ascending_then_pads:
      return replicated ? "full with pads" : "shard";
    case Order::some:
      return replicated ? "full in another order" : "shard in another order";
    case Order::other:
      return "other rows";
  }
  return "other rows";
}

std::string move_between(const std::string& held, const std::string& required) {
  struct Transition {
    const char *from, *to, *move;
  };
  static constexpr Transition moves[] = {
      {"shard", "full", "gather over tp and trim to T"},
      {"shard", "full with pads", "gather over tp"},
      {"full with pads", "full", "trim to T"},
      {"full in another order", "full", "join the parts in rank order"},
      {"shard in another order", "shard", "cut contiguous parts, in rank order"},
      {"shard in another order", "full", "join the parts in rank order, gather and trim to T"},
      {"full", "shard", "cut to the rank's shard"},
      {"full with pads", "shard", "cut to the rank's shard"},
      {"partial", "full", "all-reduce over tp"},
      {"partial", "shard", "pad and reduce-scatter over tp"},
      {"columns", "full", "gather columns over tp"},
  };
  for (const Transition& move : moves)
    if (held == move.from && required == move.to) return move.move;
  if (held.starts_with("x") && (required == "full" || required == "shard"))
    return "leave out one of the sums";
  return "";
}

AllowedViews allowed_views(const ParallelRun& run, std::int64_t dp) {
  ParallelRun right = run;
  right.faults = nullptr;
  right.fault_hits = nullptr;
  right.finished = {};
  right.collectives = nullptr;
  AllowedViews allowed;
  allow(allowed, right, dp);
  return allowed;
}

AllowedViews allowed_by_any_protocol(const ParallelRun& run, std::int64_t dp) {
  AllowedViews allowed;
  for (const ProtocolId id : all_protocols()) {
    ParallelRun right{.config = run.config,
                      .plan = plan_for(run.config, run.plan.parallel, id),
                      .inputs = run.inputs,
                      .draft_steps = run.draft_steps,
                      .target_runs = run.target_runs,
                      .runner = run.runner,
                      .later_steps = run.later_steps};
    right.plan.aux_layers = run.plan.aux_layers;
    right.plan.dispatch = run.plan.dispatch;
    allow(allowed, right, dp);
  }
  return allowed;
}

std::optional<TapBlame> blame_taps(std::span<const HeldTap> taps, const AllowedViews& allowed) {
  std::string after;
  for (std::size_t i = 0; i < taps.size(); ++i) {
    const HeldTap& tap = taps[i];
    const auto found = allowed.find(tap.name);
    const bool is_known = std::ranges::any_of(tap.by_rank, [](const auto& view) { return !!view; });
    if (found == allowed.end() || found->second.empty() || !is_known) continue;

    const GroupViews* nearest = nullptr;
    std::int64_t rank = -1;
    for (const GroupViews& alternative : found->second) {
      const std::int64_t other = first_other(tap, alternative);
      if (nearest == nullptr || other < 0 || (rank >= 0 && other > rank)) {
        nearest = &alternative;
        rank = other;
      }
      if (other < 0) break;
    }
    if (rank < 0 && tap.values_match) {
      after = tap.name;
      continue;
    }
    TapBlame blame;
    blame.tap = i;
    blame.rank = rank;
    GroupViews held;
    for (const auto& view : tap.by_rank) {
      blame.held_rows += view ? to_map(view->rows) : "[?]";
      if (view) held.push_back(*view);
    }
    if (held.size() == tap.by_rank.size()) blame.held = placement_in_words(held);
    blame.required = placement_in_words(*nearest);
    blame.required_rows = rows_in_words(*nearest);
    blame.after = after;
    if (rank >= 0) blame.repair = move_between(blame.held, blame.required);
    return blame;
  }
  return std::nullopt;
}

std::string to_string(const TapBlame& blame, const HeldTap& tap) {
  const auto placed = [](const std::string& placement, const std::string& rows) {
    return placement.empty() ? rows : text(placement, ' ', rows);
  };
  std::string words = text(tap.name, ": ", placed(blame.held, blame.held_rows));
  words += blame.rank < 0
               ? ", as required, with other values"
               : text(" where ", placed(blame.required, blame.required_rows), " is required");
  if (!blame.after.empty()) words += text("; right until ", blame.after);
  if (!blame.repair.empty()) words += text(". Missing: ", blame.repair);
  return words;
}

}  // namespace tokenview
