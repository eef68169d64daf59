// SPDX-License-Identifier: Apache-2.0
#include "verify/protocol_page.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "verify/requests.hpp"
#include "verify/view_run.hpp"

namespace tokenview {
namespace {

using View = ViewOps::Tensor;
using R = SimRank<ViewOps>;

constexpr std::int64_t num_tokens = 10, num_ranks = 4;

/// What the page says of a protocol that no run shows.
struct ProtocolNote {
  ProtocolId id;
  const char* source;
  const char* words;
};
constexpr ProtocolNote notes[] = {
    {ProtocolId::S, "vllm qwen3_next.py, sequence parallelism off",
     "The reference: full rows everywhere, two all-reduces a layer."},
    {ProtocolId::A, "vllm qwen3_next.py before PR 47006; PR 24134",
     "The MoE block alone cuts its rows and gathers them again. No shard leaves a layer, so an MTP "
     "that calls a layer directly is right."},
    {ProtocolId::B, "vllm PR 47006",
     "Reduce-scatter before the MoE block; the stream stays a shard until something needs full "
     "rows. The layout is inferred from the row count, which is ambiguous at T = 1, and nobody "
     "gathers after the MTP's layer. Falls back to A in pipelines; a dense layer of a mixed stack "
     "gathers first."},
    {ProtocolId::C, "vllm PR 48429, PR 48036",
     "B, and the MTP gathers hidden and residual after its layer, by the layer's flag. The target "
     "still infers."},
    {ProtocolId::D, "vllm PR 50685",
     "Static: cut once at the entry, a shard at every boundary, the final norm on the shard, one "
     "gather at the exit. Falls back to A in pipelines and in mixed stacks."},
    {ProtocolId::E, "vllm PR 51434; deepseek_v32 and glm model files",
     "D for every stack: dense feed-forwards are whole on every rank and work on the shard; the "
     "MTP cuts its input at width 2H, before a whole projection. Pipelines close its gate and run "
     "deferred."},
    {ProtocolId::deferred, "vllm deepseek_v32 model file, 0.25.1 to 0.33.0",
     "E's models with sequence parallelism off: a sum is left to the next norm, so a layer "
     "boundary is a partial value. A pipeline stage hands that partial over. With several dp ranks "
     "the MoE block completes its output, and the next norm sums it again."},
    {ProtocolId::vllm_48763, "vllm PR 48763",
     "B, and the MTP adds the residual on the shard and gathers the sum alone, width H."},
    {ProtocolId::vllm_51927, "vllm PR 51927 (closed)",
     "D whose MTP takes full rows into its layer, norms on the shard and gathers."},
    {ProtocolId::vllm_53191, "vllm PR 53191 (open)",
     "B with the layout as a flag: a pipeline stage gathers before it hands over, and a step of "
     "fewer tokens than ranks runs like A."},
    {ProtocolId::vllm_53191_shape, "vllm-ascend's form of vllm PR 53191",
     "The same decided by row counts: a stream of fewer rows than ranks is never taken for a "
     "shard, which a true shard often has."},
    {ProtocolId::vllm_58061, "vllm PR 58061 before its repair",
     "E with the dense feed-forward still split over tp: its all-reduce adds rows of different "
     "tokens. Without dense layers it is E."},
    {ProtocolId::sglang, "sglang layers/communicator.py",
     "Scattered by a static table of layers. Shards are ragged, without pads; the last layer adds "
     "the residual in and gathers."},
};

/// A call of a protocol's point, as every rank of one stage had it before or after.
struct Seen {
  std::string point;
  std::vector<View> hidden, residual;   // by rank; residual may be empty
  std::vector<CollectiveRecord> calls;  // that rank 0 made there
};

/// What one run passed through its protocol's points.
struct Trace {
  std::vector<std::vector<Seen>> by_rank;  // [world] hidden and residual of one rank each
  std::vector<CollectiveRecord> calls;     // of rank 0
};

/// A protocol that notes what goes through another one.
class Watched final : public Protocol<R> {
 private:
  std::size_t calls() const { return trace_.calls.size(); }

