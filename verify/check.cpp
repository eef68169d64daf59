// SPDX-License-Identifier: Apache-2.0
#include "verify/check.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/golden_case.hpp"
#include "verify/golden_weights.hpp"
#include "verify/record.hpp"
#include "verify/row_ratios.hpp"
#include "verify/tolerance.hpp"

namespace tokenview {
namespace {

/// Keeps the taps of a float64 run, by place.
class Recorder final : public CaseObserver<double> {
 public:
  std::map<std::string, Matrix<double>> taps;

  void tensor(const ModulePath& module, const char* leaf, Matrix<double>& value) override {
    taps[step_ + module.str(leaf)] = value;
  }
  void routing(const ModulePath& module, EigenOps<double>::Routing& value) override {
    taps[step_ + module.str("weights")] = value.weights;
  }
  void lm_head(const Matrix<double>& logits) override { taps["target/lm_head"] = logits; }
  void before_step(std::size_t step, std::vector<std::int64_t>&, const Batch&) override {
    step_ = text("step", step, '/');
  }
  void after_step(std::size_t, const Matrix<double>& logits) override {
    taps[step_ + "logits"] = logits;
  }

 private:
  std::string step_ = "target/";
};

/// Watches the routing of a bfloat16 context: where the last expert chosen and the first one left
/// out score within one rounding step of each other, the recording may have chosen the other.
template <class S>
class ContextTies final : public TapSink<EigenOps<S>> {
 public:
  std::int64_t ties = 0;

  void tensor(const ModulePath& module, const char* leaf, Matrix<S>& value) override {
    if (module.str(leaf).ends_with("gate.logits")) logits_ = value;
  }
  void routing(const ModulePath&, typename EigenOps<S>::Routing& value) override {
    for (Eigen::Index t = 0; t < value.ids.rows(); ++t) {
      const auto chosen = value.ids.row(t);
      const double last = double(logits_(t, chosen(chosen.size() - 1)));
      for (Eigen::Index e = 0; e < logits_.cols(); ++e) {
        const double score = double(logits_(t, e));
        if (std::find(chosen.begin(), chosen.end(), e) == chosen.end() &&
            last - score <= std::max(std::abs(last), std::abs(score)) / 128) {
          ++ties;
          break;
        }
      }
    }
  }

 private:
  Matrix<S> logits_;
};

/// Compares the taps of one case with the file's as they pass.
template <class S>
class Checker final : public CaseObserver<S> {
 public:
  Checker(const GoldenFile& golden, const ModelConfig& config, const EigenOps<S>& ops,
          const CheckOptions& options, const std::string& file, const std::string& case_name,
          const GoldenInputs& inputs, const Recorder* float64)
      : golden_(golden),
        config_(config),
        ops_(ops),
        options_(options),
        file_(file),
        case_(case_name),
        inputs_(inputs),
        float64_(float64),
        bfloat16_(golden.dtype() == DType::bfloat16 || ops.rounding() != Rounding::none) {
    begin_pass(golden.tap_names(case_name));
  }

  std::vector<TapResult> results;  // in the order of the program

  TapSink<EigenOps<S>>* context_taps() override { return bfloat16_ ? &context_ties_ : nullptr; }

  void tensor(const ModulePath& module, const char* leaf, Matrix<S>& value) override {
    const std::string name = module.str(leaf);
    if (name.ends_with("gate.logits")) router_logits_ = value;
    compare_tap(name, value);
  }

  void routing(const ModulePath& module, typename EigenOps<S>::Routing& value) override {
    const std::string name = module.str("ids");
    const bool compared = take(name);
    if (expected_.contains(name)) {
      const IntegerTensor trusted = ids_of(name);
      using Ids = typename EigenOps<S>::Routing::Ids;
      TapResult result = ids_result(name, trusted, value.ids.rows(), value.ids.cols());
      const Eigen::Map<const Ids> golden_ids(trusted.values.data(), value.ids.rows(),
                                             value.ids.cols());
      if (result.verdict == Verdict::match && value.ids != golden_ids) {
        judge_ids(result, value.ids.data(), trusted.values.data(), value.ids.rows(),
                  value.ids.cols(), values_of(module.str("logits")),
                  [](std::int64_t row) { return row; });
        if (golden_ids.minCoeff() >= 0 && golden_ids.maxCoeff() < config_.num_experts) {
          value.ids = golden_ids;
          value.weights = ops_.routing_weights(router_logits_, value.ids, config_.norm_topk_prob);
        }
      }
      if (compared) report(std::move(result));
    }
    compare_tap(module.str("weights"), value.weights);
  }

