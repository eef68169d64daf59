// SPDX-License-Identifier: Apache-2.0
#include "verify/error_model.hpp"

#include <algorithm>
#include <boost/math/distributions/fisher_f.hpp>
#include <cmath>
#include <limits>

#include "reference/program/error.hpp"
#include "verify/given_run.hpp"
#include "verify/golden_row.hpp"
#include "verify/host_matrix.hpp"
#include "verify/parallel_for.hpp"
#include "verify/placed_tap.hpp"
#include "verify/weights_of_type.hpp"

namespace tokenview {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double false_alarm = 1e-9;  // of a row of a right implementation

/// By how much the root of a squared error may exceed that of the mean of `samples` others, where
/// `scatter` is the variance of such squared errors over their squared mean. A sum of n squares of
/// normal numbers has the scatter 2 / n. Source: Satterthwaite 1946, An approximate distribution of
/// estimates of variance components.
double allowed_ratio(double scatter, double samples) {
  const double freedom = std::clamp(2 / std::max(scatter, 1e-9), 1.0, 1e6);
  const boost::math::fisher_f_distribution<double> squares(freedom, samples * freedom);
  return TapBound::safety *
         std::sqrt(boost::math::quantile(boost::math::complement(squares, false_alarm)));
}

/// Mean, and variance over squared mean, of one sample a run.
struct Spread {
  double mean = 0, scatter = 0;
};
template <class SampleOf>
Spread spread_of(std::int64_t samples, SampleOf sample) {
  Spread spread;
  for (std::int64_t k = 0; k < samples; ++k) spread.mean += sample(k) / double(samples);
  if (!(spread.mean > 0)) return {};
  double squares = 0;
  for (std::int64_t k = 0; k < samples; ++k) {
    const double away = sample(k) / spread.mean - 1;
    squares += away * away;
  }
  spread.scatter = squares / double(samples - 1);
  return spread;
}

/// Squared errors of a tap, and squares of its largest ones, one column a run: [rows, samples].
struct TapSamples {
  Matrix<double> l2, max;
};

TapBound bound_of(const TapSamples& samples, const Matrix<double>& exact, DType type) {
  const std::int64_t rows = samples.l2.rows(), runs = samples.l2.cols();
  TapBound bound;
  std::vector<Spread> l2, max;
  double l2_scatter = 0, max_scatter = 0, counted = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    l2.push_back(spread_of(runs, [&](std::int64_t k) { return samples.l2(r, k); }));
    max.push_back(spread_of(runs, [&](std::int64_t k) { return samples.max(r, k); }));
    if (l2.back().mean == 0) continue;
    l2_scatter += l2.back().scatter;
    max_scatter += max.back().scatter;
    counted += 1;
  }
  if (counted > 0) {
    l2_scatter /= counted;
    max_scatter /= counted;
  }
  bound.scatter = l2_scatter;
  const double l2_ratio = allowed_ratio(l2_scatter, double(runs));
  const double max_ratio = allowed_ratio(max_scatter, double(runs));

  // Whatever was computed exactly may be stored with one rounding, uniform in half a step.
  const double stored = unit_roundoff_of(type) / std::sqrt(3.0);
  std::vector<double> expected_squares;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double of_row = stored * exact.row(r).norm();
    const double of_max = exact.cols() == 0 ? 0 : stored * exact.row(r).cwiseAbs().maxCoeff();
    bound.expected.push_back(std::sqrt(std::max(l2[std::size_t(r)].mean, of_row * of_row)));
    bound.row_l2.push_back(l2_ratio * bound.expected.back());
    bound.row_max.push_back(max_ratio *
                            std::sqrt(std::max(max[std::size_t(r)].mean, of_max * of_max)));
  }

  const Spread all = spread_of(runs, [&](std::int64_t k) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      if (const double expected = bound.expected[std::size_t(r)]; expected > 0)
        sum += samples.l2(r, k) / (expected * expected);
    return sum;
  });
  // No more independent than rows are many, nor less than a row.
  bound.all_rows = allowed_ratio(
      std::clamp(all.scatter, l2_scatter / double(std::max<std::int64_t>(rows, 1)), l2_scatter),
      double(runs));
  return bound;
}

}  // namespace

double unit_roundoff_of(DType type) {
  return std::ldexp(1.0, -number_grid(storage_type(type)).fraction_bits - 1);
}