  /// What `make` gives, and the calls that it makes.
  template <class Make>
  auto at(R& rank, const char* point, const Make& make) const {
    const std::size_t begin = calls();
    auto out = make();
    if constexpr (std::is_same_v<decltype(out), T>)
      note(rank, point, {out}, begin);
    else
      note(rank, point, out, begin);
    return out;
  }
  /// A point that exists only where it changes the stream.
  template <class Make>
  void change(R& rank, const char* point, const LayerStream<T>& stream, const Make& make) const {
    const Rows before = stream.hidden.rows;
    const std::size_t begin = calls();
    make();
    if (!(stream.hidden.rows == before)) note(rank, point, stream, begin);
  }
  void note(R& rank, const char* point, const T& x) const { note(rank, point, {x}, calls()); }
  void note(R& rank, const char* point, const LayerStream<T>& stream) const {
    note(rank, point, stream, calls());
  }
  void note(R& rank, const char* point, const LayerStream<T>& stream, std::size_t begin) const {
    const std::int64_t world =
        plan.parallel.pp == 1 ? rank.tp.rank() : rank.pp.rank() * num_ranks + rank.tp.rank();
    const std::string module = rank.module.str("");
    Seen seen{module.empty() ? point : module + ": " + point, {stream.hidden}, {}, {}};
    if (stream.residual) seen.residual = {*stream.residual};
    if (world == 0)
      seen.calls.assign(trace_.calls.begin() + std::ptrdiff_t(begin), trace_.calls.end());
    trace_.by_rank[std::size_t(world)].push_back(std::move(seen));
  }

 public:
  Watched(const ParallelPlan& parallel_plan, Trace& trace)
      : Protocol<R>(parallel_plan), inner_(make_protocol<R>(parallel_plan)), trace_(trace) {}

  bool boundary_is_complete() const override { return inner_->boundary_is_complete(); }

  LayerStream<T> model_entry(R& rank, const T& embedded) const override {
    note(rank, "embedding", embedded);
    return at(rank, "model entry", [&] { return inner_->model_entry(rank, embedded); });
  }
  void before_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    change(rank, "before the layer", stream, [&] { inner_->before_layer(rank, call, stream); });
  }
  T norm(R& rank, const char* name, LayerStream<T>& stream, const W& w, double eps) const override {
    const bool is_input = std::string_view(name) == "input_layernorm";
    if (is_input) note(rank, "layer input", stream);
    const std::size_t begin = calls();
    T out = inner_->norm(rank, name, stream, w, eps);
    note(rank, is_input ? "input norm" : "post norm", {out, stream.residual}, begin);
    return out;
  }
  T attention_input(R& rank, LayerCall& call, const T& hidden) const override {
    return at(rank, "mixer input", [&] { return inner_->attention_input(rank, call, hidden); });
  }
  T attention_output(R& rank, const LayerCall& call, const T& partial, T& residual) const override {
    note(rank, "mixer output", partial);
    const std::size_t begin = calls();
    T out = inner_->attention_output(rank, call, partial, residual);
    note(rank, "after the mixer", {out, residual}, begin);
    return out;
  }
  T feed_forward(R& rank, const LayerCall& call, const LayerWeights<W>& w,
                 const ModelConfig& config, const Batch& batch, const T& x) const override {
    return at(rank, "feed-forward",
              [&] { return inner_->feed_forward(rank, call, w, config, batch, x); });
  }
  void after_layer(R& rank, const LayerCall& call, LayerStream<T>& stream) const override {
    const std::size_t begin = calls();
    inner_->after_layer(rank, call, stream);
    note(rank, "layer boundary", stream, begin);
  }
  T capture(R& rank, LayerStream<T>& stream, std::int64_t tokens) const override {
    return at(rank, "captured", [&] { return inner_->capture(rank, stream, tokens); });
  }
  void stage_exit(R& rank, LayerStream<T>& stream, std::int64_t tokens) const override {
    const std::size_t begin = calls();
    inner_->stage_exit(rank, stream, tokens);
    note(rank, "stage exit", stream, begin);
  }
  T model_exit(R& rank, LayerStream<T> stream, const W& w, double eps, std::int64_t tokens,
               std::vector<T>& captured) const override {
    return at(rank, "model exit", [&] {
      return inner_->model_exit(rank, std::move(stream), w, eps, tokens, captured);
    });
  }
  LayerStream<T> mtp_entry(R& rank, const T& joined, const W& fc,
                           std::int64_t tokens) const override {
    note(rank, "MTP joined input", joined);
    return at(rank, "MTP entry", [&] { return inner_->mtp_entry(rank, joined, fc, tokens); });
  }
  T mtp_exit(R& rank, LayerStream<T> stream, const W& w, double eps,
             std::int64_t tokens) const override {
    return at(rank, "MTP exit",
              [&] { return inner_->mtp_exit(rank, std::move(stream), w, eps, tokens); });
  }

