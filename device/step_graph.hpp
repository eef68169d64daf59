// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "device/cuda_ops.hpp"
#include "reference/program/rank.hpp"

namespace tokenview {

/// A value that the program named on its way past: a tensor, or a routing.
template <class T>
struct StepTap {
  std::string name;  // as golden files have it
  typename CudaOps<T>::Tensor tensor;
  std::optional<typename CudaOps<T>::Routing> routing;
};

/// One step of a program as a CUDA graph: captured once, replayed with other batches of its shape,
/// with none of the program's work on the host. Replays write to the same addresses: caches, the
/// result and the taps, which the graph copies for itself, so that they hold the values of the last
/// replay whatever the program did with the memory afterwards.
///
/// Caches that the program writes must outlive the graph, stay where they are, and be large enough
/// (CudaOps::reserve): a pool does not grow under a graph. Weights must outlive it, too. Work is
/// queued on the stream of the operations, in order with theirs. Not for several threads at once.
template <class T>
class StepGraph {
 public:
  using Ops = CudaOps<T>;
  using Tensor = typename Ops::Tensor;
  /// The step: gives its result, and shows `taps` what it names.
  using Program = std::function<Tensor(const Batch& batch, TapSink<Ops>& taps)>;

  /// Captures `program` on `batch`, which has the most sequences and the most rows a sequence of
  /// all that are replayed, and nothing but ids and positions of its rows as input. Nothing is
  /// computed, and the caches know of no more rows than before. Throws DeviceError for a program
  /// that reads results on the host or needs what is no function of the batch, and where a pool
  /// would have to grow.
  StepGraph(const Ops& ops, const Batch& batch, const Program& program);
  /// Waits for the last replay.
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Queues the step for `batch`; the host waits for the inputs of the replay before, no longer.
  /// Gives the result, in memory that the next replay writes. Throws DeviceError for a batch of
  /// another shape, and what the program's operations throw for an unfit one; the caches are then
  /// as they were.
  const Tensor& replay(const Batch& batch);

  /// In the order of the program, values of the last replay.
  const std::vector<StepTap<T>>& taps() const { return taps_; }

 private:
  std::shared_ptr<CudaContext> gpu_;
  std::unique_ptr<struct StepRecording> recording_;
  Batch captured_;
  Tensor result_;
  std::vector<StepTap<T>> taps_;
  cudaGraphExec_t graph_ = nullptr;
};

extern template class StepGraph<float>;
extern template class StepGraph<__nv_bfloat16>;

}  // namespace tokenview
