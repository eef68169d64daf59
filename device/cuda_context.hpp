// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/assert_record.hpp"
#include "device/check.hpp"
#include "device/cublas.hpp"
#include "device/device_matrix.hpp"
#include "device/staging_ring.hpp"
#include "device/step_recording.hpp"

namespace tokenview {

/// One GPU with what the operations share: a stream on which all work is queued in order, a pool
/// that memory is taken from and returned to in that order, and cuBLAS. Memory keeps its context.
/// Host values go to the GPU on the same stream, through pinned memory whose reuse waits for an
/// event, so that the host waits for results only. Not for several threads at once.
class CudaContext : public std::enable_shared_from_this<CudaContext> {
 public:
  /// Throws DeviceError where there is no such GPU, another process has it for itself, or it is too
  /// old for the kernels of this build.
  static std::shared_ptr<CudaContext> create(int device);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// The stream of all work. Makes its GPU the current one of the calling thread, which CUDA wants
  /// of whoever queues on it.
  cudaStream_t stream() const {
    cudaSetDevice(device_);
    return stream_;
  }
  const std::string& name() const { return name_; }

  /// Where kernels note the first assert, in the name of `rank`; and what they noted, which can be
  /// read when the assert has ended everything else.
  AssertNote assert_note(std::int64_t rank) const { return {record_on_device_, rank}; }
  const AssertRecord& assert_record() const { return *record_; }

  /// Uninitialised memory for `count` elements; null for none. Throws DeviceError when the GPU has
  /// no more.
  template <class T>
  std::shared_ptr<T> allocate(std::int64_t count) {
    return std::static_pointer_cast<T>(allocate_bytes(count * std::int64_t(sizeof(T))));
  }

  /// Uninitialised, and zero.
  template <class T>
  DeviceMatrix<T> matrix(std::int64_t rows, std::int64_t cols) {
    return {allocate<T>(rows * cols), rows, cols};
  }
  template <class T>
  DeviceMatrix<T> zeros(std::int64_t rows, std::int64_t cols) {
    const auto out = matrix<T>(rows, cols);
    set_zero(out.data(), out.size() * std::int64_t(sizeof(T)));
    return out;
  }

  /// A copy of host values. They may be freed at once. Throws DeviceError while a step is captured,
  /// which would keep the values of one batch: there, step_input() and constant().
  template <class T>
  std::shared_ptr<T> upload(std::span<const T> values) {
    require_no_capture("host values that are no function of the batch");
    auto data = allocate<T>(std::int64_t(values.size()));
    staging_->copy(data.get(), values.data(), std::int64_t(values.size_bytes()), stream());
    return data;
  }
  template <class T>
  std::shared_ptr<T> upload(const std::vector<T>& values) {
    return upload(std::span<const T>(values));
  }

  /// f(batch), a vector, on the GPU: what a step has from its batch. While a step is captured, `f`
  /// is kept and evaluated again for the batch of each replay. It may then give fewer values (the
  /// others are zero), or more, up to `capacity`. What it changes elsewhere it gives to keep()
  /// before. Throws DeviceError where the step of another batch is captured, whose replays could
  /// not tell what becomes of this one.
  template <class F>
  auto step_input(const Batch& batch, F f, std::int64_t capacity = 0) {
    require_captured(batch);
    const auto values = f(batch);
    using V = typename std::remove_const_t<decltype(values)>::value_type;
    if (recording_ == nullptr) return upload(values);
    const auto size = std::max(std::int64_t(values.size()), capacity) * std::int64_t(sizeof(V));
    return std::static_pointer_cast<V>(recording_->inputs.add(
        [f](const Batch& step, std::span<std::byte> to) {
          const std::vector<V> of_step = f(step);
          require_fits(of_step.size() * sizeof(V), to.size());
          std::memcpy(to.data(), of_step.data(), of_step.size() * sizeof(V));
        },
        size, *recording_->memory));
  }
  /// The same for operations that are given the values `found` and no batch: while a step is
  /// captured they must be f(the batch that is captured); DeviceError names `what` they are.
  template <class V, class F>
  std::shared_ptr<V> step_input(const std::vector<V>& found, F f, const char* what) {
    if (recording_ == nullptr) return upload(found);
    if (found != f(*recording_->batch))
      throw DeviceError(text(what,
                             " are not those of the batch, so that no replay could tell "
                             "what they become"));
    return step_input(*recording_->batch, f);
  }

