// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "verify/compare.hpp"

namespace tokenview {

/// A limit and how near the values came to it, for the metric that is nearer.
struct Bound {
  double observed = 0;
  double allowed = 0;
  const char* metric = "max_abs";  // or "relative_l2", "rms", "not_finite", "rows"
  bool holds() const { return observed <= allowed; }
  double ratio() const { return observed == 0 ? 0 : observed / allowed; }
};

/// The fixed acceptance of float32 golden files: max|error| <= 1e-4 max(1, max|golden|), and
/// relative L2 error <= 1e-4; nothing but finite values.
///
/// In a tap of one column (the pre-activation of the shared expert's gate) a value is one sum of H
/// products that may cancel to any small number, and has no relative accuracy: exact arithmetic
/// differs from a recording by 1.3e-4 of a value of 0.004. There the root of the mean squared error
/// may reach 2e-5 where 1e-4 of the values is less: a logit's effect on the gate is absolute.
Bound float32_bound(const Comparison& comparison, std::int64_t columns);

/// What float32_bound() and bfloat16_bound() allow max|error| to be, by max|golden|.
double float32_allowed(double max_golden);
double bfloat16_allowed(double max_golden, int points);

/// How many values between a tap and the taps before it are rounded to bfloat16, one after the
/// other, in the implementation that rounds more often. 0 for an unknown name.
/// Source: transformers 5.19.0 modeling_qwen3_next.py, modeling_qwen3_5_moe.py,
/// integrations/moe.py.
int rounding_points(const std::string& tap);

/// The same between the input of a model and the output of its first `layers` decoder layers: what
/// a tap inherits that reads caches, since the context before a step is run end to end.
int rounding_points_of_layers(std::int64_t layers);

/// True for a tap that depends on the caches of its layer.
bool reads_caches(const std::string& tap);

/// The bound of a bfloat16 tap that was computed from the trusted values of the taps before it,
/// with n = rounding_points(tap). Two sides that round the same values in the same places differ
/// only where accumulation order moves a value across the middle between two neighbours, and then
/// by one step, 2^-7 of the value's power of two. Were every value moved at every point:
///   max|error| <= n 2^-7 max|golden|;   relative L2 error <= sqrt(n) 2^-8
/// (steps of random sign add as squares; a step is between 2^-8 and 2^-7 of its value).
///
/// `check` keeps this bound beside that of TapErrorModel, which `diff` and the matrix are held to:
/// the error model is made from runs of the reference, and whether that is right is what `check`
/// has to say. This one knows nothing but the file and how often an implementation rounds.
Bound bfloat16_bound(const Comparison& comparison, int points);

}  // namespace tokenview