 private:
  std::unique_ptr<Protocol<R>> inner_;
  Trace& trace_;
};

struct Asked {
  ProtocolId protocol;
  std::int64_t tokens = num_tokens, pp = 1;
  std::vector<std::int64_t> aux_layers = {};
  std::vector<std::int64_t> dense_layers = {};
  std::size_t draft_steps = 1;
};

/// Three layers: Gated DeltaNet, full attention, Gated DeltaNet; an MoE block in each.
ModelConfig model_of(const Asked& asked) {
  ModelConfig config = *preset("qwen3-next");
  config.num_hidden_layers = 3;
  config.layer_types = {LayerType::linear_attention, LayerType::full_attention,
                        LayerType::linear_attention};
  config.mlp_only_layers = asked.dense_layers;
  return config;
}

ParallelPlan plan_of(const Asked& asked, const ModelConfig& config) {
  ParallelPlan plan = plan_for(
      config, {.tp = num_ranks, .pp = asked.pp, .enable_expert_parallel = true}, asked.protocol);
  plan.aux_layers = asked.aux_layers;
  return plan;
}

/// One run, and every point of it as all ranks of its stage had it.
struct Watch {
  ParallelPlan plan;
  std::vector<Seen> points;
  std::vector<CollectiveRecord> calls;
  ViewRunResult result;
};

Watch watch(const Asked& asked) {
  const ModelConfig config = model_of(asked);
  Watch run{plan_of(asked, config), {}, {}, {}};
  Trace trace{std::vector<std::vector<Seen>>(std::size_t(num_ranks * asked.pp)), {}};
  OwnProtocol watched;
  watched.add<ViewOps>(
      [&](const ParallelPlan& plan) { return std::make_unique<Watched>(plan, trace); });
  run.result = run_views({.config = config,
                          .plan = run.plan,
                          .inputs = inputs_of(parse_requests(std::to_string(asked.tokens), 1)),
                          .draft_steps = asked.pp == 1 ? asked.draft_steps : 0,
                          .collectives = &trace.calls,
                          .own_protocol = &watched},
                         false);
  for (std::int64_t stage = 0; stage < asked.pp; ++stage) {
    const std::vector<Seen>& first = trace.by_rank[std::size_t(stage * num_ranks)];
    for (std::size_t i = 0; i < first.size(); ++i) {
      Seen& point = run.points.emplace_back(first[i]);
      for (std::int64_t r = 1; r < num_ranks; ++r) {
        const std::vector<Seen>& other = trace.by_rank[std::size_t(stage * num_ranks + r)];
        if (i >= other.size()) continue;
        for (const View& x : other[i].hidden) point.hidden.push_back(x);
        for (const View& x : other[i].residual) point.residual.push_back(x);
      }
    }
  }
  run.calls = std::move(trace.calls);
  return run;
}

// ---- words

bool all_ranks(const std::vector<View>& by_rank, const auto& holds) {
  return std::ranges::all_of(by_rank, holds);
}

std::string sums_of(const std::vector<View>& by_rank) {
  if (all_ranks(by_rank, [](const View& x) { return x.sum.is_complete(); })) return "complete";
  if (all_ranks(by_rank, [](const View& x) { return x.sum.is_partial(); }))
    return "partial r/" + std::to_string(by_rank.front().sum.size());
  return to_string(by_rank.front().sum);
}

std::string map_of(const std::vector<View>& by_rank) {
  if (by_rank.empty()) return "none";
  if (all_ranks(by_rank, [&](const View& x) { return x.rows == by_rank.front().rows; }))
    return text('[', to_string(by_rank.front().rows), "] on each");
  std::string map;
  for (const View& x : by_rank) map += to_map(x.rows);
  return map;
}

/// full, shard, ragged: by the rows that the ranks hold.
std::string layout_of(const std::vector<View>& by_rank, std::int64_t tokens) {
  if (by_rank.empty()) return "none";
  const Rows full = Rows::tokens(tokens);
  const auto partial = [&](std::string rows) {
    return all_ranks(by_rank, [](const View& x) { return x.sum.is_complete(); })
               ? rows
               : "partial " + rows;
  };
  if (all_ranks(by_rank, [&](const View& x) { return x.rows == full; })) return partial("full");
  Rows joined;
  bool is_even = true;
  for (const View& x : by_rank) {
    joined.append(x.rows);
    is_even = is_even && x.rows.size() == by_rank.front().rows.size();
  }
  if (joined.size() >= tokens && joined.slice(0, tokens) == full &&
      joined.slice(tokens, joined.size()).count(RowKind::pad) == joined.size() - tokens)
    return partial(is_even ? "shard" : "ragged");
  return partial(map_of(by_rank));
}

/// "all_gather", "2 all_reduce"; those over ep are the experts' dispatch and combine.
std::string calls_in(const std::vector<CollectiveRecord>& calls) {
  std::vector<std::pair<std::string, int>> counted;
  for (const CollectiveRecord& call : calls) {
    const std::string name = call.group == "tp" ? call.op : "expert dispatch";
    if (counted.empty() || counted.back().first != name)
      counted.emplace_back(name, 1);
    else
      ++counted.back().second;
  }
  std::string words;
  for (const auto& [name, count] : counted)
    words += (words.empty() ? "" : ", ") +
             (count > 1 && name != "expert dispatch" ? std::to_string(count) + ' ' : "") + name;
  return words;
}

/// Elements that rank 0 sends over tp, in rows of the hidden width.
std::string rows_sent(double elements) {
  const double rows = elements / double(preset("qwen3-next")->hidden_size);
  const std::string shown = text(std::round(rows * 100) / 100);
  return shown;
}

struct Volume {
  std::int64_t calls = 0;
  double elements = 0;
};
Volume tp_volume(const std::vector<CollectiveRecord>& calls) {
  Volume volume;
  for (const CollectiveRecord& call : calls)
    if (call.group == "tp") {
      volume.calls += 1;
      volume.elements += call.elements;
    }
  return volume;
}

std::string short_point(const std::string& point, const std::string& module) {
  return point.substr(module.empty() ? 0 : module.size() + 2);
}

std::vector<const Seen*> points_of(const Watch& run, const std::string& module) {
  std::vector<const Seen*> points;
  for (const Seen& point : run.points)
    if (point.point.starts_with(module + ": ")) points.push_back(&point);
  return points;
}

std::string row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += ' ' + (cell.empty() ? "" : cell + ' ') + '|';
  return line + '\n';
}
std::string head(const std::vector<std::string>& cells) {
  return row(cells) + row(std::vector<std::string>(cells.size(), "---"));
}