TapBound::Judgement TapBound::judge(std::span<const RowComparison> compared,
                                    std::span<const std::int64_t> trusted_rows,
                                    std::span<const double> scale) const {
  Judgement judgement;
  Bound& nearest = judgement.bound;
  if (compared.empty()) {
    nearest = {0, 0, "empty"};
    return judgement;
  }
  nearest = {0, row_l2.empty() ? 0 : row_l2.front(), "row_l2"};
  const auto take = [&](const Bound& bound) {
    const auto distance = [](const Bound& b) {
      return b.observed <= 0 ? 0 : b.allowed > 0 ? b.observed / b.allowed : infinity;
    };
    if (distance(bound) > distance(nearest)) nearest = bound;
    return bound.holds();
  };
  double ratios = 0;
  for (std::size_t i = 0; i < compared.size(); ++i) {
    const RowComparison& row = compared[i];
    const std::int64_t at = trusted_rows.empty() ? row.row : trusted_rows[i];
    if (at < 0 || at >= rows())
      throw ShapeError(text("error model: row ", at, " of a tap of ", rows(), " rows"));
    const double factor = scale.empty() ? 1 : scale[std::size_t(at)];
    bool holds = true;
    if (row.mismatched > 0) {
      nearest = {infinity, 0, "not_finite"};
      holds = false;
    }
    holds = take({row.error_l2, factor * row_l2[std::size_t(at)], "row_l2"}) && holds;
    holds = take({row.max_abs_error, factor * row_max[std::size_t(at)], "row_max"}) && holds;
    if (!holds) judgement.over.push_back(at);
    if (const double due = factor * expected[std::size_t(at)]; due > 0)
      ratios += row.error_l2 * row.error_l2 / (due * due);
  }
  if (std::int64_t(compared.size()) == rows())  // few rows of many may be the worst of them
    take({std::sqrt(ratios / double(rows())), all_rows, "all_rows"});
  return judgement;
}

ToleranceRule as_rule(const TapBound& bound, const HostTensor& trusted) {
  if (bound.rows() != trusted.rows())
    throw ShapeError(text("error model: a bound of ", bound.rows(), " rows for a tap of ",
                          to_string(trusted.shape)));
  const auto values = as_matrix(trusted);
  ToleranceRule rule{.of_max = 0, .l2 = 0, .row_l2 = 0};
  const double largest = values.size() == 0 ? 0 : double(values.cwiseAbs().maxCoeff());
  double allowed_squares = 0;
  for (std::int64_t r = 0; r < bound.rows(); ++r) {
    const double length = values.row(r).cast<double>().norm();
    const double of_row = bound.row_l2[std::size_t(r)];
    if (length > 0) rule.row_l2 = std::max(*rule.row_l2, of_row / length);
    if (largest > 0) rule.of_max = std::max(*rule.of_max, bound.row_max[std::size_t(r)] / largest);
    allowed_squares += of_row * of_row;
  }
  const double length = values.cast<double>().norm();
  if (length > 0) rule.l2 = std::sqrt(allowed_squares) / length;
  return rule;
}

struct TapErrorModel::Impl {
  Impl(const GoldenCase& of_golden, const Implementation& of_implementation,
       const ErrorModelOptions& with_options)
      : golden(of_golden),
        implementation(of_implementation),
        options(with_options),
        typed(golden.weights, implementation.type) {
    require_usable();
    ids = trusted_ids(golden);
    views = run_views(run, true);
    if (!views.error.empty()) throw ConfigError(views.error);

    LoadedWeights<EigenOps<double>> weights(run, golden.weights);
    ranks = run_given(run, weights, EigenOps<double>(), Given{.ids = &ids});
    for (const auto& [place, chosen] : ranks.front().ids)
      if (place.starts_with("context/")) {
        ids.emplace(place, chosen);
        context.ids.emplace(place, chosen);
      }
    for (const auto& [place, values] : ranks.front().values)
      if (place.starts_with("context/")) context.values.emplace(place, values);
    for (const NamedView& view : views.views) {
      const auto trusted = golden.trusted.taps.find(view.name);
      if (trusted == golden.trusted.taps.end()) continue;
      Matrix<double>& value = exact.values[view.name];
      value = whole_of(view, ranks, trusted->second.rows(), trusted->second.cols());
      sampled.push_back(&view);
    }
    total = bounds({});
  }

  void require_usable() const {
    require_arithmetic(golden.config);
    validate(golden.config, {.tp = implementation.tp});
    const DType type = implementation.type;
    if (type != DType::float32 && type != DType::float16 && type != DType::bfloat16)
      throw UsageError(text("error model: type is ", to_string(type),
                            ", expected float32, float16 or bfloat16"));
    if (options.samples < 2)
      throw UsageError(text("error model: ", options.samples, " samples, expected at least 2"));
  }

  /// The tensor of a tap from what the ranks hold of it. Throws FileError for another shape than
  /// the golden's.
  Matrix<double> whole_of(const NamedView& view, const std::vector<RankTaps>& of_ranks,
                          std::int64_t rows, std::int64_t columns) const {
    const Matrix<double> zeros = Matrix<double>::Zero(rows, columns);
    const PlacedTap<double> tap = placed<double>(
        view, of_ranks, 0, run.plan.parallel, golden.config, zeros, [&](const RowRun& row) {
          return golden_row(row, golden.trusted.inputs, draft_step_of(view.name),
                            run.inputs.front().rejected);
        });
    if (const std::vector<std::string> problems = tap.problems(); !problems.empty())
      throw FileError(
          text(view.name, ": the golden has [", rows, ", ", columns, "], ", problems.front()));
    return whole<double>(tap, zeros);
  }

