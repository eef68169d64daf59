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
#include "verify/golden_case.hpp"
#include "verify/gpu_numbers.hpp"
#include "verify/matrix_taps.hpp"

namespace tokenview {

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
      judge_by_fixed_bound(config, cases, views, found, result);
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
