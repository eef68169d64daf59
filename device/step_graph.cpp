// SPDX-License-Identifier: Apache-2.0
#include "device/step_graph.hpp"

#include <algorithm>

#include "device/cuda_context.hpp"
#include "device/step_recording.hpp"

namespace tokenview {
namespace {

/// Copies what it is shown, as work of the step that is captured.
template <class T>
class CopiedTaps final : public TapSink<CudaOps<T>> {
 public:
  CopiedTaps(CudaContext& gpu, std::vector<StepTap<T>>& taps) : gpu_(gpu), taps_(taps) {}

  void tensor(const ModulePath& module, const char* leaf,
              typename CudaOps<T>::Tensor& value) override {
    taps_.push_back({module.str(leaf), copy(value), std::nullopt});
  }
  void routing(const ModulePath& module, typename CudaOps<T>::Routing& value) override {
    taps_.push_back(
        {module.str(), {}, typename CudaOps<T>::Routing{copy(value.weights), copy(value.ids)}});
  }

 private:
  template <class X>
  DeviceMatrix<X> copy(const DeviceMatrix<X>& x) {
    const auto out = gpu_.matrix<X>(x.rows(), x.cols());
    gpu_.copy(out.data(), x.data(), x.size() * std::int64_t(sizeof(X)));
    return out;
  }

  CudaContext& gpu_;
  std::vector<StepTap<T>>& taps_;
};

std::int64_t most_rows(const Batch& batch) {
  std::int64_t most = 0;
  for (std::size_t s = 0; s < std::size_t(batch.num_sequences()); ++s)
    most = std::max<std::int64_t>(most, batch.query_start_loc[s + 1] - batch.query_start_loc[s]);
  return most;
}

/// What the launches of a step depend on must be as it was captured.
void require_shape_of(const Batch& captured, const Batch& batch) {
  const auto require = [](bool holds, const char* what, std::int64_t found, const char* relation,
                          std::int64_t expected) {
    if (!holds)
      throw DeviceError(text("replay: ", found, ' ', what, ", but the step was captured with ",
                             relation, expected));
  };
  require(batch.num_tokens() == captured.num_tokens(), "rows", batch.num_tokens(), "",
          captured.num_tokens());
  require(batch.num_sequences() <= captured.num_sequences(), "sequences", batch.num_sequences(),
          "at most ", captured.num_sequences());
  require(most_rows(batch) <= most_rows(captured), "rows of a sequence", most_rows(batch),
          "at most ", most_rows(captured));
  require(batch.mrope_positions.size() == captured.mrope_positions.size(), "M-RoPE positions",
          std::int64_t(batch.mrope_positions.size()), "",
          std::int64_t(captured.mrope_positions.size()));
  if (batch.keep_states != captured.keep_states)
    throw DeviceError("replay: states are kept after every row in one of batch and capture only");
  if (batch.tokens_across_dp != captured.tokens_across_dp)
    throw DeviceError("replay: other row counts of data-parallel ranks than captured");
}

}  // namespace

template <class T>
StepGraph<T>::StepGraph(const Ops& ops, const Batch& batch, const Program& program)
    : gpu_(ops.context().shared_from_this()), recording_(gpu_->new_recording()), captured_(batch) {
  CopiedTaps<T> taps(*gpu_, taps_);
  const cudaGraph_t graph =
      gpu_->capture(*recording_, captured_, [&] { result_ = program(captured_, taps); });
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
}

template <class T>
StepGraph<T>::~StepGraph() {
  if (graph_ == nullptr) return;
  cudaStreamSynchronize(gpu_->stream());  // the last replay still reads its inputs from the host
  cudaGraphExecDestroy(graph_);
}

template <class T>
const typename StepGraph<T>::Tensor& StepGraph<T>::replay(const Batch& batch) {
  require_shape_of(captured_, batch);
  gpu_->replay(*recording_, graph_, batch);
  return result_;
}

template class StepGraph<float>;
template class StepGraph<__nv_bfloat16>;

}  // namespace tokenview
