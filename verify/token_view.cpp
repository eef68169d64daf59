// SPDX-License-Identifier: Apache-2.0
#include "verify/token_view.hpp"

#include <algorithm>
#include <charconv>
#include <new>
#include <vector>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// True when `next` goes on where `run` ends.
bool continues(const RowRun& run, const RowRun& next) {
  if (run.kind != next.kind) return false;
  if (run.kind == RowKind::pad) return run.content == next.content;
  if (run.kind == RowKind::mix) return true;
  return run.dp == next.dp && run.step == next.step && run.first + run.count == next.first;
}

std::string prefix_of(const RowRun& run, std::int32_t step) {
  std::string prefix;
  if (run.kind == RowKind::token && run.step != step) prefix += text("step", run.step, ':');
  if (run.kind == RowKind::token && run.dp != 0) prefix += text('d', run.dp, ':');
  return prefix;
}

}  // namespace

namespace {

/// Memory that was given back on this thread.
struct FreeList {
  std::vector<void*> blocks;
  ~FreeList();
};
thread_local FreeList free_list;
thread_local bool is_free_list_gone = false;  // rows of static storage outlive it

FreeList::~FreeList() {
  for (void* block : blocks) ::operator delete(block);
  is_free_list_gone = true;
}

constexpr std::size_t most_kept = 4096;

}  // namespace

void* Rows::Shared::operator new(std::size_t size) {
  if (is_free_list_gone || free_list.blocks.empty()) return ::operator new(size);
  void* const block = free_list.blocks.back();
  free_list.blocks.pop_back();
  return block;
}

void Rows::Shared::operator delete(void* memory) {
  if (!is_free_list_gone && free_list.blocks.size() < most_kept)
    free_list.blocks.push_back(memory);
  else
    ::operator delete(memory);
}

const Rows::Runs& Rows::no_runs() {
  static const Runs none;
  return none;
}

Rows::Shared& Rows::own() {
  if (!shared_)
    shared_ = new Shared;
  else if (shared_->owners > 1)
    shared_ = new Shared{shared_->runs, shared_->size, 0};
  return *shared_;
}

void Rows::append(RowRun run) {
  if (run.count <= 0) return;
  if (run.kind != RowKind::token) {
    run.first = run.step = 0;
    run.dp = 0;
  }
  if (run.kind != RowKind::pad) run.content = PadContent::zero;
  Shared& shared = own();
  shared.size += run.count;
  if (!shared.runs.empty() && continues(shared.runs.back(), run))
    shared.runs.back().count += run.count;
  else
    shared.runs.push_back(run);
}

void Rows::append(const Rows& rows) {
  if (!shared_) {
    shared_ = rows.shared_;
    return;
  }
  const boost::intrusive_ptr<Shared> added = rows.shared_;  // stays, whoever owns it
  if (!added) return;
  for (const RowRun& run : added->runs) append(run);
}

Rows Rows::slice(std::int64_t begin, std::int64_t end) const {
  if (begin <= 0 && end >= size()) return *this;
  Rows part;
  std::int64_t at = 0;
  for (RowRun run : runs()) {
    const std::int64_t from = std::max(begin, at), to = std::min(end, at + run.count);
    at += run.count;
    if (from >= to) continue;
    if (run.kind == RowKind::token) run.first += std::int32_t(from - (at - run.count));
    run.count = std::int32_t(to - from);
    part.append(run);
  }
  return part;
}

RowRun Rows::at(std::int64_t index) const {
  for (RowRun run : runs()) {
    if (index < run.count) {
      if (run.kind == RowKind::token) run.first += std::int32_t(index);
      run.count = 1;
      return run;
    }
    index -= run.count;
  }
  return {};
}

std::int64_t Rows::count(RowKind kind) const {
  std::int64_t total = 0;
  for (const RowRun& run : runs()) total += run.kind == kind ? run.count : 0;
  return total;
}

namespace {

/// Equal as rows: what a pad holds does not tell it from another.
bool is_same_row(const RowRun& a, const RowRun& b) {
  return a == b || (a.kind == RowKind::pad && b.kind == RowKind::pad);
}

}  // namespace

bool same_rows(const Rows& a, const Rows& b) {
  return a == b || (a.size() == b.size() && first_difference(a, b) < 0);
}

std::int64_t first_difference(const Rows& a, const Rows& b) {
  if (a == b) return -1;
  const std::int64_t common = std::min(a.size(), b.size());
  for (std::int64_t i = 0; i < common; ++i)
    if (!is_same_row(a.at(i), b.at(i))) return i;
  return a.size() == b.size() ? -1 : common;
}

Rows mixed(const Rows& a, const Rows& b) {
  if (a == b) return a;
  Rows rows;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    RowRun row = a.at(i);
    const RowRun other = b.at(i);
    if (!is_same_row(row, other))
      row = {0, 1, 0, RowKind::mix, PadContent::zero, 0};
    else if (row.kind == RowKind::pad)
      row.content = std::max(row.content, other.content);
    rows.append(row);
  }
  return rows;
}

std::string to_string(const Rows& rows, std::int32_t step) {
  std::string out;
  for (const RowRun& run : rows.runs()) {
    if (!out.empty()) out += ',';
    out += prefix_of(run, step);
    if (run.kind == RowKind::token)
      out += run.count == 1 ? std::to_string(run.first)
                            : text(run.first, '-', run.first + run.count - 1);
    else
      out += text(run.kind == RowKind::pad ? "PAD" : "MIX",
                  run.count == 1 ? std::string() : text('*', run.count));
  }
  return out;
}

