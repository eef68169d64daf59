// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_context.hpp"

#include <cuda_bf16.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "device/device_info.hpp"
#include "device/kernels.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

std::shared_ptr<CudaContext> CudaContext::create(int device) {
  std::string reason;
  const auto found = devices(reason);
  if (found.empty()) throw DeviceError(text("no GPU: ", reason));
  if (device < 0 || device >= int(found.size()))
    throw DeviceError(text("no GPU ", device, ": this machine has ", found.size()));
  const DeviceInfo& info = found[std::size_t(device)];

  std::shared_ptr<CudaContext> context(new CudaContext);
  context->name_ = text("GPU ", device, " (", info.name, ")");
  return in_scope(context->name_, [&] {
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaFree(nullptr), "starting CUDA");  // an exclusive GPU in use is refused here
    if (!kernels::are_built_for_this_gpu())
      throw DeviceError(text("compute capability ", info.compute_major, ".", info.compute_minor,
                             " is not among those that this build has kernels for"));
    check(cudaStreamCreateWithFlags(&context->stream_, cudaStreamNonBlocking), "cudaStreamCreate");
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
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

std::shared_ptr<void> CudaContext::allocate_bytes(std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMallocFromPoolAsync(&data, std::size_t(bytes), pool_, stream_);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw DeviceError(text(name_, ": out of memory: ", bytes, " bytes asked for, ", free,
                           " bytes free of ", total));
  }
  check(status, "cudaMallocFromPoolAsync");
  return {data, [context = shared_from_this()](void* memory) {
            cudaFreeAsync(memory, context->stream_);  // fails only after a device-side assert
          }};
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
