// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <boost/container/small_vector.hpp>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace tokenview {

/// What one row of a tensor is.
enum class RowKind : std::uint8_t {
  token,  // the value of one token
  pad,    // no token: its content must never reach a real row, memory, routing, a count or a caller
  mix,    // column blocks of several tokens: valid nowhere
};

/// What a pad row holds.
enum class PadContent : std::uint8_t {
  zero,   // exact zeros, appended by a layer: stays zero through norms, projections and experts
  stale,  // rows of an earlier step, left in a buffer by the runner
  other,  // anything: poisoned on purpose, or computed from such rows
};

/// Rows of one kind one after the other. Tokens count up from `first`.
struct RowRun {
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int16_t dp = 0;  // whose tokens
  RowKind kind = RowKind::token;
  PadContent content = PadContent::zero;
  std::int32_t step = 0;  // the engine step that wrote them

  bool operator==(const RowRun&) const = default;
};

/// The rows of a tensor in order, run-length encoded; neighbouring runs that continue each other
/// are one, so equal rows have equal encodings. Copies share their runs until one of them changes:
/// copies that go to several threads must be handed over whole.
class Rows {
 public:
  using Runs = boost::container::small_vector<RowRun, 4>;

  Rows() = default;
  static Rows tokens(std::int64_t count, std::int16_t dp = 0, std::int32_t step = 0) {
    Rows rows;
    rows.append({0, std::int32_t(count), dp, RowKind::token, PadContent::zero, step});
    return rows;
  }

  std::int64_t size() const { return shared_ ? shared_->size : 0; }
  const Runs& runs() const { return shared_ ? shared_->runs : no_runs(); }
  void append(RowRun run);
  void append(const Rows& rows);
  void append_pads(std::int64_t count, PadContent content = PadContent::zero) {
    append({0, std::int32_t(count), 0, RowKind::pad, content, 0});
  }

  /// Rows [begin, end).
  Rows slice(std::int64_t begin, std::int64_t end) const;

  /// The row at `index`, as a run of one.
  RowRun at(std::int64_t index) const;

  std::int64_t count(RowKind kind) const;

  bool operator==(const Rows& other) const {
    return shared_ == other.shared_ || (size() == other.size() && runs() == other.runs());
  }

 private:
  struct Shared {
    Runs runs;
    std::int64_t size = 0;
    std::int32_t owners = 0;

    // Made and dropped by the thousand: kept for the next one, a list a thread.
    static void* operator new(std::size_t size);
    static void operator delete(void* memory);
    friend void intrusive_ptr_add_ref(Shared* shared) { ++shared->owners; }
    friend void intrusive_ptr_release(Shared* shared) {
      if (--shared->owners == 0) delete shared;
    }
  };
  static const Runs& no_runs();
  Shared& own();  // not shared with a copy

  boost::intrusive_ptr<Shared> shared_;  // null: no rows
};

/// Equal but for what their pads hold.
bool same_rows(const Rows& a, const Rows& b);

/// The first row in which the two differ, whatever their pads hold; -1 where they are equal.
std::int64_t first_difference(const Rows& a, const Rows& b);

/// Row by row: equal rows stay, rows of different tokens become MIX, as do a token and a pad; two
/// pads stay one. The sizes are equal.
Rows mixed(const Rows& a, const Rows& b);

/// `0-2`, `9,PAD*2`, `d1:0-3`, `MIX*4`: runs separated by commas, `step3:` before rows that another
/// step than `step` wrote.
std::string to_string(const Rows& rows, std::int32_t step = 0);

/// `[0,1,2]`, `[9,PAD,PAD]`: row by row up to 16 rows, then as to_string().
std::string to_map(const Rows& rows, std::int32_t step = 0);

/// Reads both forms. Throws UsageError, with the text and what was expected.
Rows parse_rows(std::string_view text);

/// How often each summand of a row's true value is contained in it. A row-parallel product or a
/// rank's experts give one summand of several; a sum over the ranks adds the counts.
class Completeness {
 public:
  static constexpr std::size_t max_summands = 32;

  /// The whole value, `times` times, divided by `divisor`.
  static Completeness complete(std::int32_t times = 1, std::int32_t divisor = 1);
  /// Summand `index` of `size`, once.
  static Completeness summand(std::int64_t index, std::int64_t size);

  bool is_complete() const { return size_ == 1 && counts_[0] == 1 && divisor_ == 1; }
  bool is_partial() const { return size_ > 1; }
  std::int64_t size() const { return size_; }  // summands the value consists of; 1: not split
  std::int32_t times() const { return counts_[0]; }
  std::int32_t count(std::int64_t summand) const { return counts_[std::size_t(summand)]; }
  std::int32_t divisor() const { return divisor_; }

  /// Adds what `other` contains; false when the two do not count the same summands (a complete
  /// value and a partial one, say): then the sum has no meaning as a multiple of the true value.
  bool add(const Completeness& other) {
    if (!count_in(other)) return false;
    normalise();
    return true;
  }

  /// The same, to be normalised when all are added.
  bool count_in(const Completeness& other);

  /// What it contains `times` times, divided by `divisor`.
  void multiply(std::int32_t times, std::int32_t divisor);

  /// Summands that repeat with a shorter period are summands of fewer ranks: a value of which every
  /// dp rank's part is contained is one over tp alone.
  void normalise();

  bool operator==(const Completeness&) const = default;

 private:
  std::array<std::uint8_t, max_summands> counts_{1};
  std::int32_t size_ = 1;
  std::int32_t divisor_ = 1;
};

/// `complete`, `x2`, `partial 1/4` (summand 1 of 4 only), `partial 0,1/4`, `partial 0*2,1/4`.
std::string to_string(const Completeness& completeness);

/// Columns [begin, end) of `of` equal blocks; {0, 1, 1} is all.
struct ColumnBlock {
  std::int16_t begin = 0;
  std::int16_t end = 1;
  std::int16_t of = 1;

  bool all() const { return begin == 0 && end == of; }
  bool operator==(const ColumnBlock&) const = default;
};

/// `1/4`, `0-1/4`: these of so many equal blocks.
std::string to_string(const ColumnBlock& columns);

/// What one rank's tensor stands for.
struct TokenView {
  Rows rows;
  Completeness sum;
  ColumnBlock columns;

  bool operator==(const TokenView&) const = default;
};

/// Equal but for what their pads hold.
bool same_view(const TokenView& a, const TokenView& b);

/// `0-9`, `6-8 partial 1/4`, `0-9 columns 1/4`.
std::string to_string(const TokenView& view, std::int32_t step = 0);

}  // namespace tokenview