  void lm_head(const Matrix<S>& logits) override {
    Matrix<S> copy = logits;
    compare_tap("lm_head", copy);
    end_pass();
  }

  void before_step(std::size_t step, std::vector<std::int64_t>& ids, const Batch& batch) override {
    step_ = std::int64_t(step);
    begin_pass(golden_.mtp_tap_names(case_, *step_));
    if (take("positions")) {
      const IntegerTensor trusted = ids_of("positions");
      TapResult result = ids_result("positions", trusted, batch.num_tokens(), 1);
      if (result.verdict == Verdict::match && trusted.values != batch.positions)
        judge_ids(result, batch.positions.data(), trusted.values.data(), batch.num_tokens(), 1, {},
                  {});
      report(std::move(result));
    }
    if (take("input_ids")) {
      const IntegerTensor trusted = ids_of("input_ids");
      TapResult result = ids_result("input_ids", trusted, std::int64_t(ids.size()), 1);
      if (result.verdict == Verdict::match && trusted.values != ids) {
        // A sampled token comes from the scores of the pass before it.
        const HostTensor scores = step == 0 ? golden_.tap(case_, "lm_head")
                                            : golden_.mtp_tap(case_, *step_ - 1, "logits");
        judge_ids(result, ids.data(), trusted.values.data(), std::int64_t(ids.size()), 1, scores,
                  [&](std::int64_t row) { return step == 1 ? sampled_row(row) : row; });
        ids = trusted.values;
      }
      report(std::move(result));
    }
  }

  void after_step(std::size_t, const Matrix<S>& logits) override {
    Matrix<S> copy = logits;
    compare_tap("logits", copy);
    end_pass();
  }

  void drafts(const std::vector<std::vector<std::int64_t>>& by_step) {
    begin_pass({"draft_ids"});
    step_.reset();
    const auto sequences = inputs_.num_sequences();
    if (by_step.empty() || !take("draft_ids")) return;
    const IntegerTensor trusted = golden_.draft_ids(case_);
    TapResult result = ids_result("draft_ids", trusted, sequences, std::int64_t(by_step.size()));
    for (std::size_t j = 0; j < by_step.size() && result.verdict != Verdict::difference; ++j) {
      std::vector<std::int64_t> expected;
      for (std::int64_t s = 0; s < sequences; ++s)
        expected.push_back(trusted.values[std::size_t(s) * by_step.size() + j]);
      if (expected == by_step[j]) continue;
      judge_ids(result, by_step[j].data(), expected.data(), sequences, 1,
                golden_.mtp_tap(case_, std::int64_t(j), "logits"),
                [&](std::int64_t row) { return j == 0 ? sampled_row(row) : row; });
    }
    report(std::move(result));
  }

 private:
  void begin_pass(const std::vector<std::string>& names) {
    expected_ = {names.begin(), names.end()};
    seen_.clear();
  }

  /// What the file has and the program did not make.
  void end_pass() {
    for (const std::string& name : expected_)
      if (!seen_.contains(name) && wanted(name)) {
        TapResult result = new_result(name);
        result.verdict = Verdict::missing;
        result.detail = "in the file, but the program does not produce it";
        report(std::move(result));
      }
  }

  TapResult new_result(const std::string& name) const {
    TapResult result;
    result.case_name = case_;
    result.draft_step = step_;
    result.tap = name;
    return result;
  }

  bool wanted(const std::string& name) const {
    return !options_.wanted || options_.wanted(file_ + '/' + new_result(name).place());
  }

  /// Marks a tap as made; true when it is to be compared.
  bool take(const std::string& name) {
    seen_.insert(name);
    if (!wanted(name)) return false;
    if (expected_.contains(name)) return true;
    TapResult result = new_result(name);
    result.verdict = Verdict::unexpected;
    result.detail = "the program produces it, but the file does not have it";
    report(std::move(result));
    return false;
  }

  HostTensor values_of(const std::string& name) const {
    return step_ ? golden_.mtp_tap(case_, *step_, name) : golden_.tap(case_, name);
  }
  IntegerTensor ids_of(const std::string& name) const {
    return step_ ? golden_.mtp_ids(case_, *step_, name) : golden_.tap_ids(case_, name);
  }

  /// The row of the step at which sequence `s` samples.
  std::int64_t sampled_row(std::int64_t s) const {
    return inputs_.query_start_loc[std::size_t(s) + 1] - 1;
  }

