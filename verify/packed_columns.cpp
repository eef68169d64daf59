// SPDX-License-Identifier: Apache-2.0
#include "verify/packed_columns.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "verify/host_matrix.hpp"

namespace tokenview {
namespace {

using Map = Eigen::Map<const Matrix<float>>;

constexpr int most_segments = 4;  // query, key, value and gate

/// Squared error of what is close, of the squared values: far above that of two bfloat16 runs, far
/// below chance, which is two.
constexpr double close_squares = 0.01;

/// Values that are compared at most: columns of zeros fit everywhere.
constexpr std::int64_t most_values = 200'000'000;

struct Segment {
  std::int64_t blocks = 1, width = 0;  // of one block
};

/// Looks for segments that explain some rows of all ranks.
class PackedSearch {
 public:
  PackedSearch(const TapTensors& tap, std::vector<std::int64_t> rows)
      : tap_(tap), rows_(std::move(rows)), trusted_(as_matrix(*tap.trusted)) {
    for (const RankTensor& rank : tap.ranks) ranks_.push_back(as_matrix(rank.values));
    for (std::int64_t c = 0; c < trusted_.cols(); ++c)
      for (const std::int64_t row : rows_) mean_ += square(trusted_(row, c));
    mean_ /= double(std::max<std::int64_t>(1, trusted_.cols()));
  }

  /// The best of all numbers of segments; few before many.
  std::optional<ColumnLayout> best() {
    for (std::int64_t groups = 1; groups < tap_.tp_size; ++groups) {
      if (tap_.tp_size % groups != 0 || trusted_.cols() % groups != 0) continue;
      groups_ = groups;
      for (int segments = 2; segments <= most_segments; ++segments) extend(segments, 0, 0, 0);
    }
    return std::move(best_);
  }

 private:
  static double square(double x) { return x * x; }
  std::int64_t group_ranks() const { return tap_.tp_size / groups_; }
  std::int64_t group_width() const { return trusted_.cols() / groups_; }

  /// The trusted column with which a segment that begins at `begin` of its group begins on a rank.
  std::int64_t first_column(std::size_t rank, std::int64_t begin, const Segment& segment) const {
    const std::int64_t tp = tap_.ranks[rank].at.tp, ranks = group_ranks();
    return tp / ranks * group_width() + begin +
           tp % ranks / (ranks / segment.blocks) * segment.width;
  }

  /// Adds up the squared errors of `count` columns of a rank, from `held` on, beside the trusted
  /// ones from `column` on; how many come close before the error runs away.
  std::int64_t close_columns(std::size_t rank, std::int64_t held, std::int64_t column,
                             std::int64_t count, double& error) {
    double squares = 0, errors = 0;
    for (std::int64_t c = 0; c < count; ++c) {
      compared_ += std::ssize(rows_);
      if (compared_ > most_values) return 0;
      for (const std::int64_t row : rows_) {
        const double right = trusted_(row, column + c);
        squares += square(right);
        errors += square(double(ranks_[rank](row, held + c)) - right);
      }
      // NaN is not close. Small values have the errors of large ones.
      if (!(errors <= close_squares * (squares + mean_))) return c;
    }
    error += errors;
    return count;
  }

  /// Tries all segments for the place at which `held` columns of each rank and `begin` columns of
  /// each group are explained, with `error`; `left` of them are to come.
  void extend(int left, std::int64_t held, std::int64_t begin, double error) {
    const std::int64_t width = ranks_.front().cols() - held, columns = group_width() - begin;
    if (width < left || columns < width || columns > width * group_ranks()) return;
    for (std::int64_t blocks = 1; blocks <= group_ranks(); ++blocks) {
      if (group_ranks() % blocks != 0) continue;
      // Two that every rank has whole are one.
      if (blocks == 1 && !segments_.empty() && segments_.back().blocks == 1) continue;
      if (left == 1) {
        if (blocks * width == columns) try_segment({blocks, width}, left, held, begin, error);
        continue;
      }
      double ignored = 0;  // the first rank's block is the first one, whatever its width
      std::int64_t most = std::min(width - left + 1, columns / blocks);
      if (tap_.ranks.front().at.tp == 0) most = close_columns(0, held, begin, most, ignored);
      for (std::int64_t share = most; share >= 1; --share)
        try_segment({blocks, share}, left, held, begin, error);
    }
  }

