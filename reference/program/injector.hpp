// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <any>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/group_end.hpp"
#include "reference/program/injected_fault.hpp"

namespace tokenview {

/// Thrown through a rank's program where a fault makes it end early; who runs the rank catches it.
struct RankLeaves {};

/// The faults of one rank at work. Each place of the program asks here, under its module and its
/// operation, what is to happen.
template <class Ops, class Comm>
class Injector {
 public:
  struct Groups {
    Comm *tp, *dp, *ep, *pp;
  };

  /// `module` is where the rank is; `faults` outlive this. `hits` counts, a fault each, how often
  /// one met its place; `visits` gets every place that the rank comes by.
  Injector(const Ops& ops, const std::vector<InjectedFault>& faults, const RankCoordinates& at,
           const ModulePath& module, Groups groups, std::vector<std::int64_t>* hits = nullptr,
           std::vector<PlaceVisit>* visits = nullptr)
      : ops_(ops),
        faults_(faults),
        at_(at),
        module_(module),
        groups_(groups),
        hits_(hits),
        visits_(visits) {}

  /// Where the run is: the pass over what was computed before; an engine step begins, with the
  /// target; a draft pass of it begins. `rows` are T of this rank.
  void enter_context(std::int64_t rows) { tokens_ = rows; }
  void enter_step(std::int64_t step, std::int64_t rows) {
    step_ = step;
    enter_draft(-1, rows);
  }
  void enter_draft(std::int64_t draft, std::int64_t rows) {
    draft_ = draft;
    rows_ = tokens_ = rows;
    ++pass_;
  }

  /// A collective over `group`.
  template <class X>
  X collective(const char* group, Comm& comm, Move move, const X& operand) {
    const std::string op(move.op);
    X x = operand;
    Comm* over = &comm;
    std::vector<std::int64_t> sizes;
    std::vector<const InjectedFault*> later;
    int calls = 1;
    visit(PlaceKind::collective, op, group, ops_.extent(operand, Axis::cols));
    for (const InjectedFault* fault : matching(op, group)) {
      switch (fault->act) {
        case FaultAct::leave:
          throw RankLeaves{};
        case FaultAct::drop:
          calls = std::max(calls - 1, 0);
          break;
        case FaultAct::repeat:
          ++calls;
          break;
        case FaultAct::replace:
          move.op = fault->with;
          calls = std::max(calls, 1);
          break;
        case FaultAct::before:
          x = other(fault->with, comm, x);
          break;
        case FaultAct::group:
          over = group_named(fault->with);
          break;
        case FaultAct::axis:
          move.axis = move.axis == Axis::rows ? Axis::cols : Axis::rows;
          break;
        case FaultAct::count:
          x = resized(x, ops_.extent(x, Axis::rows) + fault->number);
          break;
        case FaultAct::sizes:
          sizes = fault->numbers;
          move.sizes = &sizes;
          break;
        default:
          later.push_back(fault);
      }
    }
    if (visits_ != nullptr && calls > 0) visits_->back().done = move.op;
    X y = x;
    for (int call = 0; call < calls; ++call) y = carry_out<Ops>(*over, move, y);
    for (const InjectedFault* fault : later) y = changed(*fault, op, comm, move, std::move(y));
    return y;
  }

