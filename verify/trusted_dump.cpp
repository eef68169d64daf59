// SPDX-License-Identifier: Apache-2.0
#include "verify/trusted_dump.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// Copies of one tensor: the ranks computed the same, in the same or in another order.
bool are_copies(const std::vector<HostTensor>& parts) {
  constexpr double tolerance = 1e-4;
  double largest = 0, error = 0;
  for (const HostTensor& part : parts)
    for (std::size_t i = 0; i < part.values.size(); ++i) {
      largest = std::max(largest, std::abs(double(parts.front().values[i])));
      error = std::max(error, std::abs(double(part.values[i]) - double(parts.front().values[i])));
    }
  return error <= tolerance * largest;
}

/// The first `rows` rows.
HostTensor cut(HostTensor tensor, std::int64_t rows) {
  tensor.shape[0] = std::min(rows, tensor.rows());
  tensor.values.resize(std::size_t(tensor.rows() * tensor.cols()));
  return tensor;
}

HostTensor one_below_the_other(const std::vector<HostTensor>& parts, std::int64_t rows) {
  HostTensor joined{{0, parts.front().cols()}, {}, parts.front().dtype};
  for (const HostTensor& part : parts) {
    joined.shape[0] += part.rows();
    joined.values.insert(joined.values.end(), part.values.begin(), part.values.end());
  }
  return cut(std::move(joined), rows);
}

HostTensor sum_of(const std::vector<HostTensor>& parts) {
  HostTensor sum = parts.front();
  for (std::size_t i = 0; i < sum.values.size(); ++i) {
    double value = 0;
    for (const HostTensor& part : parts) value += double(part.values[i]);
    sum.values[i] = float(value);
  }
  return sum;
}

/// Rows that are annotated, each at its token's place; nothing where one is missing, or where the
/// annotation is of columns, or of summands.
std::optional<HostTensor> by_annotation(const std::vector<const DumpTap*>& taps,
                                        const std::vector<HostTensor>& parts, std::int64_t rows) {
  HostTensor placed{{rows, parts.front().cols()}, {}, parts.front().dtype};
  placed.values.resize(std::size_t(rows * placed.cols()));
  std::vector<bool> is_there(std::size_t(rows), false);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!taps[i]->view || taps[i]->view->sum.is_partial() || !taps[i]->view->columns.all() ||
        taps[i]->view->rows.size() != parts[i].rows() || parts[i].cols() != placed.cols())
      return std::nullopt;
    std::int64_t row = 0;
    for (const RowRun& run : taps[i]->view->rows.runs())
      for (std::int32_t k = 0; k < run.count; ++k, ++row) {
        if (run.kind != RowKind::token) continue;
        if (run.first + k >= rows) return std::nullopt;
        std::copy_n(parts[i].values.begin() + row * placed.cols(), placed.cols(),
                    placed.values.begin() + (run.first + k) * placed.cols());
        is_there[std::size_t(run.first + k)] = true;
      }
  }
  if (std::ranges::find(is_there, false) != is_there.end()) return std::nullopt;
  return placed;
}

std::vector<std::int32_t> as_starts(const std::vector<std::int64_t>& wide) {
  return {wide.begin(), wide.end()};
}

}  // namespace

DType arithmetic_of(const DumpStep& step) {
  for (const auto& [name, tap] : step.taps)
    for (const DType type : {DType::bfloat16, DType::float16})
      if (tap.type_name == to_string(type)) return type;
  return DType::float32;
}

DType arithmetic_of(const DumpFile& dump) {
  for (const DumpRank& rank : dump.ranks())
    for (const auto& [number, step] : rank.steps)
      if (const DType type = arithmetic_of(step); type != DType::float32) return type;
  return DType::float32;
}

DumpedTrustedStep::DumpedTrustedStep(const DumpFile& dump, std::int64_t number,
                                     std::vector<const DumpRank*> ranks)
    : dump_(dump),
      number_(number),
      ranks_(std::move(ranks)),
      name_(text("step ", number, " of ", dump.name())) {
  for (const DumpRank* rank : ranks_)
    for (const auto& [name, tap] : rank->steps.at(number).taps) taps_.insert(name);
  const DumpStep& step = ranks_.front()->steps.at(number);
  num_tokens_ = step.num_tokens;
  if (const std::optional<DumpInputs>& given = step.inputs;
      given && given->input_ids && given->positions && given->query_start_loc &&
      given->context_ids && given->context_start_loc) {
    inputs_ = GoldenInputs{*given->input_ids, *given->positions, as_starts(*given->query_start_loc),
                           *given->context_ids, as_starts(*given->context_start_loc)};
    require_valid(*inputs_, std::numeric_limits<std::int64_t>::max(),
                  text(dump.file(ranks_.front()->file).path(), ":step ", number, "/inputs"));
  }
}