  /// The arithmetic of run k in `type`.
  EigenOps<float> arithmetic(std::int64_t k, DType type, Rounding rounding,
                             std::uint64_t stream) const {
    const GdnForm form = k / 2 % 2 == 0 ? GdnForm::recurrent : GdnForm::chunked;
    const std::uint64_t seed = (options.seed * 1'000'003 + std::uint64_t(k)) * 4 + stream;
    return EigenOps<float>(1, rounding, form, RandomRounding{type, seed});
  }

  /// Bounds of all taps, from runs that go on from float64's values of those that are `known`.
  std::map<std::string, TapBound> bounds(const std::set<std::string>& known) {
    std::vector<RankTaps> values(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      for (const auto& [place, value] : ranks[rank].values)
        if (known.contains(place)) values[rank].values.emplace(place, value);
    const ParallelRun alone = run_of(golden, 1);
    LoadedWeights<EigenOps<float>> weights(run, typed), trusted_weights(alone, golden.weights);
    // An error of the trusted values that is not small beside that of the implementation.
    const bool trusted_errs = known.empty() && unit_roundoff_of(golden.dtype) >
                                                   unit_roundoff_of(implementation.type) / 16;
    std::map<std::string, TapSamples> samples;
    for (const NamedView* view : sampled) {
      const std::int64_t rows = exact.values.at(view->name).rows();
      samples[view->name] = {Matrix<double>::Zero(rows, options.samples),
                             Matrix<double>::Zero(rows, options.samples)};
    }
    parallel_for(options.samples, options.threads, [&](std::int64_t k, int) {
      Given given{.ids = &ids, .values = &values};
      if (!known.empty())
        given.jitter = RandomRounding{DType::float32, options.seed + std::uint64_t(k)};
      const EigenOps<float> ops =
          arithmetic(k, implementation.type, k % 2 == 0 ? Rounding::hf : Rounding::vllm,
                     known.empty() ? 0 : 2);
      const std::vector<RankTaps> found = run_given(run, weights, ops, given);
      std::vector<RankTaps> trusted;
      if (trusted_errs)
        trusted = run_given(alone, trusted_weights, arithmetic(k, golden.dtype, Rounding::hf, 1),
                            Given{.ids = &ids});
      for (const NamedView* view : sampled) {
        const Matrix<double>& right =
            trusted_errs ? trusted.front().values.at(view->name) : exact.values.at(view->name);
        const Matrix<double> error = whole_of(*view, found, right.rows(), right.cols()) - right;
        TapSamples& of_tap = samples.at(view->name);
        for (Eigen::Index r = 0; r < error.rows(); ++r) {
          of_tap.l2(r, k) = error.row(r).squaredNorm();
          const double largest = error.cols() == 0 ? 0 : error.row(r).cwiseAbs().maxCoeff();
          of_tap.max(r, k) = largest * largest;
        }
      }
    });
    std::map<std::string, TapBound> result;
    for (const NamedView* view : sampled)
      result.emplace(view->name, bound_of(samples.at(view->name), exact.values.at(view->name),
                                          implementation.type));
    return result;
  }

  GoldenCase golden;
  Implementation implementation;
  ErrorModelOptions options;
  WeightsOfType typed;
  ParallelRun run = run_of(golden, implementation.tp);
  IdsByPlace ids;
  ViewRunResult views;
  std::vector<const NamedView*> sampled;  // that the golden has
  std::vector<RankTaps> ranks;            // float64's, of each rank
  RankTaps exact, context;
  std::map<std::string, TapBound> total;
  std::map<std::set<std::string>, std::map<std::string, TapBound>> own;  // by what is known
};

TapErrorModel::TapErrorModel(const GoldenCase& golden, const Implementation& implementation,
                             const ErrorModelOptions& options)
    : impl_(std::make_unique<Impl>(golden, implementation, options)) {}
TapErrorModel::~TapErrorModel() = default;
TapErrorModel::TapErrorModel(TapErrorModel&&) noexcept = default;

const Implementation& TapErrorModel::implementation() const { return impl_->implementation; }
const RankTaps& TapErrorModel::exact_context() const { return impl_->context; }
const RankTaps& TapErrorModel::exact() const { return impl_->exact; }

const TapBound* TapErrorModel::bound_for(const std::string& place) const {
  const auto found = impl_->total.find(place);
  return found == impl_->total.end() ? nullptr : &found->second;
}

const std::map<std::string, TapBound>& TapErrorModel::own_bounds(
    const std::set<std::string>& known) const {
  const auto found = impl_->own.find(known);
  if (found != impl_->own.end()) return found->second;
  return impl_->own.emplace(known, impl_->bounds(known)).first->second;
}

}  // namespace tokenview
