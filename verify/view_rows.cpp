// SPDX-License-Identifier: Apache-2.0
// Views of rows that come and go: pads, masks, side data, rows by index, flat slices.
#include <algorithm>
#include <cmath>

#include "reference/program/error.hpp"
#include "verify/view_ops.hpp"

namespace tokenview {
namespace {

constexpr RowRun mix_row{0, 1, 0, RowKind::mix, PadContent::zero, 0};

Rows taken(const Rows& rows, const std::vector<std::int64_t>& index) {
  Rows out;
  for (const std::int64_t row : index) out.append(rows.at(row));
  return out;
}

/// The pads from `begin` on with other content.
Rows refilled(const Rows& rows, std::int64_t begin) {
  Rows out = rows.slice(0, begin);
  const Rows rest = rows.slice(begin, rows.size());
  for (RowRun run : rest.runs()) {
    if (run.kind == RowKind::pad) run.content = PadContent::other;
    out.append(run);
  }
  return out;
}

template <class X>
std::string in_words(const std::vector<X>& values) {
  std::string out = "[";
  for (const X& value : values) out += (out.size() > 1 ? "," : "") + std::to_string(value);
  return out + ']';
}

}  // namespace

void ViewOps::require_clean_pads(const char* operation, const char* tensor, const Tensor& x) const {
  for (const RowRun& run : x.rows.runs())
    if (run.kind == RowKind::pad && run.content == PadContent::other) {
      find(FindingKind::pads, operation, tensor, "pads of zeros",
           text("garbage in ", to_map(x.rows, step_)));
      return;
    }
}

void ViewOps::require_once(const Rows& rows) const {
  const auto& runs = rows.runs();
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t j = i + 1; j < runs.size(); ++j)
      if (runs[i].kind == RowKind::token && runs[j].kind == RowKind::token &&
          runs[i].dp == runs[j].dp && runs[i].step == runs[j].step &&
          runs[i].first < runs[j].first + runs[j].count &&
          runs[j].first < runs[i].first + runs[i].count) {
        find(FindingKind::routing, "experts", "rows", "each token once", to_string(rows, step_));
        return;
      }
}

ViewOps::Tensor ViewOps::pad_rows(const Tensor& x, std::int64_t count) const {
  Tensor out = x;
  out.rows.append_pads(count);
  return out;
}

ViewOps::Routing ViewOps::pad_rows(const Routing& x, std::int64_t count) const {
  Routing out = x;
  out.rows.append_pads(count);
  return out;
}

ViewOps::Mask ViewOps::pad_rows(const Mask& x, std::int64_t count) const {
  Mask out = x;
  out.rows.append_pads(count);
  return out;
}

ViewOps::Tensor ViewOps::blank(std::int64_t rows, std::int64_t cols) const {
  Tensor x;
  x.rows.append_pads(rows);
  x.width = cols;
  return x;
}

ViewOps::Tensor ViewOps::into_buffer(const Tensor& x, std::int64_t rows) const {
  Tensor out = x;
  out.rows.append_pads(rows - x.rows.size(), PadContent::stale);
  return out;
}

ViewOps::Routing ViewOps::skip_pads(const Routing& routing, const Mask& mask,
                                    bool has_a_row_for_each) const {
  ++order_;
  const std::int64_t common = std::min(routing.rows.size(), mask.rows.size());
  for (std::int64_t i = 0; i < routing.rows.size(); ++i) {
    const bool is_token = routing.rows.at(i).kind == RowKind::token;
    const bool marked = i < common && mask.rows.at(i).kind != RowKind::token;
    if (is_token && marked) {
      find(FindingKind::routing, "skip_pads", "mask",
           text("tokens kept: ", to_map(routing.rows, step_)), to_map(mask.rows, step_), i);
      return routing;
    }
    if (!is_token && !marked && has_a_row_for_each) {
      find(FindingKind::routing, "skip_pads", "mask",
           text("no experts for pads: ", to_map(routing.rows, step_)), to_map(mask.rows, step_), i);
      return routing;
    }
  }
  return routing;
}

ViewOps::Tensor ViewOps::trim(const Tensor& x, std::int64_t rows) const {
  ++order_;
  if (rows < 0 || rows > x.rows.size())
    throw ShapeError(text("trim: ", rows, " rows of ", x.rows.size()));
  const Rows dropped = x.rows.slice(rows, x.rows.size());
  if (dropped.count(RowKind::pad) != dropped.size())
    find(FindingKind::rows, "trim", "x", "pads after the rows kept", to_map(dropped, step_), rows);
  Tensor out = x;
  out.rows = x.rows.slice(0, rows);
  out.origin = -1;
  return out;
}

void ViewOps::require_full(const Tensor& x, const Batch& batch, const char* what) const {
  require_rows("exit", what, expected(batch), x.rows, x.origin);
  require_complete("exit", what, x);
  const std::string_view name = what;
  if ((name == "MTP input" || name == "final hidden" || name == "MTP hidden") && !x.normed)
    find(FindingKind::stage, "exit", what, "after the norm", "before the norm");
}