  /// A local move of rows, `n` being its argument: `make(operand, n)` does it.
  template <class X, class Make>
  X local(const char* op, const X& operand, std::int64_t n, Make make) {
    X x = operand;
    int times = 1;
    std::vector<const InjectedFault*> later;
    visit(PlaceKind::local, op, "", ops_.extent(operand, Axis::cols));
    for (const InjectedFault* fault : matching(op, "")) {
      switch (fault->act) {
        case FaultAct::leave:
          throw RankLeaves{};
        case FaultAct::drop:
          times = std::max(times - 1, 0);
          break;
        case FaultAct::repeat:
          ++times;
          break;
        case FaultAct::before:
          x = other(fault->with, *groups_.tp, x);
          break;
        case FaultAct::count:
          n = std::max<std::int64_t>(n + fault->number, 0);
          break;
        default:
          later.push_back(fault);
      }
    }
    const std::int64_t before = ops_.extent(x, Axis::rows);
    X y = x;
    for (int time = 0; time < times; ++time) y = make(y, n);
    for (const InjectedFault* fault : later) {
      const std::int64_t p = groups_.tp->size(), shard = (before + p - 1) / p;
      const std::int64_t first_pad =
          std::string_view(op) == "chunk"
              ? std::clamp<std::int64_t>(before - groups_.tp->rank() * shard, 0, shard)
              : before;
      if (fault->act != FaultAct::poison) {
        y = changed(*fault, op, *groups_.tp, {}, std::move(y), &x);
      } else if constexpr (requires { ops_.fill_rows(y, before, fault->with); }) {
        y = ops_.fill_rows(y, std::min(first_pad, ops_.extent(y, Axis::rows)), fault->with);
      }
    }
    return y;
  }

  /// A named value on its way past.
  template <class X>
  X value(const std::string& name, X x) {
    if constexpr (requires { ops_.extent(x, Axis::cols); })
      visit(PlaceKind::value, name, "", ops_.extent(x, Axis::cols));
    else
      visit(PlaceKind::value, name);
    for (const InjectedFault* fault : matching(name, "")) {
      if (fault->act == FaultAct::leave) throw RankLeaves{};
      if constexpr (requires { ops_.take_rows(x, {}); })
        x = changed(*fault, name, *groups_.tp, {}, std::move(x));
      else if constexpr (requires { ops_.rolled(x, 1); })  // ids: shifted inside each shard
        x = fault->act == FaultAct::rows ? ops_.rolled(x, groups_.tp->size()) : x;
    }
    return x;
  }

  /// What travels between layers, on its way past. A gather takes both in one, of their joined
  /// width.
  template <class X>
  void stream(const std::string& name, X& hidden, std::optional<X>& residual) {
    visit(PlaceKind::stream, name, "", ops_.extent(hidden, Axis::cols));
    for (const InjectedFault* fault : matching(name, "")) {
      if (fault->act == FaultAct::leave) throw RankLeaves{};
      if (residual && (fault->act == FaultAct::before || fault->act == FaultAct::after)) {
        const std::int64_t width = ops_.extent(hidden, Axis::cols);
        const X both = other(fault->with, *groups_.tp, ops_.concat_features(hidden, *residual));
        hidden = ops_.slice(both, Axis::cols, 0, width);
        residual = ops_.slice(both, Axis::cols, width, 2 * width);
        continue;
      }
      hidden = changed(*fault, name, *groups_.tp, {}, std::move(hidden));
      if (residual) residual = changed(*fault, name, *groups_.tp, {}, std::move(*residual));
    }
  }

  /// A decision of the program; a count that it works with.
  bool gate(const char* name, bool otherwise) {
    return number(name, otherwise, PlaceKind::gate) != 0;
  }
  std::int64_t number(const char* name, std::int64_t otherwise,
                      PlaceKind kind = PlaceKind::number) {
    for (const InjectedFault* fault : matching(name, "")) {
      if (fault->act == FaultAct::leave) throw RankLeaves{};
      if (fault->act == FaultAct::set) otherwise = fault->number;
      if (fault->act == FaultAct::count) otherwise += fault->number;
    }
    visit(kind, name);
    if (visits_ != nullptr) visits_->back().number = otherwise;
    return otherwise;
  }

  /// The side data that the module sees. `with` says what is wrong with it:
  /// `positions shard` (rows of this rank's shard only), `boundaries merged` (one sequence),
  /// `boundaries padded` (the last sequence ends at the last pad), `slots first` (pads write to
  /// slot 0), `slots unguarded` (pads write to slot -1), `no row counts`, `local row counts` (those
  /// of this rank for all), `row counts` (`numbers`), `tokens` (`number` rows more).
  const Batch& batch(const Batch& seen) {
    visit(PlaceKind::side, "batch");
    const auto faults = matching("batch", "");
    if (faults.empty()) return seen;
    Batch& changed_batch = batches_.emplace_back(seen);
    for (const InjectedFault* fault : faults) change_side(changed_batch, *fault);
    return changed_batch;
  }