// ---- tables

/// How a point is told in the table of all protocols: layout, and what made it.
std::string told(const Seen& point, std::int64_t tokens) {
  std::string cell = layout_of(point.hidden, tokens);
  if (!point.residual.empty() && point.residual.size() == point.hidden.size())
    cell += " / " + layout_of(point.residual, tokens);
  const std::string calls = calls_in(point.calls);
  return calls.empty() ? cell : cell + " (" + calls + ')';
}

/// The points of some modules in the order in which the first protocol that has them meets them.
std::string side_by_side(const std::map<ProtocolId, Watch>& runs, const std::string& module,
                         const std::vector<std::string>& points,
                         const std::vector<ProtocolId>& ids) {
  std::vector<std::string> names = {""};
  for (const ProtocolId id : ids) names.emplace_back(to_string(id));
  std::string out = head(names);
  for (const std::string& wanted : points) {
    std::vector<std::string> cells = {wanted};
    for (const ProtocolId id : ids) {
      std::string cell;
      for (const Seen* point : points_of(runs.at(id), module))
        if (short_point(point->point, module) == wanted) cell = told(*point, num_tokens);
      cells.push_back(cell);
    }
    out += row(cells);
  }
  return out;
}

std::string details(const Watch& run) {
  std::string out =
      head({"where", "rows of the hidden stream", "sum", "rows of the residual", "made by"});
  for (const Seen& point : run.points) {
    const bool has_residual = point.residual.size() == point.hidden.size();
    out += row({point.point, map_of(point.hidden), sums_of(point.hidden),
                has_residual ? map_of(point.residual) : "", calls_in(point.calls)});
  }
  return out;
}

/// "none", "1", "2, 3, 5": of 0 to 13 tokens those at which a run has a finding.
std::string wrong_at(ProtocolId protocol, std::size_t draft_steps) {
  std::string list;
  std::int64_t found = 0;
  for (std::int64_t tokens = 0; tokens <= 13; ++tokens) {
    Asked asked{.protocol = protocol, .tokens = tokens};
    asked.draft_steps = draft_steps;
    if (watch(asked).result.clean()) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(tokens);
    ++found;
  }
  return found == 0 ? "none" : found == 13 ? "1 to 13" : list;
}

