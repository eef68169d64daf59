// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// One rank's tensor as it was found, without a word on what its rows are.
struct RankRows {
  std::optional<RankCoordinates> at;  // absent where it is not known which rank this is
  std::span<const float> values;      // [rows, columns]
  std::int64_t rows = 0, columns = 0;
};

/// The trusted tensor of one data-parallel rank: row i is its token i. Those of other steps than
/// the current one are only there to explain stale rows.
struct TrustedRows {
  std::int16_t dp = 0;
  std::int32_t step = 0;
  std::span<const float> values;  // [rows, columns]
  std::int64_t rows = 0, columns = 0;
};

struct InferOptions {
  /// What may differ between equal values, of the larger of the row's own largest magnitude and a
  /// hundredth of the usual one among the trusted rows: 1e-4 for float32, some 2e-2 for bfloat16.
  double tolerance = 1e-4;
  std::int32_t step = 0;  // the current one
  /// The trusted columns that a rank with this block holds, in the order in which it holds them:
  /// for packed projections. Absent: equal blocks one after the other.
  std::function<std::vector<std::int64_t>(const ColumnBlock&)> columns_of = {};
  /// Where values have errors of their own, as bfloat16's have: a row that equals no token is taken
  /// for the one that is nearer by this factor than any other. 0: is not.
  double nearest = 0;
  int threads = 1;
};

/// What a row is taken for.
enum class RowReading : std::uint8_t {
  token,    // the value of `row`, `factor` times
  pad,      // no token: zeros, or what `row.content` says
  partial,  // one summand of `row`: with the rows of `partners` it adds up to `factor` times it
  mix,      // column blocks of different tokens, or of tokens and pads
  sum,      // a sum over different tokens
  unknown,  // nothing that was tried fits
};

/// A piece of a row of several tokens.
struct RowPiece {
  RowRun row;                // of one; a pad: zeros
  ColumnBlock place = {};    // where in this row; of a sum everywhere
  ColumnBlock columns = {};  // those of the token that are there
  double factor = 1;

  bool operator==(const RowPiece&) const = default;
};

struct RowExplanation {
  RowReading reading = RowReading::unknown;
  RowRun row = {.count = 1};  // a token, a pad, or MIX; of what is unknown MIX
  ColumnBlock columns = {};   // those of the token that the row holds
  double factor = 1;
  std::vector<std::int32_t> partners = {};  // places among the ranks given, this one included
  std::vector<RowPiece> pieces = {};        // of a mix or a sum
  double error = 0;                         // max|found - explained| / scale
  bool is_near = false;                     // a token that is not equal: see InferOptions::nearest

  /// The token's value, once, in step `step`.
  bool is_right_token(std::int32_t step) const {
    return reading == RowReading::token && factor == 1 && row.step == step && !is_near;
  }
  bool operator==(const RowExplanation&) const = default;
};

/// Whether the row is one token's: its value, or a summand of it.
inline bool is_token(const RowExplanation& explanation) {
  return explanation.reading == RowReading::token || explanation.reading == RowReading::partial;
}

/// "token", "pad", "partial", "multiple", "mix", "sum", "stale" or "unknown".
const char* kind_name(const RowExplanation& explanation, std::int32_t step);

/// What an unknown row resembles, more than noise would: a hint, and no more.
struct RowLikeness {
  RowRun row;  // a token
  ColumnBlock columns = {};
  double cosine = 0;
  /// As one summand resembles the sum: what is missing has nothing to do with it. Else as a token
  /// does to which something was added.
  bool is_part = false;
};

/// From here on an explanation is no accident: among the rows of a whole model's taps that have
/// nothing to do with any token, none is expected to come as close to one.
inline constexpr double sure = 0.9999;

struct InferredRow {
  RowExplanation best;
  std::vector<RowExplanation> others =
      {};                 // that fit as well; `best` is what its neighbours suggest
  double confidence = 0;  // 1 - the chance that a row of noise fits so well; 1/n where n fit

  bool is_finite = true;                     // false: a value is NaN or infinite
  std::optional<RowLikeness> likeness = {};  // of some unknown rows

  bool is_ambiguous() const { return !others.empty(); }
  bool is_sure() const { return confidence >= sure; }
};

/// One rank's tensor explained.
struct InferredRank {
  std::optional<RankCoordinates> at;
  TokenView view;  // of what most token rows are; the others, and unknown ones, stand as MIX
  std::vector<InferredRow> rows;
};

/// The tensors of all ranks explained.
struct InferredTap {
  std::vector<InferredRank> ranks;  // as they were given
  std::int32_t step = 0;

  std::int64_t count(RowReading reading) const;
};

/// Finds out by values alone what each row of each rank is. Shapes that fit no column block of the
/// trusted tensor leave all rows unknown.
///
/// Rows are found by random projections, so that a row is not compared with every token, and
/// confirmed on all columns. Memory besides the operands: 72 bytes for each rank row, as much for
/// each trusted row and column block, and sizeof(InferredRow) a row. As long as rows are unknown,
/// the second once more, and for 32 column blocks, and a copy of the trusted rows.
///
/// Throws UsageError for spans that are not [rows, columns] and for trusted rows of different
/// widths.
InferredTap infer_placement(std::span<const RankRows> ranks, std::span<const TrustedRows> trusted,
                            const InferOptions& options = {});

/// "3", "1/4", "0.7312", "1e+20": whole numbers, fractions as ranks make them, else six digits.
std::string factor_as_number(double factor);

/// "token 3", "2 x token 3", "PAD of zeros", "summand of token 3, with tp=0, tp=1",
/// "MIX: columns 0/2 token 3, columns 1/2 token 4", "token 3 of step 0 (stale)", "unknown, most
/// like a part of token 3 (cosine 0.71)"; then the alternatives.
std::string in_words(const InferredTap& tap, std::size_t rank, std::size_t row);

/// A rank's rows in runs: "0-2 complete", "[0,1,PAD] ...".
std::string in_words(const InferredTap& tap, std::size_t rank);

/// Where a claim about a rank's tensor is untrue.
struct Contradiction {
  std::int64_t row = -1;  // the first; -1: the tensor as a whole
  std::string claimed, found;
};

/// The first row of which `claimed` says something else than what was found with confidence;
/// nothing where it fits, where the row is unknown, and where one of several explanations is the
/// claimed one.
std::optional<Contradiction> contradiction(const InferredTap& tap, std::size_t rank,
                                           const TokenView& claimed);

}  // namespace tokenview
