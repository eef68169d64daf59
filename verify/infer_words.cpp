// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/infer.hpp"

namespace tokenview {
namespace {

std::string name_of(const InferredTap& tap, std::int32_t rank) {
  const auto& at = tap.ranks[std::size_t(rank)].at;
  return at ? text("tp=", at->tp, " dp=", at->dp) : text("rank ", rank);
}

/// "token 3", "token 3 of dp=1", "token 3 of step 0 (stale)".
std::string token_words(const RowRun& row, std::int32_t step) {
  std::string words = text("token ", row.first);
  if (row.dp != 0) words += text(" of dp=", row.dp);
  if (row.step != step) words += text(" of step ", row.step, " (stale)");
  return words;
}

/// "", "2 x ", "1/4 x ", "0.7312 x ".
std::string times_words(double factor) {
  return factor == 1 ? "" : factor_as_number(factor) + " x ";
}

std::string block_words(const ColumnBlock& block) {
  std::string words = text("columns ", block.begin);
  if (block.end != block.begin + 1) words += text('-', block.end - 1);
  return words + text('/', block.of);
}

std::string partner_words(const InferredTap& tap, const RowExplanation& explanation) {
  std::string words = text(", which adds up over ", explanation.partners.size(), " ranks:");
  for (const std::int32_t partner : explanation.partners) {
    words += partner == explanation.partners.front() ? " " : ", ";
    words += name_of(tap, partner);
  }
  return words;
}

std::string words_of(const InferredTap& tap, const RowExplanation& e) {
  const std::string columns = e.columns.all() ? "" : block_words(e.columns) + " of ";
  std::string words;
  switch (e.reading) {
    case RowReading::token:
      return (e.is_near ? "nearest to " : "") + times_words(e.factor) + columns +
             token_words(e.row, tap.step);
    case RowReading::pad:
      return e.row.content == PadContent::zero ? "PAD of zeros"
                                               : "PAD with other content, for no token is left";
    case RowReading::partial:
      return "summand of " + times_words(e.factor) + columns + token_words(e.row, tap.step) +
             partner_words(tap, e);
    case RowReading::mix:
      words = "MIX:";
      for (const RowPiece& piece : e.pieces) {
        words += text(&piece == &e.pieces.front() ? " " : ", ", block_words(piece.place), " ",
                      piece.row.kind == RowKind::pad ? "zeros" : token_words(piece.row, tap.step));
        if (piece.row.kind == RowKind::token && piece.columns != piece.place)
          words += text(" (its ", block_words(piece.columns), ')');
      }
      return words;
    case RowReading::sum:
      words = "sum of";
      for (const RowPiece& piece : e.pieces)
        words += text(&piece == &e.pieces.front() ? " " : " + ", times_words(piece.factor),
                      token_words(piece.row, tap.step));
      return e.partners.empty() ? words : "summand of a " + words + partner_words(tap, e);
    case RowReading::unknown:
      return "unknown";
  }
  return words;
}

/// Whether an explanation is what a view says of the row.
bool is_as_claimed(const RowExplanation& found, const RowRun& claimed, const TokenView& view,
                   std::int32_t step) {
  switch (claimed.kind) {
    case RowKind::pad:
      return found.reading == RowReading::pad ||
             (claimed.content == PadContent::stale && found.row.step != step &&
              found.reading == RowReading::token);
    case RowKind::mix:
      return found.reading == RowReading::mix || found.reading == RowReading::sum;
    case RowKind::token:
      break;
  }
  const bool is_token = found.row.kind == RowKind::token && found.row.dp == claimed.dp &&
                        found.row.first == claimed.first && found.row.step == claimed.step;
  if (!is_token || found.columns != view.columns) return false;
  if (view.sum.is_partial()) return found.reading == RowReading::partial;
  return found.reading == RowReading::token &&
         std::abs(found.factor * view.sum.divisor() - view.sum.times()) <= 1e-9;
}

}  // namespace

std::string factor_as_number(double factor) {
  constexpr double most = 4096;  // ranks times ranks
  for (int divisor = 1; divisor <= 64; ++divisor) {
    const double times = std::round(factor * divisor);
    if (times == 0 || std::abs(times) > most || std::abs(factor * divisor - times) > 1e-9) continue;
    return divisor == 1 ? text(std::int64_t(times)) : text(std::int64_t(times), '/', divisor);
  }
  return text(factor);
}

const char* kind_name(const RowExplanation& explanation, std::int32_t step) {
  switch (explanation.reading) {
    case RowReading::token:
      return explanation.row.step != step ? "stale"
             : explanation.factor != 1    ? "multiple"
                                          : "token";
    case RowReading::pad:
      return "pad";
    case RowReading::partial:
      return "partial";
    case RowReading::mix:
      return "mix";
    case RowReading::sum:
      return "sum";
    case RowReading::unknown:
      return "unknown";
  }
  return "?";
}

std::string in_words(const InferredTap& tap, std::size_t rank, std::size_t row) {
  const InferredRow& found = tap.ranks[rank].rows[row];
  std::string words = words_of(tap, found.best);
  if (!found.is_finite) words += ", not finite";
  if (const auto& like = found.likeness)
    words += text(", most like ", like->is_part ? "a part of " : "",
                  like->columns.all() ? "" : block_words(like->columns) + " of ",
                  token_words(like->row, tap.step), " (cosine ",
                  std::round(like->cosine * 100) / 100, ')');
  for (const RowExplanation& other : found.others) words += "; or " + words_of(tap, other);
  return words;
}

std::string in_words(const InferredTap& tap, std::size_t rank) {
  const InferredRank& found = tap.ranks[rank];
  std::string words =
      text(name_of(tap, std::int32_t(rank)), ' ', to_map(found.view.rows, tap.step));
  TokenView rest = found.view;
  rest.rows = {};
  const std::string how = to_string(rest, tap.step);
  if (!how.empty()) words += (how.front() == ' ' ? "" : " ") + how;
  std::int64_t unknown = 0, ambiguous = 0;
  for (const InferredRow& row : found.rows) {
    unknown += row.best.reading == RowReading::unknown;
    ambiguous += row.is_ambiguous();
  }
  if (unknown > 0) words += text(", unknown ", unknown);
  if (ambiguous > 0) words += text(", ambiguous ", ambiguous);
  return words;
}

std::optional<Contradiction> contradiction(const InferredTap& tap, std::size_t rank,
                                           const TokenView& claimed) {
  const InferredRank& found = tap.ranks[rank];
  if (claimed.rows.size() != std::ssize(found.rows))
    return Contradiction{-1, text(claimed.rows.size(), " rows"), text(found.rows.size(), " rows")};
  std::int64_t i = 0;
  for (RowRun run : claimed.rows.runs()) {
    const std::int32_t count = std::exchange(run.count, 1);
    for (std::int32_t j = 0; j < count; ++j, ++i) {
      const InferredRow& row = found.rows[std::size_t(i)];
      const auto fits = [&](const RowExplanation& e) {
        return is_as_claimed(e, run, claimed, tap.step);
      };
      if (row.best.reading != RowReading::unknown && !fits(row.best) &&
          std::ranges::none_of(row.others, fits) && (row.is_sure() || row.is_ambiguous())) {
        TokenView one{{}, claimed.sum, claimed.columns};
        one.rows.append(run);
        return Contradiction{i, to_string(one, tap.step), in_words(tap, rank, std::size_t(i))};
      }
      if (run.kind == RowKind::token) ++run.first;
    }
  }
  return std::nullopt;
}

}  // namespace tokenview
