// SPDX-License-Identifier: Apache-2.0
#include "verify/infer_pieces.hpp"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "verify/parallel_for.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t block_counts[] = {2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32};

/// The row as `count` blocks, each that of a token or zeros; nothing where one block is neither.
std::optional<InferredRow> mix_of(const SketchedRow& row, const TrustedPool& pieces,
                                  std::int64_t count) {
  const std::int64_t width = pieces.width();
  InferredRow mix;
  mix.best.reading = RowReading::mix;
  mix.best.row.kind = RowKind::mix;
  double chance = 0;
  for (std::int64_t q = 0; q < count; ++q) {
    SketchedRow piece{row.values + q * width, {}, 0};
    for (std::int64_t c = 0; c < width; ++c)
      piece.largest = std::max(piece.largest, double(std::abs(piece.values[c])));
    RowPiece& found = mix.best.pieces.emplace_back();
    found.row.count = 1;
    found.place = {std::int16_t(q), std::int16_t(q + 1), std::int16_t(count)};
    if (piece.largest == 0) {
      found.row.kind = RowKind::pad;
      continue;
    }
    piece.sketch = pieces.plan().sketches(piece.values, 1, width).front();
    const auto matches = pieces.equals(piece, row.largest);
    if (matches.empty()) return std::nullopt;
    // In its own place rather than in another.
    const auto is_elsewhere = [&](const PoolMatch& match) { return match.block % count != q; };
    const PoolMatch& match = *std::ranges::min_element(
        matches, {}, [&](const PoolMatch& m) { return std::pair(is_elsewhere(m), m.error); });
    found.row = pieces.run_of(match.token);
    found.columns = pieces.blocks()[std::size_t(match.block)];
    mix.best.error = std::max(mix.best.error, match.error);
    chance += pieces.chance(match, double(std::size(block_counts)));
  }
  if (chance > 0.5) return std::nullopt;
  mix.confidence = 1 - chance;
  return mix;
}

}  // namespace

void explain_mixes(std::span<const RankAtHand* const> ranks, std::span<const TrustedRows> trusted,
                   const InferOptions& options, std::vector<std::vector<InferredRow>>& rows) {
  std::map<std::int64_t, std::vector<std::pair<std::size_t, std::int64_t>>> unknown;  // by width
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (std::int64_t i = 0; ranks[r] != nullptr && i < ranks[r]->num_rows(); ++i)
      if (rows[r][std::size_t(i)].best.reading == RowReading::unknown &&
          std::isfinite(ranks[r]->largest(i)))
        unknown[ranks[r]->given().columns].emplace_back(r, i);
  std::vector<std::int64_t> counts = {std::ssize(ranks)};
  std::ranges::copy(block_counts, std::back_inserter(counts));
  InferOptions plain = options;
  plain.columns_of = nullptr;
  for (auto& [width, places] : unknown)
    for (const std::int64_t count : counts) {
      if (places.empty() || count < 2 || width % count != 0) continue;
      const TrustedPool pieces(trusted, width / count, plain);  // one at a time: they are large
      if (pieces.is_empty()) continue;
      parallel_for(std::ssize(places), options.threads, [&](std::int64_t p, int) {
        const auto [r, i] = places[std::size_t(p)];
        if (auto mix = mix_of(ranks[r]->row(i), pieces, count))
          rows[r][std::size_t(i)] = std::move(*mix);
      });
      std::erase_if(places, [&](const auto& place) {
        return rows[place.first][std::size_t(place.second)].best.reading != RowReading::unknown;
      });
    }
}

TokenSums::TokenSums(const TrustedPool& pool, std::int64_t most_tokens, double tolerance)
    : pool_(pool), most_tokens_(most_tokens), tolerance_(tolerance) {
  is_able_ = pool.blocks().size() == 1 && pool.num_tokens() > 1 &&
             pool.width() >= 4 * std::min<std::int64_t>(most_tokens, pool.num_tokens());
  if (!is_able_) return;
  tokens_.resize(pool.num_tokens(), pool.width());
  for (std::int32_t t = 0; t < pool.num_tokens(); ++t) pool.copy(t, 0, tokens_.row(t).data());
  if (!tokens_.allFinite()) is_able_ = false;
}

