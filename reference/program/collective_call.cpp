// SPDX-License-Identifier: Apache-2.0
#include "reference/program/collective_call.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

std::int64_t total(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

bool same(const ElementType& a, const ElementType& b) {
  return a.name == b.name || std::string_view(a.name) == b.name;
}

std::string list(std::span<const std::int64_t> sizes) {
  std::string words = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    words += (i > 0 ? "," : "") + std::to_string(sizes[i]);
  return words + ']';
}

/// The rows that the ranks name, of a variable-size form.
std::string size_mismatch(std::span<const CollectiveCall* const> calls) {
  const CollectiveCall& first = *calls.front();
  const bool exchanges = first.op == CollectiveOp::all_to_all_v;
  const std::size_t ranks = calls.size();
  for (const CollectiveCall* const of_rank : calls) {
    const CollectiveCall& call = *of_rank;
    if (call.sizes.size() != ranks || (exchanges && call.from.size() != ranks))
      return text("the sizes name ",
                  call.sizes.size() != ranks ? call.sizes.size() : call.from.size(), " ranks of ",
                  ranks);
    if (!exchanges && !std::ranges::equal(call.sizes, first.sizes))
      return "ranks differ in the sizes";
    for (const std::int64_t rows : call.sizes)
      if (rows < 0) return text("a size of ", rows, " rows");
  }
  for (std::size_t i = 0; i < ranks; ++i) {
    const CollectiveCall& call = *calls[i];
    const std::int64_t expected =
        first.op == CollectiveOp::all_gather_v ? call.sizes[i] : total(call.sizes);
    if (call.rows != expected)
      return text("rank ", i, " brought ", call.rows, " rows, its size says ", expected);
    for (std::size_t j = 0; exchanges && j < ranks; ++j)
      if (call.sizes[j] != calls[j]->from[i])
        return text("rank ", i, " sends ", call.sizes[j], " rows to rank ", j, ", which expects ",
                    calls[j]->from[i]);
  }
  return {};
}

}  // namespace

const char* to_string(CollectiveOp op) {
  constexpr const char* names[] = {
      "all_reduce", "all_gather",   "reduce_scatter", "all_gather_v", "reduce_scatter_v",
      "all_to_all", "all_to_all_v", "broadcast",      "barrier",      "send",
      "recv"};
  return names[std::size_t(op)];
}

std::string in_words(const CollectiveCall& call) {
  using enum CollectiveOp;
  const auto extent = [](std::int64_t n) { return n < 0 ? "any" : std::to_string(n); };
  std::string words = text(to_string(call.op), '(');
  if (call.op != barrier)
    words += text(call.element.name, " [", extent(call.rows), ", ", extent(call.cols), ']');
  switch (call.op) {
    case all_gather:
    case reduce_scatter:
      words += call.axis == Axis::rows ? ", rows" : ", cols";
      break;
    case all_gather_v:
    case reduce_scatter_v:
      words += ", sizes " + list(call.sizes);
      break;
    case all_to_all_v:
      words += ", to " + list(call.sizes) + ", from " + list(call.from);
      break;
    case broadcast:
      words += text(", root ", call.peer);
      break;
    case send:
      words += text(", to ", call.peer);
      break;
    case recv:
      words += text(", from ", call.peer);
      break;
    default:
      break;
  }
  return words + ')';
}

std::string mismatch(std::span<const CollectiveCall* const> calls) {
  using enum CollectiveOp;
  const CollectiveCall& first = *calls.front();
  const auto size = std::int64_t(calls.size());
  const bool sized =
      first.op == all_gather_v || first.op == reduce_scatter_v || first.op == all_to_all_v;
  for (const CollectiveCall* const of_rank : calls) {
    const CollectiveCall& call = *of_rank;
    if (call.op != first.op) return "ranks differ in the operation";
    if (call.tensor_type != first.tensor_type || !same(call.element, first.element))
      return "ranks differ in the element type";
    if (call.axis != first.axis) return "ranks differ in the axis";
    if (call.peer != first.peer) return "ranks differ in the root";
    if (call.cols != first.cols || (call.rows != first.rows && !sized))
      return "ranks differ in the element count";
  }
  if (sized) return size_mismatch(calls);
  if (first.op == broadcast && (first.peer < 0 || first.peer >= size))
    return text("root ", first.peer, " of ", size, " ranks");
  const std::int64_t extent = first.axis == Axis::rows ? first.rows : first.cols;
  if ((first.op == reduce_scatter || first.op == all_to_all) && extent % size != 0)
    return text(to_string(first.op), " of ", extent,
                first.axis == Axis::rows ? " rows" : " columns", " over ", size,
                " ranks: not divisible");
  return {};
}

std::string mismatch(const CollectiveCall& sent, std::int64_t sender,
                     const CollectiveCall& expected, std::int64_t receiver) {
  if (sent.tensor_type != expected.tensor_type || !same(sent.element, expected.element))
    return text("rank ", sender, " sends ", sent.element.name, " to rank ", receiver,
                ", which expects ", expected.element.name);
  if ((expected.rows >= 0 && expected.rows != sent.rows) ||
      (expected.cols >= 0 && expected.cols != sent.cols))
    return text("rank ", receiver, " expects another shape than rank ", sender, " sends");
  return {};
}

std::string member_in_words(const std::string& group, std::int64_t place, std::int64_t world_rank) {
  return text("\n  ", group, '=', place, " (rank ", world_rank, ") ");
}

std::string arrival_in_words(const CollectiveCall& call, std::int64_t sequence,
                             const std::string& module) {
  return text("call ", sequence, ": ", in_words(call), " in ", module.empty() ? "?" : module);
}

std::string mismatch_in_words(const std::string& group, const std::string& problem) {
  return text("collective mismatch on the group ", group, ": ", problem);
}

Traffic& Traffic::operator+=(const Traffic& more) {
  calls += more.calls;
  messages += more.messages;
  elements += more.elements;
  bytes += more.bytes;
  return *this;
}

Traffic ring_traffic(const CollectiveCall& call, std::int64_t place, std::int64_t size) {
  using enum CollectiveOp;
  const std::int64_t others = size - 1;
  const double share = double(others) / double(size);
  const double whole = double(call.rows) * double(call.cols);
  // Variable sizes: a gather passes on all parts but the next rank's, a scatter all but its own.
  const auto rows_but_of = [&](std::int64_t kept) {
    return double(total(call.sizes) - call.sizes[std::size_t(kept)]) * double(call.cols);
  };
  std::int64_t messages = others;
  double elements = 0;
  switch (call.op) {
    case all_reduce:
      elements = 2 * share * whole;
      messages = 2 * others;
      break;
    case barrier:
      messages = 2 * others;
      break;
    case reduce_scatter:
    case all_to_all:
      elements = share * whole;
      break;
    case all_gather:
      elements = double(others) * whole;
      break;
    case all_gather_v:
      elements = rows_but_of((place + 1) % size);
      break;
    case reduce_scatter_v:
    case all_to_all_v:
      elements = rows_but_of(place);
      break;
    case broadcast:
      messages = (place + 1) % size == call.peer ? 0 : 1;
      elements = double(messages) * whole;
      break;
    case send:
      messages = 1;
      elements = whole;
      break;
    case recv:
      messages = 0;
      break;
  }
  return {1, messages, elements, elements * double(call.element.bytes)};
}

}  // namespace tokenview