  void try_segment(const Segment& segment, int left, std::int64_t held, std::int64_t begin,
                   double error) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (close_columns(rank, held, first_column(rank, begin, segment), segment.width, error) <
          segment.width)
        return;
    if (best_ && error >= least_) return;
    segments_.push_back(segment);
    if (left > 1) {
      extend(left - 1, held + segment.width, begin + segment.blocks * segment.width, error);
    } else {
      least_ = error;
      best_ = layout();
    }
    segments_.pop_back();
  }

  ColumnLayout layout() const {
    ColumnLayout found{{}, {tap_.tp_size}};
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<std::int64_t>& columns = found.columns.emplace_back();
      std::int64_t begin = 0;
      for (const Segment& segment : segments_) {
        const std::int64_t first = first_column(rank, begin, segment);
        for (std::int64_t c = 0; c < segment.width; ++c) columns.push_back(first + c);
        begin += segment.blocks * segment.width;
      }
    }
    return found;
  }

  const TapTensors& tap_;
  const std::vector<std::int64_t> rows_;
  const Map trusted_;
  std::vector<Map> ranks_;
  double mean_ = 0;  // squares of a column
  std::int64_t groups_ = 1;
  std::vector<Segment> segments_;
  std::optional<ColumnLayout> best_;
  double least_ = 0;
  std::int64_t compared_ = 0;
};

}  // namespace

std::optional<ColumnLayout> packed_columns(const TapTensors& tap) {
  constexpr std::int64_t most_rows = 32, most_alone = 8;  // that are looked at
  const std::int64_t width = tap.ranks.front().values.cols();
  for (const RankTensor& rank : tap.ranks)
    if (rank.values.rows() < tap.tokens() || rank.values.cols() != width) return std::nullopt;
  if (width >= tap.trusted->cols() || tap.tokens() == 0) return std::nullopt;
  const auto spread = [&](std::int64_t most) {
    const std::int64_t count = std::min(most, tap.tokens());
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(i * tap.tokens() / count);
    return rows;
  };
  if (std::optional<ColumnLayout> found = PackedSearch(tap, spread(most_rows)).best()) return found;
  for (const std::int64_t row : spread(most_alone))  // others may be wrong
    if (std::optional<ColumnLayout> found = PackedSearch(tap, {row}).best()) return found;
  return std::nullopt;
}

std::optional<HostTensor> unpacked(const TapTensors& tap, std::int64_t blocks) {
  const std::int64_t width = tap.trusted->cols(), share = width / blocks;
  HostTensor held{{0, width}, {}};  // by all ranks, the rows of each one below the other's
  for (const RankTensor& rank : tap.ranks) {
    if (rank.values.cols() != width) return std::nullopt;
    if (held.rows() >= tap.tokens()) break;
    held.shape[0] += rank.values.rows();
    held.values.insert(held.values.end(), rank.values.values.begin(), rank.values.values.end());
  }
  if (held.rows() < tap.tokens() || width % blocks != 0) return std::nullopt;
  held.shape[0] = tap.tokens();
  held.values.resize(std::size_t(tap.tokens() * width));

  const Map trusted = as_matrix(*tap.trusted);
  TapTensors packed{.tp_size = blocks, .trusted = &held};
  for (std::int64_t block = 0; block < blocks; ++block) {
    HostTensor values{{tap.tokens(), share}, {}};
    for (std::int64_t row = 0; row < tap.tokens(); ++row)
      for (std::int64_t c = 0; c < share; ++c)
        values.values.push_back(trusted(row, block * share + c));
    packed.ranks.push_back({{.world = block, .tp = block}, std::move(values)});
  }
  const std::optional<ColumnLayout> columns = packed_columns(packed);
  if (!columns) return std::nullopt;
  HostTensor whole = *tap.trusted;
  for (std::int64_t block = 0; block < blocks; ++block)
    for (std::int64_t row = 0; row < tap.tokens(); ++row)
      for (std::int64_t c = 0; c < share; ++c)
        whole.values[std::size_t(row * width +
                                 columns->columns[std::size_t(block)][std::size_t(c)])] =
            trusted(row, block * share + c);
  return whole;
}

}  // namespace tokenview
