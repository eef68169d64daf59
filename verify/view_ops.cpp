// SPDX-License-Identifier: Apache-2.0
#include "verify/view_ops.hpp"

#include <algorithm>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// The extent that is left of `extent` by `ranges`.
std::int64_t held(const std::vector<Range>& ranges, std::int64_t extent) {
  if (ranges.empty()) return extent;
  std::int64_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

}  // namespace

void ViewOps::find(FindingKind kind, const char* operation, const char* tensor,
                   std::string expected_view, std::string actual, std::int64_t first_bad_row,
                   std::int32_t origin) const {
  if (is_full()) return;
  findings_->push_back({at_, kind, operation, module_ == nullptr ? "" : module_->str(), tensor,
                        std::move(expected_view), std::move(actual), first_bad_row,
                        origin < 0 ? "" : (*origins_)[std::size_t(origin)], step_, order_});
}

void ViewOps::made_by(Tensor& x, const char* op, const std::string& group) const {
  if (x.sums && !std::string_view(op).starts_with("all_to_all")) {
    find(FindingKind::completeness, op, "parts", to_string(x.sums->front()),
         to_string(x.sums->back()));
    x.sums.reset();
  }
  // A sum and a join keep, or complete, the rows; what scatters them cut its parts a moment ago.
  if (x.origin < 0 || !std::string_view(op).starts_with("reduce_scatter")) return;
  std::string& origin = (*origins_)[std::size_t(x.origin)];
  if (origin == text("chunk in ", module_ == nullptr ? "" : module_->str()))
    origin = text(op, " over ", group, origin.substr(std::string("chunk").size()));
}

/// Rows that are not full any more: remembers what made them so, until they are full again.
void ViewOps::note_rows(Tensor& x, const char* what) const {
  if (origins_ == nullptr || x.origin >= 0) return;
  x.origin = std::int32_t(origins_->size());
  const std::string module = module_ == nullptr ? "" : module_->str();
  origins_->push_back(text(what, " in ", module.empty() ? "the runner" : module));
}

void ViewOps::require_same_count(const char* operation, const Tensor& x, const Tensor& y) {
  if (x.rows.size() != y.rows.size())
    throw ShapeError(
        text(operation, ": operands have ", x.rows.size(), " and ", y.rows.size(), " rows"));
}

void ViewOps::require_complete(const char* operation, const char* tensor, const Tensor& x) const {
  ++order_;
  if (!x.sum.is_complete() && x.rows.size() > 0 && !is_full())
    find(FindingKind::completeness, operation, tensor, "complete", to_string(x.sum));
}

void ViewOps::require_rows(const char* operation, const char* tensor, const Rows& expected_rows,
                           const Rows& actual, std::int32_t origin) const {
  ++order_;
  if (!is_full() && !same_rows(expected_rows, actual))
    find(FindingKind::rows, operation, tensor, to_map(expected_rows, step_), to_map(actual, step_),
         first_difference(expected_rows, actual), origin);
}

const Rows& ViewOps::expected(const Batch& batch) const {
  Expected& last = last_expected_;
  if (last.num_tokens == batch.num_tokens() && last.num_real == batch.num_real_tokens() &&
      last.step == step_ && last.row_tokens == batch.row_tokens)
    return last.rows;
  Rows rows;
  if (batch.row_tokens.empty()) {
    rows = Rows::tokens(batch.num_real_tokens(), std::int16_t(at_.dp), step_);
  } else {
    for (const std::int64_t token : batch.row_tokens)
      rows.append(
          {std::int32_t(token), 1, std::int16_t(at_.dp), RowKind::token, PadContent::zero, step_});
  }
  rows.append_pads(batch.num_tokens() - rows.size(), PadContent::stale);
  last = {batch.num_tokens(), batch.num_real_tokens(), step_, batch.row_tokens, std::move(rows)};
  return last.rows;
}

ViewOps::Weight ViewOps::load(const WeightSource&, const WeightBlock& block) const {
  const std::size_t out_axis = block.per_expert() ? 1 : 0;
  Weight w;
  w.out = held(block.out, block.padded_out > 0 ? block.padded_out : block.shape[out_axis]);
  w.in = block.shape.size() == 1 ? 1 : held(block.in, block.shape.back());
  const ColumnBlock part{std::int16_t(block.part), std::int16_t(block.part + 1),
                         std::int16_t(block.parts)};
  if (block.per_expert()) {
    w.expert_part = block.part;
    w.expert_parts = block.parts;
  } else if (!block.in.empty()) {
    w.in_block = part;
  } else if (!block.out.empty()) {
    w.out_block = part;
  }
  return w;
}