  /// Notes of the host that a step's input is about to change: they are what they were before again
  /// after a capture, which queues no work, and after a replay that fails.
  template <class X>
  void keep(X& notes) {
    if (notes_before_ != nullptr) notes_before_->keep(notes);
  }

  /// A copy of host values that is made once and lives as long as the context.
  template <class T>
  const T* constant(const std::vector<T>& values) {
    return static_cast<const T*>(
        constant_bytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
  }

  /// Waits for all work before it: errors of kernels show here. Throws DeviceError while a step is
  /// captured, which computes nothing.
  template <class T>
  std::vector<T> download(const T* data, std::int64_t count) const {
    require_no_capture("results on the host");
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0)
      check(cudaMemcpyAsync(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost,
                            stream()),
            "copy from the GPU");
    check(cudaStreamSynchronize(stream()), "waiting for the GPU");
    return values;
  }

  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (for_initcheck_ && is_capturing()) set_zero(to, bytes);
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDeviceToDevice, stream()),
            "copy on the GPU");
  }
  void set_zero(void* data, std::int64_t bytes) const {
    if (bytes > 0) check(cudaMemsetAsync(data, 0, std::size_t(bytes), stream()), "cudaMemsetAsync");
  }

  /// y [rows, out] = x [rows, in] w^T, w [out, in]; all row-major. Sums are in fp32, of float
  /// products in fp32 too (no TF32); bfloat16 results are rounded once. T: float, __nv_bfloat16.
  template <class T>
  void gemm(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t out,
            std::int64_t in) const;

  // Capture of a step, for StepGraph.
  bool is_capturing() const { return recording_ != nullptr; }
  std::unique_ptr<StepRecording> new_recording();
  /// The graph of what `body` queues for `batch`, which is not run. Memory that it asks for is the
  /// recording's; memory from before that it lets go is freed afterwards.
  cudaGraph_t capture(StepRecording& recording, const Batch& batch,
                      const std::function<void()>& body);
  /// Queues `graph` with the inputs for `batch`, or changes nothing.
  void replay(StepRecording& recording, cudaGraphExec_t graph, const Batch& batch);

 private:
  CudaContext() = default;
  std::shared_ptr<void> allocate_bytes(std::int64_t bytes);
  std::shared_ptr<void> allocate_on(cudaStream_t stream, std::int64_t bytes);
  std::shared_ptr<void> owned(void* data, std::int64_t bytes);
  void release(void* memory, std::int64_t bytes);
  void free_kept_blocks();
  const void* constant_bytes(const std::string& bytes);
  void require_no_capture(const char* what) const;
  void require_captured(const Batch& batch) const;
  static void require_fits(std::size_t bytes, std::size_t capacity);

  std::string name_;  // "GPU 0 (NVIDIA H200)"
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaStream_t side_stream_ = nullptr;  // what must not be captured
  cudaMemPool_t pool_ = nullptr;
  std::unique_ptr<StagingRing> staging_;
  std::map<std::string, void*> constants_;                // by their bytes
  StepRecording* recording_ = nullptr;                    // the step that is captured
  NotesBefore* notes_before_ = nullptr;                   // and where one is replayed
  std::vector<std::pair<void*, std::int64_t>> released_;  // while one is captured
  // TOKENVIEW_PLAIN_MEMORY: no block is kept for later, and what compute-sanitizer's initcheck does
  // not see written (by the copy engine, or by a copy in a graph) is set to zero before.
  bool for_initcheck_ = false;
  std::unordered_map<std::int64_t, std::vector<void*>> kept_blocks_;  // by their bytes
  cublasHandle_t blas_ = nullptr;
  AssertRecord *record_ = nullptr, *record_on_device_ = nullptr;  // one, in pinned host memory
};

}  // namespace tokenview