std::vector<CollectiveRecord> calls_under(const Watch& run, const std::string& module) {
  std::vector<CollectiveRecord> calls;
  for (const CollectiveRecord& call : run.calls)
    if (call.module.starts_with(module)) calls.push_back(call);
  return calls;
}

const Seen* find_point(const Watch& run, const std::string& name) {
  const auto found = std::ranges::find(run.points, name, &Seen::point);
  return found == run.points.end() ? nullptr : &*found;
}

std::string overview() {
  std::string out =
      head({"protocol", "source", "findings of the target at T =", "with the MTP at T =", ""});
  for (const ProtocolNote& note : notes)
    out += row(
        {to_string(note.id), note.source, wrong_at(note.id, 0), wrong_at(note.id, 1), note.words});
  return out;
}

std::string costs(const std::map<ProtocolId, Watch>& runs) {
  std::string out = head({"protocol", "first layer", "later layer", "model exit", "MTP layer",
                          "MTP exit", "whole target"});
  for (const auto& [id, run] : runs) {
    const auto cell = [](const std::vector<CollectiveRecord>& calls) {
      const Volume volume = tp_volume(calls);
      return text(volume.calls, ": ", rows_sent(volume.elements));
    };
    const Seen *model_exit = find_point(run, "model: model exit"),
               *mtp_exit = find_point(run, "mtp: MTP exit");
    if (model_exit == nullptr || mtp_exit == nullptr) {
      out += row({to_string(id), "a kernel refuses its rows", "", "", "", "", ""});
      continue;
    }
    std::vector<CollectiveRecord> target = calls_under(run, "model.layers.");
    target.insert(target.end(), model_exit->calls.begin(), model_exit->calls.end());
    out += row({to_string(id), cell(calls_under(run, "model.layers.0")),
                cell(calls_under(run, "model.layers.1")), cell(model_exit->calls),
                cell(calls_under(run, "mtp.layers.0")), cell(mtp_exit->calls), cell(target)});
  }
  return out;
}

/// How a named point is told; empty where the run does not come there.
std::string told_at(const Watch& run, const std::string& name) {
  const Seen* point = find_point(run, name);
  return point == nullptr ? std::string() : told(*point, num_tokens);
}

/// "none", or what comes first and where.
std::string verdict(const Watch& run) {
  if (run.result.findings.empty()) return run.result.error.empty() ? "none" : "stopped";
  const Finding& first = run.result.findings.front();
  return text(to_string(first.kind), ", ", first.operation, " in ", first.module);
}

std::string aux_states() {
  std::string out = head({"protocol", "before layer 1", "layer 1 then takes",
                          "after the last layer", "model exit", "first finding"});
  for (const ProtocolNote& note : notes) {
    const Watch run = watch({.protocol = note.id, .aux_layers = {1, 3}, .draft_steps = 0});
    std::vector<std::string> captured;
    for (const Seen& point : run.points)
      if (point.point == "model: captured") captured.push_back(told(point, num_tokens));
    captured.resize(2);
    out += row({to_string(note.id), captured[0], told_at(run, "model.layers.1: layer input"),
                captured[1], told_at(run, "model: model exit"), verdict(run)});
  }
  return out;
}

std::string pipelines() {
  std::string out = head({"protocol", "runs as", "layer 0 ends with", "stage 0 hands over",
                          "stage 1 takes", "first finding"});
  for (const ProtocolNote& note : notes) {
    const Watch run = watch({.protocol = note.id, .pp = 2});
    out += row({to_string(note.id), to_string(run.plan.protocol),
                told_at(run, "model.layers.0: layer boundary"), told_at(run, "model: stage exit"),
                told_at(run, "model.layers.1: layer input"), verdict(run)});
  }
  return out;
}

std::string mixed_stacks() {
  std::string out = head({"protocol", "runs as", "layer 0, MoE, ends with", "layer 1, dense, takes",
                          "after its mixer", "its feed-forward", "layer 2, MoE, ends with",
                          "calls: rows sent", "first finding"});
  for (const ProtocolNote& note : notes) {
    const Watch run = watch({.protocol = note.id, .dense_layers = {1}, .draft_steps = 0});
    const Seen* gather = find_point(run, "model: before the layer");
    std::vector<CollectiveRecord> layers = calls_under(run, "model.layers.");
    if (gather != nullptr) layers.insert(layers.end(), gather->calls.begin(), gather->calls.end());
    const Volume volume = tp_volume(layers);
    out += row({to_string(note.id), to_string(run.plan.protocol),
                told_at(run, "model.layers.0: layer boundary"),
                gather == nullptr ? told_at(run, "model.layers.1: layer input")
                                  : told(*gather, num_tokens),
                told_at(run, "model.layers.1: after the mixer"),
                told_at(run, "model.layers.1: feed-forward"),
                told_at(run, "model.layers.2: layer boundary"),
                text(volume.calls, ": ", rows_sent(volume.elements)), verdict(run)});
  }
  return out;
}

}  // namespace