ViewOps::Tensor ViewOps::embed(const Ids& ids, const Weight& table, std::int64_t first_row) const {
  ++order_;
  Tensor x;
  x.rows = ids.rows;
  x.width = table.in;
  x.sum = Completeness::summand(table.out_block.begin, table.out_block.of);
  if (first_row == unmasked_vocabulary && table.out_block.of > 1)
    find(FindingKind::bounds, "embed", "ids", text("id < ", table.out, " rows"),
         text("ids up to ", table.out * table.out_block.of - 1), table.out);
  return x;
}

ViewOps::Tensor ViewOps::linear(const Tensor& x, const Weight& w) const {
  if (x.width != w.in)
    throw ShapeError(text("linear: operand has ", x.width, " columns, the weight takes ", w.in));
  ++order_;
  if (!(x.columns == w.in_block))
    find(FindingKind::columns, "linear", "x", text(w.in_block.begin, '/', w.in_block.of), name(x));
  Tensor y = x;
  y.width = w.out;
  y.columns = w.out_block;
  y.normed = false;
  if (w.in_block.of > 1) {
    require_complete("linear", "x", x);
    y.sum = Completeness::summand(w.in_block.begin, w.in_block.of);
  }
  return y;
}

ViewOps::Tensor ViewOps::add(const Tensor& x, const Tensor& y) const {
  require_rows("add", "y", x.rows, y.rows, y.origin);
  require_same_count("add", x, y);
  if (x.width != y.width)
    throw ShapeError(text("add: operands have ", x.width, " and ", y.width, " columns"));
  if (!(x.sum == y.sum) && x.rows.size() > 0)
    find(FindingKind::completeness, "add", "y", to_string(x.sum), to_string(y.sum));
  if (!(x.columns == y.columns)) find(FindingKind::columns, "add", "y", name(x), name(y));
  Tensor out = x;
  out.rows = mixed(x.rows, y.rows);
  out.normed = false;
  if (y.origin >= 0) out.origin = y.origin;
  return out;
}

ViewOps::Tensor ViewOps::rms_norm(const Tensor& x, const Weight&, double) const {
  require_complete("rms_norm", "x", x);
  if (!x.columns.all()) find(FindingKind::columns, "rms_norm", "x", "all columns", name(x));
  Tensor y = x;
  y.normed = true;
  return y;
}

ViewOps::Tensor ViewOps::head_rms_norm(const Tensor& x, const Weight&, double) const {
  require_complete("head_rms_norm", "x", x);
  return x;
}

ViewOps::Tensor ViewOps::silu_mul(const Tensor& gate, const Tensor& up) const {
  require_complete("silu_mul", "gate", gate);
  require_complete("silu_mul", "up", up);
  require_rows("silu_mul", "up", gate.rows, up.rows, up.origin);
  require_same_count("silu_mul", gate, up);
  Tensor out = gate;
  out.rows = mixed(gate.rows, up.rows);
  return out;
}

ViewOps::Tensor ViewOps::sigmoid_mul(const Tensor& x, const Tensor& gate) const {
  require_complete("sigmoid_mul", "gate", gate);
  require_rows("sigmoid_mul", "gate", x.rows, gate.rows, gate.origin);
  require_same_count("sigmoid_mul", x, gate);
  Tensor out = x;
  out.rows = mixed(x.rows, gate.rows);
  return out;
}

ViewOps::Tensor ViewOps::sigmoid_scale(const Tensor& x, const Tensor& gate) const {
  return sigmoid_mul(x, gate);
}

ViewOps::Tensor ViewOps::concat_features(const Tensor& x, const Tensor& y) const {
  require_rows("concat_features", "y", x.rows, y.rows, y.origin);
  require_same_count("concat_features", x, y);
  if (!(x.sum == y.sum) && x.rows.size() > 0)
    find(FindingKind::completeness, "concat_features", "y", to_string(x.sum), to_string(y.sum));
  Tensor out = x;
  out.rows = mixed(x.rows, y.rows);
  out.width = x.width + y.width;
  return out;
}

std::pair<ViewOps::Tensor, ViewOps::Tensor> ViewOps::split_query_gate(const Tensor& x,
                                                                      std::int64_t) const {
  Tensor half = x;
  half.width = x.width / 2;
  return {half, half};
}

std::pair<ViewOps::Tensor, ViewOps::Tensor> ViewOps::split_qkvz(const Tensor& x,
                                                                const GdnShape& shape) const {
  Tensor qkv = x, z = x;
  qkv.width = shape.conv_dim();
  z.width = shape.value_dim();
  return {qkv, z};
}

