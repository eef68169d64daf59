// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reference/eigen_ops.hpp"
#include "reference/program/host_tensor.hpp"
#include "verify/case_runner.hpp"

namespace tokenview {

class Checkpoint;

enum class Verdict {
  match,
  difference,  // over the bound, or another shape
  tie,         // ids differ where the trusted scores are too close to tell
  missing,     // the file has it, the program does not produce it
  unexpected,  // the program produces it, the file does not have it
};
const char* to_string(Verdict verdict);

/// The comparison of one tap.
struct TapResult {
  std::string case_name;
  std::optional<std::int64_t> draft_step;  // absent: the target model
  std::string tap;
  Verdict verdict = Verdict::match;
  double observed = 0;  // of `metric`
  double allowed = 0;
  std::string metric;  // "max_abs", "relative_l2", "rms", "not_finite"; "rows" for ids
  std::int64_t values = 0;
  double max_abs = 0;
  double relative_l2 = 0;
  std::int64_t outside_one_step = 0;  // bfloat16: values over one rounding step apart
  std::optional<double> float64;   // max|float32 - float64| / max|float64| of the reference itself
  bool by_float64 = false;         // over the bound in float32, within it in float64
  std::string detail;              // in words, where there is more to say
  std::vector<double> row_ratios;  // of each row max|error| / allowed, see CheckOptions::keep_rows

  double ratio() const { return observed == 0 ? 0 : observed / allowed; }
  /// "prefill/target/model.norm", "prefill/step0/mtp.fc"
  std::string place() const;
};

/// Counts of a case, a file, or a whole run.
struct CheckTotals {
  std::int64_t taps = 0;
  std::int64_t values = 0;
  std::int64_t failed = 0;  // taps with another verdict than match, or than a tie that is allowed
  std::int64_t ties = 0;
  std::int64_t by_float64 = 0;  // taps that float64 decided
  double worst_ratio = 0;       // observed / allowed
  std::string worst_tap;        // its place
  double seconds = 0;

  void add(const TapResult& tap, bool ties_allowed);
  void add(const CheckTotals& other);
};

struct CheckOptions {
  Device device = Device::cpu;  // cuda: float32 arithmetic alone
  int num_threads = 1;
  std::optional<DType> dtype;        // of the arithmetic; absent: the file's
  Rounding rounding = Rounding::hf;  // where a bfloat16 model rounds
  GdnForm gdn_form = GdnForm::recurrent;
  bool allow_ties = false;                 // a tie in a float32 file is not a failure
  bool compare_float64 = false;            // also run in float64, and fill TapResult::float64
  bool keep_rows = false;                  // fill TapResult::row_ratios
  const Checkpoint* checkpoint = nullptr;  // has the weights of a file without any
  /// Asked with "file/case/step/tap", step being `target` or `step<j>`; false leaves the tap out.
  std::function<bool(const std::string&)> wanted;
};

/// Told of results as they come.
class CheckListener {
 public:
  virtual ~CheckListener() = default;
  virtual void ignored_keys(const std::vector<std::string>& keys) = 0;  // of the configuration
  virtual void tap(const TapResult& result) = 0;
  virtual void case_done(const std::string& case_name, const CheckTotals& totals) = 0;
};

/// Runs the serial reference, or the same program on a GPU, on every case of a golden file and
/// compares every tap, draft step and id with it. Float32 files by float32_bound(); a tap of the
/// CPU over it is judged again in float64 unless options.dtype names an arithmetic. In bfloat16
/// every tap is computed from the trusted values of the taps before it and held to
/// bfloat16_bound(): an end-to-end run would measure how one early rounding spreads. Ids that
/// differ are compared by the trusted scores, and the run goes on with the trusted ids.
///
/// Throws FileError or ConfigError for a file that cannot be read, weights that are not its own
/// (GoldenWeights) or a model that cannot be run, and DeviceError for what a GPU refuses.
CheckTotals check_golden(const std::string& path, const CheckOptions& options,
                         CheckListener& listener);

}  // namespace tokenview