std::string protocol_page() {
  std::map<ProtocolId, Watch> runs;
  for (const ProtocolNote& note : notes) runs.emplace(note.id, watch({.protocol = note.id}));
  const std::vector<ProtocolId> plain = {ProtocolId::S,       ProtocolId::A, ProtocolId::B,
                                         ProtocolId::C,       ProtocolId::D, ProtocolId::E,
                                         ProtocolId::deferred};
  const std::vector<ProtocolId> variants = {ProtocolId::vllm_48763, ProtocolId::vllm_51927,
                                            ProtocolId::vllm_53191, ProtocolId::vllm_53191_shape,
                                            ProtocolId::vllm_58061, ProtocolId::sglang};
  const std::vector<std::string> in_layer = {"layer input",  "input norm",      "mixer input",
                                             "mixer output", "after the mixer", "post norm",
                                             "feed-forward", "layer boundary"};
  std::string out =
      "# Protocols\n\n"
      "Written by `tokenview --generate protocols` from symbolic runs, and compared with them by a "
      "test. T = 10 tokens, tp = 4 with expert parallelism,\nthree layers (Gated DeltaNet, full "
      "attention, Gated DeltaNet) with an MoE block each, and one MTP step. Each protocol is one "
      "file,\n`reference/program/protocol_*.hpp`; [your-own-protocol.md](your-own-protocol.md) "
      "adds one, [views.md](views.md) has the vocabulary.\n\n"
      "full: every rank holds `0-9`; shard: `[0,1,2][3,4,5][6,7,8][9,PAD,PAD]`; ragged: "
      "`[0,1,2][3,4,5][6,7][8,9]`; partial: each rank holds its own summand.\nhidden / residual, "
      "and in parentheses the collectives that made them, over tp; those that bring rows to their "
      "experts\nand back are \"expert dispatch\".\n\n## Overview\n\n"
      "T from 0 to 13 were run.\n\n";
  out += overview();
  const auto both = [&](const std::string& module, const std::vector<std::string>& points) {
    out += side_by_side(runs, module, points, plain) + '\n' +
           side_by_side(runs, module, points, variants);
  };
  out += "\n## Model entry and the first layer\n\n";
  both("model", {"embedding", "model entry"});
  out += '\n';
  both("model.layers.0", in_layer);
  out += "\n## A later layer\n\n";
  both("model.layers.1", in_layer);
  out += "\n## The last layer and the model's exit\n\n";
  both("model.layers.2", in_layer);
  out += '\n';
  both("model", {"model exit"});
  out += "\n## MTP\n\n";
  both("mtp", {"MTP joined input", "MTP entry"});
  out += '\n';
  both("mtp.layers.0", in_layer);
  out += '\n';
  both("mtp", {"MTP exit"});
  out +=
      "\n## Calls and volume\n\nCalls over tp that rank 0 makes, and after the colon what it "
      "sends in them, in rows of the hidden width, as rings move it. Embedding,\nprojection, "
      "logits and the expert dispatch are apart: `tokenview cost` counts them, and bytes, for "
      "any model and T.\n\n" +
      costs(runs);
  out +=
      "\n## Auxiliary hidden states\n\nCaptured before layer 1 and after the last layer (hidden + "
      "residual). They are full when the model has ended.\n\n" +
      aux_states();
  out +=
      "\n## Pipelines\n\ntp = 4, pp = 2: layer 0 on stage 0, the others on stage 1. A stage ships "
      "one flat quarter from each rank and joins them again,\nwhich is right for full rows "
      "alone.\n\n" +
      pipelines();
  out += "\n## A mixed stack\n\nLayer 1 has a dense feed-forward.\n\n" + mixed_stacks();
  out += "\n## Row by row\n\nThe points of one pass in program order.\n";
  for (const auto& [id, run] : runs) out += text("\n### ", to_string(id), "\n\n") + details(run);
  return out;
}

}  // namespace tokenview