std::pair<ViewOps::Tensor, ViewOps::Tensor> ViewOps::split_ba(const Tensor& x,
                                                              const GdnShape& shape) const {
  Tensor half = x;
  half.width = shape.num_value_heads;
  return {half, half};
}

ViewOps::Tensor ViewOps::rope(const Tensor& x, const Batch& batch, const RopeShape&) const {
  require_rows("rope", "x", expected(batch), x.rows, x.origin);
  return x;
}

ViewOps::Tensor ViewOps::gated_rms_norm(const Tensor& x, const Tensor& z, const Weight&,
                                        double) const {
  require_complete("gated_rms_norm", "x", x);
  require_complete("gated_rms_norm", "z", z);
  require_rows("gated_rms_norm", "z", x.rows, z.rows, z.origin);
  require_same_count("gated_rms_norm", x, z);
  Tensor out = x;
  out.rows = mixed(x.rows, z.rows);
  return out;
}

void ViewOps::require_tokens(const char* operation, const Rows& in_cache,
                             std::size_t sequence) const {
  for (std::int64_t i = 0; i < in_cache.size(); ++i)
    if (in_cache.at(i).kind != RowKind::token) {
      find(FindingKind::state, operation, "cache", "tokens",
           text("sequence ", sequence, ": ", to_string(in_cache, step_)), i);
      return;
    }
}

ViewOps::Tensor ViewOps::attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionShape&, KvCache& cache,
                                   const Batch& batch) const {
  const Rows full = expected(batch);
  require_rows("attention", "q", full, q.rows, q.origin);
  require_clean_pads("attention", "q", q);
  require_complete("attention", "q", q);
  require_complete("attention", "k", k);
  require_complete("attention", "v", v);
  require_rows("attention", "k", full, k.rows, k.origin);
  require_rows("attention", "v", full, v.rows, v.origin);
  for (std::size_t s = 0; s + 1 < batch.query_start_loc.size(); ++s) {
    if (batch.slots[s] < 0) {
      find(FindingKind::bounds, "attention", "slots", "slot >= 0", text("slot ", batch.slots[s]),
           batch.query_start_loc[s]);
      continue;
    }
    const auto slot = std::size_t(batch.slots[s]);
    if (cache.slots.size() <= slot) cache.slots.resize(slot + 1);
    Rows& past = cache.slots[slot];
    if (past.size() < batch.num_computed[s])
      find(FindingKind::state, "attention", "cache", text(batch.num_computed[s], " rows"),
           text(past.size(), " rows"));
    past = past.slice(0, batch.num_computed[s]);
    require_tokens("attention", past, s);
    past.append(k.rows.slice(batch.query_start_loc[s], batch.query_start_loc[s + 1]));
  }
  return q;
}

ViewOps::Tensor ViewOps::causal_conv(const Tensor& x, const Weight&, GdnState&,
                                     const Batch& batch) const {
  require_rows("causal_conv", "x", expected(batch), x.rows, x.origin);
  require_complete("causal_conv", "x", x);
  return x;
}

std::pair<ViewOps::Tensor, ViewOps::Tensor> ViewOps::delta_gates(const Tensor& b, const Tensor& a,
                                                                 const Weight&,
                                                                 const Weight&) const {
  require_complete("delta_gates", "b", b);
  require_complete("delta_gates", "a", a);
  // The gates of zeros are no zeros; nothing reads those of a pad.
  if (b.rows.count(RowKind::pad) > 0) return {fill_rows(b, 0, ""), fill_rows(a, 0, "")};
  return {b, a};
}

ViewOps::Tensor ViewOps::gated_delta_rule(const Tensor& qkv, const Tensor& beta, const Tensor& g,
                                          const GdnShape& shape, GdnState& state,
                                          const Batch& batch) const {
  const Rows full = expected(batch);
  require_rows("gated_delta_rule", "qkv", full, qkv.rows, qkv.origin);
  require_clean_pads("gated_delta_rule", "qkv", qkv);
  require_rows("gated_delta_rule", "beta", qkv.rows, beta.rows, beta.origin);
  require_rows("gated_delta_rule", "g", qkv.rows, g.rows, g.origin);
  require_complete("gated_delta_rule", "qkv", qkv);
  require_complete("gated_delta_rule", "beta", beta);
  require_complete("gated_delta_rule", "g", g);
  for (std::size_t s = 0; s + 1 < batch.query_start_loc.size(); ++s) {
    const std::int64_t first = batch.query_start_loc[s], last = batch.query_start_loc[s + 1];
    if (first == last) continue;
    if (batch.slots[s] < 0) {
      find(FindingKind::bounds, "gated_delta_rule", "slots", "slot >= 0",
           text("slot ", batch.slots[s]), first);
      continue;
    }
    const auto slot = std::size_t(batch.slots[s]);
    if (state.slots.size() <= slot) {
      state.slots.resize(slot + 1);
      state.after_row.resize(slot + 1);
    }
    Rows& past = state.slots[slot];
    if (batch.num_computed[s] == 0) past = {};
    if (past.size() != batch.num_computed[s])
      find(FindingKind::state, "gated_delta_rule", "state", text(batch.num_computed[s], " tokens"),
           text(past.size(), " tokens"));
    require_tokens("gated_delta_rule", past, s);
    state.after_row[slot].clear();
    for (std::int64_t t = first; t < last && batch.keep_states; ++t) {
      Rows after = past;
      after.append(qkv.rows.slice(first, t + 1));
      state.after_row[slot].push_back(std::move(after));
    }
    past.append(qkv.rows.slice(first, last));
  }
  Tensor out = qkv;
  out.width = shape.value_dim();
  return out;
}

