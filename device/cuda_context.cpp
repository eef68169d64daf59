// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_context.hpp"

#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <new>
#include <type_traits>

#include "device/device_info.hpp"
#include "device/kernels.hpp"
#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// Sizes of blocks: eight between a power of two and the next, 512 bytes apart at least.
std::int64_t block_size(std::int64_t bytes) {
  const std::int64_t step =
      std::max<std::int64_t>(512, std::int64_t(std::bit_floor(std::uint64_t(bytes)) / 8));
  return (bytes + step - 1) / step * step;
}

}  // namespace

std::shared_ptr<CudaContext> CudaContext::create(int device) {
  std::string reason;
  const auto found = devices(reason);
  if (found.empty()) throw DeviceError(text("no GPU: ", reason));
  if (device < 0 || device >= int(found.size()))
    throw DeviceError(text("no GPU ", device, ": this machine has ", found.size()));
  const DeviceInfo& info = found[std::size_t(device)];

  std::shared_ptr<CudaContext> context(new CudaContext);
  context->for_initcheck_ = std::getenv("TOKENVIEW_PLAIN_MEMORY") != nullptr;
  context->device_ = device;
  context->name_ = text("GPU ", device, " (", info.name, ")");
  return in_scope(context->name_, [&] {
    start_device(device);
    if (!kernels::are_built_for_this_gpu())
      throw DeviceError(text("compute capability ", info.compute_major, ".", info.compute_minor,
                             " is not among those that this build has kernels for"));
    for (cudaStream_t* stream : {&context->stream_, &context->side_stream_})
      check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
    context->staging_ = std::make_unique<StagingRing>();
    void* record = nullptr;
    check(cudaHostAlloc(&record, sizeof(AssertRecord), cudaHostAllocMapped), "cudaHostAlloc");
    context->record_ = new (record) AssertRecord;
    void* record_on_device = nullptr;
    check(cudaHostGetDevicePointer(&record_on_device, record, 0), "cudaHostGetDevicePointer");
    context->record_on_device_ = static_cast<AssertRecord*>(record_on_device);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    check(cudaMemPoolCreate(&context->pool_, &properties), "cudaMemPoolCreate");
    auto keep_all = std::numeric_limits<std::uint64_t>::max();  // what is freed serves again
    check(cudaMemPoolSetAttribute(context->pool_, cudaMemPoolAttrReleaseThreshold, &keep_all),
          "cudaMemPoolSetAttribute");
    const Cublas& blas = Cublas::library();
    check(blas.create(&context->blas_), "cublasCreate");
    check(blas.set_stream(context->blas_, context->stream_), "cublasSetStream");
    // Partial sums of a bfloat16 product stay in fp32, so that it is rounded once.
    check(blas.set_math_mode(
              context->blas_,
              cublasMath_t(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
          "cublasSetMathMode");
    return context;
  });
}

CudaContext::~CudaContext() {
  if (blas_ != nullptr) Cublas::library().destroy(blas_);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  staging_.reset();
  free_kept_blocks();
  for (const auto& [bytes, data] : constants_) cudaFreeAsync(data, stream_);
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  for (const cudaStream_t stream : {stream_, side_stream_})
    if (stream != nullptr) cudaStreamDestroy(stream);
  if (record_ != nullptr) cudaFreeHost(record_);
}

std::shared_ptr<void> CudaContext::allocate_bytes(std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (is_capturing()) return recording_->memory->piece(bytes);
  if (for_initcheck_) return allocate_on(stream(), bytes);
  const std::int64_t size = block_size(bytes);
  std::vector<void*>& kept = kept_blocks_[size];
  if (kept.empty()) return allocate_on(stream(), size);
  void* const data = kept.back();
  kept.pop_back();
  return owned(data, size);
}

std::shared_ptr<void> CudaContext::allocate_on(cudaStream_t stream, std::int64_t bytes) {
  void* data = nullptr;
  const auto ask = [&] {
    return cudaMallocFromPoolAsync(&data, std::size_t(bytes), pool_, stream);
  };
  cudaError_t status = ask();
  if (status == cudaErrorMemoryAllocation && !is_capturing()) {  // which must not wait
    cudaGetLastError();                                          // not sticky
    free_kept_blocks();
    check(cudaStreamSynchronize(stream_), "waiting for the GPU");
    status = ask();
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw DeviceError(text(name_, ": out of memory: ", bytes, " bytes asked for, ", free,
                           " bytes free of ", total));
  }
  check(status, "cudaMallocFromPoolAsync");
  return owned(data, bytes);
}

std::shared_ptr<void> CudaContext::owned(void* data, std::int64_t bytes) {
  return {data,
          [context = shared_from_this(), bytes](void* memory) { context->release(memory, bytes); }};
}

void CudaContext::release(void* memory, std::int64_t bytes) {
  if (is_capturing())
    released_.emplace_back(memory, bytes);  // freeing it is no part of the step
  else if (for_initcheck_)
    cudaFreeAsync(memory, stream_);  // fails only after a device-side assert
  else
    kept_blocks_[bytes].push_back(memory);
}

void CudaContext::free_kept_blocks() {
  for (auto& [bytes, blocks] : kept_blocks_) {
    for (void* const block : blocks) cudaFreeAsync(block, stream_);
    blocks.clear();
  }
}

const void* CudaContext::constant_bytes(const std::string& bytes) {
  void*& data = constants_[bytes];
  if (data == nullptr && !bytes.empty()) {
    check(cudaMallocFromPoolAsync(&data, bytes.size(), pool_, side_stream_),
          "cudaMallocFromPoolAsync");
    check(cudaMemcpyAsync(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, side_stream_),
          "copy to the GPU");
    check(cudaStreamSynchronize(side_stream_), "cudaStreamSynchronize");
  }
  return data;
}

void CudaContext::require_no_capture(const char* what) const {
  if (is_capturing())
    throw DeviceError(text("a step that is captured as a CUDA graph needs ", what));
}

void CudaContext::require_captured(const Batch& batch) const {
  if (is_capturing() && &batch != recording_->batch && batch != *recording_->batch)
    throw DeviceError(
        "a pass over another batch than the one that is captured: no replay could tell "
        "what becomes of it");
}

void CudaContext::require_fits(std::size_t bytes, std::size_t capacity) {
  if (bytes > capacity)
    throw DeviceError(
        text("replay: an input of ", bytes, " bytes, but the step was captured with ", capacity));
}

std::unique_ptr<StepRecording> CudaContext::new_recording() {
  return std::make_unique<StepRecording>(
      std::make_shared<StepMemory>([context = shared_from_this()](std::int64_t bytes) {
        auto data = context->allocate_on(context->side_stream_, bytes);
        check(cudaStreamSynchronize(context->side_stream_), "cudaStreamSynchronize");
        return data;
      }));
}

/// Relaxed: the capture is of one stream, and what is allocated and copied meanwhile is on another.
cudaGraph_t CudaContext::capture(StepRecording& recording, const Batch& batch,
                                 const std::function<void()>& body) {
  require_no_capture("another capture");
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  NotesBefore notes;
  recording_ = &recording;
  recording.batch = &batch;
  notes_before_ = &notes;
  cudaGraph_t graph = nullptr;
  const auto end = [&] {
    recording_ = nullptr;
    recording.batch = nullptr;
    notes_before_ = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    notes.restore();
    for (const auto& [memory, bytes] : released_) release(memory, bytes);
    released_.clear();
    return status;
  };
  try {
    body();
  } catch (...) {
    end();
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // of a capture that was cut short
    throw;
  }
  check(end(), "cudaStreamEndCapture");
  return graph;
}

void CudaContext::replay(StepRecording& recording, cudaGraphExec_t graph, const Batch& batch) {
  require_no_capture("a replay of another");
  NotesBefore notes;
  notes_before_ = &notes;
  try {
    recording.inputs.update(batch, stream());
    check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
  } catch (...) {
    notes_before_ = nullptr;
    notes.restore();
    throw;
  }
  notes_before_ = nullptr;
}

/// cuBLAS is column-major: it sees w as [in, out], x as [in, rows], y as [out, rows].
template <class T>
void CudaContext::gemm(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t out,
                       std::int64_t in) const {
  if (rows == 0 || out == 0) return;
  if (std::max({rows, out, in}) > std::numeric_limits<int>::max())
    throw ShapeError(text("gemm: [", rows, ", ", in, "] times [", out, ", ", in,
                          "]: over the 2^31 rows of cuBLAS"));
  constexpr bool is_float = std::is_same_v<T, float>;
  constexpr cudaDataType type = is_float ? CUDA_R_32F : CUDA_R_16BF;
  const float one = 1, zero = 0;
  stream();  // cuBLAS works on the current GPU
  // It stores with the copy engine.
  if (for_initcheck_) set_zero(y, rows * out * std::int64_t(sizeof(T)));
  check(Cublas::library().gemm_ex(
            blas_, CUBLAS_OP_T, CUBLAS_OP_N, int(out), int(rows), int(in), &one, w, type, int(in),
            x, type, int(in), &zero, y, type, int(out),
            is_float ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}
template void CudaContext::gemm(float*, const float*, const float*, std::int64_t, std::int64_t,
                                std::int64_t) const;
template void CudaContext::gemm(__nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*,
                                std::int64_t, std::int64_t, std::int64_t) const;

}  // namespace tokenview
