// SPDX-License-Identifier: Apache-2.0
#include "verify/dump_run.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <system_error>

#include "reference/program/bfloat16.hpp"
#include "reference/program/error.hpp"
#include "verify/clean_layouts.hpp"
#include "verify/data_folder.hpp"
#include "verify/dump_writer.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/placed_tap.hpp"
#include "verify/tap_order.hpp"
#include "verify/view_run.hpp"

namespace tokenview {
namespace {

constexpr const char* file_begins = "dump.rank";

/// `run` up to and with engine step `step`: of its last step the taps are seen.
ParallelRun until(const ParallelRun& run, std::size_t step) {
  ParallelRun part = run;
  part.later_steps.resize(step);
  return part;
}

/// Input lists of every sequence with those of what follows it: starts and entries.
template <class T>
void append_lists(std::vector<T>& all, std::vector<std::int32_t>& starts, std::size_t sequence,
                  const std::vector<T>& more) {
  all.insert(all.begin() + starts[sequence + 1], more.begin(), more.end());
  for (std::size_t s = sequence + 1; s < starts.size(); ++s) starts[s] += std::int32_t(more.size());
}

/// In float32; where `rounds`, of a bfloat16 model, what bfloat16 holds is stored as such: all but
/// routing weights.
HostTensor as_stored(const Matrix<double>& values, bool rounds) {
  HostTensor tensor{{values.rows(), values.cols()}, {}};
  tensor.values.reserve(std::size_t(values.size()));
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    tensor.values.push_back(float(values.data()[i]));
    rounds = rounds && round_to_bf16(tensor.values.back()) == tensor.values.back();
  }
  if (rounds) tensor.dtype = DType::bfloat16;
  return tensor;
}

/// The steps of each rank of the world, one engine step.
std::vector<DumpedStep> dumped_step(const Executor& executor, const ParallelRun& run,
                                    const WeightSource& weights, std::size_t number, bool annotate,
                                    std::vector<std::int64_t>& calls_before, std::string& error) {
  const ParallelConfig& parallel = run.plan.parallel;
  const auto world = std::size_t(parallel.world_size());
  ParallelRun part = until(run, number);
  std::vector<CollectiveRecord> calls;
  part.collectives = &calls;
  const NumberRunResult numbers = run_numbers_on(executor, part, weights);
  error = numbers.error;
  const std::vector<GoldenInputs> inputs = inputs_of_step(run, number);

  std::vector<DumpedStep> steps(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    DumpedStep& step = steps[rank];
    step.number = std::int64_t(number);
    step.stopped = numbers.error;
    step.inputs = inputs[std::size_t(coordinates_of(std::int64_t(rank), parallel).dp)];
    step.num_tokens = step.inputs.num_tokens();
    step.dummy = step.inputs.num_sequences() == 0;
    for (const auto& [tap, values] : numbers.taps[rank].values)
      step.taps.emplace(tap, as_stored(values, executor.rounding != Rounding::none));
    for (const auto& [tap, ids] : numbers.taps[rank].ids)
      step.ids.emplace(
          tap, IntegerTensor{{ids.rows(), ids.cols()}, {ids.data(), ids.data() + ids.size()}});
  }
  std::vector<std::int64_t> seen(world, 0);
  for (const CollectiveRecord& call : calls) {
    const auto rank = std::size_t(call.rank);
    const std::int64_t seq = seen[rank]++ - calls_before[rank];
    if (seq >= 0)
      steps[rank].collectives.push_back(
          {call.op, call.group, call.module, call.count, call.dtype, seq});
  }
  calls_before = seen;
  if (!annotate) return steps;
  part.collectives = nullptr;
  for (const NamedView& view : run_views(part, true).views)
    for_each_holder(view, parallel, [&](const RankCoordinates& at, const ViewOps::Tensor& held) {
      steps[std::size_t(at.world)].views[view.name] = as_in_files(held, view.name, inputs);
    });
  return steps;
}

}  // namespace

std::vector<GoldenInputs> inputs_of_step(const ParallelRun& run, std::size_t step) {
  std::vector<GoldenInputs> inputs;
  for (const StepInputs& first : run.inputs) {
    const Batch* batch = &first.step;
    GoldenInputs of_dp;
    of_dp.context_ids = first.context.input_ids;
    of_dp.context_start_loc = first.context.query_start_loc;
    of_dp.context_start_loc.resize(std::size_t(batch->num_sequences()) + 1,
                                   std::int32_t(of_dp.context_ids.size()));
    for (std::size_t i = 0; i < step; ++i) {
      for (std::size_t s = 0; s < std::size_t(batch->num_sequences()); ++s) {
        const std::int32_t begin = batch->query_start_loc[s], end = batch->query_start_loc[s + 1];
        append_lists(of_dp.context_ids, of_dp.context_start_loc, s,
                     std::vector<std::int64_t>(batch->input_ids.begin() + begin,
                                               batch->input_ids.begin() + end));
      }
      batch = &run.later_steps[i][inputs.size()].step;
    }
    of_dp.input_ids = batch->input_ids;
    of_dp.positions = batch->positions;
    of_dp.query_start_loc = batch->query_start_loc;
    inputs.push_back(std::move(of_dp));
  }
  return inputs;
}

void require_dump_folder(const std::string& folder, std::int64_t world_size) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return;
  for (const std::string& path : files_of(folder, ".h5")) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (!name.starts_with(file_begins)) continue;
    std::int64_t rank = -1;
    const char* const digits = name.data() + std::string_view(file_begins).size();
    std::from_chars(digits, name.data() + name.size(), rank);
    if (rank >= world_size)
      throw UsageError(text("--dump ", printable(folder), ": holds ", printable(name),
                            " of another run, expected no rank from ", world_size, " on"));
  }
}

std::string dump_run(const Executor& executor, const ParallelRun& run, const WeightSource& weights,
                     const DumpRunOptions& options) {
  const ParallelConfig& parallel = run.plan.parallel;
  require_dump_folder(options.folder, parallel.world_size());
  std::error_code failure;
  std::filesystem::create_directories(options.folder, failure);
  if (failure)
    throw FileError(text(printable(options.folder), ": cannot be made: ", failure.message()));

  std::vector<std::unique_ptr<DumpWriter>> writers;
  for (std::int64_t rank = 0; rank < parallel.world_size(); ++rank)
    writers.push_back(std::make_unique<DumpWriter>(
        text(options.folder, '/', file_begins, rank, ".h5"), options.producer, options.label));
  std::string error;
  std::vector<std::int64_t> calls(writers.size(), 0);
  for (std::size_t number = 0; number <= run.later_steps.size() && error.empty(); ++number) {
    const std::vector<DumpedStep> steps =
        dumped_step(executor, run, weights, number, options.annotate, calls, error);
    for (std::size_t rank = 0; rank < writers.size(); ++rank) {
      const RankCoordinates at = coordinates_of(std::int64_t(rank), parallel);
      if (number == 0) writers[rank]->write_rank(at, parallel, steps[rank].num_tokens);
      writers[rank]->write_step(at, steps[rank]);
    }
  }
  for (const auto& writer : writers) writer->commit();
  return error;
}

}  // namespace tokenview