std::vector<const DumpRank*> DumpedTrustedStep::ranks_of(const std::string& tap) const {
  std::vector<const DumpRank*> found;
  for (const DumpRank* rank : ranks_)
    if (rank->steps.at(number_).taps.contains(tap)) found.push_back(rank);
  return found;
}

/// Rows of the whole tensor: tokens, of later draft passes requests; as many as there are where
/// that is not said.
std::int64_t DumpedTrustedStep::tokens_of(const std::string& tap) const {
  if (tap_place(tap).pass > 0 && inputs_) return inputs_->num_sequences();
  if (tap_place(tap).pass <= 0 && num_tokens_ >= 0) return num_tokens_;
  return std::numeric_limits<std::int64_t>::max();
}

/// A router's weights are kept in float32, and are as exact as what they were computed from.
std::vector<HostTensor> DumpedTrustedStep::ways(const std::string& tap) const {
  std::vector<HostTensor> all = stored_ways(tap);
  if (const DType type = arithmetic_of(ranks_.front()->steps.at(number_)); type != DType::float32)
    for (HostTensor& way : all) way.dtype = type;
  return all;
}

std::vector<HostTensor> DumpedTrustedStep::stored_ways(const std::string& tap) const {
  std::vector<HostTensor> parts;
  std::vector<const DumpTap*> taps;
  for (const DumpRank* rank : ranks_of(tap)) {
    taps.push_back(&rank->steps.at(number_).taps.at(tap));
    parts.push_back(dump_.values(*taps.back()));
  }
  const std::int64_t tokens = tokens_of(tap);
  if (parts.size() == 1) return {cut(std::move(parts.front()), tokens)};
  if (std::optional<HostTensor> placed = by_annotation(taps, parts, tokens)) return {*placed};

  const bool are_alike = std::ranges::all_of(
      parts, [&](const HostTensor& part) { return part.shape == parts.front().shape; });
  if (are_alike && (parts.front().rows() >= tokens || may_be_sampled(tap))) {
    if (are_copies(parts)) return {cut(std::move(parts.front()), tokens)};
    if (parts.front().rows() >= tokens) {
      std::vector<HostTensor> all = {cut(sum_of(parts), tokens), cut(side_by_side(parts), tokens)};
      // One row may be a shard beside pads, which need not be zeros.
      if (tokens == 1) all.push_back(cut(std::move(parts.front()), tokens));
      return all;
    }
  }
  return {one_below_the_other(parts, tokens)};
}

IntegerTensor DumpedTrustedStep::ids(const std::string& tap) const {
  IntegerTensor joined;
  const std::int64_t tokens = tokens_of(tap);
  for (const DumpRank* rank : ranks_of(tap)) {
    const IntegerTensor part = dump_.ids(rank->steps.at(number_).taps.at(tap));
    if (joined.shape.empty()) joined.shape = {0};
    joined.shape.resize(1);
    joined.shape.insert(joined.shape.end(), part.shape.begin() + 1, part.shape.end());
    joined.shape[0] += part.shape[0];
    joined.values.insert(joined.values.end(), part.values.begin(), part.values.end());
    if (part.shape[0] >= tokens || part.shape[0] == 0) break;  // full: the others have copies
  }
  const std::int64_t each =
      joined.shape[0] == 0 ? 0 : std::int64_t(joined.values.size()) / joined.shape[0];
  joined.shape[0] = std::min(joined.shape[0], tokens);
  joined.values.resize(std::size_t(joined.shape[0] * each));
  return joined;
}

DType DumpSide::dtype() const { return arithmetic_of(dump_); }

std::shared_ptr<const TrustedStep> DumpSide::step_of(std::int64_t number, std::int64_t dp,
                                                     const DumpStep& step) {
  std::optional<std::pair<std::int64_t, std::int64_t>> best;  // number, dp
  for (const DumpRank& rank : dump_.ranks())
    for (const auto& [other, theirs] : rank.steps) {
      if (theirs.dummy) continue;
      const bool has_inputs = step.inputs && step.inputs->input_ids && theirs.inputs;
      const bool is_same_place = other == number && rank.at.dp == dp;
      if (has_inputs ? theirs.inputs != step.inputs
                     : !is_same_place || theirs.num_tokens != step.num_tokens)
        continue;
      if (!best || is_same_place) best = {other, rank.at.dp};
    }
  if (!best) return nullptr;
  std::shared_ptr<const TrustedStep>& found = steps_[*best];
  if (!found) {
    std::vector<const DumpRank*> ranks;
    for (const DumpRank& rank : dump_.ranks())
      if (rank.at.dp == best->second && rank.steps.contains(best->first)) ranks.push_back(&rank);
    std::ranges::sort(ranks, {},
                      [](const DumpRank* rank) { return std::pair(rank->at.pp, rank->at.tp); });
    found = std::make_shared<DumpedTrustedStep>(dump_, best->first, std::move(ranks));
  }
  return found;
}

}  // namespace tokenview