 private:
  void visit(PlaceKind kind, const std::string& op, const char* group = "",
             std::int64_t columns = 0) {
    if (visits_ == nullptr) return;
    PlaceVisit& visit = visits_->emplace_back();
    visit.kind = kind;
    visit.rank = at_.world;
    visit.module = module_.str();
    visit.op = op;
    visit.group = group;
    visit.nth = nth_time(visits_seen_, text(visit.module, ' ', op, ' ', group));
    visit.columns = columns;
    visit.step = pass_ == 0 ? -1 : step_;
    visit.draft = draft_;
    if constexpr (requires { ops_.mark().order; }) visit.order = ops_.mark().order;
  }

  std::vector<const InjectedFault*> matching(const std::string& op, const std::string& group) {
    std::vector<const InjectedFault*> found;
    std::string path;
    bool has_path = false;
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      const InjectedFault& fault = faults_[i];
      if (fault.op != op && fault.op != "*") continue;
      if (!fault.group.empty() && fault.group != group) continue;
      if ((fault.tp >= 0 && fault.tp != at_.tp) || (fault.dp >= 0 && fault.dp != at_.dp) ||
          (fault.pp >= 0 && fault.pp != at_.pp))
        continue;
      if ((fault.step >= 0 && fault.step != step_) || (fault.draft >= -1 && fault.draft != draft_))
        continue;
      if (rows_ < fault.least || (fault.most >= 0 && rows_ > fault.most)) continue;
      if (!has_path) {
        path = module_.str();
        has_path = true;
      }
      if (!fits(fault.at, path)) continue;
      if (fault.nth > 0 && nth_time(places_seen_, text(i, ' ', path)) != fault.nth) continue;
      if (fault.occurrence > 0 && ++seen_[i] != fault.occurrence) continue;
      if (hits_ != nullptr) ++(*hits_)[i];
      if (fault.act == FaultAct::due)
        found.clear();
      else
        found.push_back(&fault);
    }
    return found;
  }

  /// Last pass, and how often in it, by place.
  using Times = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
  std::int64_t nth_time(Times& times, const std::string& place) {
    auto& [pass, count] = times[place];
    if (pass != pass_) count = 0;
    pass = pass_;
    return ++count;
  }

  Comm* group_named(const std::string& name) {
    if (name == "dp") return groups_.dp;
    if (name == "ep") return groups_.ep;
    if (name == "pp") return groups_.pp;
    return groups_.tp;
  }

  template <class X>
  X resized(const X& x, std::int64_t rows) {
    const std::int64_t now = ops_.extent(x, Axis::rows);
    if (rows <= now) return ops_.slice(x, Axis::rows, 0, std::max<std::int64_t>(rows, 0));
    return ops_.pad_rows(x, rows - now);
  }

  /// The first T rows, where there are more.
  template <class X>
  X trimmed(const X& x) {
    if (ops_.extent(x, Axis::rows) <= tokens_) return x;
    if constexpr (requires { ops_.trim(x, tokens_); }) return ops_.trim(x, tokens_);
    return ops_.slice(x, Axis::rows, 0, tokens_);
  }

  /// An operation by name, on full rows or over `comm`: what `before` and `after` add.
  template <class X>
  X other(const std::string& op, Comm& comm, const X& x) {
    const std::int64_t rows = ops_.extent(x, Axis::rows), p = comm.size();
    if (op == "chunk") {
      const X padded = ops_.pad_rows(x, (p - rows % p) % p);
      const std::int64_t shard = ops_.extent(padded, Axis::rows) / p;
      return ops_.slice(padded, Axis::rows, comm.rank() * shard, (comm.rank() + 1) * shard);
    }
    if (op == "prefix") return ops_.slice(x, Axis::rows, 0, (rows + p - 1) / p);
    if (op == "trim") return trimmed(x);
    if constexpr (Movable<Ops, X>) {
      if (op == "gather") return trimmed(carry_out<Ops>(comm, {.op = "all_gather"}, x));
      if (op == "scatter")
        return carry_out<Ops>(comm, {.op = "reduce_scatter"}, ops_.pad_rows(x, (p - rows % p) % p));
      return carry_out<Ops>(comm, {.op = op}, x);
    }
    return x;
  }