void ViewOps::commit_accepted(GdnState& state, std::int32_t slot, std::int64_t rows) const {
  static const std::vector<Rows> none;
  const bool is_known = slot >= 0 && std::size_t(slot) < state.after_row.size();
  const std::vector<Rows>& kept = is_known ? state.after_row[std::size_t(slot)] : none;
  if (rows < 1 || rows > std::int64_t(kept.size())) {
    find(FindingKind::state, "commit_accepted", "state", text("1 to ", kept.size(), " rows"),
         text(rows, " rows"));
    return;
  }
  state.slots[std::size_t(slot)] = kept[std::size_t(rows) - 1];
}

ViewOps::Routing ViewOps::route(const Tensor& logits, std::int64_t k, bool) const {
  require_complete("route", "logits", logits);
  require_clean_pads("route", "logits", logits);
  if (!logits.columns.all())
    find(FindingKind::columns, "route", "logits", "all columns", name(logits));
  Routing routing;
  routing.rows = logits.rows;
  routing.experts_per_token = k;
  return routing;
}

ViewOps::Tensor ViewOps::experts(const Tensor& x, const Routing& routing, const Weight&,
                                 const Weight& down, std::int64_t) const {
  require_complete("experts", "x", x);
  require_rows("experts", "routing", x.rows, routing.rows);
  require_once(routing.rows);
  if (routing.pads_are_garbage && routing.rows.count(RowKind::pad) > 0)
    find(FindingKind::bounds, "experts", "ids", "expert ids of the model", "ids never written");
  Tensor out = x;
  if (x.rows.size() == routing.rows.size()) out.rows = mixed(x.rows, routing.rows);
  out.width = down.out;
  out.sum = Completeness::summand(down.expert_part, down.expert_parts);
  return out;
}

ViewOps::Ids ViewOps::argmax(const Tensor& logits) const {
  require_complete("argmax", "logits", logits);
  if (logits.rows.count(RowKind::token) != logits.rows.size())
    find(FindingKind::rows, "argmax", "logits", "tokens", to_map(logits.rows, step_));
  return {logits.rows};
}

ViewOps::Ids ViewOps::select(const Ids& ids, const std::vector<std::int64_t>& rows) const {
  Ids selected;
  for (const std::int64_t row : rows) selected.rows.append(ids.rows.at(row));
  return selected;
}

ViewOps::Tensor ViewOps::rows_of(const Batch& batch, std::int64_t width) const {
  Tensor x;
  x.rows = expected(batch);
  x.width = width;
  x.normed = true;
  return x;
}

ViewOps::Ids ViewOps::next_ids(const Ids& ids, const Batch&, const std::vector<std::int64_t>&,
                               const Ids&) const {
  return ids;
}

ViewOps::Tensor ViewOps::slice(const Tensor& x, Axis axis, std::int64_t begin,
                               std::int64_t end) const {
  if (begin < 0 || begin > end || end > extent(x, axis))
    throw ShapeError(text("slice: [", begin, ", ", end, ") of ", extent(x, axis)));
  Tensor part = x;
  if (axis == Axis::rows) {
    part.rows = x.rows.slice(begin, end);
    if (begin > 0 || end < x.rows.size()) note_rows(part, "chunk");
  } else {
    part.width = end - begin;  // a tensor of its own: half of a joined pair, logits unpadded
  }
  return part;
}