  void compare_tap(const std::string& name, Matrix<S>& value) {
    if (!take(name)) {
      // Left out of the comparison, but bfloat16 goes on from the trusted value all the same.
      if (bfloat16_ && expected_.contains(name)) replace(value, values_of(name));
      return;
    }
    const HostTensor trusted = values_of(name);
    TapResult result = new_result(name);
    result.values = value.size();
    if (trusted.rows() != value.rows() || trusted.cols() != value.cols()) {
      result.verdict = Verdict::difference;
      result.metric = "rows";
      result.detail = text("shape is [", value.rows(), ", ", value.cols(), "], the file has ",
                           to_string(trusted.shape));
      report(std::move(result));
      return;
    }
    const Comparison comparison =
        compare(std::span<const S>(value.data(), std::size_t(value.size())),
                std::span<const float>(trusted.values));
    const bool inherits = !inputs_.context_ids.empty() && reads_caches(name);
    const int points = bfloat16_ ? rounding_points(name) + (inherits ? inherited(name) : 0) : 0;
    const Bound bound =
        bfloat16_ ? bfloat16_bound(comparison, points) : float32_bound(comparison, value.cols());
    if (options_.keep_rows)
      result.row_ratios = row_ratios(std::span<const S>(value.data(), std::size_t(value.size())),
                                     std::span<const float>(trusted.values), value.cols(),
                                     bfloat16_ ? bfloat16_allowed(comparison.max_golden, points)
                                               : float32_allowed(comparison.max_golden));
    result.observed = bound.observed;
    result.allowed = bound.allowed;
    result.metric = bound.metric;
    result.max_abs = comparison.max_abs_error;
    result.relative_l2 = comparison.relative_l2();
    if (bfloat16_) result.outside_one_step = comparison.outside_one_step;
    if (!bound.holds()) {
      result.verdict = Verdict::difference;
      result.detail = where_worst(comparison, value, trusted);
      if (inherits && context_ties_.ties > 0) {
        result.verdict = Verdict::tie;
        result.detail = text("the context has ", context_ties_.ties,
                             " router ties, which the recording may have broken the other way; ",
                             result.detail);
      }
    }
    if (float64_ != nullptr) result.float64 = float64_difference(name, value);
    report(std::move(result));
    if (bfloat16_) replace(value, trusted);
  }

  /// Rounding points that the context went through on its way to the caches that a tap reads.
  int inherited(const std::string& name) const {
    if (step_) return rounding_points_of_layers(config_.num_hidden_layers + 1);
    return rounding_points_of_layers(std::stoll(name.substr(name.find(".layers.") + 8)) + 1);
  }

  static void replace(Matrix<S>& value, const HostTensor& trusted) {
    if (trusted.rows() == value.rows() && trusted.cols() == value.cols())
      std::copy(trusted.values.begin(), trusted.values.end(), value.data());
  }

  static std::string where_worst(const Comparison& c, const Matrix<S>& value,
                                 const HostTensor& trusted) {
    const std::int64_t at = c.not_finite > 0 ? c.first_not_finite : c.worst_index;
    if (at < 0) return {};
    return text(c.not_finite > 0 ? "not finite" : "worst", " at row ", at / value.cols(),
                ", column ", at % value.cols(), ": ", double(value.data()[at]), ", the file has ",
                trusted.values[std::size_t(at)]);
  }

  std::optional<double> float64_difference(const std::string& name, const Matrix<S>& value) const {
    const auto found = float64_->taps.find((step_ ? text("step", *step_, '/') : "target/") + name);
    if (found == float64_->taps.end() || found->second.rows() != value.rows()) return {};
    if (value.size() == 0) return 0;
    const double largest = found->second.cwiseAbs().maxCoeff();
    const double error = (value.template cast<double>() - found->second).cwiseAbs().maxCoeff();
    return error == 0 ? 0 : error / largest;
  }

  TapResult ids_result(const std::string& name, const IntegerTensor& trusted, std::int64_t rows,
                       std::int64_t cols) const {
    TapResult result = new_result(name);
    result.metric = "rows";
    result.values = rows * cols;
    if (std::int64_t(trusted.values.size()) != rows * cols) {
      result.verdict = Verdict::difference;
      result.detail =
          text("shape is [", rows, ", ", cols, "], the file has ", to_string(trusted.shape));
    }
    return result;
  }

  /// Rows whose ids differ: a tie when the trusted scores of each exchanged pair are so close that
  /// the allowed error of a score could turn them; a difference otherwise. Without scores no two
  /// ids are close. `score_row` maps a row of ids to its row of scores.
  void judge_ids(TapResult& result, const std::int64_t* ids, const std::int64_t* trusted,
                 std::int64_t rows, std::int64_t cols, const HostTensor& scores,
                 const std::function<std::int64_t(std::int64_t)>& score_row) const {
    const auto close = [&](std::int64_t row, std::int64_t a, std::int64_t b) {
      if (a == b) return true;
      if (scores.values.empty() || std::min(a, b) < 0 || std::max(a, b) >= scores.cols())
        return false;
      const float* of_row = scores.values.data() + score_row(row) * scores.cols();
      const double margin = std::abs(double(of_row[a]) - double(of_row[b]));
      double largest = 0;
      for (std::int64_t i = 0; i < scores.cols(); ++i)
        largest = std::max(largest, std::abs(double(of_row[i])));
      const double error = bfloat16_ ? (std::abs(of_row[a]) + std::abs(of_row[b])) / 128 / 2
                                     : float32_allowed(largest);
      return margin <= 2 * error;
    };
    for (std::int64_t row = 0; row < rows; ++row) {
      bool differs = false, tie = true;
      for (std::int64_t j = 0; j < cols; ++j) {
        const std::int64_t a = ids[row * cols + j], b = trusted[row * cols + j];
        differs |= a != b;
        tie &= close(row, a, b);
      }
      if (!differs) continue;
      result.observed += 1;
      if (!tie) {
        result.verdict = Verdict::difference;
      } else if (result.verdict == Verdict::match) {
        result.verdict = Verdict::tie;
      }
      if (result.detail.empty() || (!tie && result.detail.starts_with("tie"))) {
        result.detail =
            text(tie ? "tie in row " : "row ", row, ": ", id_list(ids + row * cols, cols),
                 ", the file has ", id_list(trusted + row * cols, cols));
      }
    }
  }

  static std::string id_list(const std::int64_t* ids, std::int64_t n) {
    std::string list;
    for (std::int64_t i = 0; i < n; ++i) list += (i > 0 ? "," : "") + std::to_string(ids[i]);
    return n == 1 ? list : '[' + list + ']';
  }

  void report(TapResult result) { results.push_back(std::move(result)); }

  const GoldenFile& golden_;
  const ModelConfig& config_;
  const EigenOps<S>& ops_;
  const CheckOptions& options_;
  const std::string& file_;
  const std::string& case_;
  const GoldenInputs& inputs_;
  const Recorder* float64_;
  bool bfloat16_;
  std::optional<std::int64_t> step_;
  std::set<std::string> expected_, seen_;
  Matrix<S> router_logits_;
  ContextTies<S> context_ties_;
};

bool any_tap_wanted(const GoldenFile& golden, const CheckOptions& options, const std::string& file,
                    const std::string& case_name) {
  if (!options.wanted) return true;
  const auto wanted = [&](const std::string& step, const std::string& tap) {
    return options.wanted(file + '/' + case_name + '/' + step + '/' + tap);
  };
  for (const std::string& tap : golden.tap_names(case_name))
    if (wanted("target", tap)) return true;
  for (std::int64_t j = 0; j < golden.mtp_step_count(case_name); ++j)
    for (const std::string& tap : golden.mtp_tap_names(case_name, j))
      if (wanted(text("step", j), tap)) return true;
  return golden.mtp_step_count(case_name) > 0 && wanted("target", "draft_ids");
}

/// Where float32 is over a bound and float64 within it, float64's result stands.
void prefer_float64(std::vector<TapResult>& results, const std::vector<TapResult>& float64) {
  std::map<std::string, const TapResult*> matching;
  for (const TapResult& tap : float64)
    if (tap.verdict == Verdict::match) matching.emplace(tap.place(), &tap);
  for (TapResult& tap : results) {
    if (tap.verdict != Verdict::difference) continue;
    const auto found = matching.find(tap.place());
    if (found == matching.end()) continue;
    const std::string in_float32 =
        text("in float32 ", tap.metric, ' ', tap.observed, " of ", tap.allowed);
    tap = *found->second;
    tap.by_float64 = true;
    tap.detail = in_float32;
  }
}

template <class S>
CheckTotals check_in(const GoldenFile& golden, const ModelConfig& config,
                     const GoldenWeights& weights, Rounding rounding, const CheckOptions& options,
                     CheckListener& listener) {
  const std::string file = std::filesystem::path(golden.path()).stem().string();
  const EigenOps<S> ops(options.num_threads, rounding, options.gdn_form);
  const auto model = runner_on(options.device, config, weights, ops);
  std::optional<SerialModel<double>> model64;
  if (options.compare_float64)
    model64.emplace(config, weights, EigenOps<double>(options.num_threads));

  // A tap that cancels to little of its terms (a head's read before its norm, say) loses in float32
  // what the recording kept by chance. Unless one arithmetic was asked for, float64 decides there.
  // Not for a GPU: the CPU's float64 says nothing of its kernels.
  const bool second_opinion = std::is_same_v<S, float> && !options.dtype &&
                              golden.dtype() == DType::float32 &&
                              usable(options.device) == Device::cpu;
  const EigenOps<double> ops64(options.num_threads, Rounding::none, options.gdn_form);
  const bool ties_allowed =
      options.allow_ties || golden.dtype() == DType::bfloat16 || rounding != Rounding::none;

  CheckTotals totals;
  for (const std::string& case_name : golden.case_names()) {
    if (!any_tap_wanted(golden, options, file, case_name)) continue;
    const auto start = std::chrono::steady_clock::now();
    const GoldenInputs inputs = golden.inputs(case_name, config.vocab_size);
    const std::int64_t steps = golden.mtp_step_count(case_name);
    if (steps > 0 && !model->has_mtp())
      throw FileError(text(golden.path(), ":/cases/", case_name,
                           "/mtp: the file has draft steps, but no weights mtp.*"));
    Recorder float64;
    if (options.compare_float64) run_case(*model64, inputs, steps, float64);
    Checker<S> checker(golden, config, ops, options, file, case_name, inputs,
                       options.compare_float64 ? &float64 : nullptr);
    checker.drafts(model->run(inputs, steps, checker));
    if (second_opinion && std::ranges::any_of(checker.results, [](const TapResult& tap) {
          return tap.verdict == Verdict::difference;
        })) {
      if (!model64) model64.emplace(config, weights, ops64);
      Checker<double> exact(golden, config, ops64, options, file, case_name, inputs, nullptr);
      exact.drafts(run_case(*model64, inputs, steps, exact));
      prefer_float64(checker.results, exact.results);
    }
    CheckTotals of_case;
    for (const TapResult& tap : checker.results) {
      of_case.add(tap, ties_allowed);
      listener.tap(tap);
    }
    of_case.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    listener.case_done(case_name, of_case);
    totals.add(of_case);
  }
  return totals;
}

}  // namespace

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::match:
      return "match";
    case Verdict::difference:
      return "difference";
    case Verdict::tie:
      return "tie";
    case Verdict::missing:
      return "missing";
    case Verdict::unexpected:
      return "unexpected";
  }
  return "";
}

std::string TapResult::place() const {
  return case_name + '/' + (draft_step ? text("step", *draft_step) : "target") + '/' + tap;
}

void CheckTotals::add(const TapResult& tap, bool ties_allowed) {
  taps += 1;
  values += tap.values;
  ties += tap.verdict == Verdict::tie;
  by_float64 += tap.by_float64;
  failed += !(tap.verdict == Verdict::match || (ties_allowed && tap.verdict == Verdict::tie));
  if (tap.metric != "rows" && tap.ratio() > worst_ratio) {
    worst_ratio = tap.ratio();
    worst_tap = tap.place();
  }
}

void CheckTotals::add(const CheckTotals& other) {
  taps += other.taps;
  values += other.values;
  ties += other.ties;
  by_float64 += other.by_float64;
  failed += other.failed;
  seconds += other.seconds;
  if (other.worst_ratio > worst_ratio) {
    worst_ratio = other.worst_ratio;
    worst_tap = other.worst_tap;
  }
}

CheckTotals check_golden(const std::string& path, const CheckOptions& options,
                         CheckListener& listener) {
  const GoldenFile golden = GoldenFile::open(path);
  const ConfigReading reading = read_config_json(golden.config_json(), path + ":/config");
  if (!reading.ignored_keys.empty()) listener.ignored_keys(reading.ignored_keys);
  require_arithmetic(reading.config);
  const DType dtype = options.dtype.value_or(golden.dtype());
  if (options.checkpoint != nullptr)
    require_memory(reading.config, dtype == DType::float64 ? sizeof(double) : sizeof(float));
  const GoldenWeights weights(golden, reading.config, options.checkpoint);
  if (dtype == DType::float64)
    return check_in<double>(golden, reading.config, weights, Rounding::none, options, listener);
  return check_in<float>(golden, reading.config, weights,
                         dtype == DType::bfloat16 ? options.rounding : Rounding::none, options,
                         listener);
}

}  // namespace tokenview