  /// The parts of `x`, one a rank, in another order.
  template <class X>
  X reordered(const X& x, const std::string& order, const std::vector<std::int64_t>& swapped,
              std::int64_t parts, const std::vector<std::int64_t>* sizes) {
    const std::int64_t rows = ops_.extent(x, Axis::rows);
    // A rank that keeps its part of a sum, or joins what others send it, has other parts.
    if (sizes != nullptr &&
        (std::int64_t(sizes->size()) != parts ||
         std::accumulate(sizes->begin(), sizes->end(), std::int64_t{0}) != rows))
      sizes = nullptr;
    std::vector<std::int64_t> begin{0};
    for (std::int64_t i = 0; i < parts; ++i)
      begin.push_back(sizes != nullptr ? begin.back() + (*sizes)[std::size_t(i)]
                                       : rows * (i + 1) / parts);
    std::vector<std::int64_t> places;
    for (std::int64_t i = 0; i < parts; ++i) {
      if (order == "reverse") places.push_back(parts - 1 - i);
      if (order == "rotate") places.push_back((i + 1) % parts);
      if (order == "swap" && swapped.size() == 2)
        places.push_back(i == swapped[0] ? swapped[1] : i == swapped[1] ? swapped[0] : i);
      if (order == "tp_major") {  // [dp, tp] read as [tp, dp]
        const std::int64_t dp = groups_.dp->size(), tp = parts / std::max<std::int64_t>(dp, 1);
        places.push_back(parts % dp == 0 ? i % dp * tp + i / dp : i);
      }
    }
    std::vector<std::int64_t> index;
    if (order == "round_robin")
      for (std::int64_t r = 0; r < parts; ++r)
        for (std::int64_t i = r; i < rows; i += parts) index.push_back(i);
    for (const std::int64_t place : places)
      for (std::int64_t i = begin[std::size_t(place)]; i < begin[std::size_t(place) + 1]; ++i)
        index.push_back(i);
    return ops_.take_rows(x, index);
  }

  template <class X>
  X changed(const InjectedFault& fault, const std::string& op, Comm& comm, const Move& move, X x,
            const X* operand = nullptr) {
    const std::int64_t rows = ops_.extent(x, Axis::rows), p = comm.size(), r = comm.rank();
    switch (fault.act) {
      case FaultAct::after:
        return other(fault.with, comm, x);
      case FaultAct::order:
        return reordered(x, fault.with, fault.numbers, p, move.sizes);
      case FaultAct::count:
        return resized(x, rows + fault.number);
      case FaultAct::poison:
        if constexpr (requires { ops_.poison_pads(x, fault.with); })
          return ops_.poison_pads(x, fault.with);
        return x;
      case FaultAct::scale:
        if constexpr (requires { ops_.scaled(x, fault.factor); })
          return ops_.scaled(x, fault.factor);
        return x;
      case FaultAct::stale: {
        const std::string place = module_.str(op.c_str());
        // A pass may come by more than once.
        std::any& kept = kept_[text(place, ' ', nth_time(stale_seen_, place))];
        const auto* old = std::any_cast<X>(&kept);
        if (old == nullptr) {
          kept = x;
          return x;
        }
        X before = *old;
        kept = std::move(x);
        return before;
      }
      case FaultAct::set:
        if constexpr (requires { ops_.with_experts(x, fault.numbers); })
          return ops_.with_experts(x, fault.numbers);
        return x;
      case FaultAct::rows: {
        if constexpr (requires { ops_.blended(x); })
          if (fault.with == "mix") return ops_.blended(x);
        const X& of = operand != nullptr ? *operand : x;
        const std::int64_t full = ops_.extent(of, Axis::rows), shard = (full + p - 1) / p;
        std::vector<std::int64_t> index;
        if (fault.with == "prefix")  // the first S rows on every rank
          for (std::int64_t i = 0; i < std::min(shard, full); ++i) index.push_back(i);
        if (fault.with == "floor")  // from r floor(T/p) on
          for (std::int64_t i = 0; i < shard && r * (full / p) + i < full; ++i)
            index.push_back(r * (full / p) + i);
        if (fault.with == "round_robin")
          for (std::int64_t i = r; i < full; i += p) index.push_back(i);
        if (fault.with == "reverse")
          for (std::int64_t i = full - 1; i >= 0; --i) index.push_back(i);
        if (fault.with == "repeat_last") {  // one row too few, made up for by the last
          for (std::int64_t i = 0; i + 1 < rows; ++i) index.push_back(i);
          if (rows > 0) index.push_back(std::max<std::int64_t>(rows - 2, 0));
          return ops_.take_rows(x, index);
        }
        return ops_.take_rows(of, index);
      }
      default:
        return x;
    }
  }