ViewOps::Tensor ViewOps::concat(std::span<const Tensor* const> parts, Axis axis) const {
  if (parts.front()->flat_parts > 0) return joined_flat(parts);
  Tensor whole = *parts.front();
  bool same_sums = true;
  for (const Tensor* each : parts.subspan(1)) {
    const Tensor& part = *each;
    same_sums = same_sums && part.sum == whole.sum;
    if (axis == Axis::rows) {
      whole.rows.append(part.rows);
      continue;
    }
    if (!(part.sum == whole.sum))
      find(FindingKind::completeness, "concat", "parts", to_string(whole.sum), to_string(part.sum));
    require_rows("concat", "parts", whole.rows, part.rows, part.origin);
    whole.rows = mixed(whole.rows, part.rows);
    whole.width += part.width;
    if (part.columns.begin == whole.columns.end && part.columns.of == whole.columns.of)
      whole.columns.end = part.columns.end;
    else
      find(FindingKind::columns, "concat", "parts",
           text("block ", whole.columns.end, '/', whole.columns.of), name(part));
  }
  if (whole.columns.all()) whole.columns = {};
  if (axis == Axis::rows && !same_sums) {
    std::vector<Completeness> sums;
    for (const Tensor* part : parts) sums.push_back(part->sum);
    whole.sums = std::make_shared<const std::vector<Completeness>>(std::move(sums));
  }
  return whole;
}

/// Flat slices of tensors that should be one: a row is cut where the slices meet.
ViewOps::Tensor ViewOps::joined_flat(std::span<const Tensor* const> parts) const {
  Tensor whole = *parts.front();
  const std::int64_t rows = whole.rows.size();
  const std::int64_t slice = std::max<std::int64_t>(rows * whole.width / whole.flat_parts, 1);
  Rows joined_rows;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t first = i * whole.width / slice, last = ((i + 1) * whole.width - 1) / slice;
    RowRun row = parts[std::size_t(first)]->rows.at(i);
    for (std::int64_t part = first; part <= last; ++part)
      if (!(parts[std::size_t(part)]->rows.at(i) == row) ||
          !(parts[std::size_t(part)]->sum == parts[std::size_t(first)]->sum))
        row = {0, 1, 0, RowKind::mix, PadContent::zero, 0};
    // A whole row of one rank's summand is that rank's, whatever the other rows are.
    if (!(parts[std::size_t(first)]->sum == parts.front()->sum))
      row = {0, 1, 0, RowKind::mix, PadContent::zero, 0};
    joined_rows.append(row);
  }
  whole.rows = joined_rows;
  return whole;
}

ViewOps::Tensor ViewOps::sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
                             std::int64_t end) const {
  const bool all = begin == 0 && end == extent(*parts.front(), axis);
  Tensor total = all ? *parts.front() : slice(*parts.front(), axis, begin, end);
  if (parts.size() > 1) require_clean_pads("sum", "parts", total);
  for (const Tensor* each : parts.subspan(1)) {
    Tensor cut;
    if (!all) cut = slice(*each, axis, begin, end);
    const Tensor& part = all ? *each : cut;
    require_rows("sum", "parts", total.rows, part.rows, part.origin);
    require_clean_pads("sum", "parts", part);
    total.rows = mixed(total.rows, part.rows);
    if (!total.sum.count_in(part.sum))
      find(FindingKind::completeness, "sum", "parts", to_string(total.sum), to_string(part.sum));
  }
  total.sum.normalise();
  if (parts.size() > 1 && total.rows.size() > 0 && !total.sum.is_complete() &&
      !total.sum.is_partial())
    find(FindingKind::completeness, "sum", "result", "complete", to_string(total.sum));
  return total;
}

ViewOps::Routing ViewOps::slice(const Routing& x, Axis, std::int64_t begin,
                                std::int64_t end) const {
  Routing part = x;
  part.rows = x.rows.slice(begin, end);
  if (!x.given.empty() && begin > 0)
    std::ranges::rotate(part.given, part.given.begin() + begin % std::int64_t(x.given.size()));
  return part;
}

ViewOps::Routing ViewOps::concat(std::span<const Routing* const> parts, Axis) const {
  Routing whole = *parts.front();
  bool any_given = !whole.given.empty();
  for (const Routing* part : parts.subspan(1)) any_given = any_given || !part->given.empty();
  if (any_given) {  // row by row from here on
    whole.given.clear();
    for (const Routing* part : parts)
      for (std::int64_t i = 0; i < part->rows.size(); ++i)
        whole.given.push_back(
            part->given.empty() ? 0 : part->given[std::size_t(i) % part->given.size()]);
  }
  for (const Routing* part : parts.subspan(1)) {
    whole.rows.append(part->rows);
    whole.pads_are_garbage = whole.pads_are_garbage || part->pads_are_garbage;
  }
  return whole;
}

static_assert(ModelOps<ViewOps>);

}  // namespace tokenview