std::string to_map(const Rows& rows, std::int32_t step) {
  if (rows.size() > 16) return '[' + to_string(rows, step) + ']';
  std::string out = "[";
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const RowRun row = rows.at(i);
    if (i > 0) out += ',';
    out += prefix_of(row, step);
    out += row.kind == RowKind::token ? std::to_string(row.first)
           : row.kind == RowKind::pad ? "PAD"
                                      : "MIX";
  }
  return out + ']';
}

Rows parse_rows(std::string_view input) {
  std::string_view rest = input;
  const auto refuse = [&](const std::string& problem) {
    throw UsageError(text("rows \"", input, "\": ", problem,
                          ", expected runs such as 0-2, 9, PAD*2, MIX, d1:0-3"));
  };
  const auto number = [&](std::int32_t& value, bool may_be_negative = false) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || (value < 0 && !may_be_negative))
      refuse(text("no number at \"", rest, '"'));
    rest.remove_prefix(std::size_t(end - rest.data()));
  };
  const auto take = [&](std::string_view word) {
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    return true;
  };
  const bool bracketed = take("[");
  Rows rows;
  while (!rest.empty() && rest.front() != ']') {
    RowRun run;
    run.count = 1;
    if (take("step")) {
      number(run.step, true);  // before the first of the run
      if (!take(":")) refuse("a step is followed by a colon");
    }
    if (take("d")) {
      std::int32_t dp = 0;
      number(dp);
      run.dp = std::int16_t(dp);
      if (!take(":")) refuse("a dp rank is followed by a colon");
    }
    if (take("PAD") || take("MIX")) {
      run.kind =
          input[std::size_t(rest.data() - input.data()) - 1] == 'D' ? RowKind::pad : RowKind::mix;
      if (take("*")) number(run.count);
    } else {
      number(run.first);
      if (take("-")) {
        std::int32_t last = 0;
        number(last);
        if (last < run.first) refuse(text("the run ", run.first, '-', last, " is empty"));
        run.count = last - run.first + 1;
      }
    }
    rows.append(run);
    if (!rest.empty() && rest.front() != ']' && !take(",")) refuse(text("unknown \"", rest, '"'));
  }
  if (bracketed != take("]") || !rest.empty()) refuse("brackets do not match");
  return rows;
}

Completeness Completeness::complete(std::int32_t times, std::int32_t divisor) {
  Completeness sum;
  sum.counts_[0] = std::uint8_t(std::min(times, 255));
  sum.divisor_ = divisor;
  sum.normalise();
  return sum;
}

Completeness Completeness::summand(std::int64_t index, std::int64_t size) {
  if (size > std::int64_t(max_summands))
    throw ShapeError(text("a sum of ", size, " ranks: at most ", max_summands, " are followed"));
  Completeness sum;
  sum.counts_[0] = 0;
  sum.counts_[std::size_t(index)] = 1;
  sum.size_ = std::int32_t(size);
  sum.normalise();
  return sum;
}

bool Completeness::count_in(const Completeness& other) {
  if (size_ != other.size_ || divisor_ != other.divisor_) return false;
  for (std::int32_t i = 0; i < size_; ++i)
    counts_[std::size_t(i)] =
        std::uint8_t(std::min(255, int(counts_[std::size_t(i)]) + other.counts_[std::size_t(i)]));
  return true;
}

void Completeness::multiply(std::int32_t times, std::int32_t by) {
  for (std::uint8_t& count : counts_) count = std::uint8_t(std::min(255, int(count) * times));
  divisor_ *= by;
  normalise();
}

void Completeness::normalise() {
  for (std::int32_t period = 1; period < size_; ++period) {
    if (size_ % period != 0) continue;
    bool repeats = true;
    for (std::int32_t i = period; i < size_ && repeats; ++i)
      repeats = counts_[std::size_t(i)] == counts_[std::size_t(i - period)];
    if (!repeats) continue;
    std::fill(counts_.begin() + period, counts_.begin() + size_, std::uint8_t{0});
    size_ = period;
    break;
  }
  if (size_ == 1 && divisor_ > 1 && counts_[0] % divisor_ == 0) {
    counts_[0] = std::uint8_t(counts_[0] / divisor_);
    divisor_ = 1;
  }
}

std::string to_string(const Completeness& sum) {
  if (sum.is_complete()) return "complete";
  const std::string divided = sum.divisor() > 1 ? text('/', sum.divisor()) : std::string();
  if (!sum.is_partial()) return text('x', sum.times(), divided);
  std::string held;
  for (std::int64_t i = 0; i < sum.size(); ++i) {
    if (sum.count(i) == 0) continue;
    if (!held.empty()) held += ',';
    held += std::to_string(i);
    if (sum.count(i) > 1) held += text('*', sum.count(i));
  }
  return text("partial ", held.empty() ? "none" : held, '/', sum.size(), divided);
}

std::string to_string(const ColumnBlock& columns) {
  const bool is_one = columns.end == columns.begin + 1;
  return text(columns.begin, is_one ? "" : text('-', columns.end - 1), '/', columns.of);
}

bool same_view(const TokenView& a, const TokenView& b) {
  return same_rows(a.rows, b.rows) && a.sum == b.sum && a.columns == b.columns;
}

std::string to_string(const TokenView& view, std::int32_t step) {
  std::string out = to_string(view.rows, step);
  if (!view.columns.all()) out += " columns " + to_string(view.columns);
  if (!view.sum.is_complete()) out += ' ' + to_string(view.sum);
  return out;
}

}  // namespace tokenview