  void change_side(Batch& batch, const InjectedFault& fault) {
    const std::int64_t rows = batch.num_tokens(), p = groups_.tp->size();
    if (fault.with == "positions shard") {
      const std::int64_t shard = (rows + p - 1) / p, begin = std::min(rows, at_.tp * shard),
                         end = std::min(rows, begin + shard);
      Batch part = batch;
      part.input_ids.assign(batch.input_ids.begin() + begin, batch.input_ids.begin() + end);
      part.positions.assign(batch.positions.begin() + begin, batch.positions.begin() + end);
      part.mrope_positions.clear();
      part.row_tokens.clear();
      for (std::int64_t i = begin; i < end; ++i)
        part.row_tokens.push_back(batch.row_tokens.empty() ? i : batch.row_tokens[std::size_t(i)]);
      part.query_start_loc = {0, std::int32_t(end - begin)};
      part.num_computed = {0};
      part.slots = {batch.slots.empty() ? 0 : batch.slots.front()};
      batch = part;
    } else if (fault.with == "boundaries merged") {
      batch.query_start_loc = {0, batch.query_start_loc.back()};
      batch.num_computed.resize(1);
      batch.slots.resize(1);
    } else if (fault.with == "boundaries padded") {
      batch.query_start_loc.back() = std::int32_t(rows);
    } else if (fault.with == "slots first" || fault.with == "slots unguarded") {
      // The runner's pads as requests of one row each: still pads.
      if (batch.row_tokens.empty())
        for (std::int64_t i = 0; i < batch.num_real_tokens(); ++i) batch.row_tokens.push_back(i);
      for (std::int64_t i = batch.num_real_tokens(); i < rows; ++i) {
        batch.query_start_loc.push_back(std::int32_t(i + 1));
        batch.num_computed.push_back(0);
        batch.slots.push_back(fault.with == "slots first" ? 0 : -1);
      }
    } else if (fault.with == "no row counts") {
      batch.tokens_across_dp.clear();
      batch.requests_across_dp.clear();
    } else if (fault.with == "local row counts") {
      for (std::int64_t& tokens : batch.tokens_across_dp) tokens = rows;
    } else if (fault.with == "row counts") {
      batch.tokens_across_dp = fault.numbers;
    } else if (fault.with == "tokens") {
      batch.positions.resize(std::size_t(std::max<std::int64_t>(0, rows + fault.number)));
      batch.input_ids.resize(batch.positions.size());
    }
  }

  const Ops& ops_;
  const std::vector<InjectedFault>& faults_;
  RankCoordinates at_;
  const ModulePath& module_;
  Groups groups_;
  std::vector<std::int64_t>* hits_;
  std::vector<PlaceVisit>* visits_;
  std::int64_t step_ = 0, draft_ = -1, rows_ = 0, tokens_ = 0, pass_ = 0;
  std::map<std::size_t, std::int64_t> seen_;
  std::map<std::string, std::any> kept_;
  Times places_seen_, stale_seen_, visits_seen_;
  std::deque<Batch> batches_;  // handed out by reference
};

}  // namespace tokenview