void ViewOps::require_ids(const Ids& ids, const Batch& batch, const char* what) const {
  require_rows("embed", what, expected(batch), ids.rows);
}

void ViewOps::require_side(const Batch& of_step, const Batch& seen, const char* what) const {
  if (&of_step == &seen) return;
  ++order_;
  // A slot below zero is for the kernel to leave alone, or to find out.
  if (std::ranges::any_of(seen.slots, [](std::int32_t slot) { return slot < 0; })) return;
  const auto differ = [&](const char* tensor, const auto& expected_data, const auto& actual) {
    if (expected_data == actual) return false;
    find(FindingKind::side, what, tensor, in_words(expected_data), in_words(actual));
    return true;
  };
  const Rows due = expected(of_step), found = expected(seen);
  if (!same_rows(due, found))
    find(FindingKind::side, what, "positions", to_map(due, step_), to_map(found, step_),
         first_difference(due, found));
  else if (!(seen.slots.size() > of_step.slots.size() &&  // requests that there are not
             differ("slots", of_step.slots, seen.slots)) &&
           !differ("boundaries", of_step.query_start_loc, seen.query_start_loc) &&
           !differ("slots", of_step.slots, seen.slots))
    differ("row counts", of_step.tokens_across_dp, seen.tokens_across_dp);
}

void ViewOps::require_capacity(const Routing& routing, std::int64_t pairs) const {
  ++order_;
  // Pads are equal, so they choose the same experts.
  const std::int64_t pads = routing.rows.count(RowKind::pad);
  if (pads > pairs)
    find(FindingKind::bounds, "experts", "pairs of one expert", text("at most ", pairs),
         text(pads, " pads"));
}

void ViewOps::count_load(const Routing& routing, std::int64_t rows) const {
  ++order_;
  const Rows counted = routing.rows.slice(0, std::min(rows, routing.rows.size()));
  if (counted.count(RowKind::token) != counted.size())
    find(FindingKind::routing, "count_load", "rows", "tokens", to_map(counted, step_));
}

std::vector<std::int64_t> ViewOps::rows_for(const Routing& routing, const Range& experts) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < routing.rows.size(); ++i) {
    const std::int64_t expert = routing.given.empty()
                                    ? experts.begin
                                    : routing.given[std::size_t(i) % routing.given.size()];
    if (expert >= experts.begin && expert < experts.end) rows.push_back(i);
  }
  return rows;
}

ViewOps::Tensor ViewOps::take_rows(const Tensor& x, const std::vector<std::int64_t>& rows) const {
  Tensor out = x;
  if (x.flat_parts == 0) {
    out.rows = taken(x.rows, rows);
  } else if (!std::ranges::is_sorted(rows)) {  // elements of a flat slice
    out.rows = {};
    for (std::int64_t i = 0; i < x.rows.size(); ++i) out.rows.append(mix_row);
  }
  return out;
}

ViewOps::Routing ViewOps::take_rows(const Routing& x, const std::vector<std::int64_t>& rows) const {
  Routing out = x;
  out.rows = taken(x.rows, rows);
  for (std::size_t i = 0; i < rows.size() && !x.given.empty(); ++i) {
    if (i == 0) out.given.clear();
    out.given.push_back(x.given[std::size_t(rows[i]) % x.given.size()]);
  }
  return out;
}

ViewOps::Mask ViewOps::take_rows(const Mask& x, const std::vector<std::int64_t>& rows) const {
  return {taken(x.rows, rows)};
}

/// The parts of several ranks, each its own summand of the rows that it was sent: a rank that was
/// sent a row less adds nothing to it, which is what its experts would have added.
ViewOps::Tensor ViewOps::add_rows(const Tensor& x, const std::vector<std::int64_t>& rows,
                                  std::int64_t count) const {
  ++order_;
  if (std::int64_t(rows.size()) != x.rows.size())
    throw ShapeError(text("add_rows: ", x.rows.size(), " rows to ", rows.size(), " places"));
  Rows whole;
  std::vector<RowRun> by_row(std::size_t(count),
                             RowRun{0, 1, 0, RowKind::pad, PadContent::zero, 0});
  std::vector<bool> is_set(std::size_t(count), false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto to = std::size_t(rows[i]);
    const RowRun row = x.rows.at(std::int64_t(i));
    if (is_set[to] && !(by_row[to] == row)) {
      find(FindingKind::rows, "add_rows", "x", "parts of one token", to_map(x.rows, step_),
           std::int64_t(i));
      by_row[to] = mix_row;
    } else {
      by_row[to] = row;
      is_set[to] = true;
    }
  }
  for (const RowRun& row : by_row) whole.append(row);
  Tensor out = x;
  out.rows = whole;
  if (x.sums) {
    out.sum = x.sums->front();
    for (std::size_t i = 1; i < x.sums->size(); ++i)
      if (!out.sum.add((*x.sums)[i]))
        find(FindingKind::completeness, "add_rows", "x", to_string(out.sum),
             to_string((*x.sums)[i]));
    out.sums.reset();
  }
  return out;
}

