// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "verify/compare.hpp"
#include "verify/golden_run.hpp"
#include "verify/tolerance.hpp"
#include "verify/tolerance_rules.hpp"

namespace tokenview {

/// What an implementation computes with, as far as its errors depend on it.
struct Implementation {
  DType type = DType::float32;  // of activations and weights: float32, float16 or bfloat16
  std::int64_t tp = 1;          // ranks over which contractions are split and summed
};

/// How far a right implementation may be from the trusted value of one tap.
///
/// Each row has an expected squared error, the mean over sampled runs. What is allowed is a
/// multiple of its root: the quantile at 1e-9 of a row's squared error over an estimate from so
/// few samples, an F distribution whose degrees of freedom are those of the samples' spread
/// (Satterthwaite), times a safety factor of 2: another implementation may have four times the
/// variance, from rounding points and orders of addition that no sampled run has.
struct TapBound {
  static constexpr double safety = 2;

  std::vector<double> row_l2 = {};    // [rows] allowed |error| of a row
  std::vector<double> row_max = {};   // [rows] allowed largest |error| of its elements
  std::vector<double> expected = {};  // [rows] root of the expected squared error
  double all_rows = 0;  // allowed root of the mean over rows of (|error| / expected)^2
  double scatter = 0;   // how much the samples differ: variance of a row's squared error / mean^2

  std::int64_t rows() const { return std::int64_t(row_l2.size()); }

  /// Holds compared rows to the bound; the nearest limit decides. `trusted_rows` says which row of
  /// the tap each of them is (empty: they are its rows in order); where a rank has a block of the
  /// columns the limits of the whole row hold. `scale`: [rows] factors of the limits, empty: 1.
  /// Metrics: "empty", "not_finite", "row_l2", "row_max", "all_rows".
  struct Judgement {
    Bound bound;
    std::vector<std::int64_t> over = {};  // rows of the tap that do not hold
    bool holds() const { return bound.holds(); }
  };
  Judgement judge(std::span<const RowComparison> compared,
                  std::span<const std::int64_t> trusted_rows = {},
                  std::span<const double> scale = {}) const;
};

/// The bound as a rule for a whole tensor, for who places rows by their values before they are
/// judged: no row and no element is held to less than the bound has for it. Looser than judge()
/// where rows differ in size.
ToleranceRule as_rule(const TapBound& bound, const HostTensor& trusted);

/// Half a step of a type, relative to the value: the largest error of one rounding.
double unit_roundoff_of(DType type);

struct ErrorModelOptions {
  int samples = 16;  // runs; more than one
  std::uint64_t seed = 0;
  int threads = 1;
};

/// The errors of a right implementation in every tap of a golden case, from runs of the reference
/// on `tp` simulated ranks (protocol S, which splits every sum that any protocol splits), in the
/// implementation's type with random rounding at the rounding points of Hugging Face in one half of
/// them and of vLLM in the other (model.md 8.2; the delta rule in both its forms), against float64.
/// Trusted values that are not much finer have an error of their own: then each run is held against
/// one in the golden's type. Accumulation is in float32, in order, as long as the contraction.
///
/// All runs take the golden's experts and draft ids, and in the context those of float64: errors
/// here are smooth. What another choice of experts does is judge_case()'s (case_judgement.hpp).
class TapErrorModel {
 public:
  /// Runs the samples. Throws ConfigError for degrees that the model refuses or arithmetic that it
  /// lacks, UsageError for another type, FileError for taps of another shape than the model's.
  TapErrorModel(const GoldenCase& golden, const Implementation& implementation,
                const ErrorModelOptions& options = {});
  ~TapErrorModel();
  TapErrorModel(TapErrorModel&&) noexcept;

  const Implementation& implementation() const;

  /// From the model's inputs to the tap: own and inherited error. `place` is "target/model.norm",
  /// "step0/mtp.fc"; nullptr for a tap that the model does not make.
  const TapBound* bound_for(const std::string& place) const;

  /// Of every tap, by place: of the operations alone that lie between it and the taps before it
  /// whose values are `known`, which are given then. Runs its samples at the first call with these
  /// places; not for several threads at once.
  const std::map<std::string, TapBound>& own_bounds(const std::set<std::string>& known) const;

  /// float64's choice of experts in the passes over the context, and its router logits there, by
  /// "context/...gate.ids" and "context/...gate.logits".
  const RankTaps& exact_context() const;
  /// float64's values with the golden's experts and draft ids: [rows, columns] by place.
  const RankTaps& exact() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenview
