// SPDX-License-Identifier: Apache-2.0
#include "verify/matrix.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "reference/program/error.hpp"
#include "verify/case_error_models.hpp"
#include "verify/device_repro.hpp"
#include "verify/expected_verdict.hpp"
#include "verify/found_taps.hpp"
#include "verify/golden_case.hpp"
#include "verify/gpu_numbers.hpp"
#include "verify/placed_compare.hpp"
#include "verify/whole_tap.hpp"

namespace tokenview {
namespace {

/// Holds the taps of a float32 run to those of the golden.
class Comparer {
 public:
  Comparer(const ModelConfig& config, const MatrixEntry& entry,
           const std::vector<const LoadedGolden::Case*>& cases, MatrixResult& result)
      : config_(config), entry_(entry), cases_(cases), result_(result) {}

  void compare(const ViewRunResult& views, const std::vector<RankTaps>& taps) {
    for (const NamedView& view : views.views)
      for (std::int64_t dp = 0; dp < entry_.parallel.dp; ++dp) compare_tap(view, taps, dp);
  }

 private:
  void compare_tap(const NamedView& view, const std::vector<RankTaps>& taps, std::int64_t dp) {
    const std::size_t slash = view.name.find('/');
    const std::string pass = view.name.substr(0, slash);
    const std::int64_t step = pass == "target" ? -1 : std::stoll(pass.substr(4));
    const LoadedGolden::Case& golden_case = *cases_[std::size_t(dp)];
    detail_ = {.name = view.name, .dp = dp};
    compare_tap(view, taps, dp, step, golden_case);
    if (entry_.keeps_details) result_.compared.push_back(std::move(detail_));
  }

  void compare_tap(const NamedView& view, const std::vector<RankTaps>& taps, std::int64_t dp,
                   std::int64_t step, const LoadedGolden::Case& golden_case) {
    if (view.name.ends_with(".ids")) {
      compare_ids(view, taps, dp, step);
      return;
    }
    const auto in_golden = golden_case.taps.find(view.name);
    if (in_golden == golden_case.taps.end()) {
      fail(view.name, "the golden has no such tap");
      return;
    }
    const HostTensor& golden = in_golden->second;
    const Matrix<double> trusted =
        Eigen::Map<const Matrix<float>>(golden.values.data(), golden.rows(), golden.cols())
            .cast<double>();
    const PlacedTap<double> tap =
        placed(view, taps, dp, entry_.parallel, config_, trusted,
               [&](const RowRun& row) { return golden_row(row, golden_case.inputs, step); });
    for (const auto& [at, expected, actual] : tap.other_shapes)
      fail(view.name, text("rank ", at.world, " has ", actual, ", its view says ", expected));
    for (const auto& [at, row] : tap.strangers)
      fail(view.name, text("rank ", at.world, " row ", row, " has no row in the golden"));
    for (const PlacedValues<double>& values : tap.values) {
      if (values.is_sum && std::int64_t(values.rows.size()) != trusted.rows())
        fail(view.name, text("the ranks have summands of ", values.rows.size(),
                             " rows, the golden ", trusted.rows()));
      if (values.rows.empty()) continue;
      judge(view.name, values);
      if (!entry_.keeps_details) continue;
      detail_.row_ratios.resize(std::size_t(trusted.rows()));
      raise_row_ratios(detail_.row_ratios, values,
                       float32_allowed(trusted.size() == 0 ? 0 : trusted.cwiseAbs().maxCoeff()));
    }
  }

  void compare_ids(const NamedView& view, const std::vector<RankTaps>& taps, std::int64_t dp,
                   std::int64_t step) {
    const LoadedGolden::Case& golden_case = *cases_[std::size_t(dp)];
    const auto in_golden = golden_case.ids.find(view.name);
    if (in_golden == golden_case.ids.end()) {
      fail(view.name, "the golden has no such ids");
      return;
    }
    const IntegerTensor& trusted = in_golden->second;
    for (std::size_t rank = 0; rank < view.by_rank.size(); ++rank) {
      if (coordinates_of(std::int64_t(rank), entry_.parallel).dp != dp) continue;
      const auto found = taps[rank].ids.find(view.name);
      if (found == taps[rank].ids.end()) continue;
      const auto& ids = found->second;
      const Rows& held = view.by_rank[rank].rows;
      for (std::int64_t r = 0; r < std::min<std::int64_t>(held.size(), ids.rows()); ++r) {
        const RowRun row = held.at(r);
        if (row.kind != RowKind::token || row.dp != dp) continue;  // ids of pads are arbitrary
        const std::int64_t at_row = golden_row(row, golden_case.inputs, step);
        if (at_row < 0) continue;
        for (std::int64_t j = 0; j < ids.cols(); ++j)
          if (ids(r, j) != trusted.values[std::size_t(at_row * ids.cols() + j)]) {
            fail(view.name, text("rank ", rank, " row ", r, ": ids differ"));
            return;
          }
      }
      result_.values += ids.size();
      detail_.values += ids.size();
    }
    result_.taps += 1;
  }

  void judge(const std::string& name, const PlacedValues<double>& values) {
    const Comparison comparison = tokenview::compare(std::span<const double>(values.found),
                                                     std::span<const double>(values.trusted));
    const Bound bound = float32_bound(comparison, values.columns);
    result_.taps += 1;
    result_.values += comparison.count;
    detail_.values += comparison.count;
    if (!bound.holds()) {
      ++result_.failed;
      detail_.failed = true;
    }
    if (!(bound.ratio() <= detail_.worst.ratio()) || detail_.worst.allowed == 0)
      detail_.worst = bound;
    if (bound.ratio() > result_.worst.ratio() || result_.worst_tap.empty()) {
      result_.worst = bound;
      result_.worst_tap = name;
    }
  }

  void fail(const std::string& name, std::string problem) {
    detail_.failed = true;
    if (detail_.problem.empty()) detail_.problem = problem;
    if (result_.failed++ == 0) result_.problem = name + ": " + std::move(problem);
  }

  const ModelConfig& config_;
  const MatrixEntry& entry_;
  const std::vector<const LoadedGolden::Case*>& cases_;
  MatrixResult& result_;
  MatrixTap detail_;  // of the tap at hand
};

}  // namespace

std::string MatrixEntry::name() const {
  std::string joined_cases;
  for (const std::string& of_rank : cases)
    joined_cases += (joined_cases.empty() ? "" : "+") + of_rank;
  if (tokens > 0) joined_cases += text('[', tokens, ']');
  return text(file, ' ', joined_cases, ' ', to_string(protocol), " tp=", parallel.tp,
              " dp=", parallel.dp, parallel.enable_expert_parallel ? " ep" : "");
}

MatrixEntries matrix_of(const LoadedGolden& golden, bool quick,
                        const std::vector<std::int64_t>& tokens) {
  const ModelConfig& config = golden.config();
  MatrixEntries matrix;
  const auto add = [&](const std::vector<std::string>& cases, std::int64_t prefix,
                       const ParallelConfig& parallel) {
    bool is_legal = true;
    try {
      validate(config, parallel);
    } catch (const ConfigError&) {  // a degree that this model's sizes refuse
      is_legal = false;
    }
    for (const ProtocolId protocol : all_protocols()) {
      const bool is_open =
          parallel.tp > 1 && (parallel.enable_expert_parallel || protocol == ProtocolId::deferred);
      if (protocol != ProtocolId::S && !is_open) continue;
      if (is_legal)
        matrix.entries.push_back({golden.name(), cases, parallel, protocol, prefix});
      else
        ++matrix.refused;
    }
  };

  std::vector<std::string> cases;
  for (const auto& [name, unused] : golden.cases()) cases.push_back(name);
  if (quick && cases.size() > 2) cases = {cases.front(), cases.back()};
  std::vector<std::int64_t> degrees = {1, 2, 3, 4, 8};
  if (quick) {
    std::erase_if(degrees, [&](std::int64_t tp) {
      try {
        validate(config, {.tp = tp});
        return false;
      } catch (const ConfigError&) {
        return true;
      }
    });
    if (degrees.size() > 3) degrees.erase(degrees.begin() + 1, degrees.end() - 2);
  }
  const std::string prefill = golden.longest_prefill();
  std::vector<std::int64_t> prefixes = tokens;
  if (tokens.empty() && !quick) prefixes = {1, 2, 3, 4, 5, 8, 12, 13};
  for (const std::int64_t tp : degrees)
    for (const std::int64_t dp : {1, 2})
      for (const bool ep : {false, true}) {
        const ParallelConfig parallel{.tp = tp, .dp = dp, .enable_expert_parallel = ep};
        for (std::size_t c = 0; c < cases.size() && tokens.empty(); ++c) {
          std::vector<std::string> of_ranks = {cases[c]};
          if (dp == 2) of_ranks.push_back(cases[(c + 1) % cases.size()]);
          add(of_ranks, 0, parallel);
        }
        if (prefill.empty()) continue;
        const std::int64_t have = golden.cases().at(prefill).inputs.num_tokens();
        for (const std::int64_t prefix : prefixes)
          if (prefix + dp - 1 <= have)
            add(std::vector<std::string>(std::size_t(dp), prefill), prefix, parallel);
      }
  return matrix;
}

namespace {

/// Holds the taps of a bfloat16 run to its error model: see judge_case().
void judge_by_errors(CaseErrorModels& models, const LoadedGolden& golden,
                     const std::vector<const LoadedGolden::Case*>& cases,
                     const ViewRunResult& views, const NumberRunResult& numbers,
                     MatrixResult& result) {
  const auto count = [&](MatrixTap tap) {
    result.values += tap.values;
    if (tap.failed && result.failed++ == 0) result.problem = tap.name + ": " + tap.problem;
    if (tap.worst.ratio() > result.worst.ratio() || result.worst_tap.empty()) {
      result.worst = tap.worst;
      result.worst_tap = tap.name;
    }
    if (result.entry.keeps_details) result.compared.push_back(std::move(tap));
  };
  const ParallelConfig& parallel = result.entry.parallel;
  for (std::int64_t dp = 0; dp < parallel.dp; ++dp) {
    const LoadedGolden::Case& trusted = *cases[std::size_t(dp)];
    const GoldenCase golden_case(golden.config(), golden, trusted, golden.dtype());
    const RunTaps taps = taps_of_run(golden_case, views, numbers, parallel, dp);
    for (const std::string& problem : taps.problems)
      if (problem != numbers.error)
        count({.name = problem.substr(0, problem.find(':')),
               .dp = dp,
               .problem = problem,
               .failed = true});
    const CaseJudgement judgement =
        models.judge(result.entry.cases[std::size_t(dp)], trusted, parallel.tp, taps.found);
    for (const TapJudgement& tap : judgement.taps) {
      ++result.taps;
      count({.name = tap.place,
             .dp = dp,
             .worst = tap.total,
             .values = tap.comparison.count,
             .problem = tap.detail,
             .failed = tap.verdict != Verdict::match && tap.verdict != Verdict::tie});
    }
    for (const ChoiceDifference& choice : judgement.choices)
      if (!choice.is_tie())
        count({.name = choice.place,
               .dp = dp,
               .problem = text("row ", choice.row, ": other ids, by more than errors can turn"),
               .failed = true});
  }
}

using RunNumbers = std::function<NumberRunResult(const ParallelRun&)>;

/// `numbers` are judged, and where they fail and the views are clean those of `second` instead.
MatrixResult judge_entry(const LoadedGolden& golden, const MatrixEntry& entry,
                         CaseErrorModels& models, const OwnProtocol* own, const RunNumbers& numbers,
                         const RunNumbers& second, bool is_on_gpu) {
  const ModelConfig& config = golden.config();
  MatrixResult result;
  result.entry = entry;
  std::vector<const LoadedGolden::Case*> cases;
  ParallelRun run{.config = config, .plan = plan_for(config, entry.parallel, entry.protocol)};
  std::int64_t draft_steps = std::numeric_limits<std::int64_t>::max();
  std::deque<LoadedGolden::Case> prefixes;
  for (std::size_t dp = 0; dp < entry.cases.size(); ++dp) {
    const std::string& name = entry.cases[dp];
    if (entry.tokens > 0)  // the ranks' counts differ
      cases.push_back(&prefixes.emplace_back(golden.prefix(name, entry.tokens + std::int64_t(dp))));
    else
      cases.push_back(&golden.cases().at(name));
    CaseBatches batches = case_batches(cases.back()->inputs);
    run.inputs.push_back({std::move(batches.context), std::move(batches.step)});
    draft_steps = std::min(draft_steps, cases.back()->draft_steps);
  }
  run.draft_steps = std::size_t(draft_steps);
  run.own_protocol = own;
  result.expected_to_fail = own == nullptr && !known_fault(run).empty();

  const ViewRunResult views = run_views(run, true);
  result.findings = views.findings;
  if (entry.keeps_details) result.views = views;
  const auto asserts = predicted_asserts(views.findings);
  if (is_on_gpu && !asserts.empty()) {
    result.error = text("not run: index ", asserts.front().index, " of ", asserts.front().bound,
                        " rows on rank ", asserts.front().at.world,
                        " is a device-side assert, which would end the GPU for the others");
    return result;
  }
  const MatrixResult blank = result;
  const auto judge = [&](const NumberRunResult& found) {
    result = blank;
    result.error = found.error.empty() ? views.error : found.error;
    if (golden.dtype() == DType::float32)
      Comparer(config, entry, cases, result).compare(views, found.taps);
    else
      judge_by_errors(models, golden, cases, views, found, result);
  };
  judge(numbers(run));
  // A tap that cancels loses in float32 what the recording kept by chance; see check_golden().
  if (second && result.failed > 0 && views.clean()) judge(second(run));
  return result;
}

/// On the CPU. float64 says nothing of a bfloat16 model.
MatrixResult run_on_cpu(const LoadedGolden& golden, const MatrixEntry& entry,
                        const WeightSource& weights, CaseErrorModels& models, Rounding rounding,
                        const OwnProtocol* own = nullptr) {
  const RunNumbers numbers = [&](const ParallelRun& run) {
    return run_numbers<float>(run, weights, ReductionOrder::rank, rounding);
  };
  RunNumbers second;
  if (golden.dtype() == DType::float32)
    second = [&](const ParallelRun& run) { return run_numbers<double>(run, weights); };
  return judge_entry(golden, entry, models, own, numbers, second, false);
}

/// Of the golden's type.
Rounding rounding_of(const LoadedGolden& golden, Rounding of_bfloat16) {
  return golden.dtype() == DType::float32 ? Rounding::none : of_bfloat16;
}

}  // namespace

MatrixResult run_entry(const LoadedGolden& golden, const MatrixEntry& entry) {
  return run_entry(golden, entry, golden);
}

MatrixResult run_entry(const LoadedGolden& golden, const MatrixEntry& entry,
                       const WeightSource& weights, const OwnProtocol* own) {
  CaseErrorModels models(golden);
  return run_on_cpu(golden, entry, weights, models, rounding_of(golden, Rounding::hf), own);
}

std::int64_t run_matrix_on(const Executor& executor, const LoadedGolden& golden,
                           const std::vector<MatrixEntry>& entries,
                           const std::function<void(const MatrixResult&)>& done) {
  Executor of_type = executor;
  of_type.rounding = rounding_of(golden, executor.rounding);
  const bool is_on_gpu = executor.device == Device::cuda;
  std::unique_ptr<GpuNumbers> virtual_ranks;
  if (is_on_gpu && executor.comm == CommKind::sim)
    virtual_ranks = gpu_numbers(golden.config(), golden, of_type.rounding);
  const RunNumbers numbers = [&](const ParallelRun& run) {
    return virtual_ranks ? virtual_ranks->run(run) : run_numbers_on(of_type, run, golden);
  };
  CaseErrorModels models(golden);
  for (const MatrixEntry& entry : entries)
    done(judge_entry(golden, entry, models, nullptr, numbers, {}, is_on_gpu));
  return virtual_ranks ? virtual_ranks->uploads() : 0;
}

void run_matrix(const LoadedGolden& golden, const std::vector<MatrixEntry>& entries,
                Rounding of_bfloat16, int num_threads,
                const std::function<void(const MatrixResult&)>& done) {
  const Rounding rounding = rounding_of(golden, of_bfloat16);
  CaseErrorModels models(golden);
  std::vector<std::optional<MatrixResult>> results(entries.size());
  std::vector<std::exception_ptr> errors(entries.size());
  std::mutex mutex;
  std::condition_variable arrived;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < entries.size(); i = next++) {
      std::optional<MatrixResult> result;
      std::exception_ptr error;
      try {
        result = run_on_cpu(golden, entries[i], golden, models, rounding);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      results[i] = std::move(result);
      errors[i] = error;
      arrived.notify_one();
    }
  };
  std::vector<std::jthread> threads;
  for (int t = 0; t < std::min<int>(num_threads, int(entries.size())); ++t)
    threads.emplace_back(work);
  try {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      std::unique_lock lock(mutex);
      arrived.wait(lock, [&] { return results[i].has_value() || errors[i] != nullptr; });
      if (errors[i] != nullptr) std::rethrow_exception(errors[i]);
      const MatrixResult result = std::move(*results[i]);
      results[i]->findings.clear();
      lock.unlock();
      done(result);
    }
  } catch (...) {
    next = entries.size();  // the threads stop after what they are at
    throw;
  }
}

}  // namespace tokenview