std::int64_t TokenSums::affordable_rows() const {
  return std::max<std::int64_t>(8, 2'000'000'000 / (tokens_.size() + 1));
}

std::vector<std::int32_t> TokenSums::chosen(const Eigen::VectorXd& row, double allowed) const {
  std::vector<std::int32_t> tokens;
  if (tokens_.rows() * 2 <= tokens_.cols() && tokens_.rows() <= 256) {
    for (std::int32_t t = 0; t < std::int32_t(tokens_.rows()); ++t) tokens.push_back(t);
    return tokens;
  }
  const Eigen::VectorXf lengths = tokens_.rowwise().norm().cwiseMax(1e-30f);
  Eigen::VectorXd rest = row;
  Eigen::MatrixXd active(row.size(), 0);
  double energy = 2 * row.squaredNorm();
  while (std::ssize(tokens) < 2 * most_tokens_ && rest.cwiseAbs().maxCoeff() > allowed) {
    // Of a sum over k tokens the largest explains some 1/k, of noise next to nothing.
    if (const double left = rest.squaredNorm(); left > energy * (1 - 0.5 / double(most_tokens_)))
      break;
    else
      energy = left;
    const Eigen::VectorXf likeness =
        (tokens_ * rest.cast<float>()).cwiseAbs().cwiseQuotient(lengths);
    Eigen::Index next = 0;
    likeness.maxCoeff(&next);
    if (std::ranges::find(tokens, std::int32_t(next)) != tokens.end()) break;
    tokens.push_back(std::int32_t(next));
    active.conservativeResize(Eigen::NoChange, active.cols() + 1);
    active.rightCols(1) = tokens_.row(next).transpose().cast<double>();
    rest = row - active * active.colPivHouseholderQr().solve(row);
  }
  return tokens;
}

InferredRow TokenSums::explain(const SketchedRow& row) const {
  InferredRow found;
  if (!is_able_ || !std::isfinite(row.largest) || row.largest == 0) return found;
  const std::int64_t width = pool_.width();
  const Eigen::VectorXd values =
      Eigen::Map<const Eigen::VectorXf>(row.values, width).cast<double>();
  const double scale = pool_.scale(row.largest), allowed = tolerance_ * scale;
  const std::vector<std::int32_t> tokens = chosen(values, allowed);
  Eigen::MatrixXd columns(width, std::ssize(tokens));
  for (Eigen::Index k = 0; k < columns.cols(); ++k)
    columns.col(k) = tokens_.row(tokens[std::size_t(k)]).transpose().cast<double>();
  const Eigen::VectorXd factors = columns.colPivHouseholderQr().solve(values);
  RowExplanation sum;
  sum.reading = RowReading::sum;
  sum.row.kind = RowKind::mix;
  Eigen::VectorXd rest = values;
  for (Eigen::Index k = 0; k < factors.size(); ++k) {
    const double weight = std::abs(factors[k]) * columns.col(k).cwiseAbs().maxCoeff();
    if (weight <= 10 * allowed) continue;
    const double usual = usual_factor(factors[k]);
    rest -= usual * columns.col(k);
    sum.pieces.push_back({pool_.run_of(tokens[std::size_t(k)]), {}, {}, usual});
  }
  if (sum.pieces.size() < 2 || std::ssize(sum.pieces) > most_tokens_) return found;
  const PoolMatch match{.difference = rest.cwiseAbs().maxCoeff()};
  sum.error = match.difference / scale;
  if (!(sum.error <= tolerance_)) return found;
  // So many tokens with so many factors: any choice of them might have come as close.
  const double choices = std::pow(usual_factors * double(pool_.num_tokens()), sum.pieces.size());
  found.confidence = 1 - pool_.chance(match, choices / double(pool_.num_tokens()));
  found.best = std::move(sum);
  return found;
}

}  // namespace tokenview