ViewOps::Tensor ViewOps::fill_rows(const Tensor& x, std::int64_t begin, const std::string&) const {
  Tensor out = x;
  out.rows = refilled(x.rows, begin);
  return out;
}

ViewOps::Tensor ViewOps::poison_pads(const Tensor& x, const std::string& content) const {
  return fill_rows(x, 0, content);
}

ViewOps::Routing ViewOps::poison_pads(Routing x, const std::string&) const {
  x.pads_are_garbage = true;
  return x;
}

/// A multiple that is no small fraction is the value of no token.
ViewOps::Tensor ViewOps::scaled(const Tensor& x, double factor) const {
  constexpr std::int32_t most = 64;
  Tensor out = x;
  for (std::int32_t divisor = 1; divisor <= most; ++divisor) {
    const double times = std::round(factor * divisor);
    if (times < 0 || times > most || std::abs(factor * divisor - times) > 1e-9) continue;
    out.sum.multiply(std::int32_t(times), divisor);
    return out;
  }
  out.rows = {};
  for (std::int64_t i = 0; i < x.rows.size(); ++i) out.rows.append(mix_row);
  return out;
}

ViewOps::Ids ViewOps::rolled(const Ids& ids, std::int64_t parts) const {
  Ids out;
  const std::int64_t rows = ids.rows.size();
  const std::int64_t shard = std::max<std::int64_t>((rows + parts - 1) / parts, 1);
  for (std::int64_t i = 0; i < rows; ++i)
    out.rows.append((i + 1) % shard == 0 && i + 1 < rows ? mix_row : ids.rows.at(i));
  return out;
}

ViewOps::Tensor ViewOps::blended(const Tensor& x) const {
  Tensor out = x;
  if (x.rows.size() < 2) return out;
  out.rows = {};
  for (std::int64_t i = 0; i < x.rows.size(); ++i) out.rows.append(mix_row);
  return out;
}

ViewOps::Routing ViewOps::with_experts(Routing routing,
                                       const std::vector<std::int64_t>& experts) const {
  routing.given = experts;
  return routing;
}

ViewOps::Tensor ViewOps::flat_slice(const Tensor& x, std::int64_t part, std::int64_t parts) const {
  Tensor flat = x;
  flat.flat_part = std::int16_t(part);
  flat.flat_parts = std::int16_t(parts);
  return flat;
}

ViewOps::Tensor ViewOps::unflatten(const Tensor& flat, std::int64_t) const {
  Tensor x = flat;
  x.flat_part = x.flat_parts = 0;
  return x;
}

ViewOps::Tensor ViewOps::index_rows(const Tensor& x, const std::vector<std::int64_t>& rows,
                                    const std::vector<std::int64_t>& due) const {
  ++order_;
  Tensor out = x;
  out.rows = {};
  Rows wanted;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t index = rows[i];
    wanted.append(
        {std::int32_t(due[i]), 1, std::int16_t(at_.dp), RowKind::token, PadContent::zero, step_});
    if (index < 0 || index >= x.rows.size()) {
      find(FindingKind::bounds, "index_rows", "x", text("index ", index, " < rows"),
           text(x.rows.size(), " rows: ", to_map(x.rows, step_)), index, x.origin);
      out.rows.append(mix_row);
    } else {
      out.rows.append(x.rows.at(index));
    }
  }
  if (!same_rows(wanted, out.rows) && out.rows.count(RowKind::mix) == 0)
    find(FindingKind::rows, "index_rows", "x", to_map(wanted, step_), to_map(out.rows, step_),
         first_difference(wanted, out.rows));
  return out;
}

ViewOps::Tensor ViewOps::first_rows(const Tensor& x, std::int64_t count, bool by_pointer) const {
  ++order_;
  Tensor out = x;
  const std::int64_t rows = x.rows.size();
  out.rows = x.rows.slice(0, std::min(count, rows));
  if (rows >= count) return out;
  if (by_pointer) {
    find(FindingKind::bounds, "first_rows", "x", text("row ", count - 1, " < rows, unchecked"),
         text(rows, " rows: ", to_map(x.rows, step_)), rows, x.origin);
    for (std::int64_t i = rows; i < count; ++i) out.rows.append(mix_row);
    return out;
  }
  if (rows != 1) throw ShapeError(text("first_rows: ", count, " rows of ", rows));
  find(FindingKind::rows, "first_rows", "x", text(count, " rows"),
       text("one row, broadcast: ", to_map(x.rows, step_)), 1, x.origin);
  for (std::int64_t i = 1; i < count; ++i) out.rows.append(x.rows.at(0));
  return out;
}

ViewOps::Ids ViewOps::pad_ids(const Ids& ids, std::int64_t count) const {
  Ids out = ids;
  out.rows.append_pads(count, PadContent::stale);
  return out;
}

}  // namespace tokenview
